"""VLANs: interfaces of 8021q, two tags, and a bridge that looks at them. Only kernels that have 8021q: in a guest (tests/cases/router-guest.sh)."""

import struct

from packets import Way, one_way
from places import batch, mac
from scenario import Do, Scenario, Send, Settle

C, S = 0x8100, 0x88A8


def tagged(frames: list[bytes], *tags: tuple[int, int]) -> list[bytes]:
    """With these tags, each an Ethernet type and a TCI."""
    front = b"".join(struct.pack("!HH", *tag) for tag in tags)
    return [frame[:12] + front + frame[12:] for frame in frames]


def way(end: str, source: int, to: int, version: int = 4, **fields) -> Way:
    """From host 2 of one VLAN to host 2 of another."""
    address = "10.10.{}.2" if version == 4 else "2001:db8:10{}::2"
    return Way(end, 2, address.format(to), source=address.format(source), **fields)


def vlan(lower: str, number: int, end: str, protocol: str = "802.1Q") -> list[str]:
    """Commands of `ip -batch`: an interface v<number> with addresses, and the hosts 2 of `end` in it."""
    name = f"v{number}"
    return [
        f"link add link {lower} name {name} type vlan protocol {protocol} id {number}",
        f"link set {name} addrgenmode none",
        f"link set {name} up",
        f"address add 10.10.{number}.1/24 dev {name}",
        f"address add 2001:db8:10{number}::1/64 dev {name} nodad",
        *[
            f"neighbour replace {host} lladdr {mac(end, 2)} dev {name} nud permanent"
            for host in (f"10.10.{number}.2", f"2001:db8:10{number}::2")
        ],
    ]


def warm(make: Way, *tags, count: int = 5) -> list:
    """A few packets for Linux, and then those that should be fast."""
    return [Send(make.end, tagged(make.udp(3), *tags)), Settle(), Send(make.end, tagged(make.udp(count), *tags))]


THREE = batch(vlan("left", 10, "left") + vlan("left", 20, "left") + vlan("right", 30, "right"))
# A customer's VLAN in a provider's.
TWO_TAGS = batch(
    ["link add link right name outer type vlan protocol 802.1ad id 100", "link set outer addrgenmode none", "link set outer up"]
    + vlan("outer", 40, "right")
)
MASQUERADE = """nft -f - <<'END'
table ip nat {
    chain postrouting {
        type nat hook postrouting priority srcnat
        oifname "v30" masquerade
    }
}
END
"""

BRIDGE = """
ip link add br0 type bridge forward_delay 0 vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0
ip link set br0 addrgenmode none address {}
sysctl -qw net.ipv6.conf.br0.disable_ipv6=1
for port in left right third; do ip address flush dev $port; ip link set $port master br0; done
bridge vlan add dev left vid 10 pvid untagged
bridge vlan add dev left vid 20
bridge vlan add dev right vid 20 pvid untagged
bridge vlan add dev right vid 10
bridge vlan add dev third vid 10
bridge vlan add dev third vid 20
bridge vlan add dev br0 vid 10 self
bridge vlan add dev br0 vid 20 self
ip link set br0 up
""".format(mac("left")) + batch(vlan("br0", 10, "left") + vlan("br0", 20, "right"))


def lan(number: int, source: str, destination: str, count: int = 5) -> list[bytes]:
    """Between two hosts of one VLAN."""
    made = Way("left", 2, f"10.10.{number}.9", source=f"10.10.{number}.8", ports=(number, 9))
    addresses = bytes.fromhex((destination + source).replace(":", ""))
    return [addresses + frame[12:] for frame in made.udp(count)]


def moved(frames: list[bytes]) -> list[bytes]:
    """To another Ethernet address of the router."""
    return [bytes.fromhex("020000007701") + frame[6:] for frame in frames]


# A flow that is masqueraded, and its answers.
OUT = way("left", 10, 30, ports=(1001, 2000))
BACK = Way("right", 2, "10.10.30.1", (2000, 1001), source="10.10.30.2")
A, B, T = mac("left", 2), mac("right", 2), mac("third", 2)

SCENARIOS = [
    # Priorities of what comes are not those of what leaves. At last the same flows with what is not their VLAN.
    Scenario(
        "routed",
        warm(way("left", 10, 20), (C, 10))
        + warm(way("left", 10, 30), (C, 10 | 5 << 13))
        + warm(way("right", 30, 10, 6), (C, 30))
        + [Send("left", tagged(way("left", 10, 30).udp(3), tag)) for tag in ((C, 77), (S, 10), (C, 20), (C, 0))]
        + [Send("left", way("left", 10, 30).udp(3))]
        + [Do(MASQUERADE), Send("left", tagged(OUT.but().udp(2), (C, 10))), Send("right", tagged(BACK.but().udp(2), (C, 30)))]
        + warm(OUT.but(), (C, 10))
        + warm(BACK.but(), (C, 30)),
        setup=THREE,
        fast=35,
    ),
    # A VLAN goes, another one takes its number, has an address of its own, is down.
    Scenario(
        "two tags, and changes",
        warm(way("left", 10, 40), (C, 10))
        + warm(way("right", 40, 20), (S, 100), (C, 40))
        + warm(way("right", 40, 30, 6), (S, 100 | 1 << 13), (C, 40 | 1 << 12))
        + [Send("right", tagged(way("right", 40, 20).udp(3), *tags)) for tags in (((C, 100), (C, 40)), ((S, 100),), ((C, 40),))]
        + warm(way("left", 10, 30), (C, 10))
        + [Do("ip link delete v30"), Send("left", tagged(way("left", 10, 30).udp(1), (C, 10)))]
        + [Do(batch(vlan("left", 30, "left"))), *warm(way("left", 10, 30), (C, 10))]
        + [Do("ip link set v10 address 02:00:00:00:77:01"), Send("left", tagged(way("left", 10, 30).udp(3), (C, 10))), Settle()]
        + [Send("left", moved(tagged(way("left", 10, 30).udp(5), (C, 10))))]
        + [Do("ip link set v10 down"), Send("left", moved(tagged(way("left", 10, 30).udp(3), (C, 10))))],
        setup=THREE + TWO_TAGS,
        fast=38,
    ),
    # Untagged here, tagged there, both; and from one VLAN of the bridge into another.
    Scenario(
        "bridge",
        [
            Send("left", lan(10, A, B, 1)),
            Send("right", tagged(lan(10, B, A, 1), (C, 10)) + lan(20, B, T, 1)),
            Send("third", tagged(lan(10, T, A, 1), (C, 10)) + tagged(lan(20, T, B, 1), (C, 20))),
            Settle(),
        ]
        + [
            step
            for _ in range(2)
            for step in [
                Send("left", lan(10, A, B)),
                Send("right", tagged(lan(10, B, A), (C, 10 | 3 << 13))),
                Send("third", tagged(lan(20, T, B), (C, 20))),
                Send("right", lan(20, B, T)),
                # A VLAN that the port has not, and one that the receiver's has not.
                Send("left", tagged(lan(30, A, B, 2), (C, 30))),
                Settle(),
            ]
        ]
        + warm(way("left", 10, 20).but(ip={})),
        setup=BRIDGE,
        ends=("left", "right", "third"),
        fast=35,
    ),
]
