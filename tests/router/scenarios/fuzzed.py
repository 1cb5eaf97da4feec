"""Frames of warm flows with some bits changed, cut and joined at random; the same ones each time."""

import random

from packets import Way, answering, one_way
from places import v4, v6
from scenario import Scenario, Send, Settle
from scenarios.nat import MASQUERADE, table, without_source_port

COUNT = 3000
way = Way("left", 2, v4("right", 2), (1000, 53))
way6 = Way("left", 2, v6("right", 2), (1000, 53))
ACCEPT = "nft -f - <<'END'\ntable inet t {\n chain c {\n type filter hook forward priority 0\n ct state invalid drop\n}\n}\nEND"


def changed(frame: bytes, chance: random.Random) -> bytes:
    """The frame with one to four changes, most of them in its headers."""
    made = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        # Behind the Ethernet addresses, so that most of them are still for the router.
        at = min(12 + int(chance.expovariate(1 / 20)), len(made) - 1)
        what = chance.randrange(8)
        if what < 4:
            made[at] ^= 1 << chance.randrange(8)
        elif what < 6:
            made[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif what == 6:
            del made[max(14, at) :]
        else:
            made[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8)))
    return bytes(made[:1514])


def traffic(seed: int) -> list[bytes]:
    chance = random.Random(seed)
    sound = way.but().udp(8) + way6.but().udp(8) + [way.but().tcp(flags, 1000, 5000, b"data") for flags in ("A", "PA", "S", "F", "R")]
    sound += way.but().echo(2) + way6.but().echo(2)
    return [changed(chance.choice(sound), chance) for _ in range(COUNT)]


def all_of(seed: int, back: Way | None = None, back6: Way | None = None) -> list:
    warm = one_way(way.but(), back=back) + one_way(way6.but(), back=back6) + [Send("left", [way.but().tcp("S", 999)]), Settle()]
    made = traffic(seed)
    return warm + [Send("left", made[at : at + 500]) for at in range(0, COUNT, 500)] + [Send("left", way.but().udp(4))]


# Decision 82.
WRONG_SUMS = "some have wrong checksums of UDP, at which the fast path does not look"
SCENARIOS = [
    Scenario("routed", all_of(1), fast=16),
    Scenario("filtered", all_of(2, answering(way), answering(way6)), setup=ACCEPT, fast=16, known=WRONG_SUMS),
    Scenario(
        "translated",
        known=WRONG_SUMS,
        steps=all_of(3, answering(way, v4("right")), answering(way6, v6("right"))),
        fast=16,
        masks=(without_source_port,),
        setup=MASQUERADE + "\n" + table("post oifname right masquerade", family="ip6"),
    ),
]
