"""The router and its ends: network namespaces, joined by veth.

End `left` is number 1, `right` 2, `third` 3, `fourth` 4. Its network is 10.0.N.0/24 and 2001:db8:N::/64, host H there has the addresses
10.0.N.H and 2001:db8:N::H and the Ethernet address 02:00:00:00:0N:H; host 1 is the router, whose interface has the name of the end.
Ends have no addresses and answer nothing: what is on their wires is what the judge sent and what the router made of it.
"""

import array
import fcntl
import itertools
import os
import socket
import struct
import subprocess
import time

from links import SETTINGS, SOL_PACKET, PACKET_AUXDATA, Links, inside, packet_socket, restore, settings

ENDS = ("left", "right", "third", "fourth")
# Hosts of each network that the router knows, so that nothing waits for an answer to ARP.
HOSTS = range(2, 10)
# On one core everything is sent and received, so that it has an order; the cores of cases that run beside one another differ.
CORES = sorted(os.sched_getaffinity(0))
CORE = CORES[os.getpid() % len(CORES)]
# linux/sockios.h, linux/ethtool.h
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCETHTOOL, ETHTOOL_SGRO = 0x8913, 0x8914, 0x8946, 0x2C
UP, RUNNING, NOARP, PROMISCUOUS = 1, 0x40, 0x80, 0x100
VLAN_VALID = 1 << 4


class Failed(Exception):
    """A command of a scenario has failed, or what it needs is not there."""


def mac(end: str, host: int = 1) -> str:
    return f"02:00:00:00:{ENDS.index(end) + 1:02x}:{host:02x}"


def v4(end: str, host: int = 1) -> str:
    return f"10.0.{ENDS.index(end) + 1}.{host}"


def v6(end: str, host: int = 1) -> str:
    return f"2001:db8:{ENDS.index(end) + 1}::{host:x}"


class Place:
    """A network namespace with a /sys of its own. It ends with the process in it."""

    def __init__(self):
        # Pinned BPF objects of one router must not be found by another.
        script = "mount -t sysfs sysfs /sys; mount -t bpf bpf /sys/fs/bpf 2>/dev/null; ip link set lo up; echo; exec sleep infinity"
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "sh", "-c", script]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.process.stdout.readline()
        if self.process.poll() is not None:
            raise Failed("a network namespace cannot be made here")

    def inside(self):
        return inside(self.process.pid)

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", "-m", *words]

    def begin(self, script: str) -> "Script":
        return Script(script, self.command("sh", "-euc", script))

    def run(self, script: str) -> str:
        """What the shell script prints."""
        return self.begin(script).end()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Script:
    """A shell script that runs."""

    def __init__(self, script: str, command: list[str]):
        self.script = script
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self) -> str:
        """What it has printed."""
        said, errors = self.process.communicate()
        if self.process.returncode:
            shown = " ".join(self.script.split())
            raise Failed(f"in the router: {shown[:300]}{'...' * (len(shown) > 300)}: {errors.strip() or self.process.returncode}")
        return said


class Wires(Place):
    """Where the ends of all wires are, and a barrier.

    The barrier says when Linux has done all that it does at once with the frames sent before. It works off what is to be received by one
    core in turn: when a frame has come through a wire of the barrier's, so has what was sent before it on this core as far as the next
    wire; and no frame passes more wires than ROUNDS.
    """

    ROUNDS = 10
    FRAME = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x88\xb5"
    # Linux drops what comes while more than 1,000 frames wait on a core, ours or anybody's.
    AT_MOST = 50

    def __init__(self):
        os.sched_setaffinity(0, {CORE})
        super().__init__()
        self.names = (f"wire{number}" for number in itertools.count())
        with self.inside():
            write("net.ipv6.conf.default.disable_ipv6", 1)
            self.links = Links()
        self.run("ip link add near type veth peer name far; ip link set near up; ip link set far up")
        while not all(self.links.up().get(name) for name in ("near", "far")):
            wait(0.002)
        self.links.wait_for_others()
        with self.inside():
            self.near, self.far = packet_socket("near"), packet_socket("far")
        self.far.settimeout(1)
        self.number = 0

    def wait(self) -> None:
        for _ in range(self.ROUNDS):
            self.number += 1
            frame = self.FRAME + self.number.to_bytes(46, "big")
            # One that is dropped is sent again.
            for _ in range(60):
                try:
                    self.near.send(frame)
                    while self.far.recv(64) != frame:
                        pass
                    break
                except TimeoutError:
                    continue
            else:
                raise Failed("this machine is so busy that it drops every frame")

    def close(self) -> None:
        for one in (self.near, self.far, self.links):
            one.close()
        super().close()


