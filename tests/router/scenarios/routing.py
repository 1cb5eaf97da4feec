"""Plain routing, and what changes under it: routes, neighbours, links, addresses."""

from packets import Way, between, both_ways, one_way
from places import mac, up_again, v4, v6
from scenario import Do, Scenario, Send, Settle, Wait

there, back = between(("left", 2), ("right", 2))
there6, back6 = between(("left", 2), ("right", 3), version=6)
far = Way("left", 2, "198.18.7.7")
far6 = Way("left", 2, "2001:db8:77::7")
to_router = Way("left", 3, v4("left"))


# Of route errors of IPv4 Linux sends each host five, and then one a second; hence few packets where there are such.


def changed(way: Way, *changes: str, rest: int = 4) -> list:
    """Packets, and after each change some at once and some later, all of which must go where Linux would send them."""
    steps = one_way(way)
    for change in changes:
        steps += [Do(change), Send(way.end, way.udp(rest)), Settle(), Send(way.end, way.udp(rest))]
    return steps


SCENARIOS = [
    Scenario("ipv4", both_ways(there, back), comes={"right": 9, "left": 8}, fast=12),
    Scenario("ipv6", both_ways(there6, back6), comes={"right": 9, "left": 8}, fast=12),
    Scenario("echo", one_way(there.but(), "echo") + one_way(there6.but(), "echo"), comes={"right": 18}, fast=12),
    Scenario("gateway", one_way(far.but()) + one_way(far6.but()), comes={"right": 18}, fast=12),
    # The same addresses and ports in TCP, UDP and ICMP are different flows.
    Scenario(
        "protocols",
        one_way(there.but()) + [Send("left", [there.tcp("A", 1 + number, 1, b"x") for number in range(6)])] + one_way(there.but(), "echo"),
        comes={"right": 24},
        fast=10,
    ),
    Scenario(
        "many flows",
        [
            Send("left", [f for port in range(200) for f in there.but(ports=(port, 53)).udp(3)]),
            Settle(),
            Send("left", [f for port in range(200) for f in there.but(ports=(port, 53)).udp(3)]),
        ],
        comes={"right": 1200},
        fast=600,
    ),
    Scenario(
        "route replaced",
        changed(
            far.but(),
            f"ip route add 198.18.0.0/16 via {v4('third', 3)}",
            f"ip route replace 198.18.0.0/16 via {v4('right', 5)}",
            f"ip route add 198.18.7.7/32 via {v4('third', 4)}",
            "ip route delete 198.18.7.7/32",
            "ip route add blackhole 198.18.7.0/24",
        ),
        ends=("left", "right", "third"),
        comes={"right": 25, "third": 16, "left": 0},
        fast=20,
    ),
    Scenario(
        "route replaced, IPv6",
        changed(
            far6.but(),
            f"ip route add 2001:db8:77::/48 via {v6('third', 3)}",
            f"ip route replace 2001:db8:77::/48 via {v6('right', 5)}",
            "ip route add unreachable 2001:db8:77::/64",
        ),
        ends=("left", "right", "third"),
        comes={"right": 17, "third": 8, "left": 8},
        fast=12,
    ),
    Scenario(
        "no route",
        changed(far.but(), "ip route delete default", "ip route add prohibit default", rest=1),
        comes={"right": 9, "left": 4},
        fast=6,
    ),
    Scenario(
        "no route, IPv6",
        changed(far6.but(), "ip -6 route delete default", "ip -6 route add prohibit default", "ip -6 route replace blackhole default", rest=1),
        comes={"right": 9, "left": 4},
        fast=6,
    ),
    # Nobody answers: Linux asks, gives up, and says so about each packet that has waited, and at once while it remembers.
    *(
        Scenario(
            f"neighbour that is gone, {name}",
            one_way(way.but())
            + [Do(f"ip neighbour delete {address} dev right"), Send("left", way.udp(2)), Wait(0.5), Send("left", way.udp(2)), Wait(0.5)]
            + [Do(f"ip neighbour replace {address} lladdr {mac('right', 2)} dev right nud permanent"), Send("left", way.udp(1)), Settle()]
            + [Send("left", way.udp(4))],
            setup=f"sysctl -qw net.{family}.neigh.right.mcast_solicit=1 net.{family}.neigh.right.retrans_time_ms=20",
            comes={"right": 14, "left": 4},
            fast=9,
        )
        for name, family, address, way in (
            ("IPv4", "ipv4", v4("right", 2), Way("left", 2, v4("right", 2))),
            ("IPv6", "ipv6", v6("right", 2), Way("left", 2, v6("right", 2))),
        )
    ),
    Scenario(
        "neighbour changed",
        changed(
            there.but(),
            f"ip neighbour replace {v4('right', 2)} lladdr 02:00:00:00:99:99 dev right nud permanent",
            f"ip neighbour replace {v4('right', 2)} lladdr {mac('right', 7)} dev right nud permanent",
            f"ip neighbour replace {v4('right', 2)} lladdr {mac('right', 8)} dev right nud noarp",
            f"ip neighbour replace {v4('right', 2)} lladdr {mac('right', 6)} dev right nud noarp",
        ),
        comes={"right": 41},
        fast=14,
    ),
    Scenario(
        "link down and up",
        changed(there.but(), "ip link set right down", up_again("right"), rest=2),
        comes={"right": 13, "left": 4},
        fast=8,
    ),
    # A flow that was forwarded is for the router itself, and back again.
    Scenario(
        "address becomes the router's",
        changed(there.but(), f"ip address add {v4('right', 2)}/32 dev lo", f"ip address delete {v4('right', 2)}/32 dev lo"),
        comes={"right": 17, "left": 8},
        fast=10,
    ),
    Scenario("for the router", one_way(to_router.but(), "echo") + one_way(to_router.but()), comes={"left": 18}),
    Scenario(
        "forwarding off and on",
        changed(there.but(), "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1"),
        comes={"right": 17},
        fast=10,
    ),
    Scenario(
        "forwarding off on one interface",
        changed(there.but(), "sysctl -qw net.ipv4.conf.left.forwarding=0", "sysctl -qw net.ipv4.conf.left.forwarding=1"),
        comes={"right": 17},
        fast=10,
    ),
    # Ethernet addresses that are not the router's: nothing is forwarded, however warm the flow is.
    Scenario(
        "not addressed to the router",
        one_way(there.but())
        + [Send("left", [bytes.fromhex("020000000199") + f[6:] for f in there.udp(4)])]
        + [Send("left", [b"\xff" * 6 + f[6:] for f in there.udp(4)])]
        + [Send("left", [bytes.fromhex("01005e000001") + f[6:] for f in there.udp(4)])],
        comes={"right": 9},
        fast=6,
    ),
    # The interface itself moves to another Ethernet address.
    Scenario(
        "own address changed",
        one_way(there.but())
        + [Do("ip link set left address 02:00:00:00:77:01"), Send("left", there.udp(4)), Settle()]
        + [Send("left", [bytes.fromhex("020000007701") + f[6:] for f in there.udp(4)])],
        comes={"right": 13},
        fast=9,
    ),
]
