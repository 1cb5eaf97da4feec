"""Packets that are too long: refused with ICMP, or cut."""

from scapy.layers.inet import UDP

from packets import XDP, Way, answering, both_ways, one_way
from places import v4, v6
from scenario import Do, Scenario, Send, Settle
from scenarios.nat import MASQUERADE

way = Way("left", 2, v4("right", 2))
way6 = Way("left", 2, v6("right", 2))


def long(one: Way, length: int, count: int = 2, **ip) -> list[bytes]:
    """UDP packets of that length with the IP header."""
    header = 28 if one.version == 4 else 48
    made = one.but(ip=ip)
    return [
        made.frame(UDP(sport=one.ports[0], dport=one.ports[1]) / bytes((at + number) % 251 for at in range(length - header))) for number in range(count)
    ]


def lengths(one: Way, edge: int, **ip) -> list[bytes]:
    return [frame for length in (edge - 1, edge, edge + 1, 1499, 1500) for frame in long(one, length, **ip)]


NARROW = "ip link set right mtu 1300"

def refused(one: Way, edge: int, back: Way | None = None, **ip) -> list:
    return one_way(one.but(), back=back) + [Send("left", lengths(one, edge, **ip)), Settle(), Send("left", lengths(one, edge, **ip))]


# The first of the twelve that are refused Linux refuses; by its answer the others are known.
BY_XDP = [
    Scenario(
        "do not fragment, XDP",
        refused(way, 1300, flags="DF"),
        setup=NARROW,
        comes={"right": 17, "left": 12},
        fast=26,
        options=XDP,
    ),
    Scenario("too big for IPv6, XDP", refused(way6, 1300), setup=NARROW, comes={"right": 17, "left": 12}, fast=26, options=XDP),
    Scenario(
        "behind masquerade, XDP",
        refused(way, 1300, answering(way, v4("right")), flags="DF"),
        setup=f"{NARROW}; {MASQUERADE}",
        comes={"right": 18, "left": 13},
        fast=24,
        options=XDP,
    ),
    # What is refused is quoted as it was sent, though it is another one by now.
    Scenario(
        "answers behind masquerade, XDP",
        both_ways(there := Way("left", 2, v4("right", 2), (1000, 53)), back := Way("right", 2, v4("right"), (53, 1000)))
        + [Send("right", long(back, 1400, 6, flags="DF"))],
        setup=f"ip link set left mtu 1300; {MASQUERADE}",
        comes={"right": 15, "left": 8},
        fast=17,
        options=XDP,
    ),
    # A filter may drop what the router itself says; then the router says nothing.
    Scenario(
        "nobody is told, XDP",
        refused(way, 1300, answering(way), flags="DF"),
        setup=f"{NARROW}; iptables -A OUTPUT -p icmp -j DROP",
        comes={"right": 18, "left": 1},
        options=XDP,
    ),
]

SCENARIOS = BY_XDP + [
    Scenario(
        "do not fragment",
        one_way(way) + [Send("left", lengths(way, 1300, flags="DF")), Settle(), Send("left", lengths(way, 1300, flags="DF"))],
        setup=NARROW,
        comes={"right": 17, "left": 12},
        fast=10,
    ),
    Scenario(
        "may be fragmented",
        one_way(way.but()) + [Send("left", lengths(way, 1300)), Settle(), Send("left", lengths(way, 1300))],
        setup=NARROW,
        comes={"right": 41},
        fast=10,
    ),
    Scenario(
        "too big for IPv6",
        one_way(way6) + [Send("left", lengths(way6, 1300)), Settle(), Send("left", lengths(way6, 1300))],
        setup=NARROW,
        comes={"right": 17, "left": 12},
        fast=10,
    ),
    Scenario(
        "of a route",
        one_way(way.but()) + [Send("left", lengths(way, 1200, flags="DF")), Settle(), Send("left", lengths(way, 1200, flags="DF"))],
        setup=f"ip route add {v4('right', 2)}/32 dev right mtu 1200",
        fast=6,
    ),
    Scenario(
        "of a route, IPv6",
        one_way(way6.but()) + [Send("left", lengths(way6, 1290)), Settle(), Send("left", lengths(way6, 1290))],
        setup=f"ip route add {v6('right', 2)}/128 dev right mtu 1290",
        fast=6,
    ),
    Scenario(
        "behind masquerade",
        one_way(way.but(), back=answering(way, v4("right")))
        + [Send("left", lengths(way, 1300, flags="DF")), Settle(), Send("left", lengths(way, 1300))],
        setup=f"{NARROW}; {MASQUERADE}",
        fast=5,
    ),
    Scenario(
        "becomes smaller and larger",
        one_way(way.but())
        + [
            Send("left", long(way, 1400, flags="DF")),
            Do(NARROW),
            Send("left", long(way, 1400, flags="DF")),
            Settle(),
            Send("left", long(way, 1400, flags="DF")),
            Do("ip link set right mtu 1500"),
            Send("left", long(way, 1400, flags="DF")),
            Settle(),
            Send("left", long(way, 1400, flags="DF")),
        ],
        comes={"right": 15, "left": 4},
        fast=8,
    ),
]