class End:
    """One end of a wire to the router."""

    def __init__(self, interface: str):
        """In the namespace that has the interface."""
        self.interface = interface.encode()
        self.settings = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.go_up()
        self.socket = packet_socket(interface)

    def send(self, frame: bytes) -> bool:
        """Whether it was short enough for the wire. Linux forwards it, as a rule, before this returns."""
        try:
            self.socket.send(frame)
        except OSError as error:
            # EMSGSIZE, ENOBUFS and the like: the first is expected, the others are not.
            if error.errno != 90:
                raise
            return False
        return True

    def go_up(self) -> None:
        """As an end that takes everything and answers nothing. With GRO a veth takes frames that XDP sends it; one at a time, it joins none."""
        fcntl.ioctl(self.settings, SIOCSIFFLAGS, struct.pack("16sH22x", self.interface, UP | NOARP | PROMISCUOUS))
        # struct ethtool_value; struct ifreq with a pointer to it.
        value = array.array("I", [ETHTOOL_SGRO, 1])
        fcntl.ioctl(self.settings, SIOCETHTOOL, struct.pack("16sP16x", self.interface, value.buffer_info()[0]))

    def is_running(self) -> bool:
        """Whether the wire is up, with a carrier."""
        answer = fcntl.ioctl(self.settings, SIOCGIFFLAGS, struct.pack("16s24x", self.interface))
        return bool(struct.unpack_from("H", answer, 16)[0] & RUNNING)

    def taken(self) -> list[bytes]:
        """What has come until now."""
        frames = []
        while True:
            try:
                frame, control, _, _ = self.socket.recvmsg(65536, 256)
            except BlockingIOError:
                return frames
            frames.append(whole(frame, control))

    def close(self) -> None:
        self.settings.close()
        self.socket.close()


def whole(frame: bytes, control) -> bytes:
    """The frame as it was on the wire: Linux gives the VLAN tag beside it."""
    for level, kind, data in control:
        if (level, kind) != (SOL_PACKET, PACKET_AUXDATA):
            continue
        status, _, _, _, _, tag, protocol = struct.unpack("=IIIHHHH", data[:20])
        if status & VLAN_VALID:
            frame = frame[:12] + struct.pack("!HH", protocol or 0x8100, tag) + frame[12:]
    return frame


# Interfaces of this group are deleted at once, which is much quicker than one after the other.
TO_GO = 7
# What a scenario may leave beside interfaces and what is at them. `ip` says what is not there, and does the rest.
CLEAN = """nexthop flush
route flush table all type blackhole
route flush table all type unreachable
route flush table all type prohibit
route flush table all type throw
address flush dev lo scope global
xfrm policy flush
xfrm state flush
xfrm policy setdefault in accept fwd accept out accept
END
ip -6 -force -batch - <<'END' 2>/dev/null || true
route flush table all type blackhole
route flush table all type unreachable
route flush table all type prohibit
route flush table all type throw
END
nft flush ruleset
conntrack -F 2>/dev/null || true
"""
# By this it is known whether there is something else.
STATE = """for family in -4 -6; do ip $family rule; ip $family route show table all; done; ip -oneline address; ip nexthop; ip xfrm policy; ip xfrm state
ip xfrm policy getdefault 2>/dev/null || true
nft list ruleset; conntrack -L 2>/dev/null || true; ls /proc/sys/net/ipv4/conf"""


