#!/usr/bin/env bash
# Several programs read one queue at once, in direct and mediated mode side by side, and each sees every frame in order.
. "$(dirname "$0")/../lib.sh"
needs python3
for engine in sze medusa calypte; do
    start_card --engine $engine
    readers=()
    for number in 1 2 3 4; do
        mode=direct
        [ $number -eq 4 ] && mode=mediated
        background "reader$number" "$millrace" read --share block --mode $mode --check --count 50000 --json
        readers+=("$started")
    done
    joined() {
        [ "$("$millrace" stats --json | python3 -c 'import json, sys
print(max(len(queue["holders"]) for queue in json.load(sys.stdin)["queues"]
    if queue["queue"].startswith("rx") and queue["state"] == "running"))' 2>/dev/null)" = 4 ]
    }
    await 10 joined || fail "not all readers have joined"
    # A queue is held from its opening; give the last one the time to start it.
    sleep 0.3
    "$millrace" generate --count 50000 --json >"$scratch/generate.out" 2>"$scratch/generate.log"
    for number in 1 2 3 4; do
        ended "${readers[number - 1]}" 20
        [ "$code" -eq 0 ] || fail "reader $number on $engine ended with $code"
    done
    check_counting
    echo "$engine: 4 readers, 50000 frames each, none lost"
    kill "$card"
    ended "$card" 5
done
