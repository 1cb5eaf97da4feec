"""VXLAN through the card with Linux's own device as the other end, and tshark as the judge of what is on the wire.

python3 vxlan.py HOST WIRE DEVICE FOLDER SOURCE DESTINATION CHECKSUM [MAC]

HOST is the other end of the card's cable to a host, WIRE of the one to Linux, and DEVICE a vxlan device over WIRE with VNI 77 and the
address DESTINATION, which sends to SOURCE. CHECKSUM is csum or nothing. What the host sends has to come out of the device as it
was, and what the device sends has to come to the host. MAC is what the outer packets of the card come from, or any.
"""
import socket
import struct
import subprocess
import sys
from pathlib import Path

import frames

host, wire, device, folder, source, destination, checksum, own = sys.argv[1:9]
folder = Path(folder)
VNI = 77
FAMILY = "6" if ":" in source else ""


def ones(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ipv4(number: int, ecn: int, data: bytes) -> bytes:
    """UDP over IPv4, with checksums."""
    addresses = bytes([10, 0, 0, number % 250 + 1, 10, 0, 1, 1])
    udp = struct.pack("!4H", 1000 + number, 9, 8 + len(data), 0) + data
    pseudo = addresses + struct.pack("!2H", 17, len(udp)) + udp + b"\0" * (len(udp) % 2)
    udp = udp[:6] + struct.pack("!H", ones(pseudo) or 0xFFFF) + udp[8:]
    head = struct.pack("!BBHHHBBH", 0x45, 0xB8 | ecn, 20 + len(udp), number, 0, 64, 17, 0) + addresses
    return b"\x08\0" + head[:10] + struct.pack("!H", ones(head)) + head[12:] + udp


def inner() -> list[bytes]:
    """Frames of many lengths: IP with every mark of congestion, IPv6, and what is no IP."""
    macs = b"\x02\0\0\0\0\x0a\x02\0\0\0\0\x0b"
    made = [macs + ipv4(number, number % 4, bytes([number]) * (number * 13)) for number in range(100)]
    made += [macs + b"\x88\xb5" + bytes([number]) * (46 + number * 14) for number in range(100)]
    ipv6 = b"\x86\xdd\x60\0\0\0\0\x10\x3b\x40" + b"\xfd" * 32 + b"0123456789abcdef"
    return made + [macs + ipv6]


def opened(interface: str) -> socket.socket:
    # 3: every protocol.
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    end.bind((interface, 0))
    end.settimeout(10)
    end.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
    return end


def receive(end: socket.socket, count: int, wanted) -> list[bytes]:
    """So many frames that are wanted and that this end has not sent itself."""
    got = []
    while len(got) < count:
        try:
            frame, sender = end.recvfrom(65536)
        except TimeoutError:
            sys.exit(f"failed: {len(got)} of {count} frames came")
        if sender[2] != 4 and wanted(frame):
            got.append(frame)
    return got


def judged(path: Path) -> list[list[str]]:
    """Fields as tshark sees them, with every checksum checked."""
    fields = ["vxlan.vni", "udp.checksum.status", f"ip{FAMILY and 'v6'}.src", f"ip{FAMILY and 'v6'}.dst", "ip.checksum.status",
              "udp.dstport", "eth.src", "_ws.malformed"]
    command = ["tshark", "-n", "-r", path, "-T", "fields", "-E", "separator=;"]
    for protocol in ("ip", "udp", "tcp"):
        command += ["-o", f"{protocol}.check_checksum:TRUE"]
    command += ["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]
    for field in fields:
        command += ["-e", field]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split(";") for line in output.splitlines()]


def pass_through(into: str, out_of: str) -> list[bytes]:
    """Sends the frames at one end, looks whether they come out at the other, and returns what was on the wire between."""
    given = inner()
    sender, receiver, between = opened(into), opened(out_of), opened(wire)
    def is_given(frame: bytes) -> bool:
        return frame[:12] == given[0][:12]

    # The first finds the neighbour; few may wait for that.
    sender.send(given[0])
    got = receive(receiver, 1, is_given)
    for frame in given[1:]:
        sender.send(frame)
    problem = frames.difference(given, got + receive(receiver, len(given) - 1, is_given))
    if problem:
        sys.exit(f"failed: from {into} to {out_of}: {problem}")
    outer = []
    while len(outer) < len(given):
        frame, _ = between.recvfrom(65536)
        if given[0][:12] in frame[14:]:
            outer.append(frame)
    return outer


def to_linux() -> None:
    outer = pass_through(host, device)
    frames.write(folder / "sent.pcap", outer)
    for row, frame in zip(judged(folder / "sent.pcap"), inner(), strict=True):
        is_ip = frame[12:14] == b"\x08\0"
        vni, udp, src, dst, ip, port, mac, malformed = row
        # 1: good; 3: there is none.
        mac = own if own == "any" else mac
        wanted = ["1" if checksum else "3"] + ["1"] * is_ip
        addresses = (src.split(",")[0], dst.split(",")[0], port.split(",")[0], mac.split(",")[0])
        if vni != str(VNI) or udp.split(",") != wanted or addresses != (source, destination, "4789", own):
            sys.exit(f"failed: tshark says {row}")
        if malformed or set(ip.split(",")) - {"1", ""}:
            sys.exit(f"failed: tshark says {row}")


def from_linux() -> None:
    outer = pass_through(device, host)
    has_checksum = outer[0][60:62] != b"\0\0" if FAMILY else outer[0][40:42] != b"\0\0"
    if has_checksum != bool(checksum):
        sys.exit(f"failed: Linux has not done what it was told about checksums: {outer[0].hex()}")


to_linux()
from_linux()
print(f"{len(inner())} frames to and fro, {source} {checksum or 'without checksums'}")
