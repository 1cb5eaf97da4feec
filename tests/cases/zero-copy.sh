#!/usr/bin/env bash
# Two hosts with a program between them that forwards by descriptors: AF_XDP receives into the program's pool and sends from
# it. Pings and transfers arrive whole, nothing is lost without a name, the card copies nothing, and everything goes on when
# the program is killed and comes back, when its wire is unplugged under it, and for frames of other queues.
. "$(dirname "$0")/../lib.sh"
needs python3 ping
private_network "$@"
. "$tests/network.sh"

second_network

for host in 1 2; do
    ip link add "zc-c$host" type veth peer name "zc-h$host" || skip "there is no veth here"
    echo 1 >"/proc/sys/net/ipv6/conf/zc-c$host/disable_ipv6"
done
ip link set zc-h2 netns "$second"
# Queues 0 and 1 are those of port 0, 2 and 3 those of port 1.
start_card --engine dd --queues 4 --port af_xdp:zc-c1 --port af_xdp:zc-c2
be_host 1 zc-h1
there "ip link set lo up; ip address add 192.0.2.2/24 dev zc-h2; ip link set zc-h2 up"
there "ip -6 address add 2001:db8::2/64 dev zc-h2 nodad"

background forward "$millrace" forward --queue 0,2
forwarder=$started
await 10 on_pools 2 || fail "the wires do not work on the pool: $("$millrace" stats)"
note_early 0 here zc-h1
note_early 1 there zc-h2
pings here 2
pings here 2 -s 1400
serve here 3000000
fetch there here 1

# Every frame from the other side went through, and none was copied by the card. Of acknowledgements Linux may send one for many segments.
"$millrace" stats --json | python3 -c '
import json, sys
stats = json.load(sys.stdin)
queues = [queue for queue in stats["queues"] if queue["queue"][2:] in ("0", "2")]
for queue in queues:
    if queue["passed"] < 100 or queue["copies"]:
        sys.exit("failed: %(queue)s passed %(passed)s frames with %(copies)s copies" % queue)
for port in stats["ports"]:
    if port["rx_copies"] or port["tx_copies"] or port["rx_frames"] < 100:
        sys.exit("failed: port %(port)s: %(rx_frames)s frames, %(rx_copies)s and %(tx_copies)s copies" % port)
print("copies per frame: 0 of", sum(queue["passed"] for queue in queues))
' || exit 1
check_neighbour 0 here zc-h1
check_neighbour 1 there zc-h2

# Frames of another program, in no pool, leave by the same wire: they are copied, once.
"$millrace" generate --queue 1 --count 1000 --size 200 >/dev/null
"$millrace" stats --json | python3 -c '
import json, sys
stats = json.load(sys.stdin)
copies = {int(queue["queue"][2:]): (queue["passed"], queue["copies"]) for queue in stats["queues"] if queue["queue"].startswith("tx")}
if copies[1] != (1000, 1000) or copies[0][1] or stats["ports"][0]["tx_copies"] != 1000:
    sys.exit("failed: passed and copied by tx queue: %r" % copies)' || exit 1
on_pools 2 || fail "frames of another program have taken a wire off its pool"
kill -INT "$forwarder"
ended "$forwarder" 10
[ "$code" -eq 0 ] || fail "the forwarder ended with $code"
await 5 on_pools 0 || fail "the wires still work on the pool of a program that has ended"

# Killed in the middle of traffic, and back.
background forward2 "$millrace" forward --queue 0,2
forwarder=$started
await 10 on_pools 2 || fail "the wires do not work on the second pool"
background flood ping -f -c 1000000 192.0.2.2
flood=$started
sleep 0.3
slay "$forwarder"
await 5 on_pools 0 || fail "the wires still work on the pool of a program that was killed"
background forward3 "$millrace" forward --queue 0,2
await 10 on_pools 2 || fail "the wires do not work on the third pool"
kill -INT "$flood"
ended "$flood" 10
pings here 2

# The wire goes and comes under the program.
"$millrace" ports plug 1 none >/dev/null
on_pools 1 || fail "a port without a wire works on memory"
"$millrace" ports plug 1 af_xdp:zc-c2 >/dev/null
await 10 on_pools 2 || fail "the new wire does not work on the pool"
pings here 2
"$millrace" ports plug 1 af_packet:zc-c2 >/dev/null
on_pools 1 || fail "af_packet cannot work on memory of a program"
pings here 2
# What the port has sent has all arrived. (What arrived while a wire changed its memory stayed with Linux.)
all_arrived() {
    local numbers
    read -r -a numbers < <(counts 0 here zc-h1 | tr '\n' ' ')
    [ "${numbers[1]}" -eq "${numbers[3]}" ]
}
await 10 all_arrived || fail "received by zc-h1 and sent by port 0: $(counts 0 here zc-h1)"
