"""Judges the frames of SLURPoE in a capture by docs/spec/slurpoe.md, without the code under test.

    slurpoe.py FILE    every frame has the layout of the page; prints how many, and the opcodes that are there"""
import sys
from pathlib import Path

import frames

# Lengths of extended headers, by opcode (volume 1, table 38; sections 3 and 5 of the page).
RETH, AETH, DETH, IMMEDIATE = 16, 8, 8, 8
KINDS = {
    0x00: (0, 1), 0x01: (0, 1), 0x02: (0, 1), 0x03: (IMMEDIATE, 1), 0x04: (0, 1), 0x05: (IMMEDIATE, 1),
    0x06: (RETH, 1), 0x07: (0, 1), 0x08: (0, 1), 0x0A: (RETH, 1), 0x0C: (RETH, 0),
    0x0D: (AETH, 1), 0x0E: (0, 1), 0x0F: (AETH, 1), 0x10: (AETH, 1), 0x11: (AETH, 0),
    0x64: (DETH, 1), 0x81: (0, 0),
}  # fmt: skip


def judge(frame: bytes) -> int:
    """The opcode. AssertionError: the frame is not as the page says."""
    assert len(frame) >= 60, "it is shorter than 60 bytes"
    assert frame[14] == 1, "version"
    opcode = frame[15]
    assert opcode in KINDS, "opcode %#x" % opcode
    extended, may_carry = KINDS[opcode]
    payload = int.from_bytes(frame[16:18], "big")
    assert payload <= 8192 and (may_carry or payload == 0), "length of the payload"
    assert frame[18] & 0x1E == 0, "flags that mean nothing"
    assert frame[19] & 0x3F == 0 and frame[31] == 0, "reserved bytes"
    assert frame[20:22] == b"\xff\xff", "partition key"
    begin = 32 + extended
    assert begin % 8 == 0
    end = begin + payload + 4 * (frame[18] & 1)
    assert len(frame) == max(end, 60), "%d bytes instead of %d" % (len(frame), max(end, 60))
    assert not any(frame[end:]), "padding"
    assert frame[:6] != frame[6:12] and not frame[6] & 1, "addresses"
    if extended == DETH and opcode == 0x64:
        assert not any(frame[36:40]), "reserved bytes of the DETH"
        assert int.from_bytes(frame[22:25], "big") == 1 and frame[40:44] == b"SLPE", "datagrams are about connections"
    if opcode in (0x06, 0x0A, 0x0C):
        assert int.from_bytes(frame[44:48], "big") >= payload, "a message is shorter than its first packet"
    return opcode


def main(path: str) -> str:
    seen: dict[int, int] = {}
    longest = 0
    for number, frame in enumerate(frames.read(Path(path))):
        if frame[12:14] != b"\x88\xb5":
            sys.exit("failed: frame %d is of the EtherType %s" % (number, frame[12:14].hex()))
        try:
            opcode = judge(frame)
        except AssertionError as why:
            sys.exit("failed: frame %d: %s: %s" % (number, why, frame[:64].hex(" ")))
        seen[opcode] = seen.get(opcode, 0) + 1
        longest = max(longest, len(frame))
    missing = {0x06, 0x07, 0x08, 0x0C, 0x0D, 0x11, 0x64} - seen.keys()
    if missing or longest < 8192:
        sys.exit("failed: there are no frames with the opcodes %s, and the longest has %d bytes" % (sorted(missing), longest))
    return "%d frames, opcodes %s, longest %d" % (sum(seen.values()), " ".join("%02x" % opcode for opcode in sorted(seen)), longest)


if __name__ == "__main__":
    print(main(sys.argv[1]))
