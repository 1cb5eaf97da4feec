"""Checksums that are wrong on arrival: they stay wrong in the same way, or the packet goes where Linux sends it."""

from scapy.layers.inet import UDP

from packets import Way, answering, both_ways, one_way
from places import v4, v6
from scenario import Scenario, Send, Settle
from scenarios.nat import MASQUERADE, table
from scenarios.tcp import TRACKED

way = Way("left", 2, v4("right", 2), (1000, 53))
back = Way("right", 2, v4("right"), (53, 1000))
way6 = Way("left", 2, v6("right", 2), (1000, 53))
SUMS = (0, 1, 0x1234, 0xFFFE, 0xFFFF)


def of_udp(one: Way) -> list[bytes]:
    return [frame for value in SUMS for frame in one.but().udp(1, chksum=value)] + one.but().udp(1)


def of_tcp(one: Way) -> list[bytes]:
    return [one.but().tcp("A", 1000, 5000, b"data", chksum=value) for value in SUMS] + [one.but().tcp("A", 1000, 5000, b"data")]


def of_ip() -> list[bytes]:
    return [frame for value in SUMS for frame in way.but(ip={"chksum": value}).udp(1)] + way.but().udp(1)


def sums_of_every_kind() -> list[bytes]:
    """Bytes chosen so that the right checksum goes through all its edges when addresses change: 1,000 payloads."""
    made = []
    for value in list(range(0, 65536, 131)):
        made.append(way.but().frame(UDP(sport=1000, dport=53) / value.to_bytes(2, "big")))
    return made


def among(one: Way, made: list[bytes], back: Way | None = None) -> list:
    return one_way(one.but(), back=back) + [Send("left", made), Settle(), Send("left", made), Send("left", one.but().udp(2))]


# Who answers, so that conntrack calls the flow established, under each set of rules.
BACK = {"routed": None, "conntrack": answering(way), "masquerade": answering(way, v4("right"))}
BACK6 = {"routed": None, "masquerade": answering(way6, v6("right"))}
MASQUERADE6 = table("post oifname right masquerade", family="ip6")
# Decision 82.
NOT_LOOKED_AT = "the fast path does not look at checksums of TCP and UDP (nf_conntrack_checksum=0 makes Linux do the same)"
SCENARIOS = [
    Scenario("of IP", among(way, of_ip()), fast=8),
    Scenario("of IP behind masquerade", among(way, of_ip(), BACK["masquerade"]), setup=MASQUERADE, fast=8),
]
for name, setup in {"routed": "", "conntrack": TRACKED, "masquerade": MASQUERADE}.items():
    SCENARIOS += [
        Scenario(f"of UDP, {name}", among(way, of_udp(way), BACK[name]), setup=setup, fast=8, known=NOT_LOOKED_AT if setup else ""),
        Scenario(
            f"of TCP, {name}",
            [Send("left", [way.but().tcp("S", 999)]), Send("left", of_tcp(way)), Settle(), Send("left", of_tcp(way))],
            setup=setup,
        ),
    ]
for name, setup in {"routed": "", "masquerade": MASQUERADE6}.items():
    SCENARIOS += [Scenario(f"of UDP, IPv6, {name}", among(way6, of_udp(way6), BACK6[name]), setup=setup, fast=8, known=NOT_LOOKED_AT if setup else "")]
SCENARIOS += [
    Scenario("every sum", among(way, sums_of_every_kind(), BACK["masquerade"]), setup=MASQUERADE, fast=500),
    Scenario(
        "every sum, routed", among(way, [frame for number in range(0, 65536, 131) for frame in way.but(ip={"id": number}).udp(1)]), fast=500
    ),
    # Linux can be told not to look.
    Scenario(
        "not looked at",
        among(way, of_udp(way), BACK["masquerade"]),
        setup=MASQUERADE + "\nsysctl -qw net.netfilter.nf_conntrack_checksum=0",
        fast=8,
    ),
    Scenario(
        "of replies",
        known=NOT_LOOKED_AT,
        steps=both_ways(way.but(), back) + [Send("right", of_udp(back)), Settle(), Send("right", of_udp(back))],
        setup=MASQUERADE,
        fast=12,
    ),
]
