"""IPsec of the kernel beside the fast path: only kernels that have ESP, in a guest (tests/cases/router-guest.sh).

The router is a gateway to 10.9.0.0/24 behind host 2 of `right`. Nothing is encrypted, but protected by HMAC-SHA2-256, so that every byte is
the same each time.
"""

import hashlib
import hmac
import struct

from packets import Way, answering, between
from places import mac, v4
from scenario import Do, Scenario, Send, Settle

from scenarios.vlan import warm

KEY = bytes(range(32))
NEAR, FAR = v4("right"), v4("right", 2)
TEMPLATE = "proto esp reqid 1 mode tunnel"
ALGORITHM = f"reqid 1 mode tunnel replay-window 32 auth-trunc 'hmac(sha256)' 0x{KEY.hex()} 128 enc 'ecb(cipher_null)' ''"
STATES = f"""
ip xfrm state add src {NEAR} dst {FAR} proto esp spi 0x1001 {ALGORITHM}
ip xfrm state add src {FAR} dst {NEAR} proto esp spi 0x2001 {ALGORITHM}
"""
OUT_POLICY = f"ip xfrm policy add src 10.0.1.0/24 dst 10.9.0.0/24 dir out tmpl src {NEAR} dst {FAR} {TEMPLATE}"
IN_POLICIES = "\n".join(
    f"ip xfrm policy add src 10.9.0.0/24 dst 10.0.1.0/24 dir {direction} tmpl src {FAR} dst {NEAR} {TEMPLATE}" for direction in ("in", "fwd")
)
ROUTE = f"ip route add 10.9.0.0/24 via {FAR}\n"

there = Way("left", 2, "10.9.0.2")
back = Way("right", 2, v4("left", 2), (2000, 1000), source="10.9.0.2")
other, _ = between(("left", 2), ("right", 3))


def protected(frames: list[bytes], first: int) -> list[bytes]:
    """By the association from `right`, with numbers from that one on."""
    made = []
    for number, frame in enumerate(frames, first):
        inner = frame[14:]
        fill = -(len(inner) + 2) % 4
        body = struct.pack("!II", 0x2001, number) + inner + bytes(range(1, fill + 1)) + bytes([fill, 4])
        esp = body + hmac.new(KEY, body, hashlib.sha256).digest()[:16]
        made.append(Way("right", 2, NEAR, ip={"proto": 50, "id": number}).frame(esp))
    return made


def comes(way: Way, count: int, first: int) -> Send:
    return Send("right", protected(way.udp(count), first))


def same_identification(frame: bytes) -> bytes:
    """Of ESP the kernel draws the identification at random."""
    if frame[12:14] == b"\x08\0" and frame[23] == 50:
        return frame[:18] + b"\0\0" + frame[20:24] + b"\0\0" + frame[26:]
    return frame


SCENARIOS = [
    # A flow is in the clear while no policy speaks of it, and in no packet when one does.
    Scenario(
        "outwards",
        warm(there.but())
        + warm(other.but())
        + [Do(OUT_POLICY), Send("left", there.but().udp(4)), Settle(), Send("left", there.but().udp(4))]
        + warm(other.but())
        + [Do("ip xfrm policy flush"), Send("left", there.but().udp(4)), Settle(), Send("left", there.but().udp(4))]
        + [Do("ip xfrm policy setdefault fwd block"), Send("left", there.but().udp(4)), Settle(), Send("left", there.but().udp(2))],
        setup=ROUTE + STATES,
        masks=(same_identification,),
        fast=22,
    ),
    # What was decrypted is forwarded; the same in the clear never is, however often it was seen decrypted.
    Scenario(
        "inwards",
        [comes(back.but(), 5, 1), Settle(), comes(back.but(), 5, 6), Settle()]
        + [Send("right", back.but().udp(4)), Settle(), Send("right", back.but().udp(4)), comes(back.but(), 2, 11)]
        # Of an association that the policy does not want.
        + [Do(IN_POLICIES.replace("add", "update").replace("reqid 1", "reqid 2")), comes(back.but(), 3, 13)]
        + warm(other.but()),
        setup=ROUTE + STATES + IN_POLICIES,
        comes={"left": 12, "right": 8},
        fast=5,
    ),
]
