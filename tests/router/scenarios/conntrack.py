"""What conntrack knows beside NAT: zones, helpers, expectations, limits, marks."""

from pathlib import Path

from packets import Talk, Way, between, one_way
from places import v4
from scenario import Do, Scenario, Send, Settle
from scenarios.filters import chain

there, back = between(("left", 2), ("right", 2))

# The same addresses on two interfaces are two connections, told apart by their zone, and translated to different ports.
ZONES = """nft -f - <<'END'
table ip t {
    chain raw {
        type filter hook prerouting priority raw
        iifname left ct zone set 1
        iifname third ct zone set 2
        iifname right udp dport 1001 ct zone set 1
        iifname right udp dport 1002 ct zone set 2
    }
    chain marks {
        type filter hook prerouting priority mangle
        iifname right ct zone 2 meta mark set 2
    }
    chain post {
        type nat hook postrouting priority srcnat
        oifname right ct zone 1 meta l4proto udp snat to 10.0.2.1:1001
        oifname right ct zone 2 meta l4proto udp snat to 10.0.2.1:1002
    }
}
END"""
inside = Way("left", 2, v4("right", 2), (1000, 53))
twin = Way("third", 2, v4("right", 2), (1000, 53), source=v4("left", 2))


def answers(port: int) -> Way:
    return Way("right", 2, v4("right"), (53, port))


# Answers of the second zone go where they came from.
BACK_TO_ZONE = """
ip rule add fwmark 2 table 100
ip route add default via 10.0.3.2 table 100
"""

FTP = """nft -f - <<'END'
table ip t {
    ct helper ftp {
        type "ftp" protocol tcp
    }
    chain pre {
        type filter hook prerouting priority 0
        tcp dport 21 ct helper set "ftp"
    }
    chain forward {
        type filter hook forward priority 0; policy drop
        ct state established,related accept
        iifname left tcp dport 21 accept
    }
    chain post {
        type nat hook postrouting priority srcnat
        oifname right masquerade
    }
}
END"""


def ftp() -> list:
    """An active transfer: the address in PORT is rewritten, and the server's connection to it is let in."""
    client, server = Way("left", 2, v4("right", 2), (1000, 21)), Way("right", 2, v4("right"), (21, 1000))
    talk = Talk(client, server)
    data = Talk(Way("right", 2, v4("right"), (20, 1025)), Way("left", 2, v4("right", 2), (1025, 20)))
    command = b"PORT 10,0,1,2,4,1\r\n"
    steps = talk.open() + talk.say(2, 2) + [Settle()] + talk.say(2, 2)
    steps += [Send("left", [client.tcp("PA", talk.ours, talk.theirs, command)])]
    # The server's acknowledgement is of the command as it came there: shorter or longer than it was.
    talk.ours += len(command)
    return steps + data.open() + [Settle()] + data.say(4, 4) + data.close()


FULL = Path(__file__).resolve().parent.parent / "full.py"
ONLY_FROM_LEFT = """nft -f - <<'END'
table inet t {
    chain c {
        type filter hook forward priority 0; policy drop
        ct state established,related accept
        iifname left ct state new accept
    }
}
END"""


def full() -> list:
    """A flow goes on, a new one has no place, and both are new when the table has been emptied: then what comes from `right` is dropped first."""
    other = there.but(ports=(3000, 2000))
    answer = back.but(ports=(2000, 3000))
    steps = [Send("left", there.udp(2)), Send("right", back.udp(2)), Send("left", there.udp(1)), Settle(), Send("left", there.udp(4)), Send("right", back.udp(4))]
    steps += [Do(f"/usr/bin/python3 -B {FULL}"), Send("left", there.udp(6)), Send("right", back.udp(6))]
    steps += [Send("left", other.udp(4)), Send("right", answer.udp(2)), Settle(), Send("left", other.udp(4)), Send("right", answer.udp(2))]
    steps += [Do("conntrack -F 2>/dev/null"), Send("right", back.udp(4)), Send("right", answer.udp(2)), Settle(), Send("right", back.udp(4))]
    return steps + one_way(there, back=back) + one_way(other, back=answer) + [Send("right", back.udp(4)), Send("right", answer.udp(4))]


SCENARIOS = [
    # To fill the table takes longer than conntrack keeps a flow of UDP, on a busy machine.
    Scenario(
        "full",
        full(),
        setup=ONLY_FROM_LEFT + "\nsysctl -qw net.netfilter.nf_conntrack_udp_timeout=600 net.netfilter.nf_conntrack_udp_timeout_stream=600",
        fast=30,
    ),
    Scenario(
        "zones",
        one_way(inside)
        + one_way(twin)
        + [
            Send("right", answers(1001).udp(2)),
            Send("right", answers(1002).udp(2)),
            Settle(),
            Send("left", inside.udp(4)),
            Send("third", twin.udp(4)),
            Send("right", answers(1001).udp(4)),
            Send("right", answers(1002).udp(4)),
        ],
        ends=("left", "right", "third"),
        setup=ZONES + BACK_TO_ZONE,
        comes={"right": 26, "left": 6, "third": 6},
    ),
    Scenario("ftp", ftp(), setup=FTP),
    Scenario(
        "connection limit",
        [
            Send("left", [frame for port in range(20) for frame in there.but(ports=(port + 1, 53)).udp(1)]),
            Settle(),
            Send("left", [frame for port in range(20) for frame in there.but(ports=(port + 1, 53)).udp(3)]),
        ],
        setup="nft add table inet t\n" + chain("ct state new ct count over 9 drop"),
    ),
    Scenario(
        "marked and accepted by the mark",
        one_way(there.but(), back=back.but()),
        setup=chain("ct state new ct mark set 5", "ct mark 5 accept", policy="drop"),
        comes={"right": 10, "left": 1},
        fast=6,
    ),
]
