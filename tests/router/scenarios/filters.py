"""Packet filters: with and without conntrack, and what happens when they change under a flow."""

from packets import Way, between, both_ways, one_way
from places import mac, v4
from scenario import Do, Scenario, Send, Settle, Wait
from scenarios.nat import MASQUERADE

there, back = between(("left", 2), ("right", 2))
there6, back6 = between(("left", 2), ("right", 2), version=6)


def chain(*rules: str, hook: str = "forward", priority: str = "0", policy: str = "accept", table: str = "inet t") -> str:
    joined = "\n".join(rules)
    return f"""nft -f - <<'END'
table {table} {{
    chain c {{
        type filter hook {hook} priority {priority}; policy {policy}
        {joined}
    }}
}}
END
"""


# Who is at `third` may send to `right`, and nobody else in his name.
OTHERS_NAME = chain("iifname left ip saddr != 10.0.1.0/24 drop", "ct state established,related accept", "iifname third accept", policy="drop")
outside = Way("third", 2, v4("right", 2), (6000, 4789))
spoofed = outside.but(end="left", source=v4("third", 2))
to_outside = Way("right", 2, v4("third", 2), (4789, 6000))
STATEFUL = chain("ct state established,related accept", "iifname left accept", policy="drop")
CLOSED = "nft flush ruleset\n" + chain("iifname lo accept", policy="drop")


def changed(*scripts: str) -> list:
    """A flow both ways, and after each change some packets each way, at once and later."""
    steps = both_ways(there.but(), back.but())
    for script in scripts:
        steps += [
            Do(script),
            Send("left", there.but().udp(3)),
            Send("right", back.but().udp(3)),
            Settle(),
            Send("left", there.but().udp(3)),
            Send("right", back.but().udp(3)),
        ]
    return steps


def iptables(rule: str, command: str = "iptables") -> str:
    return f"{command} -A FORWARD {rule}"


def unannounced(*scripts: str, before: list = both_ways(there.but(), back.but())) -> list:
    """As `changed`, where nobody tells the engine: it looks once a second."""
    steps = list(before)
    for script in scripts:
        steps += [Do(script), Settle(1.3), Send("left", there.but().udp(3)), Send("right", back.but().udp(3))]
    return steps


def tagged(frames: list[bytes], vlan: int) -> list[bytes]:
    return [frame[:12] + b"\x81\x00" + vlan.to_bytes(2, "big") + frame[12:] for frame in frames]


def one_way_changed(script: str, undo: str) -> list:
    """A flow both ways, of which one is dropped after a change, and not any more after another."""
    return [
        *both_ways(there.but(), back.but()),
        Do(script),
        Send("left", there.but().udp(3)),
        Settle(),
        Send("left", there.but().udp(3)),
        Do(undo),
        Send("left", there.but().udp(3)),
    ]


def from_another(frames: list[bytes]) -> list[bytes]:
    return [frame[:6] + b"\2\0\0\0\1\x44" + frame[12:] for frame in frames]


# A flow of a host whose Ethernet address is the only one that may send.
ANOTHER_SENDS = [
    *both_ways(there.but(), back.but()),
    Settle(1.3),
    Send("left", from_another(there.but().udp(3))),
    Send("left", there.but().udp(3)),
]
HOST = v4("left", 2)
ESTABLISHED = "-m conntrack --ctstate ESTABLISHED -j ACCEPT"


def twins(count: int) -> list:
    """Packets in somebody's name, and right behind each of them his own, which looks the same."""
    false, true = spoofed.but(), outside.but()
    return [step for _ in range(count) for step in (Send("left", false.udp()), Send("third", true.udp()))]


