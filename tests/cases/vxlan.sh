#!/usr/bin/env bash
# VXLAN: a card between a host without tunnels and Linux's own vxlan device, over IPv4 and IPv6, with checksums of UDP and without.
# What the host sends comes out of the device to the byte, and the other way round; tshark reads what is on the wire, and finds every
# checksum good. Then the two talk TCP with all that Linux leaves to interfaces: checksums, and large frames that are cut later. Nobody
# is told where the other is: the card and Linux find each other by ARP and neighbour discovery.
. "$(dirname "$0")/../lib.sh"
needs python3 ip tshark ethtool nsenter
private_network "$@"
. "$tests/network.sh"
second_network

ip link set lo up
# Cables of the card: `port0` to the host, `port1` to Linux.
for cable in "port0 host" "port1 linux"; do
    read -r here there <<<"$cable"
    ip link add "$here" mtu 1600 type veth peer name "$there" mtu 1600 || skip "there is no veth here"
    # The end of the card is in this namespace, which must not answer there.
    echo 1 >"/proc/sys/net/ipv6/conf/$here/disable_ipv6"
    echo 8 >"/proc/sys/net/ipv4/conf/$here/arp_ignore"
    ip link set "$here" up
    ip link set "$there" up
done
echo 1 >/proc/sys/net/ipv6/conf/host/disable_ipv6
ip link set linux address 02:00:00:00:00:02
ip address add 192.0.2.2/24 dev linux
ip -6 address add 2001:db8::2/64 dev linux nodad
start_card --port af_packet:port0 --port af_packet:port1 --queues 2

# end SOURCE DESTINATION OPTION...: Linux's device, and rules for it.
end() {
    local source=$1 destination=$2 checksum=$3 udp=udp
    shift 3
    [[ $source != *:* ]] || udp=udp6
    ip link add vx address 02:00:00:00:00:0c type vxlan id 77 local "$destination" remote "$source" dstport 4789 dev linux "$@" ||
        skip "there is no vxlan here"
    echo 1 >/proc/sys/net/ipv6/conf/vx/disable_ipv6
    ip link set vx mtu 1500 promisc on up
    "$millrace" flow replace - >/dev/null <<END || fail "the rules"
in_port=0,actions=encap_vxlan(vni=77,src=$source,dst=$destination,dl_src=02:00:00:00:00:01$checksum),output:1
in_port=1,$udp,udp_dst=4789,actions=decap_vxlan,goto_table:1
table=1,actions=vni_map(70-76=queue:0-1,77=port:0)
END
}

# frames SOURCE DESTINATION CHECKSUM OPTION...: as they are, to the byte.
frames() {
    end "$@"
    python3 "$tests/vxlan.py" host linux vx "$scratch" "$1" "$2" "${3#,}" 02:00:00:00:00:01 || fail "$1 $3"
    # Who got its frames by a map has lost none.
    "$millrace" flow stats 'table=1' --json | grep -q '"lost":0,' || fail "lost: $("$millrace" flow stats table=1)"
    ip link delete vx
}

# streams SOURCE DESTINATION CHECKSUM OPTION...: TCP both ways with everything that Linux leaves to an interface.
streams() {
    end "$@"
    ip address add 198.51.100.2/24 dev vx
    background serve python3 "$tests/transfer.py" serve 198.51.100.2 4000
    there "python3 '$tests/transfer.py' send 198.51.100.2 4000 4000000" || fail "TCP to $*"
    ended "$started" 10
    ip link delete vx
}

# Linux leaves checksums to the interface otherwise, and what is on the wire has none yet.
ethtool -K linux tx off gso off >/dev/null
frames 192.0.2.1 192.0.2.2 "" noudpcsum
frames 192.0.2.1 192.0.2.2 ,csum udpcsum
frames 2001:db8::1 2001:db8::2 "" udp6zerocsumtx udp6zerocsumrx
frames 2001:db8::1 2001:db8::2 ,csum noudp6zerocsumtx noudp6zerocsumrx

