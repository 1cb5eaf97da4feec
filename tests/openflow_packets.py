"""The same frames through an agent and through Open vSwitch, which have had the same commands of ovs-ofctl: openflow_packets.py OURS OTHERS
BRIDGE.

OURS and OTHERS are targets such as tcp:127.0.0.1:6653, BRIDGE the Ethernet address to which tunnels of the other lead. Ports 1 to 5 of the one are cables whose other ends are q1-end to q5-end, of the other
p1-end to p5-end; port 5 leads to the other ends of tunnels. What comes out of all ports has to be the same, but for what each may choose: which port
of a group a flow has, and addresses and ports of outer headers that are not said.
"""

import os
import select
import socket
import struct
import subprocess
import sys
import time

SWITCHES = dict(zip("qp", sys.argv[1:3]))
BRIDGE = sys.argv[3]
MACS = bytes.fromhex("02000000000b02000000000a")
MARK = b"the same for both"
SECONDS = 30


def ofctl(*words):
    """The same to both."""
    for target in SWITCHES.values():
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "--timeout=20", words[0], target, *words[1:]], check=True, capture_output=True)


def flows(*entries):
    ofctl("del-flows")
    for entry in entries:
        ofctl("add-flow", entry)


def ones(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def udp(source, target, ports, data, ttl=64, tos=0, macs=MACS):
    """A frame of UDP over IPv4 without a checksum of UDP."""
    inside = struct.pack("!4H", *ports, 8 + len(data), 0) + data
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, tos, 20 + len(inside), 7, 0, ttl, 17, 0) + addresses
    return macs + b"\x08\0" + head[:10] + struct.pack("!H", ones(head)) + head[12:] + inside


def plain(number=0, **more):
    # Open vSwitch chooses by addresses, and by ports of TCP.
    return udp(f"10.0.1.{number + 1}", "10.0.0.2", (1000 + number, 9), MARK + bytes([number]), **more)


def vxlan(source, network, inner):
    """As it comes from the other end of a tunnel, for the bridge of Open vSwitch that has the address."""
    data = struct.pack("!II", 8 << 24, network << 8) + inner
    return udp(source, "192.0.2.1", (50000, 4789), data, macs=bytes.fromhex(BRIDGE.replace(":", "")) + MACS[6:])


def meaning(frame):
    """What both have to say: of a VXLAN packet the ends, the network and what is within."""
    if frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[36:38] == struct.pack("!H", 4789):
        outer = [socket.inet_ntoa(frame[at:at + 4]) for at in (26, 30)]
        return (*outer, frame[22], *struct.unpack("!II", frame[42:50]), frame[50:].hex())
    return frame.hex()


