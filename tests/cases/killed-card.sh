#!/usr/bin/env bash
# A card that dies leaves its programs with an error at the next call, not with a hang.
. "$(dirname "$0")/../lib.sh"
needs python3
for mode in direct mediated; do
    for work in "read" "loopback-hw --count 1G" "generate"; do
        start_card
        # shellcheck disable=SC2086
        background program "$millrace" $work --mode $mode --json
        program=$started
        running() {
            "$millrace" stats --json | grep -q '"state":"running"'
        }
        await 10 running || fail "$work in $mode mode does not run"
        slay "$card"
        ended "$program" 3
        [ "$code" -eq 1 ] || fail "$work in $mode mode ended with $code"
        grep -q . "$scratch/program.log" || fail "$work in $mode mode does not say why it ended"
        echo "$work, $mode: $(tail -n 1 "$scratch/program.log")"
    done
done
