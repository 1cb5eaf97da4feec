"""What is unusual in an IP header: TTL, options, source routes, lengths, versions, extension headers."""

from scapy.layers.inet import UDP, IPOption, IPOption_LSRR, IPOption_RR, IPOption_Router_Alert, IPOption_SSRR, IPOption_Timestamp
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, PadN, RouterAlert

from packets import XDP, Way, answering, one_way
from places import v4, v6
from scenario import Scenario, Send, Settle
from scenarios.nat import MASQUERADE

way = Way("left", 2, v4("right", 2))
way6 = Way("left", 2, v6("right", 2))
# Answers to what masquerade has made of it.
BACK = answering(way, v4("right"))


def after_warm(one: Way, made: list[bytes], back: Way | None = None) -> list:
    """The unusual among the usual, whose rule is in force: twice, with usual ones behind."""
    return one_way(one.but(), back=back) + [
        Send("left", made),
        Send("left", one.but().udp(2)),
        Settle(),
        Send("left", made),
        Send("left", one.but().udp(2)),
    ]


def with_ttl(*ttls: int) -> list[bytes]:
    return [frame for ttl in ttls for frame in way.but(ip={"ttl": ttl}).udp(2)]


def with_hop_limit(*limits: int) -> list[bytes]:
    return [frame for limit in limits for frame in way6.but(ip={"hlim": limit}).udp(2)]


OPTIONS = [
    [IPOption_RR(routers=["0.0.0.0"] * 3)],
    [IPOption_Timestamp(flg=0)],
    [IPOption_Router_Alert()],
    [IPOption(b"\x01\x01\x01\x00")],
    [IPOption_LSRR(routers=["10.0.2.9"])],
    [IPOption_SSRR(routers=["10.0.2.9"])],
    [IPOption(b"\x88\x04\0\1")],
    [IPOption(b"\x44\x03\x05")],
]


def with_options(one: Way = way) -> list[bytes]:
    return [frame for options in OPTIONS for frame in one.but(ip={"options": options}).udp(2)]


def edited(frame: bytes, at: int, new: bytes) -> bytes:
    return frame[:at] + new + frame[at + len(new) :]


def summed(frame: bytes) -> bytes:
    """With the right checksum in the IPv4 header."""
    head = edited(frame, 24, b"\0\0")[14 : 14 + 4 * (frame[14] & 15)]
    total = sum(int.from_bytes(head[at : at + 2], "big") for at in range(0, len(head), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return edited(frame, 24, (total ^ 0xFFFF).to_bytes(2, "big"))


def wrong_lengths() -> list[bytes]:
    frame = way.but().udp(1)[0]
    made = []
    for version in (0x44, 0x40, 0x46, 0x4F, 0x35, 0x65):
        made.append(summed(edited(frame, 14, bytes([version]))) if version & 15 >= 5 else edited(frame, 14, bytes([version])))
    for length in (0, 19, 20, 27, 28, len(frame) - 15, len(frame) - 13, 65535):
        made.append(summed(edited(frame, 16, length.to_bytes(2, "big"))))
    # Cut short, and with bytes behind its end.
    made += (
        [frame[: 14 + length] for length in (1, 19, 20, 24, 28)]
        + [frame + b"padding"]
        + [summed(edited(frame, 38, length.to_bytes(2, "big"))) for length in (0, 7, 8, 600)]
    )
    return made


def wrong_lengths6() -> list[bytes]:
    frame = way6.but().udp(1)[0]
    made = [edited(frame, 14, b"\x40"), edited(frame, 14, b"\x70")]
    made += [edited(frame, 18, length.to_bytes(2, "big")) for length in (0, 7, 8, len(frame) - 55, len(frame) - 53, 65535)]
    return made + [frame[: 14 + length] for length in (1, 39, 40, 44, 48)] + [frame + b"padding"]


def extensions() -> list[bytes]:
    inner = UDP(sport=1000, dport=2000) / (b"x" * 20)
    some = [
        IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\0" * 4)]),
        IPv6ExtHdrHopByHop(options=[RouterAlert()]),
        IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 4)]),
        IPv6ExtHdrRouting(type=0, addresses=[v6("right", 3)]),
        IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\0" * 4)]) / IPv6ExtHdrDestOpt(),
        IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt(),
    ]
    return [way6.but().frame(one / inner) for one in some] + [
        way6.but(ip={"nh": 59}).frame(b"nothing"),
        way6.but(ip={"nh": 253}).frame(b"x" * 30),
    ]


