#!/usr/bin/env bash
# Connections by addresses over a wire that loses one frame in ten: all are made and ended, and programs do their work. Then one of the two
# ends is killed at any moment, again and again: the other one goes on, and whoever comes next is connected.
# alone: its programs poll, and give up when the other end has no core for seconds
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs python3 rping ucmatose rdma_server rdma_client
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"
peer="python3 $tests/cm_peer.py"
port=7471 server_ip=198.18.0.1

# wire LOSS: a card whose two ports are the ends of one wire that loses so much.
wire() {
    start_card --queues 2 --workers 1 --port "fault:seed=5,loss=$1,port=(vhost-user:$scratch/wire$1.sock)" --port "virtio-user:$scratch/wire$1.sock"
    await 10 wire_is_up || fail "the ports are not connected"
    at_server="$device ip=$server_ip tx=0 rx=0" at_client="$device ip=198.18.0.2 tx=1 rx=1"
}

# serves: a new server, in $server, once it listens.
serves() {
    rm -f "$scratch/server.out"
    background server env MILLRACE_VERBS="$at_server stats=$scratch/server" LD_LIBRARY_PATH="$verbs_library" $peer serve $port
    server=$started
    await 20 grep -qs listens "$scratch/server.out" || fail "the server does not listen"
}

# calls OPTION...: so many connections.
calls() {
    MILLRACE_VERBS=$at_client ours timeout 200 $peer call $server_ip $port "$@" >"$scratch/calls.out" 2>"$scratch/calls.log" ||
        fail "call $*: $(tail -n 3 "$scratch/calls.out" "$scratch/calls.log")"
}

# connects SERVER... -- CLIENT...: both end well.
connects() {
    local command=() code_of_client=0
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    shift
    background victim env MILLRACE_VERBS="$at_server" LD_LIBRARY_PATH="$verbs_library" timeout 150 "${command[@]}"
    local victim=$started
    sleep 1
    MILLRACE_VERBS=$at_client ours timeout 150 "$@" >"$scratch/client.out" 2>"$scratch/client.log" || code_of_client=$?
    ended "$victim" 60
    [ "$code_of_client" -eq 0 ] || fail "$*: ended with $code_of_client: $(tail -n 3 "$scratch"/client.*)"
    [ "$code" -eq 0 ] || fail "${command[*]}: ended with $code: $(tail -n 3 "$scratch"/victim.*)"
}

wire 10%
serves
calls 100 --end
ended "$server" 60
[ "$code" -eq 0 ] || fail "the server has ended with $code: $(cat "$scratch/server.log")"
"$millrace" stats --json >"$scratch/stats"
python3 - "$scratch/stats" "$scratch/server.out" "$scratch/server.cm" <<'END' || exit 1
import json, sys
lost = sum(drop["count"] for drop in json.load(open(sys.argv[1]))["ports"][0]["rx_drops"] if drop["reason"] == "fault-loss")
told = json.loads(open(sys.argv[2]).read().splitlines()[-1])
again = json.load(open(sys.argv[3]))["connections"]["sent_again"]
# Who is called twice is one connection. Some are over before the server has heard that they are up.
if told["called"] != 101 or told["disconnected"] != 100 or told.get("unreachable") or not lost or not again:
    sys.exit(f"failed: {told}, {lost} frames lost, {again} messages sent again")
END
echo "100 connections, made and ended"
connects rping -s -C 20 -V -- rping -c -a $server_ip -C 20 -V
connects ucmatose -c 10 -- ucmatose -c 10 -s $server_ip
connects rdma_server -- rdma_client -s $server_ip
connects ib_write_bw -R -n 100 -- ib_write_bw -R -n 100 $server_ip
echo "rping, ucmatose, rdma_server and rdma_client, perftest -R"
slay "$card"

wire 1%
random_pause() {
    # Each fourth waits long enough on a busy machine, too.
    sleep "$(awk "BEGIN { srand($1); printf \"%.3f\", 0.05 + 0.4 * rand() + ($1 % 4 ? 0 : 1) }")"
}

# A server whose clients are killed, while they connect or leave.
serves
for number in $(seq 20); do
    background client env MILLRACE_VERBS="$at_client" LD_LIBRARY_PATH="$verbs_library" $peer call $server_ip $port 100000 --patient
    random_pause "$number"
    slay "$started"
done
calls 20 --patient --end
ended "$server" 60
[ "$code" -eq 0 ] || fail "the server of clients that were killed has ended with $code: $(cat "$scratch/server.log")"
python3 -c 'import json, sys
told = json.loads(open(sys.argv[1]).read().splitlines()[-1])
sys.exit(told["established"] <= 20)' "$scratch/server.out" || fail "no client was killed after it was connected: $(cat "$scratch/server.out")"
echo "20 clients killed"

# A client whose server is killed, and started again.
serves
background client env MILLRACE_VERBS="$at_client" LD_LIBRARY_PATH="$verbs_library" \
    $peer call $server_ip $port 1000000 --until "$scratch/enough" --patient
client=$started
for number in $(seq 10); do
    random_pause "$number"
    slay "$server"
    serves
done
touch "$scratch/enough"
ended "$client" 120
[ "$code" -eq 0 ] || fail "the client of servers that were killed has ended with $code: $(tail -n 3 "$scratch"/client.*)"
calls 1 --patient --end
ended "$server" 60
[ "$code" -eq 0 ] || fail "the last server has ended with $code: $(cat "$scratch/server.log")"
echo "10 servers killed"
