"""Multicast by the kernel's forwarding cache (MFC)."""

from pathlib import Path

from packets import XDP, Way, one_way
from places import v4, v6
from scenario import Do, Scenario, Send, Settle

from scapy.layers.inet import UDP

ENDS = ("left", "right", "third")
MROUTE = f"python3 '{Path(__file__).parent.parent / 'mroute.py'}'"
TO_TWO = f"{MROUTE} '{v4('left', 2)},239.1.2.3@left>right,third'"
TO_ONE = f"{MROUTE} '{v4('left', 2)},239.1.2.3@left>right' '{v4('right', 2)},239.9.9.9@right>left'"
group = Way("left", 2, "239.1.2.3", ip={"ttl": 5})


def to_group(frames: list[bytes]) -> list[bytes]:
    """With the Ethernet address of the group (RFC 1112, RFC 2464)."""
    return [
        (b"\x33\x33" + frame[50:54] if frame[12] == 0x86 else b"\x01\0\x5e" + bytes([frame[31] & 0x7F]) + frame[32:34]) + frame[6:]
        for frame in frames
    ]


def sent(way: Way, count: int = 6) -> list:
    return [Send(way.end, to_group(way.udp(3))), Settle(), Send(way.end, to_group(way.udp(count)))]


def long() -> list[bytes]:
    return to_group([group.but(ip={"ttl": 5, "flags": flags}).frame(UDP(sport=1000, dport=2000) / (b"m" * 1372)) for flags in (0, "DF")])


SCENARIOS = [
    Scenario("to two", sent(group), ends=ENDS, background=(TO_TWO,), comes={"right": 9, "third": 9}),
    Scenario(
        "not routed",
        sent(group) + sent(group.but(to="239.7.7.7")) + sent(group.but(to="224.0.0.5")),
        ends=ENDS,
        background=(TO_TWO,),
        comes={"right": 9, "third": 9},
    ),
    Scenario("nobody routes", [*sent(group), *one_way(Way("left", 2, v4("right", 2)))], ends=ENDS, comes={"right": 9}, fast=6),
]
TO_TWO6 = f"{MROUTE} '{v6('left', 2)},ff05::1:3@left>right,third'"
UNEVEN = f"{MROUTE} '{v4('left', 2)},239.1.2.3@left>right,third/4'"
group6 = Way("left", 2, "ff05::1:3", ip={"hlim": 5})


def pieces() -> list[bytes]:
    fields = {"ttl": 5, "id": 9, "proto": 17}
    return to_group([group.but(ip=fields | {"flags": flags, "frag": at}).frame(b"f" * 80) for flags, at in (("MF", 0), (0, 10))])


# All but what is sent first goes without Linux.
SCENARIOS += [
    Scenario("to two, XDP", sent(group), ends=ENDS, background=(TO_TWO,), comes={"right": 9, "third": 9}, fast=8, options=XDP),
    Scenario("to two, IPv6, XDP", sent(group6), ends=ENDS, background=(TO_TWO6,), comes={"right": 9, "third": 9}, fast=8, options=XDP),
    Scenario(
        "to one and back, XDP",
        sent(group) + sent(Way("right", 2, "239.9.9.9", ip={"ttl": 5})),
        ends=ENDS,
        background=(TO_ONE,),
        comes={"right": 9, "left": 9},
        fast=16,
        options=XDP,
    ),
    Scenario("in pieces, XDP", sent(group) + [Send("left", pieces())], ends=ENDS, background=(TO_TWO,), fast=10, options=XDP),
    Scenario(
        "at its last hop, XDP",
        sent(group) + [Send("left", to_group(group.but(ip={"ttl": ttl}).udp(2))) for ttl in (0, 1, 2, 4, 5)],
        ends=ENDS,
        background=(UNEVEN,),
        fast=10,
        options=XDP,
    ),
    Scenario(
        "one of two is narrow, XDP",
        sent(group) + [Send("left", long())],
        ends=ENDS,
        background=(TO_TWO,),
        setup="ip link set third mtu 1300",
        fast=8,
        options=XDP,
    ),
    Scenario(
        "from the wrong interface, XDP",
        sent(group) + [Send("third", to_group(group.but().udp(4)))],
        ends=ENDS,
        background=(TO_ONE,),
        comes={"right": 9},
        fast=8,
        options=XDP,
    ),
    # An interface that the router has not been given, one that goes down, and rules that come.
    Scenario(
        "one of two is another's, XDP",
        sent(group),
        ends=ENDS,
        interfaces=("left", "right"),
        background=(TO_TWO,),
        comes={"right": 9, "third": 9},
        options=XDP,
    ),
    Scenario(
        "rules come, XDP",
        sent(group) + [Do("iptables -A FORWARD -o third -j DROP"), Settle(), Send("left", to_group(group.udp(4)))],
        ends=ENDS,
        background=(TO_TWO,),
        comes={"right": 13, "third": 9},
        fast=8,
        options=XDP,
    ),
    Scenario(
        "the part is off, XDP",
        sent(group),
        ends=ENDS,
        background=(TO_TWO,),
        comes={"right": 9, "third": 9},
        options=(*XDP, "--only", "ipv4,ipv6"),
    ),
]
