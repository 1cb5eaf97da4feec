#!/usr/bin/env bash
# Ports of the OpenFlow switch that are VXLAN tunnels, with Linux's own vxlan device as the other end: what docs/agent.md shows, from its first five minutes on; frames to the byte in
# both directions, and tshark on what is between; remotes that entries name, and copies for several; what comes in has the right port, network
# and other end, whatever is within; packets to controllers and from them; a learning switch that floods through the tunnel.
. "$(dirname "$0")/../lib.sh"
needs ovs-ofctl python3 ip tshark ping nsenter
private_network "$@"
. "$tests/network.sh"
second_network

ip link set lo up
# Cables of the card: eth0 to the host, eth1 to Linux.
for cable in "eth0 host" "eth1 linux"; do
    read -r here there <<<"$cable"
    ip link add "$here" mtu 1600 type veth peer name "$there" mtu 1600 || skip "there is no veth here"
    # The end of the card is in this namespace, which must not answer there.
    echo 1 >"/proc/sys/net/ipv6/conf/$here/disable_ipv6"
    echo 8 >"/proc/sys/net/ipv4/conf/$here/arp_ignore"
    echo 1 >"/proc/sys/net/ipv6/conf/$there/disable_ipv6"
    ip link set "$here" up
    ip link set "$there" up
done
ethtool -K linux tx off gso off >/dev/null 2>&1 || true
for last in 2 3; do
    ip address add "192.0.2.$last/24" dev linux
done
# vxlan NAME VNI LAST: Linux's device for a network, at 192.0.2.LAST.
vxlan() {
    ip link add "$1" type vxlan id "$2" local "192.0.2.$3" remote 192.0.2.1 dstport 4789 noudpcsum dev linux || skip "there is no vxlan here"
    echo 1 >"/proc/sys/net/ipv6/conf/$1/disable_ipv6"
    ip link set "$1" mtu 1500 promisc on up
}
switch=tcp:127.0.0.1:6653
ofctl() {
    timeout 20 ovs-ofctl -O OpenFlow13 "$1" "${@:2}"
}
must() {
    ofctl "$@" >"$scratch/said" 2>&1 || fail "ovs-ofctl $*: $(head -c 2000 "$scratch/said")"
}
# refused NAME COMMAND...: with an error of that name.
refused() {
    ofctl "${@:2}" >"$scratch/said" 2>&1 || true
    grep -q "$1" "$scratch/said" || fail "no $1: ovs-ofctl ${*:2}: $(cat "$scratch/said")"
}

# What the document shows, from its beginning.
export XDG_RUNTIME_DIR=$scratch
lines=$(shown docs/agent.md "Five minutes" | grep -v -- --connect)
follow "$(head -n 1 <<<"$lines")"
await 20 test -S "$MILLRACE_SOCKET" || fail "the card does not listen"
follow "$(tail -n +2 <<<"$lines")"
must dump-flows $switch
[ "$(grep -c "priority=[19]" "$scratch/said")" -eq 3 ] || fail "the entries of the document are not there: $(cat "$scratch/said")"
for last in 1 2; do
    kill "${pids[-last]}"
    await 10 is_gone "${pids[-last]}" || fail "agent or card does not end"
done

# And of its tunnels.
vxlan vx0 5000 2
follow "$(shown docs/agent.md "A VXLAN overlay" | grep -v "^ip link")"
export MILLRACE_DEVICE=unix:$scratch/card.sock
ip link set host netns "$second"
there "ip link set lo up; ip link set host mtu 1500 up; ip address add 198.51.100.1/24 dev host"
ip address add 198.51.100.2/24 dev vx0
there "ping -c 3 -i 0.05 -W 5 -w 20 198.51.100.2" >"$scratch/ping.log" || fail "no way through the tunnel: $("$millrace" flow list; "$millrace" flow neighbours)"
ip link delete vx0
must dump-ports-desc $switch
grep -q "10(vx0)" "$scratch/said" || fail "$(cat "$scratch/said")"
came_in() {
    ofctl dump-ports $switch 10 >"$scratch/said" 2>&1 && grep -q "rx pkts=[1-9]" "$scratch/said"
}
await 10 came_in || fail "$(cat "$scratch/said")"
there "ip link set host netns $$" && ip link set host up
agent=${pids[-1]}
kill "$agent"
await 10 is_gone "$agent" || fail "the agent does not end"

start_agent() {
    background "agent${#pids[@]}" "$millrace" agent --listen ptcp:6653:127.0.0.1 --state "$scratch/vxlan.state" "$@" \
        --vxlan vx10,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2 \
        --vxlan vx11,ofport=11,uplink=2,local_ip=192.0.2.1,remote_ip=flow \
        --vxlan vx12,ofport=12,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2,key=78
    agent=$started
    await 10 ovs-ofctl -O OpenFlow13 probe $switch 2>/dev/null || fail "the agent does not listen: $(tail "$scratch"/agent*.log)"
}
start_agent

