"""Policy routing: tables chosen by source, interface, mark, DSCP and port."""

from packets import Way, one_way
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
