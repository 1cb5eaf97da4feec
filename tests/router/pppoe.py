"""A session of PPPoE in the kernel, as it is when `pppd` has agreed on everything: nobody answers at the other end, and none has to.

python3 pppoe.py INTERFACE SESSION ADDRESS ; the number of the session and the Ethernet address of the concentrator. Packets have the
interface ppp0, or the next that is free. Works until it is ended.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

# linux/socket.h, linux/if_pppox.h
AF_PPPOX, PX_PROTO_OE = 24, 0


def ioctl_number(direction: int, number: int) -> int:
    """That of an ioctl of PPP for an int: written by us (1), read (2), both (3)."""
    return direction << 30 | 4 << 16 | ord("t") << 8 | number


ATTACH, CONNECT, CHANNEL, NEW_UNIT = ioctl_number(1, 56), ioctl_number(1, 58), ioctl_number(2, 55), ioctl_number(3, 62)

interface, number, address = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
session = socket.socket(AF_PPPOX, socket.SOCK_STREAM, PX_PROTO_OE)
# struct sockaddr_pppox, without gaps.
where = struct.pack("=HI", AF_PPPOX, PX_PROTO_OE) + struct.pack("!H", int(number, 0)) + bytes.fromhex(address.replace(":", ""))
where += interface.encode().ljust(16, b"\0")
if libc.connect(session.fileno(), where, len(where)):
    sys.exit(f"connect: {os.strerror(ctypes.get_errno())}")
channel = fcntl.ioctl(session, CHANNEL, struct.pack("i", 0))
below = os.open("/dev/ppp", os.O_RDWR)
fcntl.ioctl(below, ATTACH, channel)
above = os.open("/dev/ppp", os.O_RDWR)
unit = fcntl.ioctl(above, NEW_UNIT, struct.pack("i", -1))
fcntl.ioctl(below, CONNECT, unit)
print("ready", flush=True)
signal.pause()
