"""Fills the table of conntrack of this network namespace with connections of TCP that are established and assured, which Linux drops for nobody.

python3 full.py ; as many as `nf_conntrack_max` says: that can be changed for all namespaces only. They are from 198.19.0.0/16.
"""

import errno
import socket
import struct
import sys
from pathlib import Path

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
NETLINK_NETFILTER, REQUEST, ACK, CREATE, NEW_CONNECTION = 12, 1, 4, 0x400, 1 << 8
NESTED, ORIGINAL, REPLY, STATUS, PROTOCOL_INFO, TIMEOUT = 0x8000, 1, 2, 3, 4, 7
# SEEN_REPLY, ASSURED, CONFIRMED
IN_FORCE = 2 | 4 | 8
ESTABLISHED, TCP = 3, 6
MOST = 1 << 20


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def within(kind: int, *values: bytes) -> bytes:
    return attribute(NESTED | kind, b"".join(values))


def tuple_of(kind: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> bytes:
    addresses = within(1, attribute(1, source), attribute(2, destination))
    protocol = within(2, attribute(1, bytes([TCP])), attribute(2, struct.pack("!H", ports[0])), attribute(3, struct.pack("!H", ports[1])))
    return within(kind, addresses, protocol)


def connection(number: int, flags: int = 0) -> bytes:
    here, there = bytes([198, 19]) + struct.pack("!H", number & 0xFFFF), bytes([198, 51, 100, 1])
    ports = (1 + (number >> 16), 80)
    body = struct.pack("!BBH", socket.AF_INET, 0, 0) + tuple_of(ORIGINAL, here, there, ports) + tuple_of(REPLY, there, here, ports[::-1])
    body += attribute(STATUS, struct.pack("!I", IN_FORCE)) + attribute(TIMEOUT, struct.pack("!I", 600))
    body += within(PROTOCOL_INFO, within(1, attribute(1, bytes([ESTABLISHED]))))
    return struct.pack("=IHHII", 16 + len(body), NEW_CONNECTION, REQUEST | CREATE | flags, number, 0) + body


kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
kernel.bind((0, 0))
most = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
if most > MOST:
    sys.exit(f"nf_conntrack_max is {most}: that many take too long")
# They differ in the last half of one address, and every 65,536 in a port.
MARK = bytes([198, 19, 0xDE, 0xAD])
for block in range(0, most, 1 << 16):
    like = connection(block | 0xDEAD)
    for first in range(0, 1 << 16, 128):
        kernel.send(b"".join(like.replace(MARK, MARK[:2] + struct.pack("!H", number)) for number in range(first, first + 128)))
# What has failed is told of; one more that is asked about has to fail for want of room.
kernel.close()
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
kernel.bind((0, 0))
kernel.send(connection(most + 1000, ACK))
said = -struct.unpack_from("=i", kernel.recv(4096), 16)[0]
if said != errno.ENOMEM:
    sys.exit(f"the table is not full: one more brings {errno.errorcode.get(said, said)}")
