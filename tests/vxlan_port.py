"""Frames for ports that are tunnels, between interfaces: vxlan_port.py WHAT INTERFACE ...

frame FROM TO COUNT: so many frames that are sent at FROM come to TO as they were; until the first has come, it is sent again.
send FROM COUNT: sends them. take AT: says that it looks, and ends when one comes.
within FROM TO VNI: sends a VXLAN packet of that network, which is what a host may send; it comes to TO and back to FROM.
"""

import socket
import struct
import sys
import time

MACS = b"\x02\0\0\0\0\x0a\x02\0\0\0\0\x0b"


def opened(interface):
    # 3: every protocol.
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    end.bind((interface, 0))
    return end


def made(number):
    return MACS + b"\x88\xb5" + bytes([number]) * (100 + number)


def come(end, frame, seconds):
    """Whether this end gets the frame, which it has not sent itself, in that time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        end.settimeout(left)
        try:
            got, sender = end.recvfrom(65536)
        except TimeoutError:
            return False
        if sender[2] != 4 and got == frame:
            return True
    return False


def reaches(source, target, frame):
    sender, receiver = opened(source), opened(target)
    for _ in range(40):
        sender.send(frame)
        if come(receiver, frame, 1):
            return True
    return False


def packet(vni, inner):
    """A VXLAN packet within the frames of a host, without a checksum of UDP."""
    udp = struct.pack("!4H", 50000, 4789, 16 + len(inner), 0) + struct.pack("!II", 8 << 24, vni << 8) + inner
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return MACS + b"\x08\0" + head[:10] + struct.pack("!H", total ^ 0xFFFF) + head[12:] + udp


def main(what, interface, *rest):
    if what == "frame":
        return all(reaches(interface, rest[0], made(number)) for number in range(int(rest[1])))
    if what == "send":
        end = opened(interface)
        return all(end.send(made(number)) for number in range(int(rest[0])))
    if what == "take":
        end = opened(interface)
        print("looks", flush=True)
        frame = b"\xff" * 6 + b"\x02\0\0\0\0\x0b\x88\xb5" + b"A" * 46
        return come(end, frame, 40)
    frame = packet(int(rest[1]), made(1))
    back = opened(interface)
    return reaches(interface, rest[0], frame) and come(back, frame, 20)


sys.exit(0 if main(*sys.argv[1:]) else f"failed: {sys.argv[1:]}")
