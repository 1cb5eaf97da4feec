"""Frames for scenarios, made by scapy."""

from dataclasses import dataclass, field, replace

from scapy.config import conf
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import Ether

from places import mac, v4, v6
from scenario import Send, Settle

# Addresses come from the scenario alone, never from this machine's routes and neighbours.
conf.route.routes, conf.route6.routes = [], []


# Where frames come one by one, as on a wire: errors and multicast are fast there only.
XDP = ("--mode", "xdp")


def host(end: str, number: int, version: int = 4) -> str:
    return v4(end, number) if version == 4 else v6(end, number)


@dataclass
class Way:
    """Packets from a host at an end to an address, each of them with other bytes in it."""

    end: str
    number: int
    to: str
    ports: tuple[int, int] = (1000, 2000)
    # Where they say they come from, if that is not the host.
    source: str = ""
    # Fields of the IP header.
    ip: dict = field(default_factory=dict)
    count: int = 0

    @property
    def version(self) -> int:
        return 6 if ":" in self.to else 4

    def to_host(self) -> int:
        """The number of the host at `right` with the address."""
        return int(self.to.rsplit("." if self.version == 4 else ":", 1)[1], 16 if self.version == 6 else 10)

    def header(self):
        source = self.source or host(self.end, self.number, self.version)
        if self.version == 6:
            return IPv6(src=source, dst=self.to, **self.ip)
        return IP(src=source, dst=self.to, **{"id": self.count + 1, **self.ip})

    def ethernet(self):
        return Ether(src=mac(self.end, self.number), dst=mac(self.end))

    def frame(self, upper) -> bytes:
        """From the Ethernet header on."""
        made = bytes(self.ethernet() / self.header() / upper)
        self.count += 1
        return made

    def payload(self) -> bytes:
        return bytes([33 + self.count % 90]) * (10 + self.count * 37 % 600)

    def udp(self, count: int = 1, **fields) -> list[bytes]:
        return [self.frame(UDP(sport=self.ports[0], dport=self.ports[1], **fields) / self.payload()) for _ in range(count)]

    def tcp(self, flags: str, seq: int, ack: int = 0, payload: bytes = b"", **fields) -> bytes:
        return self.frame(TCP(sport=self.ports[0], dport=self.ports[1], flags=flags, seq=seq, ack=ack, window=20000, **fields) / payload)

    def echo(self, count: int = 1, kind: int = 8, identifier: int = 77, data: bytes = b"") -> list[bytes]:
        """ICMP echo requests (8) or replies (0), of the version of the addresses."""
        if self.version == 4:
            return [self.frame(ICMP(type=kind, id=identifier, seq=self.count + 1) / (data or self.payload())) for _ in range(count)]
        layer = ICMPv6EchoRequest if kind == 8 else ICMPv6EchoReply
        return [self.frame(layer(id=identifier, seq=self.count + 1) / (data or self.payload())) for _ in range(count)]

    def but(self, **fields) -> "Way":
        """The same with other fields, counting anew."""
        return replace(self, count=0, **fields)


def between(one: tuple[str, int], other: tuple[str, int], ports=(1000, 2000), version: int = 4) -> tuple[Way, Way]:
    """There and back without NAT."""
    there = Way(*one, host(*other, version), ports)
    return there, Way(*other, host(*one, version), ports[::-1])


def one_way(way: Way, kind: str = "udp", first: int = 3, rest: int = 6, back: Way | None = None) -> list:
    """A few packets, for Linux, then those that should be fast. Where conntrack is on, that takes an answer, which `back` gives."""
    make = getattr(way, kind)
    answer = [Send(back.end, getattr(back, kind)(1)), Send(way.end, make(1))] if back else []
    return [Send(way.end, make(first)), *answer, Settle(), Send(way.end, make(rest))]


def answering(way: Way, to: str = "") -> Way:
    """The other direction of a flow from `left` to `right`; to an address that NAT has made of the source, if there is one."""
    return Way("right", way.to_host(), to or way.source or host(way.end, way.number, way.version), way.ports[::-1])


def both_ways(there: Way, back: Way, rounds: int = 6) -> list:
    """UDP there and back and there, and then as many packets as said each way, which should be fast."""
    return [
        Send(there.end, there.udp(2)),
        Send(back.end, back.udp(2)),
        Send(there.end, there.udp(1)),
        Settle(),
        Send(there.end, there.udp(rounds)),
        Send(back.end, back.udp(rounds)),
    ]


class Talk:
    """A TCP connection: frames of its whole life, with the numbers that conntrack wants to see."""

    def __init__(self, client: Way, server: Way):
        self.client, self.server = client, server
        self.ours, self.theirs = 1000, 5000

    def open(self) -> list:
        options = [("MSS", 1460), ("SAckOK", b""), ("WScale", 2)]
        steps = [
            Send(self.client.end, [self.client.tcp("S", self.ours, options=options)]),
            Send(self.server.end, [self.server.tcp("SA", self.theirs, self.ours + 1, options=options)]),
        ]
        self.ours, self.theirs = self.ours + 1, self.theirs + 1
        return [*steps, Send(self.client.end, [self.client.tcp("A", self.ours, self.theirs)])]

    def say(self, count: int, answer: int = 0) -> list:
        """So many segments from the client, and from the server."""
        out, back = [], []
        for number in range(count):
            data = bytes([65 + number % 26]) * (20 + number * 31)
            out.append(self.client.tcp("PA", self.ours, self.theirs, data))
            self.ours += len(data)
        for number in range(answer):
            data = bytes([97 + number % 26]) * (50 + number * 41)
            back.append(self.server.tcp("PA", self.theirs, self.ours, data))
            self.theirs += len(data)
        return [Send(way.end, frames) for way, frames in ((self.client, out), (self.server, back)) if frames]

    def close(self) -> list:
        steps = [
            Send(self.client.end, [self.client.tcp("FA", self.ours, self.theirs)]),
            Send(self.server.end, [self.server.tcp("FA", self.theirs, self.ours + 1)]),
            Send(self.client.end, [self.client.tcp("A", self.ours + 1, self.theirs + 1)]),
        ]
        self.ours, self.theirs = self.ours + 1, self.theirs + 1
        return steps

    def reset(self) -> list:
        return [Send(self.client.end, [self.client.tcp("RA", self.ours, self.theirs)])]
