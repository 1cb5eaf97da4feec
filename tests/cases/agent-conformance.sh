#!/usr/bin/env bash
# The switch conformance tests of os-ken, some of them: entries of the agent decide on frames that Open vSwitch sends through the card and looks at
# behind it. Tests with headers of MPLS and PBB are refused, as docs/agent.md says.
. "$(dirname "$0")/../lib.sh"
needs python3 ip ovs-ofctl ovsdb-server ovsdb-tool ovs-vsctl ovs-vswitchd
python=${OS_KEN_PYTHON:-$root/target/os-ken/bin/python}
"$python" -c "import os_ken" 2>/dev/null || skip "os-ken is not installed: scripts/setup.sh"
private_network "$@"
ip link set lo up
for port in 1 2 3; do
    ip link add "card$port" type veth peer name "switch$port" || skip "there is no veth here"
    for end in card switch; do
        echo 1 >"/proc/sys/net/ipv6/conf/$end$port/disable_ipv6"
        ip link set "$end$port" up
    done
done

mkdir "$scratch/ovs"
export OVS_RUNDIR=$scratch/ovs OVS_LOGDIR=$scratch/ovs OVS_DBDIR=$scratch/ovs OVS_SYSCONFDIR=$scratch/ovs
configure() {
    ovs-vsctl --db="unix:$OVS_RUNDIR/db.sock" --timeout=20 "$@" || fail "ovs-vsctl $*"
}
ovsdb-tool create "$OVS_DBDIR/conf.db" /usr/share/openvswitch/vswitch.ovsschema
background database ovsdb-server "$OVS_DBDIR/conf.db" --remote="punix:$OVS_RUNDIR/db.sock" --no-chdir \
    --pidfile="$OVS_RUNDIR/ovsdb.pid" --unixctl="$OVS_RUNDIR/ovsdb.ctl"
await 10 test -S "$OVS_RUNDIR/db.sock" || fail "there is no database"
configure --no-wait init
background switch ovs-vswitchd "unix:$OVS_RUNDIR/db.sock" --no-chdir --pidfile="$OVS_RUNDIR/switch.pid" \
    --unixctl="$OVS_RUNDIR/switch.ctl"
configure add-br br -- set bridge br datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \
    other_config:datapath-id=0000000000000002
for port in 1 2 3; do
    configure add-port br "switch$port" -- set Interface "switch$port" "ofport_request=$port"
done
configure set-controller br tcp:127.0.0.1:6690 -- set controller br max_backoff=1000

start_card --port af_packet:card1 --port af_packet:card2 --port af_packet:card3 --queues 4
background agent "$millrace" agent --connect tcp:127.0.0.1:6690 --datapath-id 1 --control "$scratch/control"

theirs=$("$python" -c "import os_ken, os; print(os.path.dirname(os_ken.__file__))")/tests/switch/of13
mkdir "$scratch/tests"
cp "$theirs"/match/{00_IN_PORT,02_METADATA,06_VLAN_VID}.json "$theirs"/action/{18_POP_VLAN,24_DEC_NW_TTL_IPv4}.json \
    "$theirs"/action/25_SET_FIELD/11_IPV4_SRC.json "$scratch/tests"

# failed: tests that ended with an error, but those of headers that the card does not make, each with what it said.
failed() {
    grep -a -A 1 "ERROR$" "$scratch/report" | grep -av "^--" | paste - - | grep -av "mpls.*Failed to add flows\|pbb.*Failed to add flows"
}
passed=0
# What the tester does not see in time, on a busy machine or while Open vSwitch still has an entry of the test before, is tried again.
for try in 1 2 3; do
    timeout 100 "$python" "$tests/openflow_conformance.py" 6690 "$scratch/tests" 1 2 >"$scratch/report" 2>&1 || true
    grep -aq "Test report" "$scratch/report" || fail "the tests did not end: $(tail -n 20 "$scratch/report")"
    passed=$((passed + $(grep -ac "OK$" "$scratch/report")))
    failed >"$scratch/failed" || break
    ! grep -av "timeout" "$scratch/failed" || fail "see above"
    [ "$try" -lt 3 ] || fail "three times in a row: $(cat "$scratch/failed")"
done
[ "$passed" -ge 40 ] || fail "only $passed tests passed: $(tail -n 40 "$scratch/report")"
echo "$passed tests passed"