class Ends:
    """The other ends of the cables of a switch."""

    def __init__(self, prefix):
        self.ends = {}
        for port in range(1, 6):
            # 3: every protocol.
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            end.bind((f"{prefix}{port}-end", 0))
            end.setblocking(False)
            self.ends[end] = port
        self.by_port = {port: end for end, port in self.ends.items()}

    def send(self, port, frame):
        self.by_port[port].send(frame)

    def come(self, seconds):
        """What comes in that time, by port."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for end in select.select(list(self.ends), [], [], left)[0]:
                try:
                    frame, sender = end.recvfrom(65536)
                except OSError:
                    # The cable is taken out.
                    continue
                # 4: it was sent here.
                if sender[2] != 4 and MARK in frame:
                    yield self.ends[end], frame


def same(what, count, port, *frames):
    """Frames that come in at a port: what comes out of which port is the same, and so many different ones."""
    ends = {prefix: Ends(prefix) for prefix in SWITCHES}
    got = {prefix: set() for prefix in SWITCHES}
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for prefix, there in ends.items():
            for frame in frames:
                there.send(port, frame)
            got[prefix] |= {(out, meaning(frame)) for out, frame in there.come(0.3)}
        if len(got["p"]) >= count and got["q"] >= got["p"]:
            break
    if got["q"] != got["p"] or len(got["p"]) != count:
        sys.exit(f"{what}:\n  ours:   {sorted(map(str, got['q']))}\n  theirs: {sorted(map(str, got['p']))}")
    print(f"{what}: {count} frames")
    return got["p"]


def ports_of(prefix, count):
    """Which port each of so many flows has, each asked for again until it comes. Where one has two, as when a port goes just then, all begins anew."""
    ends, got = Ends(prefix), {}
    until = time.monotonic() + SECONDS
    while len(got) < count and time.monotonic() < until:
        for number in set(range(count)) - set(got):
            ends.send(1, plain(number))
        for port, frame in ends.come(0.3):
            number = frame[frame.index(MARK) + len(MARK)]
            if got.setdefault(number, port) != port:
                print(f"{prefix}: flow {number} came out of ports {got[number]} and {port}")
                got = {}
                break
    if len(got) < count:
        sys.exit(f"{prefix}: {count - len(got)} flows come nowhere")
    return got


def until_so(prefix, count, is_so):
    """The ports of flows, once they are so: a switch says of a port how it is before all its flows follow."""
    until = time.monotonic() + SECONDS
    while not is_so(got := ports_of(prefix, count)):
        assert time.monotonic() < until, (prefix, got)
    return got


def is_down(target, port):
    words = ["ovs-ofctl", "-O", "OpenFlow13", "--timeout=20", "dump-ports-desc", target]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    # With this version of the protocol, it tells of all ports.
    return "LINK_DOWN" in told.split(f" {port}(")[1].split("(")[0]


def cable(prefix, port, state):
    """Takes a cable out, or puts it in again, and waits until the switch says so."""
    subprocess.run(["ip", "link", "set", f"{prefix}{port}-end", state], check=True)
    until = time.monotonic() + SECONDS
    while is_down(SWITCHES[prefix], port) != (state == "down"):
        if time.monotonic() > until:
            sys.exit(f"{prefix}: port {port} is not {state}")
        time.sleep(0.1)


def selects():
    """A flow stays with its port, and when one goes, those of the others stay where they are."""
    buckets = ",".join(f"bucket=weight:1,watch_port:{port},output:{port}" for port in (2, 3, 4))
    ofctl("add-group", f"group_id=1,type=select,{buckets}")
    flows("in_port=1,actions=group:1")
    count = 60
    for prefix in SWITCHES:
        before = ports_of(prefix, count)
        assert ports_of(prefix, count) == before, prefix
        assert set(before.values()) == {2, 3, 4}, (prefix, before)
        cable(prefix, 3, "down")
        without = until_so(prefix, count, lambda got: 3 not in got.values())
        moved = {number for number in before if before[number] != without[number]}
        assert moved == {number for number, port in before.items() if port == 3}, (prefix, before, without)
        # Open vSwitch gives all of them to one port.
        assert prefix != "q" or {without[number] for number in moved} == {2, 4}, (prefix, before, without)
        cable(prefix, 3, "up")
        until_so(prefix, count, lambda got: got == before)
        print(f"select {prefix}: {len(moved)} of {count} flows have moved, and have come back")
    ofctl("del-groups")


def tunnels():
    """Entries for ports that are tunnels."""
    flows("in_port=1,actions=set_field:77->tun_id,output:10")
    assert {out for out, _ in same("into a tunnel", 1, 1, plain())} == {5}
    flows("in_port=1,actions=set_field:78->tun_id,set_field:192.0.2.2->tun_dst,output:11,set_field:79->tun_id,"
          "set_field:192.0.2.3->tun_dst,output:11,output:2")
    assert {out for out, _ in same("copies for two ends", 3, 1, plain())} == {2, 5}
    flows("in_port=1,ip,actions=dec_ttl,set_field:02:00:00:00:00:99->eth_dst,set_field:77->tun_id,output:10")
    same("changed before", 1, 1, plain())
    flows("in_port=10,tun_id=77,actions=output:1", "in_port=11,tun_id=79,tun_src=192.0.2.3,actions=output:2",
          "table=0,priority=1,tun_id=80,actions=output:3")
    came = same("out of a tunnel", 3, 5, vxlan("192.0.2.2", 76, plain(1)), vxlan("192.0.2.2", 77, plain(2)), vxlan("192.0.2.3", 79, plain(3)),
                vxlan("192.0.2.2", 79, plain(4)), vxlan("192.0.2.2", 80, plain(5)), vxlan("192.0.2.3", 77, plain(6)))
    assert {out for out, _ in came} == {1, 2, 3}, came
    flows("in_port=11,tun_id=79,actions=set_field:81->tun_id,set_field:192.0.2.2->tun_dst,IN_PORT")
    assert {out for out, _ in same("from one end to another", 1, 5, vxlan("192.0.2.3", 79, plain(7)))} == {5}


def remarks():
    """Of a meter that marks packets, which Open vSwitch has not got: the first of AF11 is as it was, the others are AF12 (RFC 2597); EF stays EF."""
    ours = SWITCHES["q"]
    run = ["ovs-ofctl", "-O", "OpenFlow13", "--timeout=20"]
    subprocess.run([*run, "add-meter", ours, "meter=1,pktps,burst,band=type=dscp_remark,rate=1,burst_size=1,prec_level=1"], check=True)
    flows()
    subprocess.run([*run, "add-flow", ours, "in_port=1,ip,actions=meter:1,output:2"], check=True)
    ends, seen = Ends("q"), {}
    wanted = {1: {10 << 2 | 2, 12 << 2 | 2}, 2: {46 << 2}, 3: {14 << 2}}
    until = time.monotonic() + SECONDS
    while seen != wanted and time.monotonic() < until:
        for number, tos in ((1, 10 << 2 | 2), (2, 46 << 2), (3, 14 << 2)):
            for _ in range(4):
                ends.send(1, plain(number, tos=tos))
        for _, frame in ends.come(0.3):
            seen.setdefault(frame[frame.index(MARK) + len(MARK)], set()).add(frame[15])
            assert ones(frame[14:34]) == 0, frame.hex()
    assert seen == wanted, seen
    flows()
    print("remark: AF11 becomes AF12")


def counted(what, packets, is_young=None):
    """Both say so of the one entry, and when it began."""
    until, size = time.monotonic() + SECONDS, len(plain())
    while True:
        told = []
        for target in SWITCHES.values():
            words = ["ovs-ofctl", "-O", "OpenFlow13", "--timeout=20", "dump-flows", target]
            line = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            told.append([float(line.split(word)[1].split(",")[0].rstrip("s")) for word in ("duration=", "n_packets=", "n_bytes=")])
        if all(one[1:] == [packets, packets * size] and is_young in (None, one[0] < 2) for one in told):
            return
        assert time.monotonic() < until, (what, told, packets, packets * size, is_young)
        time.sleep(0.1)


def counters():
    """What an entry has had, and since when it is there, as it is changed."""
    flows("in_port=1,ip,actions=output:2")
    for prefix in SWITCHES:
        ends = Ends(prefix)
        for number in range(7):
            ends.send(1, plain(number))
    counted("packets", 7)
    counted("some time later", 7, is_young=False)
    ofctl("mod-flows", "in_port=1,ip,actions=output:3")
    counted("modified", 7, is_young=False)
    ofctl("add-flow", "in_port=1,ip,actions=output:4")
    counted("added over itself", 7)
    ofctl("add-flow", "reset_counts,in_port=1,ip,actions=output:2")
    counted("added over itself, with reset_counts", 0)
    print("counters: as they are there")


class Controller:
    """One that hears packets of these reasons, or of those of which all hear."""

    HELLO, ECHO, ECHO_REPLY, SET_CONFIG, PACKET_IN, BARRIER, BARRIER_REPLY, SET_ASYNC = 0, 2, 3, 9, 10, 20, 21, 28

    def __init__(self, target, reasons=None):
        host, port = target.split(":")[1:]
        self.peer, self.data = socket.create_connection((host, int(port)), timeout=SECONDS), b""
        self.say(self.HELLO)
        # Open vSwitch tells those of no packets who have not said how many bytes they want.
        self.say(self.SET_CONFIG, struct.pack("!HH", 0, 0xFFFF))
        if reasons is not None:
            self.say(self.SET_ASYNC, struct.pack("!6I", reasons, 0, 0, 0, 0, 0))
        self.say(self.BARRIER)
        assert all(kind != self.PACKET_IN for kind, _ in self.until(self.BARRIER_REPLY))

    def say(self, kind, body=b""):
        self.peer.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), 7) + body)

    def until(self, last):
        """Messages up to one of that type."""
        while True:
            while len(self.data) >= 8 and len(self.data) >= (length := struct.unpack_from("!H", self.data, 2)[0]):
                kind, body, self.data = self.data[1], self.data[8:length], self.data[length:]
                yield kind, body
                if kind == last:
                    return
            more = self.peer.recv(65536)
            assert more, "the switch ends the connection"
            self.data += more

    def packet(self, seconds):
        """Reason, table, cookie and bytes of the next packet, if one comes in that time."""
        self.peer.settimeout(seconds)
        try:
            *_, (_, body) = self.until(self.PACKET_IN)
        except TimeoutError:
            return None
        _, _, reason, table, cookie, _, length = struct.unpack_from("!IHBBQHH", body)
        return reason, table, cookie, body[16 + (length + 7) // 8 * 8 + 2:]


def hears(ends, who, port, frame, wanted, others=()):
    """A controller is told this of a frame, and of nothing else but what it was told before."""
    until, got = time.monotonic() + SECONDS, None
    while got != wanted and time.monotonic() < until:
        ends.send(port, frame)
        got = who.packet(0.5)
        assert got in (None, wanted, *others), (got, wanted, others)
    assert got == wanted, (got, wanted)


def expired():
    """Packets whose time to live is at its end: who wants them gets them, whole and as they are there, and nobody else does. And who wants them gets
    what is sent to controllers as well."""
    flows("in_port=1,ip,cookie=0x66,actions=set_field:02:00:00:00:00:99->eth_dst,dec_ttl,output:2",
          "in_port=3,ip,cookie=0x67,actions=CONTROLLER:65535")
    assert {out for out, _ in same("not at its end", 1, 1, plain(8, ttl=2))} == {2}
    at_end = (2, 0, 0x66, bytes.fromhex("020000000099") + plain(9, ttl=1)[6:])
    sent = (1, 0, 0x67, plain(7))
    for prefix, target in SWITCHES.items():
        ends, other, who = Ends(prefix), Controller(target), Controller(target, 0b111)
        hears(ends, who, 1, plain(9, ttl=1), at_end)
        other.say(Controller.ECHO)
        assert all(kind != Controller.PACKET_IN for kind, _ in other.until(Controller.ECHO_REPLY)), prefix
        hears(ends, who, 3, plain(7), sent, [at_end])
        hears(ends, who, 1, plain(9, ttl=1), at_end, [sent])
        hears(ends, other, 3, plain(7), sent)
        assert not [frame for _, frame in ends.come(0.2) if MARK + b"\x09" in frame], prefix
    print("expired: told to who wants them")


os.environ.setdefault("LC_ALL", "C")
selects()
tunnels()
counters()
expired()
remarks()