ethtool -K linux tx on gso on tso on >/dev/null
ip link set host netns "$second"
there "ip link set lo up && ip link set host mtu 1500 up && ip address add 198.51.100.1/24 dev host"
streams 192.0.2.1 192.0.2.2 "" noudpcsum
streams 192.0.2.1 192.0.2.2 ,csum udpcsum
streams 2001:db8::1 2001:db8::2 "" udp6zerocsumtx udp6zerocsumrx
streams 2001:db8::1 2001:db8::2 ,csum noudp6zerocsumtx noudp6zerocsumrx

# What was found, and what is said of it.
known() {
    "$millrace" flow neighbours --json | grep -q "\"address\":\"$1\",\"mac\":$2,\"port\":$3,\"state\":\"$4\""
}
known 192.0.2.2 '"02:00:00:00:00:02"' 1 reachable || fail "$("$millrace" flow neighbours)"
known 2001:db8::2 '"02:00:00:00:00:02"' 1 reachable || fail "$("$millrace" flow neighbours)"
[ "$(ip neighbour show 192.0.2.1 dev linux | grep -c 02:00:00:00:00:01)" -eq 1 ] || fail "Linux has not found the card"

# The port's own address, where no rule says one; an end that nobody is; a static one, which takes what waits.
ip address add 192.0.2.3/24 dev linux
ip link add vx type vxlan id 78 local 192.0.2.3 remote 192.0.2.1 dstport 4789 dev linux
ip link set vx up
"$millrace" flow replace - >/dev/null <<END || fail "the rules"
in_port=0,arp,actions=encap_vxlan(vni=78,src=192.0.2.1,dst=192.0.2.3),output:1
in_port=0,ip,actions=encap_vxlan(vni=78,src=192.0.2.1,dst=192.0.2.9),output:1
END
# packets INTERFACE COLUMN: 3 received, 11 sent. Not in /sys, which shows the namespace that mounted it.
packets() {
    sed 's/:/ /' /proc/net/dev | awk -v interface="$1" -v column="$2" '$1 == interface { print $column }'
}
received() {
    [ "$(packets vx 3)" -gt 0 ]
}
there "ip neighbour flush dev host; ping -c 1 -W 1 198.51.100.2" >/dev/null 2>&1 || true
await 10 received || fail "nothing came without addresses: $("$millrace" flow neighbours)"
known 192.0.2.3 '"02:00:00:00:00:02"' 1 reachable || fail "$("$millrace" flow neighbours)"
there "ip neighbour replace 198.51.100.2 lladdr 02:00:00:00:00:0c dev host; ping -c 20 -i 0.01 -W 1 198.51.100.2" >/dev/null 2>&1 || true
known 192.0.2.9 null 1 asking || fail "$("$millrace" flow neighbours)"
dropped() {
    "$millrace" stats --json | python3 -c '
import json, sys
counts = {row["reason"]: row["count"] for row in json.load(sys.stdin)["flows"]}
sys.exit(counts.get("neighbour", 0) < int(sys.argv[1]))' "$1"
}
# 8 wait, the others are dropped.
await 10 dropped 12 || fail "$("$millrace" stats)"
before=$(packets port1 11)
"$millrace" flow neighbours add 192.0.2.9 02:00:00:00:00:02 --port 1 || fail "a static neighbour"
sent() {
    [ "$(packets port1 11)" -ge $((before + 8)) ]
}
await 10 sent || fail "what has waited was not sent"
known 192.0.2.9 '"02:00:00:00:00:02"' 1 static || fail "$("$millrace" flow neighbours)"
"$millrace" flow neighbours delete 192.0.2.9 || fail "a neighbour that is deleted"
"$millrace" flow neighbours delete 192.0.2.9 2>/dev/null && fail "deleted twice"
check_counting