# To the byte, both ways.
vxlan vx 77 2
must add-flow $switch "in_port=1,actions=set_field:77->tun_id,output:10"
must add-flow $switch "in_port=10,tun_id=77,actions=output:1"
python3 "$tests/vxlan.py" host linux vx "$scratch" 192.0.2.1 192.0.2.2 "" any || fail "fixed remote: $("$millrace" flow list)"
# Over several tables, and by way of a copy.
must del-flows $switch
must add-flow $switch "in_port=1,actions=set_field:77->tun_id,goto_table:5"
must add-flow $switch "table=5,in_port=1,actions=output:10,set_field:02:00:00:00:00:99->eth_dst,output:LOCAL"
must add-flow $switch "tun_id=77,tun_src=192.0.2.2,actions=goto_table:62"
must add-flow $switch "table=62,in_port=10,actions=ALL"
python3 "$tests/vxlan.py" host linux vx "$scratch" 192.0.2.1 192.0.2.2 "" any || fail "over tables: $("$millrace" flow list)"
refused OFPFMFC_BAD_TABLE_ID add-flow $switch "table=63,actions=drop"
refused OFPBIC_BAD_TABLE_ID add-flow $switch "table=62,actions=goto_table:63"

# Remotes that entries name: a copy for each, with a network of its own; and back by where it comes from.
vxlan vy 79 3
must del-flows $switch
must add-flow $switch "in_port=1,actions=set_field:77->tun_id,set_field:192.0.2.2->tun_dst,output:11,set_field:79->tun_id,set_field:192.0.2.3->tun_dst,output:11"
must add-flow $switch "in_port=11,tun_id=79,tun_src=192.0.2.3,actions=output:1"
must add-flow $switch "in_port=10,tun_id=77,actions=output:1"
for device in vx vy; do
    python3 "$tests/vxlan_port.py" frame host "$device" 4 || fail "$device gets nothing: $("$millrace" flow list; "$millrace" flow neighbours)"
    python3 "$tests/vxlan_port.py" frame "$device" host 4 || fail "nothing from $device: $("$millrace" flow list)"
done
refused OFPBAC_UNSUPPORTED_ORDER add-flow $switch "in_port=1,actions=output:11"
refused OFPBAC_BAD_SET_ARGUMENT add-flow $switch "in_port=1,actions=set_field:0.0.0.0->tun_dst,output:11"

# A key that is fixed: network 78 is port 12, whatever entries say.
vxlan vz 78 2
must add-flow $switch "priority=40000,in_port=1,actions=output:12"
must add-flow $switch "in_port=12,actions=output:1"
python3 "$tests/vxlan_port.py" frame host vz 4 || fail "network 78 gets nothing"
python3 "$tests/vxlan_port.py" frame vz host 4 || fail "nothing from network 78"

# Whose network a frame is of says the header that is taken off, and none within it.
must del-flows $switch
must add-flow $switch "priority=9,tun_id=99,actions=output:1"
must add-flow $switch "priority=5,in_port=10,tun_id=77,actions=output:1,IN_PORT"
python3 "$tests/vxlan_port.py" within vx host 99 2>/dev/null || fail "a tunnel within a tunnel"
ofctl dump-flows $switch "tun_id=99" >"$scratch/said"
counted() {
    ofctl dump-flows $switch >"$scratch/said" 2>&1 && grep -q "priority=5.*" "$scratch/said" && grep "priority=5" "$scratch/said" | grep -q "n_packets=[1-9]"
}
await 10 counted || fail "$(cat "$scratch/said")"
grep "priority=9" "$scratch/said" | grep -q "n_packets=0" || fail "a frame says by itself in which network it is: $(cat "$scratch/said")"

# Packets to controllers, and from them, to one whom nobody has looked for yet.
must del-flows $switch
"$millrace" flow neighbours delete 192.0.2.2 2>/dev/null || true
export OVS_RUNDIR=$scratch
background monitor timeout 60 ovs-ofctl -O OpenFlow13 monitor $switch 65534
await 10 bash -c "'$millrace' agent status | grep -q equal" || fail "nobody watches"
must add-flow $switch "priority=0,actions=CONTROLLER"
python3 "$tests/vxlan_port.py" send vx 1
await 10 grep -q "PACKET_IN.*tun_id=0x4d,tun_src=192.0.2.2,tun_dst=192.0.2.1,in_port=10" "$scratch/monitor.log" "$scratch/monitor.out" ||
    fail "no packet: $(cat "$scratch"/monitor.*)"
kill "$started"
background taker python3 "$tests/vxlan_port.py" take vx
await 10 test -s "$scratch/taker.out" || fail "nobody looks"
must packet-out $switch "in_port=controller packet=ffffffffffff02000000000b88b5$(printf '41%.0s' {1..46}) actions=set_field:77->tun_id,output:10"
ended "$started" 10
[ "$code" -eq 0 ] || fail "a packet of a controller does not come out of the tunnel: $("$millrace" flow neighbours)"

# Rules of the agent's own come back, and entries are there with the next agent.
must add-flow $switch "in_port=1,actions=set_field:77->tun_id,output:10"
must add-flow $switch "in_port=10,tun_id=77,actions=output:1"
"$millrace" flow delete "table=0" >/dev/null
again() {
    [ "$("$millrace" flow list | grep -c "^table=0.*decap_vxlan(port=9)")" -eq 1 ] && "$millrace" flow list | grep -q "^table=0.*priority=0,actions=goto_table:1"
}
await 10 again || fail "the first table is empty: $("$millrace" flow list)"
slay "$agent" || true
start_agent
ofctl dump-flows $switch | grep -q "set_field:0x4d->tun_id,output:10" || fail "it has forgotten: $(ofctl dump-flows $switch)"
python3 "$tests/vxlan_port.py" frame host vx 4 || fail "no way after the agent has gone"
check_counting
