"""Fragments: routed as they are, or put together by conntrack; first ones, rest, overlapping, out of order, never ending."""

from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6ExtHdrFragment

from packets import XDP, Way, answering, both_ways, one_way
from places import v4, v6
from scenario import Scenario, Send, Settle
from scenarios.nat import MASQUERADE, table
from scenarios.tcp import TRACKED

way = Way("left", 2, v4("right", 2), (1000, 53))
back = Way("right", 2, v4("right"), (53, 1000))
way6 = Way("left", 2, v6("right", 2), (1000, 53))


def whole(one: Way, length: int = 2000) -> bytes:
    """A UDP packet from its UDP header on, with the checksum that it needs."""
    made = one.but().frame(UDP(sport=one.ports[0], dport=one.ports[1]) / bytes(at * 7 % 251 for at in range(length)))
    return made[14 + (20 if one.version == 4 else 40) :]


def pieces(one: Way, ident: int, cuts: list[tuple[int, int, bool]], data: bytes | None = None) -> list[bytes]:
    """Fragments (offset, end, whether more follow) of a packet."""
    data = data or whole(one)
    made = []
    for start, end, more in cuts:
        if one.version == 4:
            made.append(one.but(ip={"id": ident, "flags": "MF" if more else 0, "frag": start // 8, "proto": 17}).frame(data[start:end]))
        else:
            made.append(
                one.but(ip={"nh": 44}).frame(bytes(IPv6ExtHdrFragment(nh=17, offset=start // 8, m=int(more), id=ident)) + data[start:end])
            )
    return made


IN_ORDER = [(0, 800, True), (800, 1600, True), (1600, 2008, False)]


def plain(one: Way) -> list[bytes]:
    return pieces(one, 5, IN_ORDER) + pieces(one, 6, IN_ORDER[::-1]) + pieces(one, 7, [(0, 1000, True), (1000, 2008, False)])


def torn(one: Way, first: int) -> list[bytes]:
    """With identifications from `first` on, for what is never whole waits in the router. First only, middle only, last only; the same twice; overlapping; longer than a packet can be; nothing in it; an odd length before the end."""
    made = pieces(one, first, IN_ORDER[:1]) + pieces(one, first + 1, IN_ORDER[1:2]) + pieces(one, first + 2, IN_ORDER[2:])
    made += pieces(one, first + 3, [IN_ORDER[0], IN_ORDER[0], *IN_ORDER[1:]]) + pieces(
        one, first + 4, [(0, 800, True), (400, 1600, True), (1600, 2008, False)]
    )
    made += pieces(one, first + 5, [(0, 8, True), (8, 2008 - 1000, False)]) + pieces(one, first + 6, [(0, 803, True), (800, 2008, False)])
    made += pieces(one, first + 7, [(0, 8, True), (16, 16, True), (8, 800, False)])
    if one.version == 4:
        made.append(one.but(ip={"id": first + 8, "frag": 8190, "proto": 17}).frame(b"z" * 100))
    return made


def without_fragment_id(frame: bytes) -> bytes:
    """Of IPv6, which conntrack puts together and takes apart again, with an identification of its own."""
    if frame[12:14] != b"\x86\xdd" or frame[20] != 44:
        return frame
    return frame[:58] + b"\0\0\0\0" + frame[62:]


def among(one: Way, made: list[bytes], back: Way | None = None) -> list:
    return one_way(one.but(), back=back) + [
        Send("left", made),
        Send("left", one.but().udp(2)),
        Settle(),
        Send("left", made),
        Send("left", one.but().udp(2)),
    ]


# Who answers, so that conntrack calls the flow established, under each set of rules.
BACK = {"routed": None, "conntrack": answering(way), "masquerade": answering(way, v4("right"))}
BACK6 = {"routed": None, "conntrack": answering(way6), "masquerade": answering(way6, v6("right"))}
SCENARIOS = []
for number, (name, setup) in enumerate({"routed": "", "conntrack": TRACKED, "masquerade": MASQUERADE}.items(), 1):
    # Without netfilter each fragment is forwarded as it comes.
    fast = 10 if setup else 24
    SCENARIOS += [
        Scenario(f"whole, {name}", among(way, plain(way), BACK[name]), setup=setup, fast=fast),
        Scenario(f"torn, {name}", among(way, torn(way, 20 * number), BACK[name]), setup=setup, fast=fast),
    ]
masquerade6 = table("post oifname right masquerade", family="ip6")
for number, (name, setup) in enumerate({"routed": "", "conntrack": TRACKED, "masquerade": masquerade6}.items(), 1):
    masks = (without_fragment_id,) if setup else ()
    fast = 10 if setup else 24
    SCENARIOS += [
        Scenario(f"whole, IPv6, {name}", among(way6, plain(way6), BACK6[name]), setup=setup, masks=masks, fast=fast),
        Scenario(f"torn, IPv6, {name}", among(way6, torn(way6, 20 * number), BACK6[name]), setup=setup, masks=masks, fast=fast),
    ]
SCENARIOS += [
    # Rules for what comes to the router itself, and conntrack with them: nothing looks at what is forwarded, but fragments are put
    # together.
    Scenario(
        "torn, conntrack at the input",
        among(way, torn(way, 80)),
        setup="iptables -A INPUT -m conntrack --ctstate INVALID -j DROP",
        fast=10,
    ),
    Scenario("whole, XDP", among(way, plain(way)), fast=24, options=XDP),
    Scenario("whole, the part is off", among(way, plain(way)), fast=10, options=("--only", "ipv4,ipv6")),
    Scenario(
        "of replies",
        both_ways(way.but(), back) + [Send("right", plain(back)), Settle(), Send("right", plain(back))],
        setup=MASQUERADE,
        fast=12,
    ),
    # Atomic: a fragment header on a whole packet.
    Scenario("atomic", among(way6, pieces(way6, 9, [(0, 208, False)], whole(way6, 200))), fast=10),
    Scenario(
        "atomic, conntrack", among(way6, pieces(way6, 9, [(0, 208, False)], whole(way6, 200)), BACK6["conntrack"]), setup=TRACKED, fast=10
    ),
]
