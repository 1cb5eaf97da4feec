"""Routes with several next hops: each flow must take the one that Linux would choose."""

from packets import Way
from places import up_again, v4, v6
from scenario import Do, Scenario, Send, Settle

ENDS = ("left", "right", "third")
TWO = f"nexthop via {v4('right', 2)} weight 1 nexthop via {v4('third', 2)} weight 2"
TWO6 = f"nexthop via {v6('right', 2)} weight 1 nexthop via {v6('third', 2)} weight 2"
ROUTES = f"ip route replace default {TWO}; ip -6 route replace default {TWO6}"


def ways() -> list[Way]:
    """Flows that differ in address and in port."""
    made = [Way("left", 2 + number % 8, f"198.18.{number}.7", (1000 + number, 2000)) for number in range(24)]
    made += [Way("left", 2, "198.18.0.9", (3000 + number, 2000)) for number in range(24)]
    return made + [Way("left", 2 + number % 8, f"2001:db8:77::{number}", (1000 + number, 2000)) for number in range(24)]


def all_of(some: list[Way], count: int) -> Send:
    return Send("left", [frame for way in some for frame in way.udp(count)])


def steps(*changes: str) -> list:
    some = ways()
    made = [all_of(some, 2), Settle(), all_of(some, 2)]
    for change in changes:
        made += [Do(change), all_of(some, 1), Settle(), all_of(some, 2)]
    return made


SCENARIOS = [
    Scenario(
        "addresses",
        steps(),
        ends=ENDS,
        setup=f"{ROUTES}; sysctl -qw net.ipv4.fib_multipath_hash_policy=0 net.ipv6.fib_multipath_hash_policy=0",
        fast=100,
    ),
    # Linux tells nobody; it is looked for every second. Behind the one that has the same policy: a scenario may have the network of the one before, and what
    # its setup changes may be found only when this one waits for its own change.
    Scenario(
        "policy changed",
        [*steps(), Do("sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1", found_as="settings")]
        + [all_of(ways(), 1), Settle(), all_of(ways(), 2)],
        ends=ENDS,
        setup=f"{ROUTES}; sysctl -qw net.ipv4.fib_multipath_hash_policy=0 net.ipv6.fib_multipath_hash_policy=0",
        fast=100,
    ),
    Scenario(
        "ports",
        steps(),
        ends=ENDS,
        setup=f"{ROUTES}; sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1",
        fast=100,
    ),
    Scenario("a next hop goes and comes", steps("ip link set third down", up_again("third") + ROUTES), ends=ENDS, setup=ROUTES, fast=100),
    Scenario(
        "next hop objects",
        steps=steps("ip nexthop replace id 10 group 1,9/2,1"),
        ends=ENDS,
        fast=100,
        setup=f"ip nexthop add id 1 via {v4('right', 2)} dev right; ip nexthop add id 2 via {v4('third', 2)} dev third;"
        "ip nexthop add id 10 group 1/2; ip route replace default nhid 10",
    ),
]
