"""Reads RoCE frames, one a line in hexadecimal, and prints for each its invariant CRC and the one that scapy works out.

For IPv4 the sum is that of scapy.contrib.roce. For IPv6 and RoCE v1, which it does not sum up, the fields that routers
change are set here, by the names that scapy gives them, and zlib sums up.
"""

import sys
from zlib import crc32

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.compat import raw


def network(frame):
    """The packet without Ethernet and what that has added."""
    whole = Ether(frame).payload
    if isinstance(whole, IP):
        length = whole.len
    else:
        length = 40 + (whole.plen if isinstance(whole, IPv6) else whole.paylen)
    return Ether(frame[: 14 + length]).payload


def worked_out(packet):
    masked = packet.copy()
    if isinstance(packet, IP):
        return masked[BTH].compute_icrc(raw(masked[BTH]))
    if isinstance(packet, IPv6):
        masked.tc, masked.fl, masked.hlim = 0xFF, 0xFFFFF, 0xFF
        masked[UDP].chksum = 0xFFFF
    else:
        masked.tclass, masked.flowlabel, masked.hoplmt = 0xFF, 0xFFFFF, 0xFF
    masked[BTH].fecn, masked[BTH].becn, masked[BTH].resv6 = 1, 1, 0x3F
    return crc32(b"\xff" * 8 + raw(masked)[:-4]).to_bytes(4, "little")


for line in sys.stdin:
    packet = network(bytes.fromhex(line))
    print(raw(packet)[-4:].hex(), worked_out(packet).hex())
