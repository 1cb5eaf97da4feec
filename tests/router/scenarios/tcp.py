"""Connections from SYN to the end, with and without NAT, and what does not belong to them."""

from packets import Talk, Way, between
from places import v4, v6
from scenario import Do, Freeze, Scenario, Send, Settle, Wait
from scenarios.nat import MASQUERADE, table

TRACKED = """nft -f - <<'END'
table inet t {
    chain c {
        type filter hook forward priority 0; policy drop
        ct state established,related accept
        iifname left ct state new accept
    }
}
END"""
LIVES = {
    "no conntrack": ("", *between(("left", 2), ("right", 2), (1000, 80))),
    "conntrack": (TRACKED, *between(("left", 2), ("right", 2), (1000, 80))),
    "conntrack, IPv6": (TRACKED, *between(("left", 2), ("right", 2), (1000, 80), version=6)),
    "masquerade": (MASQUERADE, Way("left", 2, v4("right", 2), (1000, 80)), Way("right", 2, v4("right"), (80, 1000))),
    "dnat": (
        table(f"pre iifname right tcp dport 80 dnat to {v4('left', 5)}:8080"),
        Way("right", 2, v4("right"), (4000, 80)),
        Way("left", 5, v4("right", 2), (8080, 4000)),
    ),
    "masquerade, IPv6": (
        table("post oifname right masquerade", family="ip6"),
        Way("left", 2, v6("right", 2), (1000, 80)),
        Way("right", 2, v6("right"), (80, 1000)),
    ),
}


# What is fast at least is counted for a daemon that has told conntrack nothing before the first `Settle`, as on a busy machine: then the first packet of
# each direction after it is on trial still.
def life(client: Way, server: Way, end: str) -> list:
    talk = Talk(client.but(), server.but())
    steps = talk.open() + talk.say(2, 2) + [Settle()] + talk.say(8, 8) + getattr(talk, end)()
    # Later ones of the same connection, and the same ports once more.
    return steps + talk.say(1, 1) + [Settle()] + talk.open() + talk.say(2, 2)


def out_of_window(client: Way, server: Way) -> list:
    talk = Talk(client.but(), server.but())
    steps = talk.open() + talk.say(2, 2) + [Settle()] + talk.say(4, 4)
    wild = [client.but().tcp("PA", 3000000000, talk.theirs, b"far"), client.but().tcp("A", talk.ours, 1), client.but().tcp("R", 3000000000)]
    return steps + [Send(client.end, wild), Settle()] + talk.say(4, 4)


def strange(client: Way, server: Way) -> list:
    """Flags that no connection has, in the middle of one."""
    talk = Talk(client.but(), server.but())
    steps = talk.open() + talk.say(2, 2) + [Settle()] + talk.say(4, 4)
    flags = ["", "SF", "SR", "FR", "FPU", "SAFRPU", "S", "SA", "AU", "AE", "AC"]
    return steps + [Send(client.end, [client.but().tcp(one, talk.ours, talk.theirs) for one in flags]), Settle()] + talk.say(2, 2)


def late(client: Way, server: Way) -> list:
    talk = Talk(client.but(), server.but())
    return [Freeze(), *talk.open(), *talk.say(3, 3), *talk.say(3, 3), Freeze(until=True), Settle(), *talk.say(8, 8), *talk.close()]


def simultaneous(client: Way, server: Way) -> list:
    talk = Talk(client.but(), server.but())
    return (
        talk.open()
        + talk.say(2, 2)
        + [Settle()]
        + talk.say(4, 4)
        + [
            Send(client.end, [client.tcp("FA", talk.ours, talk.theirs)]),
            Send(server.end, [server.tcp("FA", talk.theirs, talk.ours)]),
            Send(client.end, [client.tcp("A", talk.ours + 1, talk.theirs + 1)]),
            Send(server.end, [server.tcp("A", talk.theirs + 1, talk.ours + 1)]),
        ]
    )


def urgent(client: Way, server: Way) -> list:
    talk = Talk(client.but(), server.but())
    options = [("NOP", None), ("NOP", None), ("Timestamp", (123, 456))]
    made = [
        client.but().tcp("PA", talk.ours + 1, talk.theirs + 1, b"later", options=options),
        client.but().tcp("PAU", talk.ours + 6, talk.theirs + 1, b"u", urgptr=1),
    ]
    return talk.open() + talk.say(1, 1) + [Settle(), Send(client.end, made)]


def from_the_server(client: Way, server: Way, flags: str) -> list:
    """The server ends the connection, by FIN or RST, and both go on as if it had not; the same ports once more."""
    talk = Talk(client.but(), server.but())
    steps = talk.open() + talk.say(2, 2) + [Settle()] + talk.say(8, 8)
    steps += [Send(talk.server.end, [talk.server.tcp(flags, talk.theirs, talk.ours)])]
    talk.theirs += flags == "FA"
    steps += talk.say(2, 2) + [Settle()] + talk.say(2, 2)
    if flags == "FA":
        steps += [Send(talk.client.end, [talk.client.tcp("FA", talk.ours, talk.theirs)])]
        talk.ours += 1
        steps += [Send(talk.server.end, [talk.server.tcp("A", talk.theirs, talk.ours)])] + talk.say(0, 2)
    return steps + [Settle()] + talk.open() + talk.say(2, 2)


