"""Traffic control: filters at ingress and egress, and shaping, which hold for what is fast too."""

from packets import Way, one_way
from places import v4
from scenario import Do, Scenario, Send, Settle

way = Way("left", 2, v4("right", 2))
other = Way("left", 2, v4("right", 2), (1000, 4000))
PORT_4000 = "protocol ip u32 match ip protocol 17 0xff match ip dport 4000 0xffff"

# This kernel has no action that drops; what is sent to an interface that is down is lost as well.
DROP = "action mirred egress redirect dev nowhere"
NOWHERE = "ip link add nowhere type ifb"


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
    # 64 kbit/s and a queue of 3,000 bytes: of 30 kB that come at once, what does not fit is lost.
    Scenario("shaped", one_way(way.but(), rest=100), setup="tc qdisc add dev right root tbf rate 64kbit burst 2000 limit 3000", quiet=0.5),
    Scenario(
        "shaped from now on",
        one_way(way.but()) + [Do("tc qdisc add dev right root tbf rate 64kbit burst 2000 limit 3000"), Send("left", way.but().udp(100))],
        quiet=0.5,
        fast=6,
    ),
    Scenario(
        "a short queue of packets", one_way(way.but(), rest=20), setup="tc qdisc add dev right root pfifo limit 1000", comes={"right": 23}
    ),
]
