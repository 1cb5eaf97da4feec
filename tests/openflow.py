"""Hostile controllers: openflow.py PORT. Each check says what it found; the agent has to serve the others all the while."""

import socket
import struct
import sys
import time

PORT = int(sys.argv[1])
HELLO = struct.pack("!BBHI", 4, 0, 8, 1)


def message(kind, body=b"", xid=7, version=4):
    return struct.pack("!BBHI", version, kind, 8 + len(body), xid) + body


def connect():
    return socket.create_connection(("127.0.0.1", PORT), timeout=10)


def read(peer, wanted):
    """The next message of that type."""
    data = b""
    while True:
        while len(data) >= 8:
            _, kind, length, xid = struct.unpack("!BBHI", data[:8])
            if len(data) < length:
                break
            if kind == wanted:
                return xid, data[8:length]
            data = data[length:]
        more = peer.recv(65536)
        if not more:
            raise EOFError(f"closed before a message of type {wanted}")
        data += more


def echoes(peer, within=8.0):
    begin = time.monotonic()
    peer.sendall(message(2, b"there?", 99))
    assert read(peer, 3) == (99, b"there?")
    took = time.monotonic() - begin
    assert took < within, f"an echo took {took:.2f} s"


good = connect()
good.sendall(HELLO)
echoes(good)

# A hundred who say nothing, and who have begun a message.
crowd = [connect() for _ in range(100)]
for at, peer in enumerate(crowd):
    peer.sendall(HELLO + message(14)[:5] if at % 2 else HELLO[:3])
for _ in range(10):
    echoes(good)
print("crowd: the others are heard")

# An older version is told so, and left.
old = connect()
old.sendall(message(0, version=1))
xid, error = read(old, 1)
assert error[:4] == b"\0\0\0\0", error
assert old.recv(1) == b"", "it goes on"
print("version: refused")

# A message whose length cannot be: nobody knows where the next begins.
short = connect()
short.sendall(HELLO + struct.pack("!BBHI", 4, 2, 7, 1))
short.settimeout(10)
while short.recv(65536):
    pass
print("length: disconnected")

# What is no message of OpenFlow 1.3 is an error, and nothing else.
strange = connect()
strange.sendall(HELLO + message(30) + message(14, b"\0" * 3) + message(18, b"\0\x63\0\0\0\0\0\0"))
kinds = [read_error for read_error in (read(strange, 1)[1][:4] for _ in range(1))]
assert kinds[0] == struct.pack("!HH", 1, 1), kinds
echoes(strange)
print("noise: answered")

# A bundle that is not ended, and whose controller goes.
bundle = struct.pack("!IIIHH", 0x4F4E4600, 2300, 5, 0, 3)
gone = connect()
gone.sendall(HELLO + message(4, bundle))
flow = message(14, struct.pack("!QQBBHHHIIIHH", 0, 0, 0, 0, 0, 0, 77, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + b"\0\1\0\4\0\0\0\0")
gone.sendall(message(4, struct.pack("!IIIHH", 0x4F4E4600, 2301, 5, 0, 3) + flow))
read(gone, 4)
gone.close()
echoes(good)
print("bundle: forgotten")

# What came before the end counts, all of it: entries of one who closes at once.
def question(kind):
    """About all entries of table 9."""
    return struct.pack("!HHI", kind, 0, 0) + struct.pack("!B3xII4xQQ", 9, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + b"\0\1\0\4\0\0\0\0"


def entry(port, command=0):
    fields = bytes.fromhex("80000a020800" "8000140106" "80001c02") + struct.pack("!H", port)
    match = struct.pack("!HH", 1, 4 + len(fields)) + fields
    match += bytes(-len(match) % 8)
    head = (0, 0, 9, command, 0, 0, 77, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0)
    return message(14, struct.pack("!QQBBHHHIIIHH", *head) + match)


def entries(peer=good):
    peer.sendall(message(18, question(2)))
    return struct.unpack("!I", read(peer, 19)[1][24:28])[0]


def awaits(count):
    end = time.monotonic() + 60
    while (there := entries()) != count:
        assert time.monotonic() < end, f"{there} entries, not {count}"


hasty = connect()
hasty.sendall(HELLO + b"".join(entry(port) for port in range(1, 1001)))
hasty.close()
awaits(1000)
print("hasty: all 1,000 entries of one who closed at once are there")

# Two see the same: what one has done and had confirmed is there for the other.
other = connect()
other.sendall(HELLO)
for there in (1000, 999, 998):
    assert entries(other) == entries() == there, (entries(other), entries(), there)
    other.sendall(entry(1001 - there, 4) + message(20))
    read(other, 21)
other.close()
awaits(997)
print("two: each sees what the other has done")

# An entry that would be longer in an answer than a message can be is refused, and dumps go on.
long = connect()
long.sendall(HELLO)
actions = struct.pack("!HHI", 21, 8, 0) * 8180
flow = struct.pack("!QQBBHHHIIIHH", 0, 0, 9, 0, 0, 0, 78, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + b"\0\1\0\4\0\0\0\0"
long.sendall(message(14, flow + struct.pack("!HHI", 4, 8 + len(actions), 0) + actions))
assert read(long, 1)[1][:4] == struct.pack("!HH", 2, 7)
long.close()
everything = struct.pack("!QQBBHHHIIIHH", 0, 0, 9, 3, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + b"\0\1\0\4\0\0\0\0"
good.sendall(message(14, everything))
awaits(0)
print("long: refused")

# More than there is room for, and none of them says anything: who does is let in.
silent = [connect() for _ in range(300)]
late = connect()
late.sendall(HELLO)
echoes(late)
for peer in silent:
    peer.close()
print("silent: 300 keep nobody out")

# One who asks and does not read holds nobody back.
deaf = connect()
deaf.sendall(HELLO)
deaf.settimeout(0.2)
try:
    for _ in range(20000):
        deaf.sendall(message(18, struct.pack("!HHI", 12, 0, 0)))
except (TimeoutError, socket.timeout):
    pass
for _ in range(5):
    echoes(good)
print("deaf: the others are heard")
