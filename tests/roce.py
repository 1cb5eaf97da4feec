"""What stands in the RoCE frames of a capture, read without the code under test.

    roce.py icrc FILE             whether each invariant CRC is what scapy works out (run it with Debian's python3)
    roce.py opcodes FILE          the opcodes that are there, in hexadecimal
    roce.py strangers FILE IP     whether all is as between ends that know nothing of one another: decision 54"""
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Iterator, NamedTuple

import frames

ORACLE = Path(__file__).parent.parent / "crates/rdma/src/wire/tests/icrc.py"
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12
NO_LIMIT = 0x1F
DATAGRAMS = 0x60
# What may be on the way before anything comes back: a window of 256, and what is sent again of it.
AT_ONCE = 512


class Packet(NamedTuple):
    """A frame from Ethernet on, its sender, and what follows the network headers."""

    frame: bytes
    source: str
    transport: bytes


def packets(path: str) -> Iterator[Packet]:
    for frame in frames.read(Path(path)):
        kind = frame[12:14]
        if kind == b"\x08\x00" and frame[23] == 17 and frame[36:38] == b"\x12\xb7":
            yield Packet(frame, str(ip_address(frame[26:30])), frame[42:])
        elif kind == b"\x86\xdd" and frame[20] == 17 and frame[56:58] == b"\x12\xb7":
            yield Packet(frame, str(ip_address(frame[22:38])), frame[62:])
        elif kind == b"\x89\x15":
            yield Packet(frame, str(ip_address(frame[22:38])), frame[54:])


def icrc(path: str) -> str:
    hexadecimal = "".join(packet.frame.hex() + "\n" for packet in packets(path))
    said = subprocess.run([sys.executable, ORACLE], input=hexadecimal, capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in said.splitlines()]
    wrong = [number for number, (stands, right) in enumerate(pairs) if stands != right]
    if not pairs or wrong or len(pairs) != hexadecimal.count("\n"):
        sys.exit("failed: of %d frames these have a wrong invariant CRC: %s" % (len(pairs), wrong[:10]))
    return "%d invariant CRCs are what scapy works out" % len(pairs)


def opcodes(path: str) -> str:
    return " ".join("%02x" % opcode for opcode in sorted({packet.transport[0] for packet in packets(path)}))


def strangers(path: str, ours: str) -> str:
    """Theirs never have the bit. Ours have it only until a packet of theirs has come, do not promise buffers, and do not say what was kept."""
    again, seen, theirs = 0, set(), 0
    # By queue pair of theirs, how many packets to it have the bit and have it not. No number is used twice within one capture.
    said: dict[bytes, list[int]] = {}
    for packet in packets(path):
        opcode, bit, syndrome = packet.transport[0], packet.transport[8] & 1, packet.transport[12]
        if packet.source != ours:
            theirs += 1
            if bit:
                sys.exit("failed: a stranger has set the bit of decision 54")
            continue
        if opcode < DATAGRAMS:
            said.setdefault(packet.transport[5:8], [0, 0])[not bit] += 1
        if opcode in (ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE) and syndrome >> 5 == 0 and syndrome & 31 != NO_LIMIT:
            sys.exit("failed: credits were promised to a stranger: %#x" % syndrome)
        if opcode == ATOMIC_ACKNOWLEDGE and syndrome >> 5 != 0:
            sys.exit("failed: a stranger was told what was kept")
        key = packet.transport[:12]
        again += key in seen
        seen.add(key)
    late = [counts for counts in said.values() if counts[0] > AT_ONCE]
    if late or not any(counts[1] > AT_ONCE for counts in said.values()):
        sys.exit("failed: strangers were told of selective repeat again and again: %s" % sorted(said.values()))
    if not theirs or not seen:
        sys.exit("failed: there are %d packets of theirs and %d of ours" % (theirs, len(seen)))
    return "%d packets of a stranger, %d of ours, %d of them sent again" % (theirs, len(seen), again)


if __name__ == "__main__":
    print({"icrc": icrc, "opcodes": opcodes, "strangers": strangers}[sys.argv[1]](*sys.argv[2:]))
