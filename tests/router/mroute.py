"""Static multicast routes: what `smcroute` does, and as little of it as a scenario needs.

python3 mroute.py SOURCE,GROUP@FROM>TO[/THRESHOLD][,TO...]... ; from and to are interfaces, addresses of one version. Works until it is
ended.
"""

import signal
import socket
import struct
import sys

# linux/mroute.h, linux/mroute6.h: the same numbers.
INIT, ADD_VIF, ADD_MFC = 200, 202, 204
VIFF_USE_IFINDEX = 8
MAXVIFS = 32

is_ipv6 = ":" in sys.argv[1].partition(",")[0]
family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if is_ipv6 else (socket.AF_INET, socket.IPPROTO_IGMP)
level = socket.IPPROTO_IPV6 if is_ipv6 else socket.IPPROTO_IP
opened = socket.socket(family, socket.SOCK_RAW, protocol)
opened.setsockopt(level, INIT, 1)
vifs = {}


def vif(interface: str) -> int:
    """The number of the interface, which the kernel hears of at the first use."""
    if interface not in vifs:
        number, index = len(vifs), socket.if_nametoindex(interface)
        vifs[interface] = number
        # struct vifctl: number, flags, threshold, rate limit, interface, remote address.
        # struct mif6ctl: number, flags, threshold, interface, rate limit.
        data = struct.pack("=HBBIi4s", number, VIFF_USE_IFINDEX, 1, 0, index, b"")
        data6 = struct.pack("=HBBHxxI", number, 0, 1, index, 0)
        opened.setsockopt(level, ADD_VIF, data6 if is_ipv6 else data)
    return vifs[interface]


def address6(text: str) -> bytes:
    return struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, text), 0)


for word in sys.argv[1:]:
    addresses, _, interfaces = word.partition("@")
    source, group = addresses.split(",")
    come, go = interfaces.split(">")
    thresholds = bytearray(MAXVIFS)
    parent = vif(come)
    for one in go.split(","):
        name, _, threshold = one.partition("/")
        thresholds[vif(name)] = int(threshold or 1)
    if is_ipv6:
        # struct mf6cctl: source, group, parent, a bit for each interface.
        bits = sum(1 << number for number, threshold in enumerate(thresholds) if threshold)
        data = address6(source) + address6(group) + struct.pack("=HxxI28x", parent, bits)
    else:
        # struct mfcctl: source, group, parent, thresholds, three counters, expiry.
        data = struct.pack("=4s4sH32s2xIIIi", socket.inet_aton(source), socket.inet_aton(group), parent, bytes(thresholds), 0, 0, 0, 0)
    opened.setsockopt(level, ADD_MFC, data)
print("ready", flush=True)
signal.pause()
