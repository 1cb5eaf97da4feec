#!/usr/bin/env bash
# What users of NFB programs are told when something cannot be: one line that says who, how many and what to do.
. "$(dirname "$0")/../lib.sh"
. "$tests/nfb.sh"
needs python3

# check NAME TEST...: runs tests of the loader; what is said is in $said.
said=$scratch/said.out
check() {
    "$scratch/checks" "$library" "$@" >"$scratch/checks.out" 2>"$said"
}

# says COUNT PATTERN: whether so many lines say that.
says() {
    [ "$(grep -c -- "$2" "$said")" = "$1" ] || fail "not $1 x '$2': $(cat "$said")"
}

# Frames too long for the queue are dropped, counted, and said once: what the limit is depends on what sets it.
start_card --queues 2
check "$device" long-frames || fail "$(cat "$said")"
says 1 'a frame of 20000 bytes: tx1 takes at most 2048; .*--buffer'
says 1 'dropped, and counted as `too-long`'
"$millrace" stats --json | python3 -c '
import json, sys
tx1 = next(queue for queue in json.load(sys.stdin)["queues"] if queue["queue"] == "tx1")
assert tx1["drops"] == [{"reason": "too-long", "count": 20}], tx1
assert (tx1["offered"], tx1["passed"]) == (160, 140), tx1' || fail "the count of frames that are too long"
check_counting

# Frames as long as no frame is; more packets than a burst has.
check "$device" shared-bursts || fail "$(cat "$said")"
says 1 'tx0: a frame of 1048576 bytes: .*longer than 262144 bytes'
says 1 'tx0: .*1025'

# What lay beside the ring when the card took nothing any more.
check "$device" several-gets || fail "$(cat "$said")"
says 1 'tx1: stopped although the card takes nothing; [1-9][0-9]* frames that lay beside the ring are lost'

# Nobody is told to end the program itself.
check "$device" locks || fail "$(cat "$said")"
says 0 'is locked by'

# One reader too many.
check "$device" crowd || fail "$(cat "$said")"
says 1 'rx0 is open 16 times already'

# Somebody has the queue and the lock.
background holder "$scratch/checks" "$library" "$device" hold
await 10 grep -q holding "$scratch/holder.out" || fail "no holder"
check "$device" is-held || fail "$(cat "$said")"
says 1 "rx0 is held exclusively by process $started"
says 1 "tx0 is held exclusively by process $started"
says 1 "tsu is locked by process $started"
slay "$started"

# Fewer files than a queue takes.
short=0
for files in $(seq 6 24); do
    (ulimit -n "$files" && check "$device" shared-bursts) || true
    ! grep -q 'cut off' "$said" || fail "$files files: $(cat "$said")"
    ! grep -q 'RLIMIT_NOFILE.*ulimit -n' "$said" || short=$((short + 1))
done
[ "$short" -ge 2 ] || fail "no word about RLIMIT_NOFILE"

start_card --queues 2 --frame-max 1000 --engine calypte
check "$device" long-frames || fail "$(cat "$said")"
says 1 'tx1 takes at most 1000; .*--frame-max'

# A card that accepts a connection and never answers.
background mute python3 -c '
import socket, sys, time
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
kept = [listener.accept() for _ in range(2)]' "$scratch/mute.sock"
await 10 test -S "$scratch/mute.sock" || fail "nobody listens"
check "unix:$scratch/mute.sock" registers && fail "a mute card answers"
says 1 "mute.sock: waiting for the card to answer"
says 1 'has not answered for 10 s'
