"""Somebody who sends what it likes to queue pair 1 of others: messages of connection management that are forged, mutated, cut off.

    cm_hostile.py exact TRACE OUT CLIENT SERVER PORT      a capture with so many of each kind, for the server; prints what it has to count
    cm_hostile.py flood TRACE OUT FROM TO PORT SEED COUNT [CALLS]   a capture of random ones, for TO; with CALLS also proper calls of strangers

TRACE is a capture of the wire, which says what a connection between the two has for numbers. The first is for a server that has one connection,
with CLIENT, and offers PORT."""
import json
import random
import struct
import sys
import zlib
from ipaddress import IPv4Address
from pathlib import Path

import frames
import roce

QKEY = 0x80010000
REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19
HEADER, SIZE = 24, 256
TCP = 0x0106
# Who answers for its address, and who does not.
REACHABLE = [f"198.18.7.{number}" for number in range(1, 9)]
UNREACHABLE = [f"198.18.{high}.{low}" for high in range(100, 120) for low in range(1, 250)]


def mac(ip: str) -> bytes:
    """As ends of ours have it."""
    return b"\x02\x4d" + IPv4Address(ip).packed


def frame(source: str, target: str, payload: bytes, sender: int = 1) -> bytes:
    """A datagram for queue pair 1, with sums that are right."""
    body = payload + bytes(-len(payload) % 4)
    transport = struct.pack(">BBHIIII", 0x64, (-len(payload) % 4) << 4, 0xFFFF, 1, 0, QKEY, sender) + body
    udp = struct.pack(">HHHH", 0xC000, 4791, 8 + len(transport) + 4, 0)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp) + len(transport) + 4, 0, 0x4000, 64, 17, 0)
    addresses = IPv4Address(source).packed + IPv4Address(target).packed
    masked = b"\xff" * 8 + ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + addresses
    masked += udp[:6] + b"\xff\xff" + transport[:4] + b"\xff" + transport[5:]
    sum_of = sum(struct.unpack(">10H", ip + addresses))
    sum_of = ~((sum_of & 0xFFFF) + (sum_of >> 16)) & 0xFFFF
    whole = ip[:10] + struct.pack(">H", sum_of) + addresses + udp + transport + struct.pack("<I", zlib.crc32(masked))
    return mac(target) + mac(source) + b"\x08\x00" + whole


def here(source: str, target: str) -> bytes:
    """ARP: where that address is."""
    body = struct.pack(">HHBBH", 1, 0x0800, 6, 4, 2) + mac(source) + IPv4Address(source).packed
    return frames.padded(mac(target) + mac(source) + b"\x08\x06" + body + mac(target) + IPv4Address(target).packed)


def message(attribute: int, data: bytes, version: int = 1, kind: int = 7, method: int = 3) -> bytes:
    head = struct.pack(">BBBBIQHHI", version, kind, 2, method, 0, 77, attribute, 0, 0)
    return (head + data).ljust(SIZE, b"\0")


def about(attribute: int, local: int, remote: int, rest: bytes = b"") -> bytes:
    return message(attribute, struct.pack(">II", local, remote) + rest)


def gid(ip: str) -> bytes:
    return bytes(10) + b"\xff\xff" + IPv4Address(ip).packed


def call(source: str, target: str, port: int, number: int, private: bytes | None = None, **wrong: int) -> bytes:
    """A request as it should be, but for what is said to be wrong."""
    data = bytearray(232)
    struct.pack_into(">IIQ", data, 0, number, 0, TCP << 16 | port)
    struct.pack_into(">I", data, 32, (number & 0xFFFFFF) << 8)
    data[43] = 18 << 3 | wrong.get("transport", 0) << 1
    data[47], data[48:50], data[50], data[51] = 18 << 3 | 7, b"\xff\xff", wrong.get("mtu", 3) << 4 | 7, 0xF0
    data[52:56] = b"\xff" * 4
    data[56:72], data[72:88] = gid(source if "gid" not in wrong else "198.18.99.99"), gid(target)
    data[93], data[95] = 64, 14 << 3
    head = bytes([wrong.get("version", 0), 0x40]) + struct.pack(">H", 4000) + gid_words(source) + gid_words(target)
    data[140:232] = (head + b"a stranger" if private is None else private).ljust(92, b"\0")[:92]
    return message(REQ, bytes(data))


