#!/usr/bin/env bash
# variants: quinn quic-go quic-go-lb aioquic by-address streams
# Clients and servers of three QUIC stacks, each over sockets of Linux: 1,000 connections to four servers with one address, and a card
# between them with a rule that steers by connection id. Every client has another port twice, of which its connection is not told.
# No packet may reach a server whose connection it is not; the hash over addresses and ports, which RSS has, sends most of them
# elsewhere. Variant by-address does that, to see that it is as bad as that. In quic-go-lb, ids say which server they are of (QUIC-LB).
#
# Each server is behind a queue of the card: crates/host/examples/queue_tap.rs serves that, at a tap in a namespace of its own, and
# counts what comes. QUIC_CLIENTS says how many connections there are.
#
# In variant streams a server of quinn writes its keys to SSLKEYLOGFILE, `millrace flow keys` hands them over, and each stream of a
# connection reaches the queue that its number says, through a key update.
. "$(dirname "$0")/../lib.sh"
needs ip unshare nsenter python3
stack=${1:-quinn}
[ "$stack" != inside ] || stack=$QUIC_STACK
export QUIC_STACK=$stack
is_root || skip "making an interface takes root"
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"

examples=${CARGO_TARGET_DIR:-$root/target}/debug/examples
# One stack has 1,000, and `make soak` gives them to all.
case $stack in
quinn) peer="$examples/quic_quinn" count=${QUIC_CLIENTS:-1000} ;;
quic-go*) peer="${CARGO_TARGET_DIR:-$root/target}/quic-peers/quic-go" count=${QUIC_CLIENTS:-200} ;;
aioquic)
    peer="${CARGO_TARGET_DIR:-$root/target}/quic-peers/python/bin/python $tests/quic/aioquic_peer.py" count=${QUIC_CLIENTS:-100}
    ;;
streams) peer="$examples/quic_quinn" count=60 ;;
by-address)
    peer="$examples/quic_quinn" count=50
    export QUIC_PATIENCE=5
    ;;
*) fail "there is no stack $stack" ;;
esac
[ -x "$examples/queue_tap" ] && [ -x "$examples/quic_quinn" ] || (
    . "$root/scripts/env.sh" && find_rust && cd "$root" &&
        cargo build --locked -q -p millrace --example queue_tap -p millrace-flow --example quic_quinn
) || fail "the examples cannot be built"
[ -x "${peer%% *}" ] || skip "there is no $stack: scripts/quic-peers.sh says why"
private_network "$([ "${1:-}" = inside ] && echo inside)"

address=10.0.0.1:4433
mac=02:00:00:00:00:01
client_mac=02:00:00:00:00:02
ulimit -n 8192 2>/dev/null || true
export QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING=true

kind= at_all="0 1 2 3" also=
case $stack in
by-address) action=rss:1 ;;
quic-go-lb) action=quic:3 kind=lb ;;
streams)
    action=quic:4 at_all=0 also=,4,5,6,7
    export SSLKEYLOGFILE=$scratch/keys
    ;;
*) action=quic:2 ;;
esac
cat >"$scratch/rules" <<END_OF_RULES
miss=drop
group=1,rss,queues=0-3
group=2,quic,queues=0-3
group=3,quic,queues=0-3,lb(config=0,nonce=8,servers=(00:0,01:1,02:2,03:3))
group=4,quic,queues=0,keys,streams=4-7
udp,udp_dst=4433,actions=$action
END_OF_RULES

is_there() {
    ip link show "$1" >/dev/null 2>&1
}

# Frames for queues 1 and 3 cross from the worker that has the port to the other one.
start_card --queues 8 --workers 2 --port tap:clients --rules "$scratch/rules"
await 5 is_there clients || fail "the card has no interface"
for at in $at_all; do
    background "instance$at" "$examples/queue_tap" "$at$also" "tap:server$at" "$scratch/stop"
    instances[at]=$started
    await 5 is_there "server$at" || fail "queue $at has no interface"
    background "space$at" unshare -n sleep 1000
    space=$started
    await 5 bash -c "[ \"\$(readlink /proc/$space/ns/net)\" != \"\$(readlink /proc/self/ns/net)\" ]"
    ip link set "server$at" netns "$space"
    nsenter -t "$space" -n bash -e -c "
        ip link set lo up
        ip link set server$at address $mac
        ip address add 10.0.0.1/8 dev server$at
        ip link set server$at up
        ip route del 10.0.0.0/8 dev server$at
        ip route add 10.0.0.254 dev server$at
        ip route add default via 10.0.0.254
        ip neighbour add 10.0.0.254 lladdr $client_mac dev server$at nud permanent"
    # shellcheck disable=SC2086
    background "server$at" nsenter -t "$space" -n $peer server $address $at $kind
    servers[at]=$started
