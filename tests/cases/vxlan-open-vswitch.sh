#!/usr/bin/env bash
# VXLAN between a card and Open vSwitch (userspace datapath), over IPv4 and IPv6, with checksums of UDP and without. Nobody is told
# where the other is. TCP both ways.
. "$(dirname "$0")/../lib.sh"
. "$tests/openvswitch.sh"
needs python3 ip ping ethtool nsenter ovs-vswitchd
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
. "$tests/network.sh"
second_network

ip link set lo up
for cable in "port0 host" "port1 switch"; do
    read -r here there <<<"$cable"
    ip link add "$here" mtu 1600 type veth peer name "$there" mtu 1600 || skip "there is no veth here"
    echo 1 >"/proc/sys/net/ipv6/conf/$here/disable_ipv6"
    echo 8 >"/proc/sys/net/ipv4/conf/$here/arp_ignore"
    ip link set "$here" up
done
echo 1 >/proc/sys/net/ipv6/conf/switch/disable_ipv6
ip link set switch up
ip link set host netns "$second"
there "ip link set lo up && ip link set host up && ip address add 198.51.100.1/24 dev host"
start_card --port af_packet:port0 --port af_packet:port1 --queues 2 --workers 2

start_open_vswitch
configure add-br outside -- set bridge outside datapath_type=netdev -- add-port outside switch \
    -- add-br inside -- set bridge inside datapath_type=netdev
ip address add 192.0.2.2/24 dev outside
ip -6 address add 2001:db8::2/64 dev outside nodad
ip link set outside up
ip link set inside up
ip address add 198.51.100.2/24 dev inside

# between SOURCE DESTINATION UDP CHECKSUM: the card's end, the switch's, and whether there are checksums.
between() {
    configure --if-exists del-port vx -- add-port inside vx -- set Interface vx type=vxlan "options:local_ip=$2" \
        "options:remote_ip=$1" options:key=5000 "options:csum=$4"
    local checksum=
    [ "$4" = false ] || checksum=,csum
    "$millrace" flow replace - >/dev/null <<END || fail "the rules"
in_port=0,actions=encap_vxlan(vni=5000,src=$1,dst=$2$checksum),output:1
in_port=1,$3,udp_dst=4789,actions=decap_vxlan,goto_table:1
table=1,tun_id=5000,actions=output:0
END
    there "ping -c 1 -W 10 198.51.100.2" >"$scratch/ping.log" 2>&1 || there "ping -c 3 -i 0.2 -W 5 198.51.100.2" >"$scratch/ping.log" 2>&1 ||
        fail "no answer by $*: $("$millrace" flow neighbours) $("$millrace" stats)"
    background serve python3 "$tests/transfer.py" serve 198.51.100.2 4000
    there "python3 '$tests/transfer.py' send 198.51.100.2 4000 1000000" || fail "TCP by $*"
    ended "$started" 10
    "$millrace" flow neighbours --json | grep -q "\"address\":\"$2\".*\"state\":\"reachable\"" || fail "$("$millrace" flow neighbours)"
}
between 192.0.2.1 192.0.2.2 udp false
between 192.0.2.1 192.0.2.2 udp true
between 2001:db8::1 2001:db8::2 udp6 false
between 2001:db8::1 2001:db8::2 udp6 true
check_counting
