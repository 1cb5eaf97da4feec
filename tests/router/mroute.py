"""Static multicast routes: what `smcroute` does, and as little of it as a scenario needs.

python3 mroute.py SOURCE,GROUP@FROM>TO[,TO...]... ; from and to are interfaces. Works until it is ended.
"""

import signal
import socket
import struct
import sys

# linux/mroute.h
MRT_INIT, MRT_ADD_VIF, MRT_ADD_MFC = 200, 202, 204
VIFF_USE_IFINDEX = 8
MAXVIFS = 32

opened = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
opened.setsockopt(socket.IPPROTO_IP, MRT_INIT, 1)
vifs = {}


def vif(interface: str) -> int:
    """The number of the interface, which the kernel hears of at the first use."""
    if interface not in vifs:
        vifs[interface] = len(vifs)
        # struct vifctl: number, flags, threshold, rate limit, interface, remote address.
        data = struct.pack("=HBBIi4s", vifs[interface], VIFF_USE_IFINDEX, 1, 0, socket.if_nametoindex(interface), b"")
        opened.setsockopt(socket.IPPROTO_IP, MRT_ADD_VIF, data)
    return vifs[interface]


for word in sys.argv[1:]:
    addresses, _, interfaces = word.partition("@")
    source, group = addresses.split(",")
    come, go = interfaces.split(">")
    thresholds = bytearray(MAXVIFS)
    parent = vif(come)
    for one in go.split(","):
        thresholds[vif(one)] = 1
    # struct mfcctl: source, group, parent, thresholds, three counters, expiry.
    data = struct.pack("=4s4sH32s2xIIIi", socket.inet_aton(source), socket.inet_aton(group), parent, bytes(thresholds), 0, 0, 0, 0)
    opened.setsockopt(socket.IPPROTO_IP, MRT_ADD_MFC, data)
print("ready", flush=True)
signal.pause()
