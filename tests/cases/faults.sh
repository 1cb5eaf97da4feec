#!/usr/bin/env bash
# A wire on which things go wrong: the answers that ping misses are the frames that the port counts as lost, and what the
# trace around it has written is what passed.
. "$(dirname "$0")/../lib.sh"
needs python3 ping
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"

background second unshare -n sleep 1000
second=$started
elsewhere() {
    [ "$(readlink "/proc/$second/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}
await 5 elsewhere || fail "there is no second namespace"
there=(nsenter -t "$second" -n)
ip link add pkt-c address 02:00:00:00:00:0c type veth peer name pkt-h address 02:00:00:00:00:02
echo 1 >/proc/sys/net/ipv6/conf/pkt-c/disable_ipv6
echo 8 >/proc/sys/net/ipv4/conf/pkt-c/arp_ignore
ip link set pkt-h netns "$second"
ip link set pkt-c up
# Before it is up, so that Linux never says anything by itself.
"${there[@]}" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/pkt-h/disable_ipv6'
"${there[@]}" ip address add 192.0.2.2/24 dev pkt-h
"${there[@]}" ip link set pkt-h up
ip tuntap add pkt-t mode tap
ip link set pkt-t address 02:00:00:00:00:01
echo 1 >/proc/sys/net/ipv6/conf/pkt-t/disable_ipv6
ip address add 192.0.2.1/24 dev pkt-t
ip link set pkt-t up
ip neighbor add 192.0.2.2 lladdr 02:00:00:00:00:02 dev pkt-t
"${there[@]}" ip neighbor add 192.0.2.1 lladdr 02:00:00:00:00:01 dev pkt-h

# lossy OPTIONS: pings through faults with these options; what ping and the card say is left in $scratch.
lossy() {
    start_card --port "trace:$scratch/seen.pcap,port=(fault:$1,port=(tap:pkt-t))" --port af_packet:pkt-c --connect 0-1
    ping -q -c 200 -i 0.002 -W 1 192.0.2.2 >"$scratch/ping.out" 2>&1 || true
    "$millrace" stats --json >"$scratch/stats.json"
    kill -INT "$card"
    ended "$card" 10
    [ "$code" -eq 0 ] || fail "the card ended with $code"
}

lossy seed=7,loss=10%
(cd "$tests" && python3 - "$scratch" <<'END_OF_PYTHON') || exit 1
import json, re, sys
from pathlib import Path
import frames
ports = json.load(open(sys.argv[1] + "/stats.json"))["ports"]
said = open(sys.argv[1] + "/ping.out").read()
sent, got = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", said).groups())
drops = {way: {drop["reason"]: drop["count"] for drop in ports[0][way]} for way in ("rx_drops", "tx_drops")}
lost = [drops[way].get("fault-loss", 0) for way in ("rx_drops", "tx_drops")]
if sent != 200 or not 10 < sum(lost) < 90 or 0 in lost:
    sys.exit("failed: %r lost of %d" % (lost, sent))
if got != sent - sum(lost):
    sys.exit("failed: ping has %d answers, but %r frames were lost" % (got, lost))
if ports[1]["tx_frames"] != sent - lost[0]:
    sys.exit("failed: the other port has sent %d" % ports[1]["tx_frames"])
# Behind the faults: requests that came through, and answers that were sent to the wire.
traced = len(frames.read(Path(sys.argv[1]) / "seen.pcap"))
if traced != sent - lost[0] + got:
    sys.exit("failed: %d frames are in the trace" % traced)
END_OF_PYTHON

lossy duplicate=100%,direction=rx
# It does not wait for the second of the last answer.
grep -Eq "200 received, \+(199|200) duplicates, 0% packet loss" "$scratch/ping.out" || fail "no duplicates: $(cat "$scratch/ping.out")"
lossy delay=20ms,direction=rx
python3 -c '
import re, sys
least = float(re.search(r"= ([\d.]+)/", sys.stdin.read()).group(1))
sys.exit(0 if least >= 20 else "failed: an answer after %s ms" % least)' <"$scratch/ping.out" || exit 1
echo "loss seen and counted, duplicates, delay; the trace has what passed"
