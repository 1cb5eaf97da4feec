#!/usr/bin/env bash
# The card is killed under verbs programs, at any moment: those that need it end with errors, soon, whether they poll or sleep; those that
# reach each other on this host go on to their end.
# alone: its programs poll, and kills are about how soon
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs ibv_rc_pingpong ibv_ud_pingpong ib_write_bw ib_send_bw ibv_asyncwatch
RANDOM=${VERBS_SEED:-1}
slowest=0

# launch OPTIONS COMMAND...: both ends of it, on the card; their process ids are in $one and $other.
launch() {
    local options=$1 port=$((26000 + RANDOM % 3000))
    shift
    background one env MILLRACE_VERBS="$device $options tx=0 rx=1" LD_LIBRARY_PATH="$verbs_library" timeout 60 "$@" -p $port
    one=$started
    await 30 listens $port "$one" || fail "$*: the server does not listen: $(cat "$scratch/one.log")"
    background other env MILLRACE_VERBS="$device $options tx=1 rx=0" LD_LIBRARY_PATH="$verbs_library" timeout 60 "$@" -p $port localhost
    other=$started
    sleep "0.$((RANDOM % 6 + 3))$((RANDOM % 10))"
    kill -0 "$one" && kill -0 "$other" || fail "$*: it has ended before the card was killed: $(tail -n 3 "$scratch"/{one,other}.{out,log})"
}

# fails PROCESS NAME: it ends because of an error, in time.
fails() {
    local begin took
    begin=$(date +%s%N)
    ended "$1" 10
    took=$((($(date +%s%N) - begin) / 1000000))
    [ "$code" -ne 0 ] && [ "$code" -lt 124 ] || fail "$2 has ended with $code: $(tail -n 3 "$scratch/$2".{out,log})"
    grep -q "have failed" "$scratch/$2.log" || fail "$2 says nothing of the card: $(tail -n 3 "$scratch/$2".{out,log})"
    [ "$took" -le "$slowest" ] || slowest=$took
}

# killed OPTIONS COMMAND...: the card is killed under both ends, which fail.
killed() {
    start_card --queues 2
    launch "$@"
    slay "$card"
    fails "$one" one
    fails "$other" other
    echo "failed as it should: ${*:2} (${1:-local})"
}

killed local=off ibv_rc_pingpong -g 0 -n 100000000
killed local=off ibv_rc_pingpong -g 0 -n 100000000 -e
killed local=off ibv_uc_pingpong -g 0 -n 100000000
killed local=off ibv_ud_pingpong -g 0 -n 100000000 -e
killed "" ibv_ud_pingpong -g 0 -n 100000000
# Buffers of a shared receive queue are not flushed: an end that has sent all, and waits for a message, is told by an event only.
start_card --queues 2
launch local=off ibv_srq_pingpong -g 0 -n 100000000
slay "$card"
one_ends() {
    is_gone "$one" || is_gone "$other"
}
says_so() {
    grep -q "have failed" "$scratch/one.log" && grep -q "have failed" "$scratch/other.log"
}
await 10 one_ends || fail "neither end of ibv_srq_pingpong has ended"
await 10 says_so || fail "ibv_srq_pingpong says nothing of the card: $(tail -n 3 "$scratch"/{one,other}.log)"
# By their timeouts, which take them along.
kill "$one" "$other" 2>/dev/null || true

killed local=off ib_write_bw -q 8 -b -D 60 -s 8192
killed local=off ib_send_bw -q 4 -n 50000000 -s 4096 -e

# What the program is told, and that a program which waits for nothing is told as well.
start_card --queues 2
background watch env MILLRACE_VERBS="$device" LD_LIBRARY_PATH="$verbs_library" timeout 60 ibv_asyncwatch -d millrace0
watch=$started
await 10 grep -q "waiting\|async event FD" "$scratch/watch.out" || fail "ibv_asyncwatch: $(cat "$scratch"/watch.{out,log})"
slay "$card"
await 10 grep -qi "event_type.*8)\|fatal\|catastrophic" "$scratch/watch.out" || fail "no event: $(cat "$scratch"/watch.{out,log})"
kill "$watch"
ended "$watch" 5

# Who has met the other one needs no card any more, and ends as it should.
for count in "400000" "150000 -e"; do
    start_card --queues 2
    # shellcheck disable=SC2086
    launch "" ibv_rc_pingpong -g 0 -c -n $count
    slay "$card"
    for end in one other; do
        ended "${!end}" 60
        [ "$code" -eq 0 ] || fail "$end has ended with $code, although it needs no card: $(tail -n 3 "$scratch/$end".{out,log})"
    done
done
echo "the card killed: what needs it has ended after at most $slowest ms, what does not has gone on"
