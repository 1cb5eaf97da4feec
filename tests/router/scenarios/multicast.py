"""Multicast by the kernel's forwarding cache (MFC)."""

from pathlib import Path

from packets import Way, one_way
from places import v4
from scenario import Scenario, Send, Settle

from scapy.layers.inet import UDP

ENDS = ("left", "right", "third")
MROUTE = f"python3 '{Path(__file__).parent.parent / 'mroute.py'}'"
TO_TWO = f"{MROUTE} '{v4('left', 2)},239.1.2.3@left>right,third'"
TO_ONE = f"{MROUTE} '{v4('left', 2)},239.1.2.3@left>right' '{v4('right', 2)},239.9.9.9@right>left'"
group = Way("left", 2, "239.1.2.3", ip={"ttl": 5})


def to_group(frames: list[bytes]) -> list[bytes]:
    """With the Ethernet address of the group (RFC 1112)."""
    return [b"\x01\0\x5e" + bytes([frame[31] & 0x7F]) + frame[32:34] + frame[6:] for frame in frames]


def sent(way: Way, count: int = 6) -> list:
    return [Send(way.end, to_group(way.udp(3))), Settle(), Send(way.end, to_group(way.udp(count)))]


def long() -> list[bytes]:
    return to_group([group.but(ip={"ttl": 5, "flags": flags}).frame(UDP(sport=1000, dport=2000) / (b"m" * 1372)) for flags in (0, "DF")])


SCENARIOS = [
    Scenario("to two", sent(group), ends=ENDS, background=(TO_TWO,), comes={"right": 9, "third": 9}),
    Scenario(
        "to one",
        sent(group) + sent(Way("right", 2, "239.9.9.9", ip={"ttl": 5})),
        ends=ENDS,
        background=(TO_ONE,),
        comes={"right": 9, "left": 9},
    ),
    Scenario(
        "from the wrong interface",
        sent(group) + [Send("third", to_group(group.but().udp(4)))],
        ends=ENDS,
        background=(TO_ONE,),
        comes={"right": 9},
    ),
    Scenario(
        "at its last hop",
        sent(group) + [Send("left", to_group(group.but(ip={"ttl": ttl}).udp(2))) for ttl in (0, 1, 2)],
        ends=ENDS,
        background=(TO_TWO,),
        comes={"right": 11, "third": 11},
    ),
    Scenario(
        "not routed",
        sent(group) + sent(group.but(to="239.7.7.7")) + sent(group.but(to="224.0.0.5")),
        ends=ENDS,
        background=(TO_TWO,),
        comes={"right": 9, "third": 9},
    ),
    Scenario("nobody routes", [*sent(group), *one_way(Way("left", 2, v4("right", 2)))], ends=ENDS, comes={"right": 9}, fast=6),
    Scenario(
        "one of two is narrow", sent(group) + [Send("left", long())], ends=ENDS, background=(TO_TWO,), setup="ip link set third mtu 1300"
    ),
]
