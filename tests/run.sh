#!/usr/bin/env bash
# Runs the cases: tests/run.sh [--results FILE] [CASE[:VARIANT]...], all of tests/cases by default. Fails if one does.
# In FILE it leaves how many passed, failed and were skipped.
#
# Cases run beside one another, $CASE_JOBS at a time (default: two for each core, as much of their time is waiting), and are
# printed as they end, and those that failed once more at the end, where a reader looks first. What failed beside others runs once
# more with nothing beside it: if it passes then, that is said at the end, with what it printed when it failed
# (docs/decisions/0121-once-more-alone.md). Lines of a case that say otherwise:
#
#   # variants: NAME...    it runs once for each of them, with its name as the argument
#   # long: WHY            it begins before the others, so that nothing waits for it at the end
#   # waits: WHY           it hardly computes, so half as many of these run besides
#   # alone: WHY           it runs after the others, with nothing beside it
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=/dev/null
if [ "${1:-}" = --results ]; then
    results=$2
    shift 2
fi
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=("$here"/cases/*.sh)
jobs=${CASE_JOBS:-$((2 * $(nproc)))}
outputs=$(mktemp -d "${TMPDIR:-/tmp}/millrace-cases.XXXXXX")
passed=0 failed=0 skipped=0 failures=()
# What failed once and runs again: so many at most, for where more fail, it is not that the machine was busy.
again=() most_again=5 alone_only=()
# Of what runs, by process id.
declare -A names=() starts=() lists=() texts=()

# A process group for each case, in which Ctrl-C means what it means elsewhere: without this, programs in the background
# ignore it.
set -m
end() {
    [ ${#names[@]} -eq 0 ] || kill "${!names[@]}" 2>/dev/null
    wait
    rm -rf "$outputs"
}
trap end EXIT
trap 'exit 130' INT TERM

# said NAME CASE: what stands behind `# NAME: ` in it.
said() {
    sed -n "s/^# $1: //p" "$2" 2>/dev/null
}

# launch CASE [VARIANT]
launch() {
    local name
    name=$(basename "$1" .sh)${2:+:$2}
    MILLRACE_CASE=$name-$$ timeout -k 10 "${CASE_SECONDS:-600}" bash "$@" </dev/null >"$outputs/$name" 2>&1 &
    names[$!]=$name
    starts[$!]=$(date +%s%N)
    texts[$!]="$1 ${2:-}"
}

# left_running NAME: names what a case has left running, which is in the way of the next, and ends it.
left_running() {
    local pid
    for pid in $(grep -lzs "^MILLRACE_CASE=$1-$$\$" /proc/[0-9]*/environ | cut -d / -f 3); do
        echo "left running by $1: $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-300)"
        kill -KILL "$pid" 2>/dev/null
    done
}

# finish: waits until one has ended, prints what became of it, and counts it.
finish() {
    local pid code name took word
    wait -n -p pid "${!names[@]}"
    code=$?
    name=${names[$pid]}
    took=$(awk "BEGIN { printf \"%.1f\", ($(date +%s%N) - ${starts[$pid]}) / 1e9 }")
    unset "names[$pid]"
    case $code in
    0) passed=$((passed + 1)) word=passed ;;
    77 | 125) skipped=$((skipped + 1)) word=skipped ;;
    124 | 137) word="FAILED (took too long)" ;;
    *) word="FAILED ($code)" ;;
    esac
    printf '%-24s %5s s  %s\n' "$name" "$took" "$word"
    sed '/^skipped: /! s/^/    /' "$outputs/$name"
    left_running "$name"
    case $word in
    FAILED*) failure "$pid" "$name" ;;
    *)
        rm "$outputs/$name"
        [ "${lists[$pid]}" != again ] || [ "$code" -ne 0 ] || alone_only+=("$name")
        ;;
    esac
}

# failure PID NAME: it runs once more, or has failed.
failure() {
    if [ "${lists[$1]}" != again ] && [ ${#again[@]} -lt "$most_again" ]; then
        mv "$outputs/$2" "$outputs/$2.first"
        again+=("${texts[$1]}")
    else
        failed=$((failed + 1))
        failures+=("$2")
    fi
}

# run NAME=MOST...: the cases in the arrays of these names, at most so many of each at a time.
run() {
    local name pid words most
    local -A next=() busy=()
    while :; do
        for name; do
            most=${name#*=} name=${name%=*}
            local -n list=$name
            busy[$name]=0
            for pid in "${!names[@]}"; do [ "${lists[$pid]}" != "$name" ] || busy[$name]=$((busy[$name] + 1)); done
            while [ "${busy[$name]}" -lt "$most" ] && [ "${next[$name]:-0}" -lt ${#list[@]} ]; do
                words=${list[${next[$name]:-0}]}
                # shellcheck disable=SC2086
                launch "${words% *}" ${words##* }
                lists[$!]=$name
                busy[$name]=$((busy[$name] + 1)) next[$name]=$((${next[$name]:-0} + 1))
            done
        done
        [ ${#names[@]} -gt 0 ] || break
        finish
    done
}

long=() together=() waiting=() alone=()
for word in "${cases[@]}"; do
    case=${word%%:*} variants=
    [[ $word != *:* ]] || variants=${word#*:}
    [ -e "$case" ] || case=$here/cases/$case.sh
    [ -n "$variants" ] || variants=$(said variants "$case")
    for variant in ${variants:-""}; do
        if [ -n "$(said alone "$case")" ]; then
            alone+=("$case $variant")
        elif [ -n "$(said waits "$case")" ]; then
            waiting+=("$case $variant")
        elif [ -n "$(said long "$case")" ]; then
            long+=("$case $variant")
        else
            together+=("$case $variant")
        fi
    done
done
# shellcheck disable=SC2034
together=("${long[@]}" "${together[@]}")
run together="$jobs" waiting=$(((jobs + 1) / 2))
run alone=1
[ ${#again[@]} -eq 0 ] || echo "once more, with nothing beside: ${again[*]##*/}"
run again=1
for name in "${alone_only[@]}"; do
    echo
    why=$(grep -m 1 '^failed: ' "$outputs/$name.first" || tail -n 1 "$outputs/$name.first")
    echo "passed only when it ran once more: $name; it failed like this: ${why:0:400}"
    tail -n 40 "$outputs/$name.first" | sed 's/^/    /'
done
for name in "${failures[@]}"; do
    echo
    echo "failed: $name"
    tail -n 40 "$outputs/$name" | sed 's/^/    /'
done
echo "$passed $failed $skipped" >"$results"
[ "$failed" -eq 0 ]