SCENARIOS = [
    # Linux drops what the router waits for; what then leaves came by another interface, which is not the router's.
    Scenario(
        "in the name of who is elsewhere",
        [
            Send("third", outside.but(ip={"id": 77}).udp(2)),
            Send("right", to_outside.but().udp(2)),
            *twins(12),
            Settle(),
            Send("left", spoofed.but().udp(6)),
        ],
        setup=OTHERS_NAME,
        ends=("left", "right", "third"),
        interfaces=("left", "right"),
        comes={"right": 14, "third": 2, "left": 0},
    ),
    # What comes with the tag of a VLAN that nobody has is for nobody, though its addresses and ports are those of a flow that is fast.
    Scenario(
        "tagged",
        both_ways(there.but(), back.but())
        + [Send("left", tagged(there.but().udp(4), vlan)) for vlan in (10, 20, 0)]
        + [Send("left", there.but().udp(4))],
        setup=STATEFUL,
        comes={"right": 17, "left": 8},
        fast=14,
    ),
    Scenario("stateful", both_ways(there, back), setup=STATEFUL, comes={"right": 9, "left": 8}, fast=12),
    Scenario("stateful, IPv6", both_ways(there6, back6), setup=STATEFUL, comes={"right": 9, "left": 8}, fast=12),
    Scenario("stateful, not allowed to begin", both_ways(back.but(), there.but()), setup=STATEFUL, comes={"right": 8, "left": 7}),
    # Established or not: from now on nothing passes.
    Scenario("policy drop after a reload", changed(CLOSED), setup=STATEFUL, comes={"right": 9, "left": 8}, fast=12),
    Scenario(
        "drop and back again", changed(CLOSED, "nft flush ruleset\n" + STATEFUL), setup=STATEFUL, comes={"right": 15, "left": 14}, fast=18
    ),
    Scenario("drop, without conntrack before", changed(CLOSED), comes={"right": 9, "left": 8}, fast=12),
    Scenario(
        "a rule inserted", changed("nft insert rule inet t c udp dport 2000 drop"), setup=STATEFUL, comes={"right": 9, "left": 14}, fast=12
    ),
    Scenario(
        "a rule deleted",
        changed("nft flush chain inet t c"),
        setup=chain("udp dport 4000 accept", "accept") + STATEFUL.replace("inet t", "inet u"),
        fast=12,
    ),
    Scenario(
        "an element of a set",
        changed(f"nft add element inet t bad {{ {v4('left', 2)} }}", f"nft delete element inet t bad {{ {v4('left', 2)} }}"),
        setup="nft add table inet t; nft add set inet t bad { type ipv4_addr\\; }\n" + chain("ip saddr @bad drop"),
        comes={"right": 15, "left": 20},
    ),
    Scenario("rejected", changed("nft insert rule inet t c udp dport 2000 reject", "nft flush ruleset"), setup=STATEFUL, fast=12),
    Scenario(
        "iptables, a rule inserted",
        changed("iptables -I FORWARD -p udp --dport 2000 -j DROP", "iptables -F"),
        setup=iptables("-m conntrack --ctstate ESTABLISHED -j ACCEPT"),
        comes={"right": 15, "left": 20},
        fast=12,
    ),
    Scenario(
        "iptables, policy",
        changed("iptables -P FORWARD DROP; iptables -F"),
        setup=iptables("-m conntrack --ctstate ESTABLISHED -j ACCEPT"),
        comes={"right": 9, "left": 8},
        fast=12,
    ),
    Scenario(
        "old iptables, rules inserted and deleted",
        unannounced("iptables-legacy -I FORWARD -p udp --dport 2000 -j DROP", "iptables-legacy -D FORWARD 1"),
        setup=iptables("-m conntrack --ctstate ESTABLISHED -j ACCEPT", "iptables-legacy"),
        comes={"right": 12, "left": 14},
        fast=14,
    ),
    Scenario(
        "old iptables, the first rule of all",
        unannounced("iptables-legacy -A FORWARD -p udp --dport 2000 -j DROP"),
        comes={"right": 9, "left": 11},
        fast=12,
    ),
    Scenario(
        "a packet adds an element",
        both_ways(there.but(), back.but())
        + [Send("left", there.but(ports=(1000, 9)).udp(1)), Settle(1.3), Send("left", there.but().udp(3)), Send("right", back.but().udp(3))],
        setup="nft add table inet t; nft add set inet t bad { type ipv4_addr\\; flags dynamic\\; }\n"
        + chain("ip saddr @bad drop", "udp dport 9 add @bad { ip saddr } drop", "ct state established accept"),
        comes={"right": 9, "left": 11},
        fast=12,
    ),
    Scenario(
        "stateless",
        one_way(there.but()) + one_way(there.but(ports=(1000, 4000))),
        setup=chain("udp dport 4000 drop"),
        comes={"right": 9},
    ),
    Scenario("stateless, by length", one_way(there.but()), setup=chain("meta length gt 200 drop")),
    Scenario(
        "stateless, by ttl",
        one_way(there.but()) + [Send("left", there.but(ip={"ttl": 7}).udp(3))],
        setup=chain("ip ttl lt 10 drop"),
        comes={"right": 9},
    ),
    Scenario(
        "stateless, by dscp",
        one_way(there.but()) + [Send("left", there.but(ip={"tos": 0xB8}).udp(3))],
        setup=chain("ip dscp ef drop"),
        comes={"right": 9},
    ),
    Scenario("stateless, by payload", one_way(there.but()), setup=chain("@th,64,8 35 drop"), comes={"right": 8}),
    Scenario(
        "by ethernet address",
        one_way(there.but()) + [Send("left", [frame[:6] + b"\2\0\0\0\1\x44" + frame[12:] for frame in there.but().udp(3)])],
        setup=chain("ether saddr 02:00:00:00:01:44 drop"),
        comes={"right": 9},
    ),
    # The rule does not know the address: it is in doubt each second.
    Scenario(
        "by ethernet address, another sender",
        ANOTHER_SENDS,
        setup=chain(f"iifname left ether saddr != {mac('left', 2)} drop", "ct state established accept"),
        comes={"right": 12, "left": 8},
        fast=12,
    ),
    Scenario(
        "by ethernet address, another sender, iptables",
        ANOTHER_SENDS,
        setup=f"{iptables(ESTABLISHED.replace('ACCEPT', 'RETURN'))}; iptables -I FORWARD -i left -m mac ! --mac-source {mac('left', 2)} -j DROP",
        comes={"right": 12, "left": 8},
        fast=12,
    ),
    # Packets go the same way as before: the ruleset alone looks at what has changed.
    Scenario(
        "a route that the ruleset asks for",
        one_way_changed(f"ip route add {HOST}/32 via {v4('third', 2)} dev third", f"ip route delete {HOST}/32 dev third"),
        ends=("left", "right", "third"),
        setup=chain("fib saddr . iif oif missing drop", hook="prerouting", priority="raw") + STATEFUL.replace("inet t", "inet u"),
        comes={"right": 12, "left": 8},
        fast=12,
    ),
    Scenario(
        "a rule that asks for routes comes later",
        [
            *both_ways(there.but(), back.but()),
            Do("nft add rule inet t c fib saddr . iif oif missing drop"),
            *both_ways(there.but(), back.but()),
            *one_way_changed(f"ip route add {HOST}/32 via {v4('third', 2)} dev third", f"ip route delete {HOST}/32 dev third"),
        ],
        ends=("left", "right", "third"),
        setup=chain(hook="prerouting", priority="raw") + STATEFUL.replace("inet t", "inet u"),
        comes={"right": 30, "left": 24},
        fast=36,
    ),
    Scenario(
        "the sender's address is the router's own",
        one_way_changed(f"ip route add local {HOST}/32 dev lo", f"ip route delete local {HOST}/32 dev lo"),
        comes={"right": 12, "left": 8},
        fast=12,
    ),
    Scenario(
        "a group of interfaces",
        changed("ip link set left group 5", "ip link set left group default"),
        setup=chain("iifgroup 5 drop", "ct state established accept"),
        comes={"right": 15, "left": 20},
        fast=12,
    ),
    Scenario(
        "accept_local",
        [
            *one_way(Way("left", 2, v4("right", 2), source=v4("right"))),
            # That it was on has to be seen, too.
            Settle(1.3),
            Do("sysctl -qw net.ipv4.conf.left.accept_local=0"),
            Settle(1.3),
            Send("left", Way("left", 2, v4("right", 2), source=v4("right")).udp(3)),
        ],
        setup="sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.left.rp_filter=0 net.ipv4.conf.left.accept_local=1",
        comes={"right": 9},
        fast=6,
    ),
    Scenario(
        "dropped before routing",
        one_way(there.but()) + one_way(there.but(ports=(1000, 4000))),
        setup=chain("udp dport 4000 drop", hook="prerouting", priority="raw"),
        comes={"right": 9},
    ),
    Scenario(
        "dropped after routing",
        one_way(there.but()) + one_way(there.but(ports=(1000, 4000))),
        setup=chain("udp dport 4000 drop", hook="postrouting"),
        comes={"right": 9},
    ),
    Scenario(
        "at ingress",
        one_way(there.but()) + one_way(there.but(ports=(1000, 4000))),
        comes={"right": 9},
        setup=chain("udp dport 4000 drop", hook="ingress device left", table="netdev t"),
    ),
    Scenario(
        "at egress",
        one_way(there.but()) + one_way(there.but(ports=(1000, 4000))),
        comes={"right": 9},
        setup=chain("udp dport 4000 drop", hook="egress device right", table="netdev t"),
    ),
    # As many as the limit says, and not one more because they are fast.
    Scenario("limited", one_way(there.but(), rest=20), setup=chain("limit rate over 1/hour burst 9 packets drop"), comes={"right": 9}),
    Scenario("quota", one_way(there.but(), rest=20), setup=chain("quota over 2000 bytes drop")),
    Scenario("every third", one_way(there.but(), rest=20), setup=chain("numgen inc mod 3 0 drop")),
    Scenario(
        "notrack",
        both_ways(there.but(), back.but()) + changed("nft flush ruleset"),
        setup=chain("notrack", hook="prerouting", priority="raw")
        + STATEFUL.replace("inet t", "inet u").replace("established,related", "untracked"),
    ),
    Scenario(
        "notrack beside masquerade",
        both_ways(there.but(), back.but()) + one_way(there.but(ports=(1000, 4000))),
        setup=chain("udp dport 2000 notrack", hook="prerouting", priority="raw") + MASQUERADE,
        comes={"right": 18, "left": 8},
    ),
    # The packets of a flow are counted by conntrack, and one rule looks at that.
    Scenario(
        "by bytes of the connection",
        one_way(there.but(), rest=20),
        setup="sysctl -qw net.netfilter.nf_conntrack_acct=1\n" + chain("ct state new accept", "ct bytes > 3000 drop"),
    ),
    Scenario(
        "time passes",
        both_ways(there.but(), back.but()) + [Wait(1.5), Send("left", there.but().udp(2)), Send("right", back.but().udp(2))],
        setup=STATEFUL + "sysctl -qw net.netfilter.nf_conntrack_udp_timeout=1 net.netfilter.nf_conntrack_udp_timeout_stream=1",
        comes={"right": 11, "left": 10},
        fast=12,
    ),
]
