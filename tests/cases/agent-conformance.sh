#!/usr/bin/env bash
# The switch conformance tests of os-ken, some of them: entries of the agent decide on frames that Open vSwitch sends through the card and looks at
# behind it. Tests with headers of MPLS and PBB are refused, as docs/agent.md says.
# waits: for timers, of entries and of connections
. "$(dirname "$0")/../lib.sh"
. "$tests/openvswitch.sh"
needs python3 ip ovs-ofctl ovs-vswitchd
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

start_open_vswitch
configure add-br br -- set bridge br datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \
    other_config:datapath-id=0000000000000002
for port in 1 2 3; do
    configure add-port br "switch$port" -- set Interface "switch$port" "ofport_request=$port"
done
configure set-controller br tcp:127.0.0.1:6690 -- set controller br max_backoff=1000

start_card --port af_packet:card1 --port af_packet:card2 --port af_packet:card3 --queues 4
background agent "$millrace" agent --connect tcp:127.0.0.1:6690 --listen ptcp:6691:127.0.0.1 --datapath-id 1 --control "$scratch/control"
await 10 bash -c '(: </dev/tcp/127.0.0.1/6691) 2>/dev/null' || fail "the agent does not listen"
# Meanwhile somebody says hello byte by byte, and has 10 s for it.
background slow python3 -c '
import socket, time
peer = socket.create_connection(("127.0.0.1", 6691))
begin = time.monotonic()
peer.settimeout(1)
for byte in b"\4\0\0\10\0\0" + 60 * b"\0":
    try:
        peer.sendall(bytes([byte])) if time.monotonic() - begin < 5 else None
        while peer.recv(100):
            pass
        break
    except TimeoutError:
        pass
    except OSError:
        break
print(int(time.monotonic() - begin), flush=True)'
slow=$started

theirs=$("$python" -c "import os_ken, os; print(os.path.dirname(os_ken.__file__))")/tests/switch/of13
mkdir "$scratch/tests"
cp "$theirs"/match/{00_IN_PORT,02_METADATA,06_VLAN_VID}.json "$theirs"/action/{18_POP_VLAN,24_DEC_NW_TTL_IPv4}.json \
    "$theirs"/action/25_SET_FIELD/11_IPV4_SRC.json "$scratch/tests"

# ended_with WORD: tests of the last report that ended so, without those of headers that the card does not make.
ended_with() {
    grep -a " $1\$" -A 1 "$scratch/report" | grep -av "^--" | paste - - | grep -a " $1" |
        grep -av "mpls.*Failed to add flows\|pbb.*Failed to add flows" | sed "s/ *$1.*//" | sort -u || true
}
# Each passes in one of five turns: the tester waits 3 s for a frame, and Open vSwitch may still have the entry of the test before, which on a
# busy machine is so in one of twenty. What is wrong, and not late, is wrong each time.
: >"$scratch/passed"
: >"$scratch/failed"
for try in 1 2 3 4 5; do
    timeout 100 "$python" "$tests/openflow_conformance.py" 6690 "$scratch/tests" 1 2 >"$scratch/report" 2>&1 || true
    grep -aq "Test report" "$scratch/report" || fail "the tests did not end: $(tail -n 20 "$scratch/report")"
    grep -a " OK$" "$scratch/report" | sed 's/ *OK$//' | sort -u - "$scratch/passed" -o "$scratch/passed"
    ended_with ERROR | sort -u - "$scratch/failed" -o "$scratch/failed"
    comm -23 "$scratch/failed" "$scratch/passed" >"$scratch/left"
    [ -s "$scratch/left" ] || break
done
[ ! -s "$scratch/left" ] || fail "in $try turns never: $(cat "$scratch/left") $(tail -n 40 "$scratch/report")"
[ "$(wc -l <"$scratch/passed")" -ge 25 ] || fail "only these passed: $(cat "$scratch/passed")"
echo "$(wc -l <"$scratch/passed") tests passed"
ended "$slow" 30
took=$(cat "$scratch/slow.out")
[ "$took" -ge 9 ] && [ "$took" -le 40 ] || fail "who is slow to say hello was left after $took s"
