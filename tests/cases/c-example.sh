#!/usr/bin/env bash
# examples/c, built as its Makefile says against the installed library, shared and static: with a card inside the
# program and one outside, Ctrl-C, and what can go wrong.
. "$(dirname "$0")/../lib.sh"
needs cc make pkg-config
install_library
cp "$root"/examples/c/* "$scratch"
make -s -C "$scratch" all static CFLAGS="-O2 -Wall -Wextra -Werror"
readelf -d "$scratch/loopback" | grep -q 'NEEDED.*libmillrace' || fail "loopback does not use the shared library"
readelf -d "$scratch/loopback-static" | grep -q 'NEEDED.*libmillrace' && fail "loopback-static is not static"

# expect CODE WORDS COMMAND...: the exit code, and words on one of its outputs.
expect() {
    local wanted=$1 words=$2 code=0
    shift 2
    "$@" >"$scratch/run.out" 2>"$scratch/run.log" || code=$?
    [ "$code" -eq "$wanted" ] || fail "$* ended with $code instead of $wanted: $(cat "$scratch/run.out")"
    grep -qF -- "$words" "$scratch/run.out" "$scratch/run.log" ||
        fail "$* does not say: $words; but: $(cat "$scratch/run.out" "$scratch/run.log")"
}

whole="300000 sent, 300000 received, 0 damaged, 0 lost"
for program in "$scratch/loopback" "$scratch/loopback-static"; do
    expect 0 "$whole" "$program" -n 300000
    expect 0 "$whole" "$program" -d embedded:engine=sze,rx=2,tx=2 -q 1 -n 300000 -s 1500
    expect 0 "$whole" "$program" -d embedded:engine=dd,rx=2,tx=2 -q 1 -n 300000 -s 1500
    start_card --queues 2
    # By the name in MILLRACE_DEVICE, then by ours.
    expect 0 "$whole" "$program" -n 300000
    unset MILLRACE_DEVICE
    expect 0 "$whole" "$program" -d "$device" -q 1 -n 300000 -s 65

    background holder "$program" -d "$device" -n 100000000000
    holder=$started
    held() {
        "$millrace" info --device "$device" --json | grep '"rx0"' | grep -qw "$holder"
    }
    await 10 held || fail "the queue was not opened"
    expect 1 "loopback: cannot start the RX queue: " "$program" -d "$device" -n 1
    grep -qw "$holder" "$scratch/run.log" || fail "it does not say who has the queue: $(cat "$scratch/run.log")"
    kill -INT "$holder"
    ended "$holder" 3
    [ "$code" -eq 130 ] || fail "Ctrl-C ended it with $code"
    grep -q ' 0 damaged, 0 lost$' "$scratch/holder.out" || fail "after Ctrl-C: $(cat "$scratch/holder.out")"
    MILLRACE_DEVICE=$device check_counting
    kill "$card"
    ended "$card" 5
done

background inside "$scratch/loopback" -d embedded -n 100000000000
sleep 0.5
kill -INT "$started"
ended "$started" 3
[ "$code" -eq 130 ] || fail "Ctrl-C with a card inside ended it with $code"
grep -q ' 0 damaged, 0 lost$' "$scratch/inside.out" || fail "after Ctrl-C: $(cat "$scratch/inside.out")"

expect 0 "usage: loopback" "$scratch/loopback" -h
expect 2 "usage: loopback" "$scratch/loopback" -n 0
expect 2 "usage: loopback" "$scratch/loopback" -s 7
expect 2 "usage: loopback" "$scratch/loopback" -x
expect 2 "usage: loopback" "$scratch/loopback" more
expect 1 "loopback: cannot open the card: " "$scratch/loopback" -d nonsense
expect 1 "no card listens on $scratch/nobody" "$scratch/loopback" -d "unix:$scratch/nobody"
expect 1 "loopback: cannot start the RX queue: " "$scratch/loopback" -d embedded -q 7
expect 1 "59 bytes: this card has packets of 60 to " "$scratch/loopback" -d embedded -s 59
expect 1 "does this card loop back?" "$scratch/loopback" -d embedded:port=null -n 10