class Network:
    """A router between ends."""

    def __init__(self, wires: Wires):
        self.wires = wires
        self.router = Place()
        self.ends = {}
        self.background = []
        with self.router.inside():
            self.links = Links()
            for name, value in ORDINARY.items():
                write(name, value)
        # What it is like without ends: of those that are used again.
        self.bare = None

    def build(self, ends: tuple[str, ...]) -> None:
        names = {end: next(self.wires.names) for end in ends}
        # Tags stay in frames, where XDP sees them, and `rxvlan off` says so.
        untouched = "".join(f"ethtool -K {end} rxvlan off >/dev/null\n" for end in ends)
        self.router.run(batch(ordinary(names, self.wires.process.pid)) + untouched)
        self.wires.run("".join(f"ethtool -K {name} txvlan off >/dev/null\n" for name in names.values()))
        with self.wires.inside():
            self.ends = {end: End(name) for end, name in names.items()}

    def remember(self) -> None:
        """That it is bare, as it will be again."""
        with self.router.inside():
            self.bare = (settings(), self.router.run(STATE))

    def clear(self) -> bool:
        """Takes away the ends and whatever a scenario has done; whether it is as bare as it was."""
        self.leave()
        gone = [f"link set {name} group {TO_GO}" for name in self.links.all() if name != "lo"] + [f"link delete group {TO_GO}"]
        self.router.run("ip -force -batch - <<'END' 2>/dev/null || true\n" + "\n".join(gone) + "\n" + CLEAN)
        with self.router.inside():
            is_restored = restore(self.bare[0])
        return is_restored and self.router.run(STATE) == self.bare[1]

    def start(self, script: str) -> None:
        """A program that runs in the router until the end, and prints a line when it is ready."""
        command = ["setpriv", "--pdeathsig", "KILL", *self.router.command("sh", "-c", "exec " + script)]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.background.append(started)
        if not started.stdout.readline():
            raise Failed(f"{script} has ended")

    def links_settle(self) -> None:
        """Waits until Linux has done what it does some time after a link goes up or down: until then it loses what is sent there."""
        self.links.wait_for_others()
        end = time.monotonic() + 20
        while True:
            up = self.links.up()
            late = [name for name, wire in self.ends.items() if wire.is_running() != (name in up)]
            if all(up.values()) and not late:
                break
            if time.monotonic() > end:
                if late:
                    raise Failed(f"the wire of {late[0]} does not go {'up' if late[0] in up else 'down'}")
                break
            wait(0.002)
        self.links.wait_for_others()

    def leave(self) -> None:
        for started in self.background:
            started.terminate()
            started.wait()
            started.stdout.close()
        for end in self.ends.values():
            end.close()
        self.background, self.ends = [], {}

    def close(self) -> None:
        self.leave()
        self.links.close()
        self.router.close()


def attached(end: str) -> list[str]:
    """Commands of `ip -batch`: the router's interface to an end, up, with addresses and known neighbours."""
    lines = [f"link set {end} up", f"address replace {v4(end)}/24 dev {end}", f"address replace {v6(end)}/64 dev {end} nodad"]
    for host in HOSTS:
        lines += [f"neighbour replace {address(end, host)} lladdr {mac(end, host)} dev {end} nud permanent" for address in (v4, v6)]
    return lines


def batch(lines: list[str]) -> str:
    joined = "\n".join(lines)
    return f"ip -batch - <<'END'\n{joined}\nEND\n"


def up_again(end: str) -> str:
    """A script: Linux forgets neighbours and IPv6 addresses when a link goes down."""
    return batch(attached(end))


# A router as most are, and one that says every time what it says only now and then otherwise. Not all kernels have all of them.
ORDINARY = {
    "net.ipv4.ip_forward": 1,
    "net.ipv6.conf.all.forwarding": 1,
    "net.ipv4.icmp_ratelimit": 0,
    "net.ipv6.icmp.ratelimit": 0,
    "net.ipv4.icmp_msgs_per_sec": 1000000,
    "net.ipv4.icmp_msgs_burst": 1000000,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv4.conf.all.send_redirects": 0,
    "net.ipv4.conf.default.send_redirects": 0,
    "net.ipv6.conf.all.accept_dad": 0,
    "net.ipv6.conf.default.accept_dad": 0,
}


def write(setting: str, value: int) -> None:
    """In the namespace that this thread is in."""
    file = SETTINGS.parent / setting.replace(".", "/")
    if file.exists():
        file.write_text(f"{value}\n")


def ordinary(wires: dict[str, str], place: int) -> list[str]:
    """Commands of `ip -batch`: interfaces to these ends, whose other ends have these names in the network namespace of a process."""
    lines = []
    for end, wire in wires.items():
        peer = f"name {wire} netns {place} address {mac(end, 2)} mtu 1500"
        lines += [f"link add name {end} address {mac(end)} type veth peer {peer}", f"link set {end} addrgenmode none", *attached(end)]
    if "right" in wires:
        lines += [f"route add default via {v4('right', 2)}", f"route add ::/0 via {v6('right', 2)}"]
    return lines


def wait(seconds: float) -> None:
    time.sleep(seconds)
