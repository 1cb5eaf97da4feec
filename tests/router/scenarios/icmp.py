"""ICMP through NAT: echoes, and errors that carry a piece of the packet they are about."""

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, IPv6

from packets import Way, both_ways, one_way
from places import v4, v6
from scenario import Scenario, Send, Settle
from scenarios.nat import MASQUERADE, table

client = Way("left", 2, v4("right", 2), (1000, 53))
answer = Way("right", 2, v4("right"), (53, 1000))
client6 = Way("left", 2, v6("right", 2), (1000, 53))
answer6 = Way("right", 2, v6("right"), (53, 1000))
victim = Way("left", 2, v4("right", 2), ip={"flags": "DF"})
other_host = Way("left", 3, v4("right", 2), ip={"flags": "DF"})
TOO_LONG = b"B" * 1440
# Shorter, with the same checksum.
AS_THE_LONG_ONE = TOO_LONG[:998] + (TOO_LONG[998:].count(b"BB") * 0x4242 % 0xFFFF).to_bytes(2)
MASQUERADE6 = table("post oifname right masquerade", family="ip6", name="t6")


def about(way: Way, kind: int, code: int, from_host: int = 2, **fields) -> bytes:
    """An error from a host at `right` about what the router sent as `way` says."""
    back = way.but(source=v4("right", from_host), number=from_host)
    inner = IP(src=v4("right"), dst=v4("right", 2), id=9, ttl=63) / UDP(sport=way.ports[1], dport=way.ports[0], len=48) / (b"x" * 20)
    return back.frame(ICMP(type=kind, code=code, **fields) / inner)


def errors() -> list[bytes]:
    return [
        about(answer, 3, 3),
        about(answer, 3, 1, from_host=7),
        about(answer, 3, 4, nexthopmtu=1300),
        about(answer, 11, 0, from_host=7),
        about(answer, 12, 0),
    ]


def errors6() -> list[bytes]:
    inner = IPv6(src=v6("right"), dst=v6("right", 2), hlim=63) / UDP(sport=1000, dport=53, len=48, chksum=0x1234) / (b"x" * 40)
    return [answer6.but().frame(ICMPv6DestUnreach(code=4) / inner), answer6.but().frame(ICMPv6PacketTooBig(mtu=1300) / inner)]


def filtered(family: str, more: str = "") -> str:
    """Who is inside, at `left`, may ask; who is outside may answer. `more` are chains beside that."""
    return f"""nft -f - <<'END'
table {family} f {{
    chain c {{
        type filter hook forward priority 0; policy drop
        ct state invalid drop
        ct state established,related accept
        iifname left accept
    }}
    {more}
}}
END"""


FILTER_AND_MASQUERADE = filtered("ip", "chain post { type nat hook postrouting priority srcnat; oifname right masquerade; }")


def coded(way: Way, count: int) -> list[bytes]:
    """Answers to echoes with a code that no answer has."""
    return [way.frame(ICMP(type=0, code=9, id=77, seq=way.count + 1) / way.payload()) for _ in range(count)]


def the_wrong_way(one: Way, other: Way) -> list:
    """Echoes, and then their packets from the end that sends no such ones: requests from outside, answers from inside."""
    return [*echoes(one, other), Send("right", other.echo(6)), Send("left", one.echo(6, 0))]


def echoes(one: Way, other: Way) -> list:
    return [
        Send("left", one.echo(2)),
        Send("right", other.echo(2, 0)),
        Settle(),
        Send("left", one.echo(6)),
        Send("right", other.echo(6, 0)),
    ]


SCENARIOS = [
    Scenario("echo", echoes(client, answer), setup=MASQUERADE, comes={"right": 8, "left": 8}, fast=10),
    Scenario("echo of IPv6", echoes(client6, answer6), setup=MASQUERADE6, comes={"right": 8, "left": 8}, fast=10),
    # Linux asks conntrack about each of them, for which a request and its answer are two things.
    Scenario(
        "echo the wrong way",
        the_wrong_way(client.but(), answer.but(to=v4("left", 2))) + [Send("right", coded(answer.but(to=v4("left", 2)), 6))],
        setup=filtered("ip"),
        comes={"right": 8, "left": 8},
        fast=10,
    ),
    Scenario(
        "echo the wrong way, translated",
        the_wrong_way(client.but(), answer.but()) + [Send("right", coded(answer.but(), 6))],
        setup=FILTER_AND_MASQUERADE,
        # The router answers requests to itself.
        comes={"right": 14, "left": 8},
        fast=10,
    ),
    Scenario(
        "echo of IPv6 the wrong way",
        the_wrong_way(client6.but(), answer6.but(to=v6("left", 2))),
        setup=filtered("ip6"),
        comes={"right": 8, "left": 8},
        fast=10,
    ),
    Scenario(
        "echo by dnat",
        [
            Send("right", Way("right", 2, v4("right")).echo(2)),
            Send("left", Way("left", 5, v4("right", 2)).echo(2, 0)),
            Settle(),
            Send("right", Way("right", 2, v4("right")).echo(4)),
            Send("left", Way("left", 5, v4("right", 2)).echo(4, 0)),
        ],
        setup=table(f"pre iifname right icmp type echo-request dnat to {v4('left', 5)}"),
        comes={"right": 6, "left": 6},
        fast=6,
    ),
    Scenario(
        "replies that nobody asked for",
        [Send("right", answer.but().echo(4, 0)), Settle(), Send("right", answer.but().echo(4, 0))] + one_way(client.but(), "echo"),
        setup=MASQUERADE,
        comes={"right": 9},
    ),
    Scenario(
        "errors about a translated flow",
        both_ways(client.but(), answer.but())
        + [Send("right", errors()), Settle(), Send("right", errors()), Send("left", client.but().udp(4))],
        setup=MASQUERADE,
        comes={"right": 13, "left": 18},
        fast=16,
    ),
    Scenario(
        "errors about a translated flow, IPv6",
        both_ways(client6.but(), answer6.but()) + [Send("right", errors6()), Settle(), Send("right", errors6())],
        setup=MASQUERADE6,
        comes={"right": 9, "left": 12},
        fast=12,
    ),
    # A host waits until the router waits for a packet of another one that Linux drops, and sends one that looks the same. Both are at `left`.
    Scenario(
        "a ping that another one proves",
        [
            Send("left", other_host.echo(30, data=TOO_LONG)),
            Settle(),
            Send("left", victim.but(ip={"id": 999, "flags": "DF"}).echo(1, data=TOO_LONG)),
            Send("left", other_host.but(ip={"id": 999, "flags": "DF"}).echo(1, data=AS_THE_LONG_ONE)),
            Settle(),
            Send("left", victim.echo(8)),
        ],
        setup="ip link set right mtu 1400\n" + filtered("ip"),
        comes={"right": 9, "left": 31},
    ),
    # Without NAT, but with conntrack: an error about nothing that it knows is dropped by this rule.
    Scenario(
        "errors about nothing",
        one_way(client.but()) + [Send("right", errors())],
        comes={"right": 9},
        setup="""nft -f - <<'END'
table inet t {
    chain c {
        type filter hook forward priority 0
        ct state invalid drop
    }
}
END""",
    ),
]