def gid_words(ip: str) -> bytes:
    return bytes(12) + IPv4Address(ip).packed


class Known:
    """What a connection between two ends has for numbers: of those that are in the trace, the last."""

    def __init__(self, trace: str) -> None:
        self.messages, self.client, self.server, self.client_qpn, self.server_qpn = [], 0, 0, 0, 0
        for packet in roce.packets(trace):
            data = packet.transport[20:-4]
            if packet.transport[0] != 0x64 or len(data) != SIZE:
                continue
            self.messages.append(data)
            attribute, local, remote = struct.unpack_from(">H", data, 16)[0], *struct.unpack_from(">II", data, HEADER)
            if attribute == REQ:
                self.client_qpn = struct.unpack_from(">I", data, HEADER + 32)[0] >> 8
            elif attribute == REP:
                self.server, self.client = local, remote
                self.server_qpn = struct.unpack_from(">I", data, HEADER + 12)[0] >> 8
        if not self.server:
            sys.exit("failed: there is no connection in the trace")


def exact(known: Known, client: str, server: str, port: int) -> tuple[list[bytes], dict[str, int]]:
    """So many of each kind, and what the server has to count for them. Only the client has a MAC address."""
    stranger, a, b = UNREACHABLE[0], known.client, known.server
    groups = [
        # Not for connection management.
        ([frame(stranger, server, message(RTU, b"")[:length]) for length in (0, 17, 100, 255)], {"malformed_length": 4}),
        # Longer than any buffer of queue pair 1, more of them than it has buffers.
        ([frame(stranger, server, message(RTU, b"") + b"more")] * 300, {}),
        ([frame(stranger, server, message(RTU, b"", version=2))] * 4, {"malformed_header": 4}),
        ([frame(stranger, server, message(RTU, b"", method=1))] * 2, {"malformed_header": 2}),
        ([frame(stranger, server, message(RTU, b"", kind=4))] * 5, {"other_class": 5}),
        ([frame(stranger, server, message(LAP, b""))] * 6, {"unknown_message": 6}),
        ([frame(stranger, server, message(RTU, b""), sender=2)] * 4, {"foreign": 4}),
        # About connections that are not there, or are another's.
        ([frame(client, server, about(REP, 1000 + n, 2000 + n)) for n in range(7)], {"unknown_connection": 7, "refused": 7}),
        ([frame(client, server, about(kind, a, b + 1)) for kind in (MRA, REJ, RTU, DREQ, DREP)], {"unknown_connection": 5}),
        ([frame(client, server, about(kind, a + 1, b)) for kind in (MRA, REJ, RTU, DREQ, DREP)], {"unknown_connection": 5}),
        ([frame(stranger, server, about(kind, a, b)) for kind in (MRA, REJ, RTU, DREP)], {"unknown_connection": 4}),
        ([frame(stranger, server, about(DREQ, a, b, struct.pack(">I", known.server_qpn << 8)))] * 3, {"unknown_connection": 3}),
        # About one that is there, and wrong.
        ([frame(client, server, about(DREQ, a, b, struct.pack(">I", (known.server_qpn ^ 1) << 8)))] * 3, {"unexpected": 3}),
        ([frame(client, server, about(kind, a, b)) for kind in (MRA, REJ)], {"unexpected": 2}),
        ([frame(client, server, about(RTU, a, b))] * 50, {"duplicate": 50}),
        # Calls that cannot be.
        ([frame(client, server, call(client, server, port + 1, 3000 + n)) for n in range(3)], {"refused": 3}),
        ([frame(client, server, call(client, server, port, 3100 + n, gid=1)) for n in range(3)], {"refused": 3}),
        ([frame(client, server, call(client, server, port, 3200 + n, mtu=n)) for n in (0, 6, 15)], {"refused": 3}),
        ([frame(client, server, call(client, server, port, 3300 + n, transport=n)) for n in (2, 3)], {"refused": 2}),
        ([frame(client, server, call(client, server, port, known.client_qpn))], {"refused": 1, "stale": 1}),
        ([frame(client, server, call(client, server, port, 3400 + n, version=1)) for n in range(3)], {"elsewhere": 3}),
        ([frame(client, server, call(client, server, port, 3500 + n, private=b"\xff" * 92)) for n in range(3)], {"elsewhere": 3}),
        ([frame(ip, server, call(ip, server, port, 3600)) for ip in UNREACHABLE[1:6]], {"unreachable": 5}),
    ]
    counts: dict[str, int] = {}
    for _, wanted in groups:
        for name, count in wanted.items():
            counts[name] = counts.get(name, 0) + count
    return [one for made, _ in groups for one in made], counts


