#!/usr/bin/env bash
# Programs that connect by addresses and ports (librdmacm) over the engine in the card, which have one address: payloads arrive at the right
# ones, a port is one program's until that is killed, and nobody speaks for a neighbour. Then between two cards over a wire, and with a
# program that has an engine of its own.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs rping ucmatose udaddy python3 cc
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"
[ -e /usr/include/infiniband/verbs.h ] || skip "there is no infiniband/verbs.h (Debian's package libibverbs-dev)"
cc -std=c11 -D_DEFAULT_SOURCE -O2 -Wall -Wextra -Werror -o "$scratch/forger" "$tests/c/cm-forger.c" -L"$verbs_library" -l:libibverbs.so.1
peer="python3 $tests/cm_peer.py"

# connections NAME: that counter of the engine of the card at $at.
connections() {
    "$millrace" rdma stats --pid "$at" --json | python3 -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if row["part"] == "connections" and row["counter"] == sys.argv[1]:
        print(row["value"])' "$1"
}

# offers COUNT PID: whether programs listen at so many ports, or the process has ended.
offers() {
    [ "$(connections services)" = "$1" ] || is_gone "$2"
}

# serves WHERE COMMAND...: in the background, over ${ends[WHERE]}; it listens when this returns. Its process is $server.
servers=0
serves() {
    local where=${ends[$1]}
    shift
    servers=$((servers + 1))
    background "server$servers" env MILLRACE_VERBS="$where" LD_LIBRARY_PATH="$verbs_library" "$@"
    server=$started
    await 30 listened "$server" || fail "$* does not listen"
    ! is_gone "$server" || fail "$* has ended: $(tail -n 3 "$scratch/server$servers".*)"
}

# calls WHERE COMMAND...: its server and it end well.
calls() {
    local code_of_client=0 where=${ends[$1]}
    shift
    MILLRACE_VERBS=$where ours timeout 120 "$@" >"$scratch/client.out" 2>"$scratch/client.log" || code_of_client=$?
    [ "$code_of_client" -eq 0 ] || fail "$*: ended with $code_of_client: $(tail -n 3 "$scratch/client.out" "$scratch/client.log")"
    ended "$server" 60
    [ "$code" -eq 0 ] || fail "the server of $* ended with $code: $(tail -n 3 "$scratch/server$servers".*)"
}

# 1. Between programs of one card.
start_card --queues 2 --rdma-cpu
at=$card
ends=("$device place=card" "$device place=card")
address=198.19.255.254
listened() {
    offers 1 "$1"
}
# perftest listens at one port, then at the other.
for work in write read send atomic; do
    serves 0 ib_${work}_bw -R -n 100
    calls 1 ib_${work}_bw -R -n 100 $address
    serves 0 ib_${work}_lat -R -n 50
    calls 1 ib_${work}_lat -R -n 50 $address
done
serves 0 ib_send_lat -R -c UD -n 50
calls 1 ib_send_lat -R -c UD -n 50 $address
echo "perftest -R"
serves 0 rping -s -C 10 -V
calls 1 rping -c -a $address -C 10 -V
serves 0 ucmatose -c 4
calls 1 ucmatose -c 4 -s $address
serves 0 udaddy -c 4
calls 1 udaddy -c 4 -s $address
echo "rping, ucmatose, udaddy"

# 2. Four pairs at once, each at a port of its own: whoever got what is another's would find other bytes.
several=()
for number in 0 1 2 3; do
    background "rping$number" env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" timeout 120 rping -s -C 200 -V -p $((7000 + number)) -S $((100 + number))
    several+=("$started")
done
await 30 offers 4 "${several[3]}" || fail "four do not listen: $(connections services)"
for number in 3 2 1 0; do
    background "ping$number" env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" timeout 120 rping -c -a $address -C 200 -V -p $((7000 + number)) -S $((100 + number))
    several+=("$started")
done
for process in "${several[@]}"; do
    ended "$process" 60
    [ "$code" -eq 0 ] || fail "one of four pairs ended with $code: $(tail -n 3 "$scratch"/*ping*.log)"
done
echo "four pairs at once"

# 3. A port is one program's, until it ends. Nobody is left, and none was believed who spoke for another.
serves 0 rping -s -C 1 -V
first=$server
code=0
MILLRACE_VERBS=${ends[0]} ours timeout 20 rping -s -C 1 >"$scratch/second" 2>&1 || code=$?
[ "$code" -ne 0 ] && grep -qi "address already in use\|error -1\|98" "$scratch/second" || fail "two programs have one port: $code $(cat "$scratch/second")"
! is_gone "$first" || fail "the first one has ended"
slay "$first"
await 10 offers 0 $$ || fail "a program that was killed keeps its port: $(connections services)"
serves 0 rping -s -C 1 -V
calls 1 rping -c -a $address -C 1 -V
code=0
MILLRACE_VERBS=${ends[1]} ours timeout 20 rping -c -a $address -C 1 >"$scratch/nobody" 2>&1 || code=$?
[ "$code" -ne 0 ] && grep -q "REJECTED" "$scratch/nobody" || fail "nobody listens, and it is not refused: $code $(cat "$scratch/nobody")"
for name in forged foreign throttled malformed_length malformed_header; do
    [ "$(connections $name)" = 0 ] || fail "$(connections $name) messages of good programs are $name"
