"""Whether two runs of a scenario brought the same frames to the same ends, and in words where they did not.

Frames are compared byte by byte, those of one flow in their order. Aside is only what Linux itself chooses anew each time: the IP
identification of packets that the router makes, and what the router asks its neighbours meanwhile.
"""

import difflib
import struct
from collections import defaultdict

from scapy.layers.l2 import Ether

# ICMP types that the router itself sends: answers, unreachable, redirect, time exceeded, parameter problem.
OWN_ICMP = {0, 3, 5, 11, 12}
# Multicast listener and neighbour discovery messages of ICMPv6, and MLDv2's.
OWN_ICMP6 = {130, 131, 132, 133, 134, 135, 136, 137, 143}


class Taken:
    """What a run brought: for each step and end, the frames in their order."""

    def __init__(self, masks=()):
        self.masks = masks
        self.steps = []

    def add(self, label: str, frames: dict[str, list[bytes]]) -> None:
        self.steps.append((label, frames))

    def frames(self, end: str, own: bool = False) -> list[bytes]:
        """All that came to the end; with `own`, what the router asked its neighbours, too."""
        return [frame for _, frames in self.steps for frame in frames[end] if own or not is_own_question(frame)]

    def last(self, end: str) -> list[bytes]:
        """What the last step brought there."""
        return [frame for frame in self.steps[-1][1][end] if not is_own_question(frame)]

    def count(self) -> int:
        return sum(len(self.frames(end)) for end in self.steps[0][1]) if self.steps else 0

    def flows(self, step: int, end: str) -> dict[bytes, list[bytes]]:
        found = defaultdict(list)
        for frame in self.steps[step][1][end]:
            if not is_own_question(frame):
                frame = without_identification(frame)
                for mask in self.masks:
                    frame = mask(frame)
                found[flow(frame)].append(frame)
        return found


def is_ip(frame: bytes) -> bool:
    return len(frame) >= 34 and frame[12:14] == b"\x08\0" and frame[14] >> 4 == 4


def unwrapped(frame: bytes) -> bytes:
    """Without tags and the session of PPPoE."""
    while frame[12:14] in (b"\x81\0", b"\x88\xa8"):
        frame = frame[:12] + frame[16:]
    if frame[12:16] == b"\x88\x64\x11\0":
        frame = frame[:12] + {b"\0\x21": b"\x08\0", b"\0\x57": b"\x86\xdd"}.get(frame[20:22], b"\0\0") + frame[22:]
    return frame


def is_own_question(frame: bytes) -> bool:
    """ARP, neighbour discovery and IGMP that the router sends for itself."""
    if frame[6:10] != b"\x02\0\0\0" or frame[11] != 1:
        return False
    frame = unwrapped(frame)
    kind = frame[12:14]
    if kind == b"\x08\x06":
        return frame[20:22] == b"\0\x01"
    if kind == b"\x86\xdd" and len(frame) >= 56:
        return (frame[20] == 58 and frame[54] in OWN_ICMP6) or (frame[20] == 0 and len(frame) >= 63 and frame[62] in OWN_ICMP6)
    return is_ip(frame) and frame[23] == 2 and frame[22] == 1


def is_counted(frame: bytes) -> bool:
    """Errors of routes (network or host unreachable, prohibited) and redirects: Linux sends each host only so many of them."""
    if is_ip(frame) and frame[23] == 1:
        return frame[34:36] in (b"\x03\x00", b"\x03\x01", b"\x03\x0d") or frame[34] == 5
    return frame[12:14] == b"\x86\xdd" and frame[20:21] == b"\x3a" and frame[54:55] == b"\x89"


def without_identification(frame: bytes) -> bytes:
    """Of ICMP that the router makes: the identification, which changes the checksum, as zeros."""
    # What is forwarded has a TTL of 63 or less, unless somebody sends it with more than Linux does.
    if not is_ip(frame) or frame[23] != 1 or frame[22] != 64:
        return frame
    at = 14 + 4 * (frame[14] & 15)
    if len(frame) <= at or frame[at] not in OWN_ICMP:
        return frame
    return frame[:18] + b"\0\0" + frame[20:24] + b"\0\0" + frame[26:]


def flow(frame: bytes) -> bytes:
    """What frames whose order counts have in common: addresses, protocol and ports."""
    if is_ip(frame):
        at = 14 + 4 * (frame[14] & 15)
        first = struct.unpack_from("!H", frame, 20)[0] & 0x1FFF == 0
        ports = frame[at : at + 4] if first and frame[23] in (6, 17) else b""
        return frame[12:14] + frame[23:24] + frame[26:34] + ports
    if frame[12:14] == b"\x86\xdd":
        ports = frame[54:58] if frame[20:21] in (b"\x06", b"\x11") else b""
        return frame[12:14] + frame[20:21] + frame[22:54] + ports
    return frame[:14]


def difference(linux: Taken, engine: Taken, name: str) -> str:
    """The first difference in words; nothing if there is none."""
    if [label for label, _ in linux.steps] != [label for label, _ in engine.steps]:
        return "the two runs had different steps"
    for step, (label, frames) in enumerate(linux.steps):
        for end in frames:
            one, other = linux.flows(step, end), engine.flows(step, end)
            for key in sorted(set(one) | set(other)):
                said = in_one_flow(one[key], other[key], name)
                if said:
                    return f"step {step + 1} ({label}), at {end}, {said}"
    return ""


def in_one_flow(linux: list[bytes], engine: list[bytes], name: str) -> str:
    if linux == engine:
        return ""
    both = list(zip(linux, engine))
    at = next((at for at, (one, other) in enumerate(both) if one != other), len(both))
    counts = f"of the flow came {len(linux)} with Linux and {len(engine)} with {name}"
    if at == len(both):
        who, frame = ("Linux", linux[at]) if len(linux) > at else (name, engine[at])
        return f"frame {at + 1} came with {who} alone ({counts}):\n{indented(dissected(frame))}"
    one, other = linux[at], engine[at]
    if sorted(linux) == sorted(engine):
        counts += ": the same ones in another order"
    elif other in linux[at:] and len(engine) < len(linux):
        counts += f"; frame {at + 1} is missing"
    changed = difflib.unified_diff(dissected(one), dissected(other), "Linux", name, lineterm="", n=100)
    return f"frame {at + 1} differs ({counts}):\n{indented(list(changed))}"


def dissected(frame: bytes) -> list[str]:
    """Field by field, and the bytes themselves where fields do not show them."""
    text = Ether(frame).show(dump=True)
    return [f"{len(frame)} bytes: {frame[:96].hex()}{'...' if len(frame) > 96 else ''}"] + text.splitlines()


def indented(lines: list[str]) -> str:
    return "\n".join("    " + line for line in lines)
