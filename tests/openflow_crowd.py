"""One controller beside an attacker: openflow_crowd.py PORT KIND COUNT SECONDS. It prints p50, p99 and the longest of its echoes, in milliseconds.

KIND: statistics (of all entries), changes (an entry, then a question about all), deletes (non-strict, of nothing), packets (out, with long lists), groups.
The attackers come from 127.0.1.1, the controller from 127.0.0.1: other networks.
"""

import socket
import struct
import sys
import threading
import time

PORT, KIND, COUNT, SECONDS = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def message(kind, body=b"", xid=7):
    return struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body


HELLO = message(0)
ANY_MATCH = b"\0\1\0\4\0\0\0\0"


def connect(source):
    return socket.create_connection(("127.0.0.1", PORT), timeout=120, source_address=(source, 0))


def read(peer, wanted, held=b""):
    while True:
        while len(held) >= 8:
            _, kind, length, _ = struct.unpack("!BBHI", held[:8])
            if len(held) < length:
                break
            body, held = held[8:length], held[length:]
            if kind == wanted:
                return body
        more = peer.recv(1 << 16)
        if not more:
            raise EOFError("closed")
        held += more


def flow(command, priority, port=None, table=0):
    fields = b"" if port is None else bytes.fromhex("80000a020800" "8000140106" "80001c02") + struct.pack("!H", port)
    match = struct.pack("!HH", 1, 4 + len(fields)) + fields
    match += b"\0" * (-len(match) % 8)
    head = struct.pack("!QQBBHHHIIIHH", 0, 0, table, command, 0, 0, priority, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0)
    return message(14, head + match)


def question(kind):
    return message(18, struct.pack("!HHI", kind, 0, 0) + struct.pack("!B3xII4xQQ", 255, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + ANY_MATCH)


OUTPUTS = struct.pack("!HHIH6x", 0, 16, 1, 0) * 60
BUCKETS = struct.pack("!HHII4x", 32, 0, 0xFFFFFFFF, 0xFFFFFFFF) + struct.pack("!HHIH6x", 0, 16, 1, 0)
ASKS = {
    "none": b"",
    "statistics": question(1),
    "aggregates": question(2),
    "changes": flow(0, 7, 7) + question(2),
    "deletes": flow(3, 0, 1, table=0) * 8,
    "packets": message(13, struct.pack("!IIH6x", 0xFFFFFFFF, 0xFFFFFFFD, len(OUTPUTS)) + OUTPUTS + b"\0" * 60) * 16,
    "groups": message(15, struct.pack("!HBBI", 1, 0, 0, 9) + BUCKETS * 50) * 4,
    "tables": message(18, struct.pack("!HHI", 12, 0, 0)) * 8,
}


def drain(peer):
    try:
        while peer.recv(1 << 20):
            pass
    except OSError:
        pass


def attack(peer):
    threading.Thread(target=drain, args=(peer,), daemon=True).start()
    try:
        while True:
            peer.sendall(ASKS[KIND])
    except OSError:
        pass


good = connect("127.0.0.1")
good.sendall(HELLO)
# 20,000 entries in table 0, to be asked about.
for begin in range(0, 20000, 1000):
    good.sendall(b"".join(flow(0, 1 + port // 60000, 1 + port % 60000) for port in range(begin, begin + 1000)))
    good.sendall(message(20))
    read(good, 21)
for _ in range(COUNT if KIND != "none" else 0):
    peer = connect("127.0.1.1")
    peer.sendall(HELLO)
    threading.Thread(target=attack, args=(peer,), daemon=True).start()
time.sleep(1)
took, end = [], time.monotonic() + SECONDS
while time.monotonic() < end:
    begin = time.monotonic()
    good.sendall(message(2, b"there?"))
    read(good, 3)
    took.append((time.monotonic() - begin) * 1000)
    time.sleep(0.02)
took.sort()
print(f"{KIND} x{COUNT}: p50 {took[len(took) // 2]:.1f} p99 {took[int(len(took) * 0.99)]:.1f} max {took[-1]:.1f} of {len(took)}")
