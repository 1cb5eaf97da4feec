#!/usr/bin/env bash
# A tap port: what Linux sends to the interface is received from the card, and what is sent to the card comes to Linux.
. "$(dirname "$0")/../lib.sh"
needs python3
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
start_card --port tap:mill0
echo 1 >/proc/sys/net/ipv6/conf/mill0/disable_ipv6 2>/dev/null || true
ip link set mill0 up
background receive "$millrace" receive "$scratch/out.pcap" --count 100 --json
receiver=$started
await 10 test -e "$scratch/out.pcap" || fail "nobody receives"
python3 - "$tests" "$scratch" "$millrace" <<'END'
import socket, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import frames
scratch, millrace = Path(sys.argv[2]), sys.argv[3]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
wire.bind(("mill0", 0))
wire.settimeout(5)
made = [b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5" + bytes([number]) * (46 + number) for number in range(100)]
for frame in made:
    wire.send(frame)
frames.write(scratch / "in.pcap", made)
subprocess.run([millrace, "transmit", str(scratch / "in.pcap"), "--json"], check=True, stdout=subprocess.DEVNULL)
seen = []
while len(seen) < len(made):
    frame, source = wire.recvfrom(65536)
    # 4: what this host sent itself.
    if source[2] != 4:
        seen.append(frame)
problem = frames.difference(made, seen)
if problem:
    sys.exit("failed: card to Linux: " + problem)
END
ended "$receiver" 10
(cd "$tests" && python3 -c '
import sys
import frames
made, got = (frames.read(name) for name in sys.argv[1:])
problem = frames.difference(made, got)
sys.exit("failed: Linux to card: " + problem if problem else 0)' "$scratch/in.pcap" "$scratch/out.pcap")
check_counting
echo "100 frames each way"
