"""IPv4 NAT in all its forms. Replies go to what has come out: who answers sees the address that NAT has chosen."""

import socket
import struct

from packets import Way, both_ways, one_way
from places import v4, v6
from scenario import Do, Scenario, Send, Settle


def table(*rules: str, family: str = "ip", name: str = "t") -> str:
    """A table of nft with rules for the chains: `pre ...` and `post ...`."""

    def of(chain: str) -> str:
        return "\n".join(rule.removeprefix(chain + " ") for rule in rules if rule.startswith(chain + " "))

    return f"""nft -f - <<'END'
table {family} {name} {{
    chain pre {{
        type nat hook prerouting priority dstnat
        {of("pre")}
    }}
    chain post {{
        type nat hook postrouting priority srcnat
        {of("post")}
    }}
}}
END"""


MASQUERADE = table("post oifname right masquerade")
client = Way("left", 2, v4("right", 2), (1000, 53))
answer = Way("right", 2, v4("right"), (53, 1000))


ROUTER4, ROUTER6 = (
    socket.inet_pton(family, address) for family, address in ((socket.AF_INET, v4("right")), (socket.AF_INET6, v6("right")))
)


def without_source_port(frame: bytes) -> bytes:
    """Of packets that leave the router by masquerade: a port that Linux chooses at random, and the checksum with it."""
    if frame[12:14] == b"\x08\0" and frame[26:30] == ROUTER4:
        protocol, at = frame[23], 14 + 4 * (frame[14] & 15)
    elif frame[12:14] == b"\x86\xdd" and frame[22:38] == ROUTER6:
        protocol, at = frame[20], 54
    else:
        return frame
    # Where UDP and TCP have their checksums.
    sum_at = {17: at + 6, 6: at + 16}.get(protocol)
    if sum_at is None:
        return frame
    return frame[:at] + b"\0\0" + frame[at + 2 : sum_at] + b"\0\0" + frame[sum_at + 2 :]


def to_whom_it_came_from(count: int):
    """Replies to the last frame at `right`, whichever port it has."""

    def made(taken) -> list[bytes]:
        frame = taken.last("right")[-1]
        port = struct.unpack_from("!H", frame, 34)[0]
        return Way("right", 2, v4("right"), (53, port)).udp(count)

    return made


SECOND = Way("left", 3, v4("right", 2), (1000, 53))

