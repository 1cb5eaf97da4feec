#!/usr/bin/env bash
# Runs the cases: tests/run.sh [--results FILE] [CASE[:VARIANT]...], all of tests/cases by default. Fails if one does.
# A case with a line `# variants: ...` runs once for each of them, with its name as the argument.
# In FILE it leaves how many passed, failed and were skipped.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=/dev/null
if [ "${1:-}" = --results ]; then
    results=$2
    shift 2
fi
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=("$here"/cases/*.sh)
passed=0 failed=0 skipped=0

# run CASE [VARIANT]: runs one, prints what became of it, and counts it.
run() {
    local case=$1 name code output start took word
    name=$(basename "$case" .sh)${2:+:$2}
    start=$(date +%s%N)
    output=$(timeout -k 10 "${CASE_SECONDS:-300}" bash "$@" 2>&1 </dev/null)
    code=$?
    took=$(awk "BEGIN { printf \"%.1f\", ($(date +%s%N) - $start) / 1e9 }")
    case $code in
    0) passed=$((passed + 1)) word=passed ;;
    77 | 125) skipped=$((skipped + 1)) word=skipped ;;
    124 | 137) failed=$((failed + 1)) word="FAILED (took too long)" ;;
    *) failed=$((failed + 1)) word="FAILED ($code)" ;;
    esac
    printf '%-24s %5s s  %s\n' "$name" "$took" "$word"
    [ -z "$output" ] || printf '%s\n' "$output" | sed '/^skipped: /! s/^/    /'
}

for word in "${cases[@]}"; do
    case=${word%%:*} variants=
    [[ $word != *:* ]] || variants=${word#*:}
    [ -e "$case" ] || case=$here/cases/$case.sh
    [ -n "$variants" ] || variants=$(sed -n 's/^# variants: //p' "$case" 2>/dev/null)
    if [ -z "$variants" ]; then
        run "$case"
    else
        for variant in $variants; do run "$case" "$variant"; done
    fi
done
echo "$passed $failed $skipped" >"$results"
[ "$failed" -eq 0 ]