def mutated(chance: random.Random, data: bytes) -> bytes:
    """With some bytes of another value."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 12)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


class Flood:
    """Random messages for one end, in the name of the other and of strangers."""

    def __init__(self, known: Known, friend: str, target: str, port: int, seed: int, has_calls: bool) -> None:
        self.known, self.friend, self.target, self.port, self.has_calls = known, friend, target, port, has_calls
        self.chance = random.Random(seed)

    def source(self) -> str:
        return self.chance.choice([self.friend, self.chance.choice(REACHABLE), self.chance.choice(UNREACHABLE)])

    def call(self) -> bytes:
        """A call: of somebody who cannot be answered, of a port that is not offered, or a proper one."""
        number = self.chance.getrandbits(32)
        kind = self.chance.randrange(3 if self.has_calls else 2)
        if kind == 0:
            source = self.chance.choice(UNREACHABLE)
            return frame(source, self.target, call(source, self.target, self.port, number))
        source = self.chance.choice(REACHABLE)
        port = self.chance.randrange(1, 1000) if kind == 1 else self.port
        private = self.chance.randbytes(92) if self.chance.randrange(2) else None
        return frame(source, self.target, call(source, self.target, port, number, private))

    def forged(self) -> bytes:
        """About a connection: with numbers that are guessed, or that are right but come from elsewhere."""
        kind = self.chance.choice([MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REP])
        rest = self.chance.randbytes(224)
        ids = [self.known.client, self.known.server]
        self.chance.shuffle(ids)
        if self.chance.randrange(2):
            return frame(self.chance.choice(REACHABLE + UNREACHABLE[:50]), self.target, about(kind, *ids, rest))
        guessed = [self.chance.getrandbits(32), self.chance.getrandbits(32)]
        return frame(self.source(), self.target, about(kind, *guessed, rest))

    def mutated(self) -> bytes:
        """A message that was there, with other bytes, in the name of somebody else."""
        calls = (REQ, SIDR_REQ)
        seen = [data for data in self.known.messages if self.has_calls or struct.unpack_from(">H", data, 16)[0] not in calls]
        data = mutated(self.chance, self.chance.choice(seen))
        return frame(self.chance.choice(REACHABLE + UNREACHABLE[:50]), self.target, data)

    def cut(self) -> bytes:
        data = self.chance.choice(self.known.messages)
        return frame(self.source(), self.target, data[: self.chance.randrange(SIZE)])

    def garbage(self) -> bytes:
        data = self.chance.randbytes(SIZE)
        return frame(self.source(), self.target, data, sender=self.chance.choice([1, 2, 0xFFFFFF]))

    def storm(self) -> bytes:
        """What is right but was said before."""
        return frame(self.friend, self.target, about(RTU, self.known.client, self.known.server))

    def frames(self, count: int) -> list[bytes]:
        kinds = [self.call, self.forged, self.mutated, self.cut, self.garbage, self.storm]
        made = [here(ip, self.target) for ip in REACHABLE]
        while len(made) < count:
            made.append(self.chance.choice(kinds)())
            if len(made) % 200 == 0:
                made.extend(here(ip, self.target) for ip in REACHABLE)
        return made


def main() -> None:
    what, trace, out, one, other, port, *rest = sys.argv[1:]
    known = Known(trace)
    if what == "exact":
        made, counts = exact(known, one, other, int(port))
        print(json.dumps(counts))
    else:
        made = Flood(known, one, other, int(port), int(rest[0]), "CALLS" in rest).frames(int(rest[1]))
    frames.write(Path(out), made)


main()
