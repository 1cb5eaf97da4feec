"""Every Ethernet capture as traffic of a host: as it is, and with the router as its destination."""

import os
from pathlib import Path

import frames
from packets import Way, one_way
from places import Failed, mac, v4
from scenario import Scenario, Send, Settle
from scenarios.nat import MASQUERADE, without_source_port

FOLDER = Path(os.environ.get("MILLRACE_CAPTURES", Path(__file__).resolve().parents[4] / "shared/data/captures"))
ROUTER = bytes.fromhex(mac("left").replace(":", ""))
way = Way("left", 2, v4("right", 2))
# What the wire takes: an Ethernet header, and no more than the MTU behind it.
SHORTEST, LONGEST = 14, 1514


def all_frames() -> list[bytes]:
    made = []
    for file in sorted(FOLDER.glob("*")):
        try:
            made += frames.read(file)
        except (frames.NotACapture, OSError):
            continue
    if not made:
        raise Failed(f"there are no captures in {FOLDER}; MILLRACE_CAPTURES says where they are")
    return [frame for frame in made if SHORTEST <= len(frame) <= LONGEST]


def as_they_are(taken) -> list[bytes]:
    return all_frames()


def to_the_router(taken) -> list[bytes]:
    return [ROUTER + frame[6:] for frame in all_frames()]


def twice(made) -> list:
    return one_way(way.but()) + [Send("left", made), Settle(), Send("left", made), Send("left", way.but().udp(4))]


SCENARIOS = [
    Scenario("as they are", twice(as_they_are), fast=10),
    Scenario("to the router", twice(to_the_router), fast=10),
    Scenario("to the router, which translates", twice(to_the_router), setup=MASQUERADE, fast=10, masks=(without_source_port,)),
]
