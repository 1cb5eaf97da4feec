#!/usr/bin/env bash
# Open vSwitch with DPDK between two hosts, with a card at each of its ports: virtio-user to one that OVS connects to
# (dpdkvhostuserclient) and to one that OVS listens on (dpdkvhostuser), which behaves as a switch does: it learns, and floods
# what it does not know. Pings of both protocols and transfers; every frame is counted where it went; then OVS is killed and
# comes again while the card lives.
# alone: it takes huge pages of the machine, and polls on a core
. "$(dirname "$0")/../lib.sh"
needs ping ovsdb-server ovsdb-tool ovs-vsctl python3
switch=/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
[ -x "$switch" ] || skip "openvswitch-switch-dpdk is not installed"
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
. "$tests/network.sh"

second_network
mkdir "$scratch/ovs"
# DPDK in Open vSwitch works with huge pages only; what is reserved here is given back.
pages=/proc/sys/vm/nr_hugepages
free() {
    awk '/HugePages_Free/ { print $2 }' /proc/meminfo
}
reserved=$(cat $pages)
if [ "$(free)" -lt 80 ]; then
    echo $((reserved + 80)) >$pages 2>/dev/null || skip "huge pages cannot be reserved"
    trap 'code=$?; echo "$reserved" >$pages; (exit $code); cleanup' EXIT
fi
[ "$(free)" -ge 80 ] || skip "there are no 80 huge pages to be had"

export OVS_RUNDIR=$scratch/ovs OVS_LOGDIR=$scratch/ovs OVS_DBDIR=$scratch/ovs OVS_SYSCONFDIR=$scratch/ovs

configure() {
    ovs-vsctl --db="unix:$OVS_RUNDIR/db.sock" --timeout=20 "$@" || fail "ovs-vsctl $*"
}

start_switch() {
    # It does not listen where a file lies, not even its own of before.
    rm -f "$OVS_RUNDIR"/switch.* "$OVS_RUNDIR/b"
    background "$1" "$switch" "unix:$OVS_RUNDIR/db.sock" --no-chdir --pidfile="$OVS_RUNDIR/switch.pid" \
        --unixctl="$OVS_RUNDIR/switch.ctl"
    vswitchd=$started
}

ovsdb-tool create "$OVS_DBDIR/conf.db" /usr/share/openvswitch/vswitch.ovsschema
background database ovsdb-server "$OVS_DBDIR/conf.db" --remote="punix:$OVS_RUNDIR/db.sock" --no-chdir \
    --pidfile="$OVS_RUNDIR/ovsdb.pid" --unixctl="$OVS_RUNDIR/ovsdb.ctl"
await 10 test -S "$OVS_RUNDIR/db.sock" || fail "there is no database"
configure --no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:vhost-sock-dir=. \
    other_config:dpdk-socket-mem=128 \
    "other_config:dpdk-extra=\"--no-pci --in-memory --no-telemetry --file-prefix ovs$$\""

start_card --port "virtio-user:$scratch/a.sock,server" --port "tap:ovs-a" --port "virtio-user:$OVS_RUNDIR/b" \
    --port "tap:ovs-b" --connect 0-1 --connect 2-3
start_switch switch
configure add-br br0 -- set bridge br0 datapath_type=netdev
configure add-port br0 a -- set Interface a type=dpdkvhostuserclient "options:vhost-server-path=$scratch/a.sock"
configure add-port br0 b -- set Interface b type=dpdkvhostuser

ready() {
    [ "$("$millrace" ports --json | grep -c "back end ready")" -eq 2 ]
}
await 30 ready || fail "the switch does not serve both ports: $("$millrace" ports --json; tail "$scratch/switch.log")"

ip link set ovs-b netns "$second"
be_host 1 ovs-a
there "ip link set lo up; ip address add 192.0.2.2/24 dev ovs-b; ip link set ovs-b up"
there "ip -6 address add 2001:db8::2/64 dev ovs-b nodad"
answers() {
    ping -c 1 -W 1 192.0.2.2 >"$scratch/ping.log"
}

# What came in at one port went out at the other, and what OVS was given it has given back.
check_ports() {
    await 10 ports_agree || fail "the ports do not agree: $("$millrace" stats --json)"
}
ports_agree() {
    "$millrace" stats --json | python3 -c '
import json, sys
ports = json.load(sys.stdin)["ports"]
total = lambda port: port["tx_frames"] + sum(drop["count"] for drop in port["tx_drops"])
sys.exit(any(ports[i]["rx_frames"] != total(ports[i ^ 1]) for i in range(4)))'
}

await 20 answers || fail "no answer through the switch: $("$millrace" stats)"
pings here 2
pings here 2 -s 1400
serve here 2000000
fetch there here 1
check_ports

slay "$vswitchd"
await 10 bash -c "! '$millrace' ports --json | grep -q 'back end ready'" || fail "the card does not see that the switch is gone"
start_switch again
await 30 ready || fail "the switch is back, and does not serve both ports: $("$millrace" ports --json)"
await 20 answers || fail "no answer through the switch that came again: $("$millrace" stats)"
pings here 2
check_ports
