#!/usr/bin/env bash
# The same frames through an agent and through Open vSwitch's switching in user space, with the same entries: groups that select among ports, and what
# becomes of their flows when a port goes; ports that are VXLAN tunnels, with ends that entries name; controllers that want packets whose time to live
# is at its end. And a meter that marks packets, which Open vSwitch has not got.
# waits: for ports that go down and come back
. "$(dirname "$0")/../lib.sh"
. "$tests/openvswitch.sh"
needs python3 ip ovs-ofctl ovs-vswitchd ovs-appctl
private_network "$@"
ip link set lo up
for port in p1 p2 p3 p4 p5 q1 q2 q3 q4 q5; do
    ip link add "$port" mtu 1600 type veth peer name "$port-end" mtu 1600 || skip "there is no veth here"
    for end in "$port" "$port-end"; do
        echo 1 >"/proc/sys/net/ipv6/conf/$end/disable_ipv6"
        ip link set "$end" up
    done
done

start_open_vswitch
configure add-br outside -- set bridge outside datapath_type=netdev -- add-port outside p5 \
    -- add-br br -- set bridge br datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \
    -- add-port br p1 -- set Interface p1 ofport_request=1 -- add-port br p2 -- set Interface p2 ofport_request=2 \
    -- add-port br p3 -- set Interface p3 ofport_request=3 -- add-port br p4 -- set Interface p4 ofport_request=4 \
    -- add-port br vx -- set Interface vx type=vxlan ofport_request=10 options:local_ip=192.0.2.1 options:remote_ip=192.0.2.2 options:key=flow \
    -- add-port br vy -- set Interface vy type=vxlan ofport_request=11 options:local_ip=192.0.2.1 options:remote_ip=flow options:key=flow \
    -- set-controller br ptcp:6654:127.0.0.1
ip address add 192.0.2.1/24 dev outside
ip link set outside up
bridge=$(ip -o link show outside | grep -o 'link/ether [0-9a-f:]*')
bridge=${bridge#* }
for last in 2 3; do
    ovs-appctl -t "$OVS_RUNDIR/switch.ctl" tnl/arp/set outside "192.0.2.$last" "02:00:00:00:00:f$last" >"$scratch/said" || fail "$(cat "$scratch/said")"
done
await 10 ovs-ofctl -O OpenFlow13 probe tcp:127.0.0.1:6654 || fail "Open vSwitch does not listen"

start_card --port af_packet:q1 --port af_packet:q2 --port af_packet:q3 --port af_packet:q4 --port af_packet:q5 --queues 2
for last in 2 3; do
    "$millrace" flow neighbours add "192.0.2.$last" "02:00:00:00:00:f$last" --port 4 >/dev/null || fail "flow neighbours add"
done
background agent "$millrace" agent --listen ptcp:6653:127.0.0.1 --state "$scratch/state" --control "$scratch/control" \
    --vxlan vx,ofport=10,uplink=5,local_ip=192.0.2.1,remote_ip=192.0.2.2 --vxlan vy,ofport=11,uplink=5,local_ip=192.0.2.1,remote_ip=flow
await 10 ovs-ofctl -O OpenFlow13 probe tcp:127.0.0.1:6653 2>/dev/null || fail "the agent does not listen: $(cat "$scratch/agent.log")"
python3 "$tests/openflow_packets.py" tcp:127.0.0.1:6653 tcp:127.0.0.1:6654 "$bridge" || fail "$("$millrace" flow list; cat "$scratch/agent.log")"
check_counting
