"""Addresses that should not be there: martians, land attacks, and rp_filter."""

from packets import Way, answering, one_way
from places import v4, v6
from scenario import Do, Scenario, Send, Settle
from scenarios.nat import MASQUERADE, without_source_port

way = Way("left", 2, v4("right", 2))
way6 = Way("left", 2, v6("right", 2))
SOURCES = [
    "0.0.0.0",
    "127.0.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "169.254.1.1",
    v4("left"),
    v4("right"),
    v4("right", 2),
    "10.0.1.255",
    "10.0.1.0",
]
DESTINATIONS = [
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.9.9.9",
    "224.0.0.251",
    "239.1.2.3",
    "255.255.255.255",
    "240.0.0.1",
    "169.254.1.1",
    "10.0.2.255",
    "10.0.2.0",
    "10.0.1.255",
    v4("left"),
    v4("right"),
]
SOURCES6 = [
    "::",
    "::1",
    "fe80::1",
    "ff02::1",
    v6("left"),
    v6("right"),
    v6("right", 2),
    "::ffff:10.0.1.2",
    "::10.0.1.2",
    "fec0::1",
    "fc00::1",
]
DESTINATIONS6 = ["::", "::1", "fe80::1", "ff02::1", "ff05::2", "ff01::1", "::ffff:10.0.2.2", "fec0::1", v6("left"), v6("right")]


def strangers(one: Way, sources: list[str], destinations: list[str]) -> list[bytes]:
    made = [frame for source in sources for frame in one.but(source=source).udp(2)]
    made += [frame for destination in destinations for frame in one.but(to=destination).udp(2)]
    # Land: from and to the same address and port.
    return made + [frame for address in (one.to, destinations[-1]) for frame in one.but(to=address, source=address, ports=(80, 80)).udp(2)]


def among(one: Way, made: list[bytes], back: Way | None = None) -> list:
    return one_way(one.but(), back=back) + [Send("left", made), Settle(), Send("left", made), Send("left", one.but().udp(2))]


def land(one: Way) -> list[bytes]:
    return [one.but(to=address, source=address, ports=(80, 80)).tcp("S", 1) for address in (one.to, v4("left"), v4("right"))]


# From an address that is at another interface, and from one that is nowhere but behind the default route.
SPOOFED = one_way(Way("left", 2, v4("right", 2), source=v4("third", 2))) + one_way(Way("left", 2, v4("right", 2), source="198.18.1.1"))
ENDS = ("left", "right", "third")


def filter_of(mode: int) -> str:
    return f"for i in all left right third; do sysctl -qw net.ipv4.conf.$i.rp_filter={mode}; done"


SCENARIOS = [
    Scenario("martians", among(way, strangers(way, SOURCES, DESTINATIONS)), fast=8),
    Scenario(
        "martians behind masquerade",
        among(way, strangers(way, SOURCES, DESTINATIONS), answering(way, v4("right"))),
        setup=MASQUERADE,
        fast=8,
        masks=(without_source_port,),
    ),
    Scenario("martians of IPv6", among(way6, strangers(way6, SOURCES6, DESTINATIONS6)), fast=8),
    Scenario("land", among(way, land(way)), fast=8),
    Scenario(
        "loopback addresses allowed",
        among(way, strangers(way, ["127.0.0.1"], ["127.0.0.1"])),
        fast=8,
        setup="for i in all left right; do sysctl -qw net.ipv4.conf.$i.route_localnet=1; done",
    ),
    Scenario("rp_filter off", SPOOFED, ends=ENDS, setup=filter_of(0), comes={"right": 18}, fast=12),
    Scenario("rp_filter strict", SPOOFED + one_way(way.but()), ends=ENDS, setup=filter_of(1), comes={"right": 9}, fast=6),
    Scenario("rp_filter loose", SPOOFED + one_way(way.but()), ends=ENDS, setup=filter_of(2), comes={"right": 27}, fast=18),
    Scenario(
        "rp_filter loose, no way back",
        SPOOFED + one_way(way.but()),
        ends=ENDS,
        setup=filter_of(2) + "; ip route del default",
        comes={"right": 18},
        fast=12,
    ),
    Scenario(
        "rp_filter switched on and off",
        SPOOFED
        + [
            Do(filter_of(1)),
            Send("left", SPOOFED[-1].frames),
            Settle(),
            Send("left", SPOOFED[-1].frames),
            Do(filter_of(0)),
            Send("left", SPOOFED[-1].frames),
            Settle(),
            Send("left", SPOOFED[-1].frames),
        ],
        ends=ENDS,
        comes={"right": 30},
        fast=18,
    ),
    # Strict, and the way back moves to another interface.
    Scenario(
        "the way back moves",
        one_way(way.but())
        + [
            Do(f"ip route add {v4('left', 2)}/32 dev third"),
            Send("left", way.but().udp(3)),
            Settle(),
            Send("left", way.but().udp(3)),
            Do(f"ip route delete {v4('left', 2)}/32 dev third"),
            Send("left", way.but().udp(3)),
            Settle(),
            Send("left", way.but().udp(3)),
        ],
        ends=ENDS,
        setup=filter_of(1),
        comes={"right": 15},
        fast=9,
    ),
    Scenario(
        "rp_filter by nft",
        SPOOFED + one_way(way.but()),
        ends=ENDS,
        comes={"right": 9},
        setup="""nft -f - <<'END'
table inet t {
    chain c {
        type filter hook prerouting priority raw
        fib saddr . iif oif missing drop
    }
}
END""",
    ),
]
