#!/usr/bin/env bash
# Direct mode makes no system call per packet, neither in the program nor in the card: as many for ten times the packets.
# alone: it counts the system calls of programs that poll, which must not be kept from their cores
. "$(dirname "$0")/../lib.sh"
needs strace python3
strace -c -o "$scratch/probe" true 2>/dev/null || skip "strace may not trace here"

# calls FILE: system calls in a summary of strace. The card's main thread looks every 50 ms whether it is to end, which
# depends on time and not on packets; its worker, which polls, has no reason to sleep.
calls() {
    awk '$NF == "total" { total = $(NF - 2) == "total" ? 0 : $4 - 0; if (total == 0) total = $3 }
        $NF == "clock_nanosleep" { naps = $4 } END { print total - naps }' "$1"
}

# measure ENGINE COUNT: prints system calls of the program and of the card.
measure() {
    local socket=$scratch/$1-$2.sock
    background "card-$1-$2" strace -f -c -o "$scratch/card-$1-$2.strace" \
        "$millrace" card --json --listen "$socket" --poll --engine "$1"
    local tracer=$started
    await 20 test -S "$socket" || fail "the card does not listen"
    strace -f -c -o "$scratch/program-$1-$2.strace" "$millrace" loopback-hw --device "unix:$socket" --poll \
        --mode direct --engine "$1" --size 64-1500 --count "$2" --json >"$scratch/loopback.out" 2>"$scratch/loopback.log"
    [ "$(field frames <"$scratch/loopback.out")" -ge "$2" ] || fail "not all packets came back"
    # strace hands the signal on to nobody: the card is its child.
    kill -TERM "$(cat "/proc/$tracer/task/$tracer/children")"
    ended "$tracer" 10
    echo "$(calls "$scratch/program-$1-$2.strace") $(calls "$scratch/card-$1-$2.strace")"
}

for engine in sze medusa calypte dd; do
    few=20000
    many=200000
    read -r program_few card_few < <(measure $engine $few)
    read -r program_many card_many < <(measure $engine $many)
    echo "$engine: $few packets: program $program_few, card $card_few system calls;" \
        "$many packets: program $program_many, card $card_many"
    # Threads start and end a little differently each time, by dozens of calls on a busy machine; a call for each burst of 64
    # would be 2,800.
    for pair in "$program_few $program_many" "$card_few $card_many"; do
        read -r before after <<<"$pair"
        [ "$before" -gt 10 ] || fail "strace counted nothing"
        [ "$after" -le $((before + 400)) ] || fail "system calls grow with packets"
    done
done