# Conntrack forgets what has been reset after a second; what comes from the server then is a connection that nobody wants. It does not believe an RST whose
# number it does not know, because it has not seen what went without Linux: then the connection is one of which nothing is acknowledged.
SOON = TRACKED + "\nsysctl -qw net.netfilter.nf_conntrack_tcp_timeout_close=1 net.netfilter.nf_conntrack_tcp_timeout_unacknowledged=1"


def forgotten(client: Way, server: Way, by: str) -> list:
    talk = Talk(client.but(), server.but())
    steps = talk.open() + talk.say(2, 2) + [Settle()] + talk.say(8, 8)
    one, (ours, theirs) = (talk.client, (talk.ours, talk.theirs)) if by == "client" else (talk.server, (talk.theirs, talk.ours))
    return [*steps, Send(one.end, [one.tcp("RA", ours, theirs)]), Settle(), Wait(1.3), *talk.say(0, 4), Settle(), *talk.say(0, 2)]


SCENARIOS = [Scenario(f"reset by the {by} and forgotten", forgotten(*LIVES["conntrack"][1:], by), setup=SOON, fast=14) for by in ("client", "server")]
for name, (setup, client, server) in LIVES.items():
    SCENARIOS += [
        Scenario(f"to the end, {name}", life(client, server, "close"), setup=setup, fast=14),
        Scenario(f"to a reset, {name}", life(client, server, "reset"), setup=setup, fast=14),
        Scenario(f"the server closes, {name}", from_the_server(client, server, "FA"), setup=setup, fast=14),
        Scenario(f"the server resets, {name}", from_the_server(client, server, "RA"), setup=setup, fast=14),
    ]
for name in ("no conntrack", "conntrack", "masquerade"):
    setup, client, server = LIVES[name]
    SCENARIOS += [
        Scenario(f"out of the window, {name}", out_of_window(client, server), setup=setup, fast=7),
        Scenario(f"strange flags, {name}", strange(client, server), setup=setup, fast=7),
        Scenario(f"both close, {name}", simultaneous(client, server), setup=setup, fast=5),
        Scenario(f"options and urgent, {name}", urgent(client, server), setup=setup, fast=1),
    ]
for name in ("conntrack", "conntrack, IPv6", "masquerade"):
    setup, client, server = LIVES[name]
    # Conntrack looks at windows until the daemon has told it not to: no packet may go around it before.
    SCENARIOS += [Scenario(f"the daemon is late, {name}", late(client, server), setup=setup, fast=14)]
SCENARIOS += [
    # Conntrack calls it invalid when the header is said to be longer than the packet.
    Scenario(
        "a header longer than the packet",
        (
            lambda talk: (
                talk.open()
                + talk.say(2, 2)
                + [Settle()]
                + talk.say(4, 4)
                + [Send("left", [talk.client.tcp("A", talk.ours, talk.theirs, b"x" * 8, dataofs=15)])]
                + talk.say(1, 1)
            )
        )(Talk(LIVES["conntrack"][1].but(), LIVES["conntrack"][2].but())),
        setup=TRACKED,
        fast=8,
    ),
    Scenario(
        "conntrack -D under a connection",
        (
            lambda talk: (
                talk.open()
                + talk.say(2, 2)
                + [Settle()]
                + talk.say(4, 4)
                + [Do("conntrack -D >/dev/null 2>&1")]
                + talk.say(2, 2)
                + [Settle()]
                + talk.say(4, 4)
            )
        )(Talk(*(way.but() for way in LIVES["masquerade"][1:]))),
        setup=MASQUERADE,
        fast=7,
    ),
    # Not picked up in the middle: the rest after conntrack's entry has gone is dropped.
    Scenario(
        "strict conntrack",
        (
            lambda talk: (
                talk.open()
                + talk.say(2, 2)
                + [Settle()]
                + talk.say(5, 5)
                + [Do("conntrack -D >/dev/null 2>&1")]
                + talk.say(2, 2)
                + [Settle()]
                + talk.say(4, 4)
            )
        )(Talk(*(way.but() for way in LIVES["conntrack"][1:]))),
        setup=TRACKED + "\nsysctl -qw net.netfilter.nf_conntrack_tcp_loose=0",
        fast=7,
    ),
    # MSS is made smaller in every SYN.
    Scenario(
        "clamped",
        life(*LIVES["conntrack"][1:], "close"),
        fast=14,
        setup="iptables -A FORWARD -m conntrack --ctstate NEW; iptables -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1200",
    ),
]