SCENARIOS = [
    Scenario("ttl", after_warm(way, with_ttl(0, 1, 2, 3, 255)), fast=10),
    Scenario("ttl behind masquerade", after_warm(way, with_ttl(0, 1, 2, 255), BACK), setup=MASQUERADE, fast=10),
    Scenario("hop limit", after_warm(way6, with_hop_limit(0, 1, 2, 255)), fast=10),
    Scenario("ttl, XDP", after_warm(way, with_ttl(0, 1, 2, 3, 255)), fast=30, options=XDP),
    Scenario("ttl behind masquerade, XDP", after_warm(way, with_ttl(0, 1, 2, 255), BACK), setup=MASQUERADE, fast=24, options=XDP),
    Scenario("hop limit, XDP", after_warm(way6, with_hop_limit(0, 1, 2, 255)), fast=26, options=XDP),
    # Six at once, and then one in a second: it is Linux's own limit, by which the fast path has said as many in the end.
    Scenario(
        "ttl, limited, XDP",
        after_warm(way, with_ttl(1, 1, 1, 1, 1)),
        setup="sysctl -qw net.ipv4.icmp_ratelimit=10000",
        comes={"right": 13, "left": 6},
        fast=15,
        options=XDP,
    ),
    Scenario(
        "ttl, the part is off, XDP", after_warm(way, with_ttl(1, 2)), fast=10, options=(*XDP, "--only", "ipv4,ipv6")
    ),
    Scenario("ttl set by a rule", one_way(way.but()), setup="iptables -t mangle -A FORWARD -j TTL --ttl-set 33", comes={"right": 9}),
    Scenario("options", after_warm(way, with_options()), fast=10),
    Scenario("options behind masquerade", after_warm(way, with_options(), BACK), setup=MASQUERADE, fast=10),
    Scenario(
        "source routes refused",
        after_warm(way, with_options()),
        setup="for i in all left; do sysctl -qw net.ipv4.conf.$i.accept_source_route=0; done",
        fast=10,
    ),
    Scenario(
        "source routes to the router",
        [
            Send(
                "left",
                [
                    frame
                    for route in (IPOption_LSRR, IPOption_SSRR)
                    for frame in way.but(to=v4("left"), ip={"options": [route(routers=[v4("right", 4)])]}).udp(2)
                ],
            )
        ],
        comes={"right": 4},
        setup="for i in all left; do sysctl -qw net.ipv4.conf.$i.accept_source_route=1; done",
    ),
    Scenario("lengths and versions", after_warm(way, wrong_lengths()), fast=10),
    Scenario("lengths and versions behind masquerade", after_warm(way, wrong_lengths(), BACK), setup=MASQUERADE, fast=10),
    Scenario("lengths and versions of IPv6", after_warm(way6, wrong_lengths6()), fast=10),
    Scenario("extension headers", after_warm(way6, extensions()), fast=10),
    # Reserved flag and identification 0: forwarded as they are.
    Scenario(
        "flags",
        after_warm(way, [frame for flags in ("evil", "DF", "evil+DF") for frame in way.but(ip={"flags": flags, "id": 0}).udp(2)]),
        fast=10,
    ),
    Scenario(
        "padded to the shortest",
        after_warm(way, [frame.ljust(60, b"\xee") for frame in [way.but().frame(UDP(sport=1000, dport=2000)) for _ in range(4)]]),
        fast=10,
    ),
]
