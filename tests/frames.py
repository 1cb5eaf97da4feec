"""Reads and writes classic pcap files: independent of the code under test, so that the two can disagree."""
import struct
from pathlib import Path

ETHERNET = 1
# What a card carries by default, without FCS; shorter frames are padded with zeros when sent.
SHORTEST, LONGEST = 60, 16383
# Shorter than its own header: no frame.
HEADER = 14


class NotACapture(Exception):
    """The file cannot be read as a classic Ethernet capture."""


def read(path: Path) -> list[bytes]:
    """All records up to the end of the file, or up to the first that is cut off or absurd."""
    data = Path(path).read_bytes()
    if len(data) < 24:
        raise NotACapture("shorter than its header")
    magic = data[:4]
    if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1"):
        order = "<"
    elif magic in (b"\xa1\xb2\xc3\xd4", b"\xa1\xb2\x3c\x4d"):
        order = ">"
    else:
        raise NotACapture(f"magic {magic.hex()}")
    link = struct.unpack_from(order + "I", data, 20)[0] & 0x03FFFFFF
    if link != ETHERNET:
        raise NotACapture(f"link type {link}")
    frames, at = [], 24
    while at + 16 <= len(data):
        length = struct.unpack_from(order + "I", data, at + 8)[0]
        if length > 262144 or at + 16 + length > len(data):
            break
        frames.append(data[at + 16:at + 16 + length])
        at += 16 + length
    return frames


def is_whole(path: Path) -> bool:
    """Whether the file ends where its last record does."""
    return 24 + sum(16 + len(frame) for frame in read(path)) == Path(path).stat().st_size


def write(path: Path, frames: list[bytes]) -> None:
    """A capture with microsecond stamps."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, ETHERNET))
        for number, frame in enumerate(frames):
            file.write(struct.pack("<IIII", number, 0, len(frame), len(frame)) + frame)


def padded(frame: bytes) -> bytes:
    """As a card sends it."""
    return frame.ljust(SHORTEST, b"\0")


def difference(wanted: list[bytes], got: list[bytes]) -> str:
    """Where two lists of frames differ; nothing if they do not."""
    for number, (one, other) in enumerate(zip(wanted, got), 1):
        if one != other:
            at = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
            return f"frame {number} of {len(wanted)} ({len(one)} bytes, came back with {len(other)}) differs at byte {at}"
    if len(wanted) != len(got):
        return f"{len(got)} of {len(wanted)} frames came back"
    return ""