done
# Clients may have any address of this network, without each of them being an interface's.
ip link set lo up
ip link set clients address $client_mac
ip address add 10.0.0.2/32 dev clients
ip link set clients up
ip route add 10.0.0.1 dev clients
ip route add local 10.1.0.0/16 dev lo
ip neighbour add 10.0.0.1 lladdr $mac dev clients nud permanent

listens() {
    nsenter -t "$1" -n cat /proc/net/udp | grep -q ":1151 "
}
for at in $at_all; do
    await 20 listens "${servers[at]}" || fail "server $at does not listen"
done

if [ "$stack" = streams ]; then
    background keys "$millrace" flow keys --group 4 "$SSLKEYLOGFILE" --json
    keys=$started
    background clients "$peer" streams $address "$count" "$scratch/go"
    clients=$started
    # Those of both sides.
    has_keys() {
        python3 -c 'import json, sys; sys.exit(sum(json.loads(line)["taken"] for line in open(sys.argv[1])) != 2)' "$scratch/keys.out"
    }
    await 10 has_keys || fail "the card has no keys: $(cat "$scratch/keys.out")"
    touch "$scratch/go"
    ended "$clients" 60
    [ "$code" -eq 0 ] || fail "the client ended with $code"
    kill -INT "$keys"
    ended "$keys" 5
    [ "$code" -eq 0 ] || fail "flow keys ended with $code"
    touch "$scratch/stop"
    ended "${instances[0]}" 10
    python3 - "$count" "$scratch/instance0.out" <<'END_OF_CHECK' || fail "$stack"
import json, sys
count, queues = int(sys.argv[1]), json.load(open(sys.argv[2]))["queues"]
# Stream N has 200 + 100 * (N % 4) bytes; packets without a stream are shorter, those that look for the MTU are longer.
on_streams = {queue: {int(len): times for len, times in lengths.items() if 200 <= int(len) < 600} for queue, lengths in queues.items()}
wrong = [(queue, len) for queue, lengths in on_streams.items() for len in lengths if int(queue) != 4 + (len - 200) // 100]
print("streams, by queue:", {queue: sum(lengths.values()) for queue, lengths in on_streams.items()}, "wrong:", wrong)
assert not wrong, "a stream is elsewhere"
assert sum(sum(lengths.values()) for lengths in on_streams.values()) >= count - 1, "not all streams are there"
END_OF_CHECK
    ! grep -rq "$(awk '/^CLIENT_TRAFFIC_SECRET_0/ { print $3; exit }' "$SSLKEYLOGFILE")" "$scratch"/*.log "$scratch"/*.out ||
        fail "a secret was logged"
    check_counting
    exit 0
fi

begin=$(date +%s)
# shellcheck disable=SC2086
background clients $peer client $address "$count" 1
ended "$started" 120
[ "$code" -eq 0 ] || fail "the clients ended with $code"
touch "$scratch/stop"
for at in 0 1 2 3; do
    ended "${instances[at]}" 10
    [ "$code" -eq 0 ] || fail "queue $at was not served to the end"
done
"$millrace" stats --json >"$scratch/stats"
python3 - "$stack" "$count" "$(($(date +%s) - begin))" "$scratch" <<'END_OF_CHECK' || fail "$stack"
import json, sys
stack, count, seconds, scratch = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
read = lambda name: json.loads(open(f"{scratch}/{name}").read())
clients, instances = read("clients.out"), [read(f"instance{at}.out")["clients"] for at in range(4)]
# A client belongs to the server that was the first to answer it; each has an address of its own.
right = wrong = had = 0
for client in set().union(*instances):
    each = [(at, instance[client]) for at, instance in enumerate(instances) if client in instance]
    answered = [(one["answered_ns"], at) for at, one in each if one["answered_ns"] is not None]
    owner = min(answered)[1] if answered else None
    had += owner is not None
    for at, one in each:
        right += one["received"] if at == owner else 0
        wrong += one["received"] if at != owner else 0
print(f"{stack}, {seconds} s: {clients}, {had} answered, packets to the right server {right}, to a wrong one {wrong}")
assert clients["connections"] == count == had, "not all were there"
if stack == "by-address":
    assert wrong > right / 3 and sum(clients["failed"].values()) > count / 2, "as if by connection id"
else:
    assert wrong == 0 and not clients["failed"], "a packet went wrong"
    # New connections are shared out.
    assert len(clients["servers"]) == 4 and min(clients["servers"].values()) > count / 10, "not shared out"
END_OF_CHECK
check_counting
