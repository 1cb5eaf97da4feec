"""Traffic control: filters at ingress and egress, and shaping, which hold for what is fast too."""

from pathlib import Path

from packets import XDP, Way, between, both_ways, one_way
from places import v4
from scenario import Do, Scenario, Send, Settle
from scenarios.filters import unannounced

way = Way("left", 2, v4("right", 2))
other = Way("left", 2, v4("right", 2), (1000, 4000))
there, back = between(("left", 2), ("right", 2))
PORT_4000 = "protocol ip u32 match ip protocol 17 0xff match ip dport 4000 0xffff"

# This kernel has no action that drops; what is sent to an interface that is down is lost as well.
DROP = "action mirred egress redirect dev nowhere"
NOWHERE = "ip link add nowhere type ifb"

BPF = f"python3 '{Path(__file__).parent.parent / 'bpf.py'}'"


def two() -> list:
    return one_way(way.but()) + one_way(other.but())


SCENARIOS = [
    Scenario(
        "dropped at ingress",
        two(),
        comes={"right": 9},
        setup=f"{NOWHERE}; tc qdisc add dev left handle ffff: ingress; tc filter add dev left parent ffff: {PORT_4000} {DROP}",
    ),
    Scenario(
        "dropped at ingress by clsact",
        two(),
        comes={"right": 9},
        setup=f"{NOWHERE}; tc qdisc add dev left clsact; tc filter add dev left ingress {PORT_4000} {DROP}",
    ),
    Scenario(
        "dropped at egress",
        two(),
        comes={"right": 9},
        setup=f"{NOWHERE}; tc qdisc add dev right clsact; tc filter add dev right egress {PORT_4000} {DROP}",
    ),
    Scenario(
        "redirected at ingress",
        two(),
        ends=("left", "right", "third"),
        comes={"right": 9, "third": 9},
        setup=f"{NOWHERE}; tc qdisc add dev left clsact; tc filter add dev left ingress {PORT_4000} action mirred egress redirect dev third",
    ),
    Scenario(
        "mirrored at egress",
        two(),
        ends=("left", "right", "third"),
        comes={"right": 18, "third": 9},
        setup=f"{NOWHERE}; tc qdisc add dev right clsact; tc filter add dev right egress {PORT_4000} action mirred egress mirror dev third",
    ),
    Scenario(
        "a filter comes and goes",
        one_way(other.but())
        + [
            Do(f"{NOWHERE}; tc qdisc add dev right clsact 2>/dev/null || true; tc filter add dev right egress {PORT_4000} {DROP}"),
            Send("left", other.but().udp(3)),
            Settle(),
            Send("left", other.but().udp(3)),
            Do("tc filter delete dev right egress"),
            Send("left", other.but().udp(3)),
            Settle(),
            Send("left", other.but().udp(3)),
        ],
        comes={"right": 15},
        fast=6,
    ),
    # Programs beside the filters, of which no event tells. XDP would go around both.
    Scenario(
        "a program of tcx comes and goes, ingress",
        unannounced(f"{BPF} tcx-ingress left 2 /sys/fs/bpf/theirs", "rm /sys/fs/bpf/theirs"),
        comes={"right": 12, "left": 14},
        fast=14,
        options=XDP,
    ),
    Scenario(
        "a program of tcx comes and goes, egress",
        unannounced(f"{BPF} tcx-egress right 2 /sys/fs/bpf/theirs", "rm /sys/fs/bpf/theirs"),
        comes={"right": 12, "left": 14},
        fast=14,
        options=XDP,
    ),
    Scenario(
        "a program of tcx at tc",
        unannounced(f"{BPF} tcx-ingress left 2 /sys/fs/bpf/theirs", "rm /sys/fs/bpf/theirs"),
        comes={"right": 12, "left": 14},
        fast=14,
    ),
    Scenario(
        "a program of netfilter comes and goes",
        unannounced(f"{BPF} netfilter 5 0 /sys/fs/bpf/theirs", "rm /sys/fs/bpf/theirs"),
        comes={"right": 12, "left": 11},
        fast=14,
    ),
    # 64 kbit/s and a queue of 3,000 bytes: of 30 kB that come at once, what does not fit is lost.
    Scenario("shaped", one_way(way.but(), rest=100), setup="tc qdisc add dev right root tbf rate 64kbit burst 2000 limit 3000", quiet=0.5),
    Scenario(
        "shaped from now on",
        one_way(way.but()) + [Do("tc qdisc add dev right root tbf rate 64kbit burst 2000 limit 3000"), Send("left", way.but().udp(100))],
        quiet=0.5,
        fast=6,
    ),
    # Two classes, one of which has next to nothing: Linux chooses by what nft writes beside packets.
    Scenario(
        "a class by priority",
        both_ways(there.but(), back.but()) + [Send("left", there.but().udp(60))],
        setup="""tc qdisc add dev right root handle 1: htb default 20
            tc class add dev right parent 1: classid 1:10 htb rate 1gbit
            tc class add dev right parent 1: classid 1:20 htb rate 64kbit burst 2000
            tc qdisc add dev right parent 1:20 handle 20: pfifo limit 2
            nft -f - <<'END'
            table inet t {
                chain c {
                    type filter hook forward priority 0
                    oifname right ct state new,established meta priority set 1:10
                }
            }
END""",
        comes={"right": 69, "left": 8},
        quiet=0.3,
        # The other direction.
        fast=6,
    ),
    Scenario(
        "a class by default, and a TOS",
        both_ways(there.but(ip={"tos": 0xB8}), back.but()),
        setup="tc qdisc add dev right root handle 1: htb default 10; tc class add dev right parent 1: classid 1:10 htb rate 1gbit",
        fast=12,
    ),
    Scenario(
        "shaped below mq",
        one_way(way.but(), rest=100),
        setup="tc qdisc add dev right root handle 1: mq; tc qdisc add dev right parent 1:1 tbf rate 64kbit burst 2000 limit 3000",
        quiet=0.5,
    ),
    Scenario(
        "a short queue of packets", one_way(way.but(), rest=20), setup="tc qdisc add dev right root pfifo limit 1000", comes={"right": 23}
    ),
]
