"""A session of PPPoE that the kernel has, in a VLAN: only kernels that have both, in a guest (tests/cases/router-guest.sh)."""

import struct
from pathlib import Path

from packets import Way, answering
from places import batch, mac
from scenario import Do, Scenario, Send, Settle

from scenarios.vlan import C, tagged, vlan, warm

FOLDER = Path(__file__).resolve().parent.parent
SESSION, AC = 0x1234, mac("right", 9)
PROGRAM = f"/usr/bin/python3 {FOLDER / 'pppoe.py'} v7 {SESSION} {AC}"
UP = batch(
    [
        "address add 192.0.2.1 peer 192.0.2.2 dev ppp0",
        "link set ppp0 mtu 1492 up",
        "route add 198.51.100.0/24 dev ppp0",
        "route add 2001:db8:51::/48 dev ppp0",
    ]
)
SECOND = 0x4321
UP2 = batch(["address add 192.0.2.5 peer 192.0.2.6 dev ppp1", "link set ppp1 mtu 1492 up", "route add 203.0.113.0/24 dev ppp1"])
MASQUERADE = """nft -f - <<'END'
table ip nat {
    chain postrouting {
        type nat hook postrouting priority srcnat
        oifname "ppp0" masquerade
    }
}
END
"""


def carried(frames: list[bytes], session: int = SESSION, padding: int = 0) -> list[bytes]:
    """From the concentrator, in the session and in VLAN 7."""
    made = []
    for frame in frames:
        protocol = 0x0057 if frame[14] >> 4 == 6 else 0x0021
        head = bytes.fromhex((mac("right") + AC).replace(":", "")) + struct.pack("!HHHHH", 0x8864, 0x1100, session, len(frame) - 12, protocol)
        made.append(head + frame[14:] + bytes(padding))
    return tagged(made, (C, 7))


def comes(make: Way, count: int, **how) -> Send:
    return Send("right", carried(make.udp(count), **how))


OUT, OUT6 = Way("left", 2, "198.51.100.7"), Way("left", 2, "2001:db8:51::7")
BACK, BACK6 = answering(OUT).but(source="198.51.100.7"), answering(OUT6).but(source="2001:db8:51::7")
# By the other session.
ELSEWHERE = Way("left", 2, "203.0.113.7")
# Masqueraded, and its answers.
HIDDEN = OUT.but(ports=(1001, 2000))
SHOWN = Way("right", 9, "192.0.2.1", (2000, 1001), source="198.51.100.7")

SCENARIOS = [
    Scenario(
        "both ways",
        [Do(UP), Settle()]
        + warm(OUT.but())
        + warm(OUT6.but())
        + [comes(BACK.but(), 3), Settle(), comes(BACK.but(), 5, padding=7), comes(BACK6.but(), 3), Settle(), comes(BACK6.but(), 5)]
        # Another session, and PPP's own messages.
        + [comes(BACK.but(), 3, session=77), Send("right", [frame[:24] + b"\xc0\x21" + frame[26:] for frame in carried(BACK.but().udp(3))])]
        + [Do(MASQUERADE), Send("left", HIDDEN.but().udp(2)), comes(SHOWN.but(), 2)]
        + warm(HIDDEN.but())
        + [comes(SHOWN.but(), 3), Settle(), comes(SHOWN.but(), 5)]
        # Linux alone knows how an echo leaves, and of what leaves in its session it does not know any more by which interface it came: these are slow.
        + [Send("left", OUT.but().echo(4)), Settle(), Send("left", OUT.but().echo(6))]
        + [Send("left", [HIDDEN.but().frame(b"\0" * 1472), *HIDDEN.but(ip={"flags": "DF"}).udp(1)])]
        + [Do("ip link set ppp0 down"), comes(SHOWN.but(), 2), Send("left", HIDDEN.but().udp(1))],
        setup=batch(vlan("right", 7, "right")),
        background=(PROGRAM,),
        fast=38,
    ),
    # Two sessions, and nobody tells which interface is whose: Linux has both, and none of the one goes by the other.
    Scenario(
        "two sessions",
        [Do(UP + UP2), Settle()]
        + warm(OUT.but())
        + [comes(BACK.but(), 3), comes(BACK.but(), 3, session=SECOND), Send("left", ELSEWHERE.udp(3)), Settle()]
        + [comes(BACK.but(), 3), comes(BACK.but(), 3, session=SECOND), Send("left", ELSEWHERE.udp(3))],
        setup=batch(vlan("right", 7, "right")),
        background=(PROGRAM, f"/usr/bin/python3 {FOLDER / 'pppoe.py'} v7 {SECOND} {AC}"),
    ),
]
