"""NAT of IPv6: masquerade, addresses, and prefixes by nft and by iptables."""

from packets import Way, both_ways
from places import v6
from scenario import Scenario
from scenarios.nat import table

client = Way("left", 2, v6("right", 2), (1000, 53))
answer = Way("right", 2, v6("right"), (53, 1000))
MAPPED = "2001:db8:99::2"

SCENARIOS = [
    Scenario(
        "masquerade",
        both_ways(client, answer),
        setup=table("post oifname right masquerade", family="ip6"),
        comes={"right": 9, "left": 8},
        fast=12,
    ),
    Scenario(
        "snat with a port",
        both_ways(client.but(), answer.but(ports=(53, 3333))),
        comes={"right": 9, "left": 8},
        fast=12,
        setup=table(f"post oifname right meta l4proto udp snat to [{v6('right')}]:3333", family="ip6"),
    ),
    Scenario(
        "dnat",
        both_ways(Way("right", 2, v6("right"), (4000, 80)), Way("left", 5, v6("right", 2), (8080, 4000))),
        comes={"left": 9, "right": 8},
        fast=12,
        setup=table(f"pre iifname right udp dport 80 dnat to [{v6('left', 5)}]:8080", family="ip6"),
    ),
    Scenario(
        "prefix by nft",
        both_ways(client.but(), answer.but(to=MAPPED)),
        comes={"right": 9, "left": 8},
        fast=12,
        setup=table("post oifname right snat ip6 prefix to ip6 saddr map { 2001:db8:1::/64 : 2001:db8:99::/64 }", family="ip6"),
    ),
    # RFC 6296, without state and without a change of checksums.
    Scenario(
        "prefix by iptables",
        both_ways(client.but(), answer.but(to="2001:db8:99:0:ff67::2")),
        comes={"right": 9, "left": 8},
        setup="""ip6tables -t mangle -A POSTROUTING -o right -s 2001:db8:1::/64 -j SNPT --src-pfx 2001:db8:1::/64 --dst-pfx 2001:db8:99::/64
                      ip6tables -t mangle -A PREROUTING -i right -d 2001:db8:99::/64 -j DNPT --src-pfx 2001:db8:99::/64 --dst-pfx 2001:db8:1::/64""",
    ),
]
