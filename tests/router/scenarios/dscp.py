"""DSCP and ECN: as rules set them, and as they come."""

from packets import Way, answering, both_ways, one_way
from places import v4, v6
from scenario import Do, Scenario, Send, Settle
from scenarios.nat import MASQUERADE

client = Way("left", 2, v4("right", 2), (1000, 53))
answer = Way("right", 2, v4("left", 2), (53, 1000))
client6 = Way("left", 2, v6("right", 2), (1000, 53))


# Whoever looks at the state switches conntrack on, without which a rule of nft may look at anything, and no flow is fast.
TRACKED = "ct state established counter"


def mangle(*rules: str, tracked: bool = True) -> str:
    joined = "\n".join((TRACKED,) * tracked + rules)
    return f"""nft -f - <<'END'
table inet marks {{
    chain c {{
        type filter hook forward priority mangle
        {joined}
    }}
}}
END"""


def of_all(way: Way) -> list[bytes]:
    """The flow with every DSCP and ECN there is, in turns."""
    return [frame for tos in range(0, 256, 5) for frame in way.but(ip={"tos": tos}).udp(1)]


SCENARIOS = [
    Scenario(
        "as it comes",
        one_way(client) + [Send("left", of_all(client)), Settle(), Send("left", of_all(client))],
        comes={"right": 113},
        fast=58,
    ),
    Scenario(
        "set by nft",
        both_ways(client.but(), answer.but()),
        setup=mangle("iifname left ip dscp set af41"),
        comes={"right": 9, "left": 8},
        fast=12,
    ),
    Scenario(
        "set by nft, IPv6",
        one_way(client6.but(), back=answering(client6)),
        setup=mangle("iifname left ip6 dscp set ef"),
        comes={"right": 10, "left": 1},
        fast=6,
    ),
    Scenario(
        "set both ways, with masquerade",
        both_ways(client.but(), answer.but(to=v4("right"))),
        comes={"right": 9, "left": 8},
        fast=12,
        setup=MASQUERADE + "\n" + mangle("iifname left ip dscp set cs5", "iifname right ip dscp set cs1"),
    ),
    # ECN stays when DSCP is set: the TOS of what comes out depends on that of what goes in.
    Scenario(
        "set by nft, with ECN",
        one_way(client.but(ip={"tos": 2}), back=answering(client)) + [Send("left", of_all(client)), Settle(), Send("left", of_all(client))],
        setup=mangle("iifname left ip dscp set af41"),
        comes={"right": 114, "left": 1},
        fast=6,
    ),
    Scenario(
        "set for one DSCP only",
        one_way(client.but()) + [Send("left", of_all(client)), Settle(), Send("left", of_all(client))],
        setup=mangle("iifname left ip dscp cs1 ip dscp set ef"),
        comes={"right": 113},
    ),
    Scenario(
        "set by iptables DSCP",
        one_way(client.but(), back=answering(client)),
        setup="iptables -t mangle -A FORWARD -m conntrack --ctstate NEW; iptables -t mangle -A FORWARD -p udp -j DSCP --set-dscp 46",
        comes={"right": 10, "left": 1},
        fast=6,
    ),
    Scenario(
        "set by iptables TOS",
        one_way(client.but(ip={"tos": 0x28})),
        comes={"right": 9},
        setup="iptables -t mangle -A FORWARD -p udp -j TOS --or-tos 0x10",
    ),
    Scenario(
        "the rule changes",
        one_way(client.but(), back=answering(client))
        + [
            Do("nft flush ruleset; " + mangle("iifname left ip dscp set ef")),
            Send("left", client.but().udp(4)),
            Settle(),
            Send("left", client.but().udp(4)),
            Do("nft flush ruleset"),
            Send("left", client.but().udp(4)),
            Settle(),
            Send("left", client.but().udp(4)),
        ],
        setup=mangle("iifname left ip dscp set af41"),
        comes={"right": 26, "left": 1},
        fast=14,
    ),
]
