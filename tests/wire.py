"""100 frames from Linux to the card and 100 from the card to Linux, over an interface of this host.

python3 wire.py INTERFACE MILLRACE FOLDER [LONGEST]

FOLDER/out.pcap is being written by `millrace receive`. LONGEST is the length of the longest frame, in bytes.
"""
import socket
import subprocess
import sys
from pathlib import Path

import frames

interface, millrace, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
longest = int(sys.argv[4]) if len(sys.argv) > 4 else 159
step = (longest - 60) / 99
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
wire.bind((interface, 0))
wire.settimeout(5)
# Room for all of them: SO_RCVBUFFORCE, which Python has no name for.
wire.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
made = [
    b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5" + bytes([number]) * (46 + round(number * step)) for number in range(100)
]
for frame in made:
    wire.send(frame)
frames.write(folder / "in.pcap", made)
subprocess.run([millrace, "transmit", str(folder / "in.pcap"), "--json"], check=True, stdout=subprocess.DEVNULL)
seen = []
while len(seen) < len(made):
    frame, source = wire.recvfrom(65536)
    # 4: what this host sent itself.
    if source[2] != 4:
        seen.append(frame)
problem = frames.difference(made, seen)
if problem:
    sys.exit("failed: card to Linux: " + problem)
