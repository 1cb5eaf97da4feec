#!/usr/bin/env bash
# Somebody on the wire who sends to queue pair 1 of both ends what it likes (tests/cm_hostile.py): each message that is refused is counted
# under its reason; while it floods them, connections are made and ended, one that is up stays up, programs find one another, and memory
# does not grow.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs python3 rping ucmatose rdma_server rdma_client
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"
hostile="python3 $tests/cm_hostile.py"
peer="python3 $tests/cm_peer.py"
port=7471 server_ip=198.18.0.1 client_ip=198.18.0.2
trace=$scratch/wire.pcap

# Two cards and a wire: the second queue of each is the stranger's. The numbers of the first connection are in the trace.
start_card --queues 2 --port "trace:$trace,limit=64,port=(vhost-user:$scratch/wire.sock)"
server_device=$device server_card=$card
start_card --queues 2 --port "virtio-user:$scratch/wire.sock"
client_device=$device
wire_up() {
    [ "$("$millrace" stats --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["ports"][0]["link"])')" = True ]
}
await 10 wire_up || fail "the ports are not connected"
at_server="$server_device ip=$server_ip tx=0 rx=0" at_client="$client_device ip=$client_ip tx=0 rx=0"

# Memory of a process at its largest, in KiB.
peak() {
    awk '/^VmHWM/ { print $2 }' "/proc/$1/status"
}

# traced: whether the numbers of a connection are in the trace already.
traced() {
    $hostile flood "$trace" "$scratch/none.pcap" $client_ip $server_ip $port 1 1 2>/dev/null
}

# attacks WHOM SEED [CALLS]: sends 2000 random frames again and again until $scratch/peace is there.
attacks() {
    local from=$client_ip to=$server_ip at=$client_device round=$2
    [ "$1" = server ] || from=$server_ip to=$client_ip at=$server_device
    until [ -e "$scratch/peace" ]; do
        round=$((round + 2))
        $hostile flood "$trace" "$scratch/attack-$1.pcap" $from $to $port "$round" 2000 ${3:-} || return 1
        "$millrace" -d "$at" transmit "$scratch/attack-$1.pcap" --queue 1 --rate 20k --json || return 1
    done
}

# under_attack [CALLS]: both ends, from now on.
under_attack() {
    rm -f "$scratch/peace"
    background attack-server attacks server 1 "${1:-}"
    attackers=("$started")
    background attack-client attacks client 2 "${1:-}"
    attackers+=("$started")
}

# peace: ends that. At least one round was sent to each, or nothing was tested.
peace() {
    touch "$scratch/peace"
    local attacker
    for attacker in "${attackers[@]}"; do
        ended "$attacker" 60
        [ "$code" -eq 0 ] || fail "an attacker has ended with $code: $(cat "$scratch"/attack-*.log)"
    done
    for attacker in server client; do
        grep -q . "$scratch/attack-$attacker.out" || fail "the $attacker was not attacked"
    done
}

# 1. One connection is up; everything that is refused is counted, and nothing else happens.
background server env MILLRACE_VERBS="$at_server stats=$scratch/exact" LD_LIBRARY_PATH="$verbs_library" $peer serve $port
server=$started
await 20 grep -qs listens "$scratch/server.out" || fail "the server does not listen"
background holder env MILLRACE_VERBS="$at_client" LD_LIBRARY_PATH="$verbs_library" \
    $peer call $server_ip $port 1 --hold "$scratch/enough" --end
holder=$started
await 20 grep -qs connected "$scratch/holder.out" || fail "the client is not connected"
await 20 traced || fail "the connection is not in the trace"
$hostile exact "$trace" "$scratch/exact.pcap" $client_ip $server_ip $port >"$scratch/wanted"
"$millrace" -d "$client_device" transmit "$scratch/exact.pcap" --queue 1 --rate 1k --json >/dev/null
# Strangers without a MAC address are asked for it for three seconds, calls of what is not offered wait for half a second.
sleep 5
touch "$scratch/enough"
ended "$holder" 30
[ "$code" -eq 0 ] || fail "the connection has not lasted: $(cat "$scratch/holder.out")"
ended "$server" 30
[ "$code" -eq 0 ] || fail "the server has ended with $code"
python3 - "$scratch/wanted" "$scratch/exact.cm" "$scratch/server.out" <<'END' || exit 1
import json, sys
wanted = json.load(open(sys.argv[1]))
found = json.load(open(sys.argv[2]))["connections"]
told = json.loads(open(sys.argv[3]).read().splitlines()[-1])
rest = {name: found[name] for name in found if name not in wanted and name not in ("received", "sent")}
wrong = {name: (found[name], count) for name, count in wanted.items() if found[name] != count}
if wrong or any(rest.values()):
    sys.exit(f"failed: counted and wanted differ: {wrong}, and there are {rest}")
