#!/usr/bin/env bash
# The three commands of the README that put a card between a real interface and a program, as they stand there, with an
# eth0 behind which somebody sends numbered frames and keeps what comes.
. "$(dirname "$0")/../lib.sh"
needs python3
private_network "$@"
commands=$(shown README.md "A real interface, in three commands")
[ "$(wc -l <<<"$commands")" -eq 3 ] || fail "the README has not three commands"
ip link add eth0 type veth peer name network
for interface in eth0 network; do
    # Linux has nothing to say here.
    echo 1 >"/proc/sys/net/ipv6/conf/$interface/disable_ipv6"
    ip link set "$interface" up
done
cd "$scratch"
background network python3 -c '
import itertools, socket, sys
sys.path.insert(0, sys.argv[1])
import frames
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
wire.bind(("network", 0))
wire.settimeout(0.01)
kept = []
for number in itertools.count():
    if len(kept) == 10:
        break
    wire.send(b"\2\0\0\0\0\2\2\0\0\0\0\1\x88\xb5" + number.to_bytes(4, "big") + bytes(100))
    try:
        while len(kept) < 10:
            frame, source = wire.recvfrom(65536)
            # 4: what it sent itself.
            if source[2] != 4:
                kept.append(frame)
    except TimeoutError:
        pass
frames.write(sys.argv[2], kept)' "$tests" "$scratch/kept.pcap"
network=$started
follow "$commands"
ended "$network" 10
python3 -c '
import sys
sys.path.insert(0, sys.argv[1])
import frames
sent, kept = frames.read("eth0.pcap"), frames.read("kept.pcap")
numbers = [int.from_bytes(frame[14:18], "big") for frame in sent]
problem = frames.difference(sent, kept)
if problem or len(sent) != 10 or numbers != list(range(numbers[0], numbers[0] + 10)):
    sys.exit("failed: %s; %s" % (problem, numbers))' "$tests"
MILLRACE_DEVICE=unix:$scratch/card.sock check_counting
echo "ten frames from the network into a program, and back"
