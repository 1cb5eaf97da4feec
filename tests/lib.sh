# shellcheck shell=bash
# What all cases share. A case is a script in tests/cases that begins with `. "$(dirname "$0")/../lib.sh"`, has $scratch
# for its files, and leaves nothing behind: processes started with `background` and `start_card` end with it.
#
# Exit codes: 0 passed, 77 could not be done here (`skip` says why), anything else failed.
set -euo pipefail

tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$tests/.." && pwd)
millrace=${MILLRACE:-${CARGO_TARGET_DIR:-$root/target}/release/millrace}
captures=${MILLRACE_CAPTURES:-$root/../shared/data/captures}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-test.XXXXXX")
pids=()
unset MILLRACE_DEVICE
# Not the card that somebody happens to run on this machine, and nothing that stays.
export MILLRACE_SOCKET=$scratch/usual.sock XDG_STATE_HOME=$scratch/state

cleanup() {
    local code=$? pid
    trap - EXIT
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${pids[@]}"; do
        # A process that does not end when asked is a bug that must not become ours.
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then
        for log in "$scratch"/*.log; do
            [ -s "$log" ] && { echo "-- $(basename "$log")"; tail -n 20 "$log"; }
        done
    fi
    rm -rf "$scratch"
    exit "$code"
}
trap cleanup EXIT

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "failed: $*"
    exit 1
}

# needs COMMAND...: skips the case without them.
needs() {
    local command
    PATH=$PATH:/usr/sbin:/sbin
    for command in "$@"; do
        command -v "$command" >/dev/null || skip "$command is not installed"
    done
}

is_root() {
    [ "$(id -u)" -eq 0 ]
}

# private_network "$@": the rest of the case has a network namespace of its own, in which it may make interfaces.
private_network() {
    needs ip unshare
    [ "${1:-}" != inside ] || return 0
    is_root || skip "making an interface takes root"
    unshare -n true 2>/dev/null || skip "a network namespace cannot be made here"
    export MILLRACE=$millrace
    # Not exec: the scratch folder of this shell has to go.
    local code=0
    unshare -n bash "$0" inside || code=$?
    exit "$code"
}

# background NAME COMMAND...: runs it with its output in $scratch/NAME.out and .log; its process id is in $started.
background() {
    local name=$1
    shift
    "$@" </dev/null >"$scratch/$name.out" 2>"$scratch/$name.log" &
    started=$!
    pids+=("$started")
}

# How much longer than by itself something may take beside other cases, on a busy machine.
patience=4

# await SECONDS COMMAND...: until the command succeeds. So many seconds are more than it takes by itself.
await() {
    local seconds=$(($1 * patience)) end
    shift
    end=$(($(date +%s%N) + seconds * 1000000000))
    until "$@"; do
        [ "$(date +%s%N)" -lt "$end" ] || return 1
        sleep 0.01
    done
}

# start_card OPTION...: a card process; its process id is in $card, its name in $device and for all commands.
start_card() {
    local socket
    socket=$scratch/card$((${#pids[@]} + 1)).sock
    background "card$((${#pids[@]} + 1))" "$millrace" card --json --listen "$socket" "$@"
    card=$started
    await 10 test -S "$socket" || fail "the card does not listen"
    device=unix:$socket
    export MILLRACE_DEVICE=$device
}

# on_pools COUNT: whether so many ports of the card work on memory of programs.
on_pools() {
    "$millrace" stats --json | python3 -c '
import json, sys
ports = json.load(sys.stdin)["ports"]
sys.exit(sum(port["mode"].endswith("in memory of the application") for port in ports) != int(sys.argv[1]))' "$1"
}

# shown DOCUMENT HEADING: the commands under that heading of the document, one in a line.
shown() {
    awk -v heading="$2" '/^#+ / { here = $0 ~ "^#+ " heading "$"; next }
        here && /^```/ { fenced = !fenced; next }
        here && (fenced || /^    /) { sub(/^    /, ""); if (sub(/ *\\$/, " ")) printf "%s", $0; else print }' "$root/$1"
}

# follow COMMANDS: does what a reader of them does: starts what ends in `&`, or `& sleep 1`, waits for a card to listen, and repeats any
# other until it succeeds. Files in /tmp become ours; what was started ends with the case.
follow() {
    local line
    mkdir -p "$scratch/bin"
    ln -sf "$millrace" "$scratch/bin/millrace"
    PATH=$scratch/bin:$PATH
    while read -r line; do
        line=${line//\/tmp\//$scratch\/}
        # Without the comment behind it.
        line=$(sed -E 's/ *# .*//; s/& sleep [0-9]+$/\&/' <<<"$line")
        case $line in
        *'&')
            # shellcheck disable=SC2086
            background followed${#pids[@]} ${line%&}
            [[ ! $line =~ --listen\ (/[^ ]+) ]] || await 10 test -S "${BASH_REMATCH[1]}" || fail "no card: $line"
            ;;
        *) await 30 eval "$line" >"$scratch/followed.out" 2>"$scratch/followed.log" || fail "$line" ;;
        esac
    done <<<"$1"
}

# ended PID SECONDS: waits for a process of ours to end; its exit code is in $code.
ended() {
    await "$2" is_gone "$1" || fail "process $1 has not ended after $(($2 * patience)) s"
    code=0
    # Without the shell's own remark about how it ended.
    { wait "$1"; } 2>/dev/null || code=$?
}

is_gone() {
    # In braces, because the process may end between the two looks.
    ! kill -0 "$1" 2>/dev/null || [ "$({ cut -d' ' -f3 <"/proc/$1/stat"; } 2>/dev/null || echo Z)" = Z ]
}

# slay PID: kills it, as a crash would.
slay() {
    kill -KILL "$1"
    { wait "$1"; } 2>/dev/null || true
}

# field NAME: that field of the last JSON line on standard input.
field() {
    python3 -c 'import json, sys
row = [json.loads(line) for line in sys.stdin if line.strip()][-1]
print(row[sys.argv[1]])' "$1"
}

# Nothing is lost without a count: fails unless offered = passed + dropped for every queue of the card, at rest.
check_counting() {
    "$millrace" stats --json | python3 -c '
import json, sys
for queue in json.load(sys.stdin)["queues"]:
    dropped = sum(drop["count"] for drop in queue["drops"])
    if queue["offered"] != queue["passed"] + dropped:
        sys.exit("failed: the counting equation: %r" % queue)'
}

# install_library: libmillrace in $scratch/usr, as `make install` would leave it, where pkg-config finds it.
install_library() {
    [ -e "${CARGO_TARGET_DIR:-$root/target}/release/libmillrace.so" ] || fail "libmillrace.so has not been built"
    make -s -C "$root" -o build install PREFIX="$scratch/usr"
    export PKG_CONFIG_PATH=$scratch/usr/lib/pkgconfig
}