done
# One that is connected is killed, and the next one has its port. (Its other end may wait for a message, and learns nothing, as with hardware.)
serves 0 rping -s -P -p 7100
victim=$server
background survivor env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" rping -c -a $address -p 7100 -V
survivor=$started
sleep 1
! is_gone "$survivor" || fail "the client has ended: $(tail -n 3 "$scratch"/survivor.*)"
slay "$victim"
await 10 offers 0 $$ || fail "a program that was killed while connected keeps its port: $(connections services)"
serves 0 rping -s -C 3 -V -p 7100
calls 1 rping -c -a $address -C 3 -V -p 7100
is_gone "$survivor" || slay "$survivor"
echo "a port is one program's, until it is killed"

# 4. A neighbour that says what is not its own to say, and as much as it can: what it forges is counted, one connection stays up, others are made.
background server env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" $peer serve 7200
victim=$started
await 30 grep -qs listens "$scratch/server.out" || fail "the server does not listen"
background holder env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" $peer call $address 7200 4 --hold "$scratch/enough"
holder=$started
await 30 grep -qs connected "$scratch/holder.out" || fail "the client is not connected: $(tail -n 3 "$scratch"/holder.*)"
sent=$(MILLRACE_VERBS=${ends[1]} ours timeout 60 "$scratch/forger" forge 600) || fail "the forger has ended"
[ "$(connections forged)" = "$sent" ] || fail "$sent messages were forged, and $(connections forged) found"
background flood env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" timeout 120 "$scratch/forger" flood "$scratch/peace"
flood=$started
flooded() {
    [ "$(connections throttled)" -gt 0 ] || is_gone "$flood"
}
await 30 flooded || fail "there is no flood"
MILLRACE_VERBS=${ends[1]} ours timeout 100 $peer call $address 7200 100 >"$scratch/friends.out" || fail "friends do not get through"
serves_in_flood=7300
background server7300 env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" timeout 120 rping -s -C 50 -V -p $serves_in_flood
server=$started
calls 1 rping -c -a $address -C 50 -V -p $serves_in_flood
! is_gone "$flood" || fail "the flood has ended: $(tail -n 3 "$scratch"/flood.*)"
touch "$scratch/peace" "$scratch/enough"
ended "$flood" 30
[ "$code" -eq 0 ] || fail "the flooding program ended with $code: $(tail -n 3 "$scratch"/flood.*)"
ended "$holder" 30
[ "$code" -eq 0 ] || fail "a connection has not lasted: $(tail -n 3 "$scratch"/holder.*)"
MILLRACE_VERBS=${ends[1]} ours $peer call $address 7200 1 --end >/dev/null || fail "the server does not end"
ended "$victim" 30
[ "$code" -eq 0 ] || fail "the server has ended with $code: $(tail -n 3 "$scratch"/server.*)"
tail -n 1 "$scratch/server.out" | python3 -c '
import json, sys
told = json.load(sys.stdin)
wanted = {"called": 106, "established": 105, "disconnected": 105, "strangers": 0}
if told != wanted:
    sys.exit(f"failed: the server was told {told}")'
echo "$sent forged messages are refused; of $(cat "$scratch/flood.out") in a flood $(connections throttled) were too many"
slay "$card"

# 5. Two cards, and the wire between them; several programs of each.
wire=$scratch/wire
background one "$millrace" card --listen "$scratch/one.sock" --rdma-cpu --rdma-ip 192.0.2.1 --rdma-wire "vhost-user:$wire"
one=$started
await 10 test -S "$scratch/one.sock.rdma" || fail "the first card is not there: $(cat "$scratch/one.log")"
background other "$millrace" card --listen "$scratch/other.sock" --rdma-cpu --rdma-ip 192.0.2.2 --rdma-wire "virtio-user:$wire"
other=$started
await 10 test -S "$scratch/other.sock.rdma" || fail "the second card is not there: $(cat "$scratch/other.log")"
ends=("unix:$scratch/one.sock place=card" "unix:$scratch/other.sock place=card")
all_over() {
    serves 0 rping -s -C 20 -V
    calls 1 rping -c -a "$1" -C 20 -V
    serves 0 ucmatose -c 4
    calls 1 ucmatose -c 4 -s "$1"
    serves 0 udaddy -c 4
    calls 1 udaddy -c 4 -s "$1"
    for work in write_bw read_lat send_bw atomic_lat; do
        serves 0 ib_$work -R -n 50
        calls 1 ib_$work -R -n 50 "$1"
    done
    code=0
    MILLRACE_VERBS=${ends[1]} ours timeout 20 rping -c -a "$1" -C 1 >"$scratch/nobody" 2>&1 || code=$?
    [ "$code" -ne 0 ] && grep -q "REJECTED" "$scratch/nobody" || fail "nobody listens, and it is not refused: $code $(cat "$scratch/nobody")"
}
at=$one
all_over 192.0.2.1
at=$other
ends=("${ends[1]}" "${ends[0]}")
all_over 192.0.2.2
ends=("${ends[1]}" "${ends[0]}")
echo "two cards"

# 6. At the other end is a program with an engine of its own.
slay "$other"
ends[1]="port=virtio-user:$wire ip=192.0.2.7"
at=$one
all_over 192.0.2.1
ends=("${ends[1]}" "${ends[0]}")
# It listens as soon as it has the wire, and is called again until then. (rping as a server would at times end with an error on a busy machine: it
# has a thread that asks a channel for events which another one has destroyed.)
listened() {
    sleep 1
}
serves 0 ucmatose -c 4
calls 1 ucmatose -c 4 -s 192.0.2.7
serves 0 ib_send_bw -R -n 50
calls 1 ib_send_bw -R -n 50 192.0.2.7
echo "a card, and a program with an engine of its own"