SCENARIOS = [
    Scenario("masquerade", both_ways(client, answer), setup=MASQUERADE, comes={"right": 9, "left": 8}, fast=12),
    Scenario(
        "masquerade by iptables",
        both_ways(client.but(), answer.but()),
        comes={"right": 9, "left": 8},
        fast=12,
        setup="iptables -t nat -A POSTROUTING -o right -j MASQUERADE",
    ),
    Scenario(
        "snat with a port",
        both_ways(client.but(), answer.but(ports=(53, 3333))),
        comes={"right": 9, "left": 8},
        fast=12,
        setup=table(f"post oifname right meta l4proto udp snat to {v4('right')}:3333"),
    ),
    Scenario(
        "snat to an address that is not the router's",
        both_ways(client.but(), answer.but(to="203.0.113.9")),
        comes={"right": 9, "left": 8},
        fast=12,
        setup=table("post oifname right snat to 203.0.113.9"),
    ),
    # Two hosts with the same port: Linux chooses another for the second, at random.
    Scenario(
        "port taken",
        both_ways(client.but(), answer.but())
        + [
            Send("left", SECOND.but().udp(1)),
            Send("right", to_whom_it_came_from(2)),
            Send("left", SECOND.but().udp(1)),
            Settle(),
            Send("left", SECOND.but().udp(6)),
            Send("right", to_whom_it_came_from(6)),
        ],
        setup=MASQUERADE,
        comes={"right": 17, "left": 16},
        fast=24,
        masks=(without_source_port,),
    ),
    Scenario(
        "dnat",
        both_ways(Way("right", 2, v4("right"), (4000, 80)), Way("left", 5, v4("right", 2), (8080, 4000))),
        comes={"left": 9, "right": 8},
        fast=12,
        setup=table(f"pre iifname right udp dport 80 dnat to {v4('left', 5)}:8080"),
    ),
    Scenario(
        "dnat by iptables",
        both_ways(Way("right", 2, v4("right"), (4000, 80)), Way("left", 5, v4("right", 2), (80, 4000))),
        comes={"left": 9, "right": 8},
        fast=12,
        setup=f"iptables -t nat -A PREROUTING -i right -p udp --dport 80 -j DNAT --to-destination {v4('left', 5)}",
    ),
    Scenario(
        "both at once",
        both_ways(Way("right", 2, v4("right"), (4000, 80)), Way("left", 5, v4("left"), (8080, 4000))),
        comes={"left": 9, "right": 8},
        fast=12,
        setup=table(f"pre iifname right udp dport 80 dnat to {v4('left', 5)}:8080", "post oifname left masquerade"),
    ),
    # To the router itself at another port, where nobody listens: Linux says so.
    Scenario(
        "redirect",
        one_way(Way("left", 2, v4("right", 2), (1000, 80))),
        comes={"left": 9},
        setup=table("pre iifname left udp dport 80 redirect to :8080"),
    ),
    # A host reaches its neighbour by the router's outer address: in and out at the same interface.
    Scenario(
        "hairpin",
        both_ways(Way("left", 2, v4("right"), (4000, 80)), Way("left", 5, v4("left"), (8080, 4000))),
        comes={"left": 17},
        fast=12,
        setup=table(
            f"pre udp dport 80 ip daddr {v4('right')} dnat to {v4('left', 5)}:8080", "post oifname left ip saddr 10.0.1.0/24 masquerade"
        ),
    ),
    Scenario(
        "netmap",
        both_ways(Way("left", 2, "198.18.5.9", (1, 2)), Way("right", 2, v4("left", 2), (2, 1), source="203.0.113.9")),
        comes={"right": 9, "left": 8},
        fast=12,
        setup="iptables -t nat -A PREROUTING -d 198.18.5.0/24 -j NETMAP --to 203.0.113.0/24",
    ),
    Scenario(
        "nat without conntrack's port for other protocols",
        [Send("left", [client.but().frame(b"\0" * 40) for _ in range(4)])] + one_way(client.but(ip={"proto": 132}), "udp"),
        comes={"right": 13},
        setup=MASQUERADE,
    ),
    Scenario(
        "conntrack -D",
        both_ways(client.but(), answer.but())
        + [
            Do("conntrack -D >/dev/null 2>&1"),
            Send("right", answer.but().udp(3)),
            Send("left", client.but().udp(3)),
            Settle(),
            Send("right", answer.but().udp(3)),
            Send("left", client.but().udp(3)),
        ],
        setup=MASQUERADE,
        fast=12,
        masks=(without_source_port,),
    ),
    # The rule goes, and then conntrack's entries with it.
    Scenario(
        "nat taken away",
        both_ways(client.but(), answer.but())
        + [
            Do("nft flush ruleset"),
            Send("left", client.but().udp(3)),
            Send("right", answer.but().udp(3)),
            Settle(),
            Send("left", client.but().udp(3)),
            Do("conntrack -F 2>/dev/null || true"),
            Send("left", client.but().udp(3)),
            Settle(),
            Send("left", client.but().udp(3)),
        ],
        setup=MASQUERADE,
        fast=12,
    ),
    Scenario(
        "masquerade's address changes",
        both_ways(client.but(), answer.but())
        + [
            Do(
                "sysctl -qw net.ipv4.conf.right.promote_secondaries=1; ip address add 10.0.2.99/24 dev right;"
                f"ip address delete {v4('right')}/24 dev right; ip route replace default via {v4('right', 2)}"
            ),
            Send("left", client.but().udp(3)),
            Settle(),
            Send("left", client.but().udp(3)),
        ],
        setup=MASQUERADE,
        fast=12,
    ),
]
