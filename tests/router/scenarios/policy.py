"""Policy routing: tables chosen by source, interface, mark, DSCP and port."""

from packets import Way, answering, both_ways, one_way
from places import v4, v6
from scenario import Do, Scenario, Send, Settle

ENDS = ("left", "right", "third")
ELSEWHERE = f"ip route add default via {v4('third', 2)} table 100; ip route add ::/0 via {v6('third', 2)} table 100"
far = Way("left", 2, "198.18.7.7")
other = Way("left", 3, "198.18.7.7")
far6 = Way("left", 2, "2001:db8:77::7")
other6 = Way("left", 3, "2001:db8:77::7")


def two(one: Way, another: Way) -> list:
    return one_way(one.but()) + one_way(another.but())


# All that comes by `left` has a mark, which is not known before Linux has handled a packet.
MARKED = f"""{ELSEWHERE}
nft -f - <<'END'
table inet t {{
    chain c {{
        type filter hook prerouting priority mangle
        iifname left ct state new,established meta mark set 7
    }}
}}
END
"""


def marked(way: Way, *scripts: str) -> list:
    """A marked flow, and after each change some packets of it, at once and later."""
    steps = both_ways(way, answering(way).but(source=way.to))
    for script in scripts:
        steps += [Do(script), Send("left", way.udp(3)), Settle(), Send("left", way.udp(3))]
    return steps


SCENARIOS = [
    Scenario(
        "from",
        two(far, other) + two(far6, other6),
        ends=ENDS,
        comes={"right": 18, "third": 18},
        fast=24,
        setup=f"{ELSEWHERE}; ip rule add from {v4('left', 3)} table 100; ip -6 rule add from {v6('left', 3)} table 100",
    ),
    Scenario(
        "iif",
        two(far, Way("fourth", 2, "198.18.7.7")),
        ends=(*ENDS, "fourth"),
        comes={"right": 9, "third": 9},
        fast=12,
        setup=f"{ELSEWHERE}; ip rule add iif fourth table 100",
    ),
    Scenario(
        "tos",
        two(far, far.but(ports=(1, 2), ip={"tos": 0x10})),
        ends=ENDS,
        comes={"right": 9, "third": 9},
        fast=6,
        setup=f"{ELSEWHERE}; ip rule add tos 0x10 table 100",
    ),
    # One flow whose packets have different TOS: the route is chosen packet by packet.
    Scenario(
        "tos within a flow",
        one_way(far.but()) + [Send("left", far.but(ip={"tos": 0x10}).udp(3)), Settle(), Send("left", far.but(ip={"tos": 0x10}).udp(3))],
        ends=ENDS,
        comes={"right": 9, "third": 6},
        setup=f"{ELSEWHERE}; ip rule add tos 0x10 table 100",
    ),
    Scenario(
        "ports",
        two(far, far.but(ports=(1000, 443))),
        ends=ENDS,
        comes={"right": 9, "third": 9},
        fast=6,
        setup=f"{ELSEWHERE}; ip rule add ipproto udp dport 443 table 100",
    ),
    Scenario(
        "fwmark by nft",
        two(far, far.but(ports=(1000, 443))) + two(far6, far6.but(ports=(1000, 443))),
        ends=ENDS,
        comes={"right": 18, "third": 18},
        setup=f"""{ELSEWHERE}
            ip rule add fwmark 7 table 100
            ip -6 rule add fwmark 7 table 100
            nft -f - <<'END'
            table inet t {{
                chain c {{
                    type filter hook prerouting priority mangle
                    udp dport 443 meta mark set 7
                }}
            }}
END""",
    ),
    Scenario(
        "connmark by iptables",
        two(far, far.but(ports=(1000, 443))),
        ends=ENDS,
        comes={"right": 9, "third": 9},
        setup=f"""{ELSEWHERE}
            ip rule add fwmark 7 table 100
            iptables -t mangle -A PREROUTING -p udp --dport 443 -m conntrack --ctstate NEW -j CONNMARK --set-mark 7
            iptables -t mangle -A PREROUTING -j CONNMARK --restore-mark""",
    ),
    Scenario(
        "what is marked is prohibited",
        marked(far.but(), "ip rule add fwmark 7 prohibit", "ip rule delete fwmark 7 prohibit"),
        ends=ENDS,
        # Each packet that is prohibited is answered.
        comes={"right": 15, "left": 13},
        fast=12,
        setup=MARKED,
    ),
    Scenario(
        "the table of what is marked changes",
        marked(
            far.but(),
            f"ip route replace default via {v4('third', 2)} table 100",
            "ip route replace blackhole default table 100",
            f"ip route replace default via {v4('right', 2)} table 100",
        ),
        ends=ENDS,
        comes={"right": 15, "left": 8, "third": 6},
        fast=12,
        setup=MARKED + f"ip rule add fwmark 7 table 100; ip route replace default via {v4('right', 2)} table 100",
    ),
    Scenario(
        "the table of what is marked changes, IPv6",
        marked(far6.but(), "ip -6 route replace blackhole default table 100"),
        ends=ENDS,
        comes={"right": 9, "left": 8},
        fast=12,
        setup=MARKED + f"ip -6 rule add fwmark 7 table 100; ip -6 route replace default via {v6('right', 2)} table 100",
    ),
    Scenario(
        "rule comes and goes",
        one_way(other.but())
        + [Do(f"ip rule add from {v4('left', 3)} table 100"), Send("left", other.udp(4)), Settle(), Send("left", other.udp(4))]
        + [Do(f"ip rule delete from {v4('left', 3)} table 100"), Send("left", other.udp(4)), Settle(), Send("left", other.udp(4))],
        ends=ENDS,
        comes={"right": 17, "third": 8},
        fast=10,
        setup=ELSEWHERE,
    ),
    Scenario(
        "prohibited",
        one_way(far.but()) + one_way(other.but(), first=2, rest=2),
        ends=ENDS,
        comes={"right": 9, "left": 4},
        fast=6,
        setup=f"ip rule add from {v4('left', 3)} prohibit",
    ),
]