if told != {"called": 2, "established": 1, "disconnected": 1, "strangers": 0}:
    sys.exit(f"failed: the server was told {told}")
print(sum(wanted.values()), "messages are refused, and counted by reason")
END

# 2. Under a flood, among it proper calls of strangers: friends get through, one connection stays, memory stays.
background server env MILLRACE_VERBS="$at_server stats=$scratch/flood" LD_LIBRARY_PATH="$verbs_library" $peer serve $port
server=$started
await 20 grep -qs listens "$scratch/server.out" || fail "the server does not listen"
MILLRACE_VERBS=$at_client ours $peer call $server_ip $port 20 >"$scratch/before.out" || fail "friends are refused without a flood"
before=$(peak "$server")
under_attack CALLS
MILLRACE_VERBS=$at_client ours timeout 200 $peer call $server_ip $port 300 --patient >"$scratch/friends.out" ||
    fail "friends do not get through: $(cat "$scratch/friends.out")"
rm -f "$scratch/enough"
background holder env MILLRACE_VERBS="$at_client" LD_LIBRARY_PATH="$verbs_library" \
    $peer call $server_ip $port 4 --hold "$scratch/enough" --patient
holder=$started
await 30 grep -qs connected "$scratch/holder.out" || fail "the client is not connected under a flood"
sleep 3
touch "$scratch/enough"
ended "$holder" 60
[ "$code" -eq 0 ] || fail "connections have not lasted under a flood: $(cat "$scratch/holder.out")"
after=$(peak "$server")
peace
MILLRACE_VERBS=$at_client ours $peer call $server_ip $port 1 --patient --end >/dev/null || fail "the server does not end"
ended "$server" 30
[ "$code" -eq 0 ] || fail "the server has ended with $code"
[ $((after - before)) -lt 32768 ] || fail "the server had $before KiB before the flood, and then $after"
python3 - "$scratch/flood.cm" "$scratch/server.out" <<'END' || exit 1
import json, sys
found = json.load(open(sys.argv[1]))["connections"]
told = json.loads(open(sys.argv[2]).read().splitlines()[-1])
kinds = ("malformed_length", "malformed_header", "unknown_connection", "refused", "foreign", "unreachable", "elsewhere")
if not all(found[name] for name in kinds) or not told["strangers"]:
    sys.exit(f"failed: the flood has not come: {found}, {told}")
if told["established"] < 325:
    sys.exit(f"failed: the server has seen {told}")
print(f"{found['received']} messages, {told['strangers']} of them strangers that were refused, and {told['established']} connections of friends")
END

# 3. Programs as they are, on both sides.
under_attack
# connects SERVER... -- CLIENT...: both end well.
connects() {
    local command=() code_of_client=0
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    shift
    background victim env MILLRACE_VERBS="$at_server" LD_LIBRARY_PATH="$verbs_library" timeout 100 "${command[@]}"
    local victim=$started
    sleep 1
    MILLRACE_VERBS=$at_client ours timeout 100 "$@" >"$scratch/client.out" 2>"$scratch/client.log" || code_of_client=$?
    ended "$victim" 60
    [ "$code_of_client" -eq 0 ] || fail "$*: ended with $code_of_client: $(tail -n 3 "$scratch"/client.*)"
    [ "$code" -eq 0 ] || fail "${command[*]}: ended with $code: $(tail -n 3 "$scratch"/victim.*)"
}
connects rping -s -C 20 -V -- rping -c -a $server_ip -C 20 -V
connects ucmatose -c 10 -- ucmatose -c 10 -s $server_ip
connects rdma_server -- rdma_client -s $server_ip
peace
echo "rping, ucmatose, rdma_server and rdma_client"
! is_gone "$server_card" || fail "the card has ended"
