"""Bridges: hosts on several ports of one, and routing out of it."""

from packets import Way, one_way
from places import mac, v4
from scenario import Do, Scenario, Send, Settle

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Dot1Q, Ether

ENDS = ("left", "right", "third", "fourth")
SETUP = """
ip link add br0 type bridge forward_delay 0
ip link set br0 addrgenmode none address 02:00:00:00:b0:01
sysctl -qw net.ipv6.conf.br0.disable_ipv6=1
for port in left right third; do ip address flush dev $port; ip link set $port master br0; done
ip link set br0 up
ip address add 10.0.1.1/24 dev br0
ip neighbour replace 10.0.1.2 lladdr 02:00:00:00:01:02 dev br0 nud permanent
ip neighbour replace 10.0.1.5 lladdr 02:00:00:00:02:05 dev br0 nud permanent
"""
A, B, C = mac("left", 2), mac("right", 5), mac("third", 3)


def lan(source: str, destination: str, count: int = 1, port: int = 1000) -> list[bytes]:
    """Between two hosts of the bridge."""
    return [
        bytes(
            Ether(src=source, dst=destination)
            / IP(src="10.0.1.2", dst="10.0.1.5", id=number + 1)
            / UDP(sport=port, dport=9)
            / (b"%03d" % number * 20)
        )
        for number in range(count)
    ]


def other(source: str, destination: str, kind: int, count: int = 3) -> list[bytes]:
    """What is no IP."""
    return [bytes(Ether(src=source, dst=destination, type=kind) / (b"%03d" % number * 20)) for number in range(count)]


LEARN = [Send("left", lan(A, B)), Send("right", lan(B, A)), Send("third", lan(C, A)), Settle()]


def bridged(*steps) -> list:
    return LEARN + [Send("left", lan(A, B, 2)), Settle()] + list(steps)


def tagged(frames: list[bytes], vlan: int, prio: int = 0, kind: int = 0x8100) -> list[bytes]:
    return [frame[:12] + kind.to_bytes(2, "big") + (prio << 13 | vlan).to_bytes(2, "big") + frame[12:] for frame in frames]


SCENARIOS = [
    Scenario(
        "priority in the tag, no VLANs",
        bridged(
            Send("left", lan(A, B, 4)),
            Send("left", tagged(lan(A, B, 4), 0, prio=3)),
            Send("left", tagged(lan(A, B, 4), 7)),
            Settle(),
            Send("left", tagged(lan(A, B, 4), 7, prio=3)),
            Send("left", tagged(lan(A, B, 4), 7, kind=0x88A8)),
            Send("left", tagged(lan(A, B, 4), 7)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=10,
    ),
    Scenario(
        "two ports",
        bridged(Send("left", lan(A, B, 6)), Send("right", lan(B, A, 6)), Send("left", lan(A, C, 6))),
        setup=SETUP,
        ends=ENDS,
        fast=12,
    ),
    Scenario(
        "no IP",
        bridged(
            Send("left", other(A, B, 0x88B5)),
            Send("left", other(A, B, 0x0806)),
            Send("left", other(A, B, 0x86DD)),
            Send("left", other(A, B, 40)),
        ),
        setup=SETUP,
        ends=ENDS,
    ),
    Scenario(
        "with tags",
        bridged(
            Send("left", [bytes(Ether(src=A, dst=B) / Dot1Q(vlan=7, prio=3) / IP(src="10.0.1.2", dst="10.0.1.5") / UDP() / (b"x" * 9))] * 4)
        ),
        setup=SETUP,
        ends=ENDS,
    ),
    # A host that moves is found at its new port as soon as the daemon has heard of it, and not at the old one.
    Scenario(
        "a host moves",
        bridged(
            Send("left", lan(A, B, 4)),
            Send("third", lan(B, A, 2)),
            Settle(),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
            Send("right", lan(B, A, 1)),
            Settle(),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=10,
    ),
    Scenario(
        "an entry moved by hand",
        bridged(
            Send("left", lan(A, B, 4)),
            Do(f"bridge fdb replace {B} dev third master static"),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=6,
    ),
    Scenario(
        "an entry deleted",
        bridged(
            Send("left", lan(A, B, 4)),
            Do(f"bridge fdb del {B} dev right master"),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=4,
    ),
    Scenario(
        "unknown, broadcast and multicast",
        bridged(
            Send("left", lan(A, "02:00:00:00:77:77", 4)),
            Send("left", lan(A, "ff:ff:ff:ff:ff:ff", 4)),
            Send("left", lan(A, "01:00:5e:01:02:03", 4)),
            Send("left", other(A, "01:80:c2:00:00:00", 0x88B5)),
            Send("left", other(A, "01:80:c2:00:00:0e", 0x88CC)),
        ),
        setup=SETUP,
        ends=ENDS,
    ),
    Scenario(
        "asks by ARP",
        [
            Send(
                "left",
                [
                    bytes(Ether(src=A, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=A, psrc="10.0.1.2", pdst=address))
                    for address in ("10.0.1.5", "10.0.1.1")
                ],
            )
        ],
        setup=SETUP,
        ends=ENDS,
    ),
    # To the bridge's own address: routed out of it.
    Scenario(
        "routed out of the bridge",
        one_way(Way("left", 2, v4("fourth", 2)).but()),
        comes={},
        ends=ENDS,
        fast=6,
        setup=SETUP + "ip link set br0 address " + mac("left"),
    ),
    Scenario("routed into the bridge", LEARN + one_way(Way("fourth", 2, "10.0.1.5")), setup=SETUP, ends=ENDS, fast=6),
    Scenario(
        "a port leaves",
        bridged(
            Send("left", lan(A, B, 4)),
            Do("ip link set right nomaster"),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
            Do("ip link set right master br0"),
            Send("left", lan(A, B, 4)),
            Send("right", lan(B, A, 1)),
            Settle(),
            Send("left", lan(A, B, 4)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=8,
    ),
    Scenario(
        "a port is blocked",
        bridged(
            Send("left", lan(A, B, 4)),
            Do("bridge link set dev right state 4"),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
            Do("bridge link set dev right state 3"),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=8,
    ),
    Scenario(
        "isolated ports",
        bridged(
            Send("left", lan(A, B, 4)),
            Do("bridge link set dev left isolated on; bridge link set dev right isolated on"),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
        ),
        setup=SETUP,
        ends=ENDS,
        # Ports that are guarded so are left to Linux.
    ),
    Scenario(
        "filtered by nft",
        bridged(
            Send("left", lan(A, B, 4)),
            Do("""nft -f - <<'END'
table bridge t {
    chain c {
        type filter hook forward priority 0
        udp sport 1000 drop
    }
}
END"""),
            Send("left", lan(A, B, 4)),
            Settle(),
            Send("left", lan(A, B, 4)),
            Send("left", lan(A, B, 4, port=77)),
        ),
        setup=SETUP,
        ends=ENDS,
        fast=4,
    ),
]
