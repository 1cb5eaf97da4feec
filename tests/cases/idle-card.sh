#!/usr/bin/env bash
# A card with nothing to do uses under 1 % of a core, whether its queues are open or not, and 16 open Medusa pairs of
# 1024 buffers of 2 KiB keep it under 100 MiB.
# alone: it measures what an idle card costs
. "$(dirname "$0")/../lib.sh"
needs python3

# cpu_ns PID: time on a core of all its threads.
cpu_ns() {
    cat "/proc/$1"/task/*/schedstat | awk '{ sum += $1 } END { printf "%d\n", sum }'
}

# check_idle WHAT PID: over two seconds.
check_idle() {
    local before after share
    sleep 0.5
    before=$(cpu_ns "$2")
    sleep 2
    after=$(cpu_ns "$2")
    share=$(awk "BEGIN { printf \"%.3f\", ($after - $before) / 2e7 }")
    echo "$1: $share % of a core"
    awk "BEGIN { exit !($share < 1.0) }" || fail "$1 uses $share % of a core"
}

start_card --queues 16 --buffers 1024 --buffer 2048
[ -r "/proc/$card/task/$card/schedstat" ] || skip "this kernel has no schedstat"
check_idle "a card that nobody uses" "$card"
background reader "$millrace" loopback --queue 0-15
reader=$started
running() {
    [ "$("$millrace" stats --json | grep -o '"state":"running"' | wc -l)" -eq 32 ]
}
await 20 running || fail "the queues do not run"
check_idle "a card with 16 pairs that are open" "$card"
kib=$(awk '/^VmRSS:/ { print $2 }' "/proc/$card/status")
echo "resident: $((kib / 1024)) MiB"
[ "$kib" -lt $((100 * 1024)) ] || fail "the card has $((kib / 1024)) MiB resident"
kill -INT "$reader"
ended "$reader" 5
