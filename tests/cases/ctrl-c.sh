#!/usr/bin/env bash
# Ctrl-C in a long run: the statistics so far, within a second, and exit code 130 when the goal was not reached.
# alone: it is about how soon a command ends
. "$(dirname "$0")/../lib.sh"
needs python3

# interrupt NAME CODE COMMAND...
interrupt() {
    local name=$1 wanted=$2
    shift 2
    background "$name" "$@"
    sleep 0.7
    is_gone "$started" && fail "$name ended by itself"
    kill -INT "$started"
    ended "$started" 3
    [ "$code" -eq "$wanted" ] || fail "$name ended with $code instead of $wanted"
    [ "$(field frames <"$scratch/$name.out")" -gt 0 ] || fail "$name shows no frames"
    echo "$name: $(cat "$scratch/$name.out")"
}

interrupt loopback-hw 130 "$millrace" loopback-hw --count 1G --json
[ "$(field lost <"$scratch/loopback-hw.out") $(field corrupt <"$scratch/loopback-hw.out")" = "0 0" ] ||
    fail "frames were lost"
interrupt generate 0 "$millrace" generate --device embedded:port=null --json
interrupt read 0 "$millrace" read --device embedded:port=generator --check --json
interrupt receive 0 "$millrace" receive "$scratch/out.pcap" --device embedded:port=generator:rate=10k --json
(cd "$tests" && python3 -c '
import sys
import frames
sys.exit(0 if frames.is_whole(sys.argv[1]) and len(frames.read(sys.argv[1])) == int(sys.argv[2]) else
    "failed: the capture is not what was counted")' "$scratch/out.pcap" "$(field frames <"$scratch/receive.out")")

start_card
kill -INT "$card"
ended "$card" 3
[ "$code" -eq 0 ] || fail "the card ended with $code"
[ ! -e "${device#unix:}" ] || fail "the card has left its socket behind"
