"""The router and its ends: a network namespace for each, joined by veth.

End `left` is number 1, `right` 2, `third` 3, `fourth` 4. Its network is 10.0.N.0/24 and 2001:db8:N::/64, host H there has the addresses
10.0.N.H and 2001:db8:N::H and the Ethernet address 02:00:00:00:0N:H; host 1 is the router, whose interface has the name of the end.
Ends have no addresses and answer nothing: what is on their wires is what the judge sent and what the router made of it.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import time

ENDS = ("left", "right", "third", "fourth")
# Hosts of each network that the router knows, so that nothing waits for an answer to ARP.
HOSTS = range(2, 10)
# On one core everything is sent and received, so that it has an order; the cores of cases that run beside one another differ.
CORES = sorted(os.sched_getaffinity(0))
CORE = CORES[os.getpid() % len(CORES)]
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
# linux/if_packet.h
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING, PACKET_IGNORE_OUTGOING = 263, 8, 4, 23
SO_RCVBUFFORCE = 33
CHECKSUM_NOT_READY, VLAN_VALID = 1 << 3, 1 << 4


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

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", "-m", *words]

    def run(self, script: str) -> str:
        """What the shell script prints."""
        done = subprocess.run(self.command("sh", "-euc", script), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            shown = " ".join(script.split())
            raise Failed(f"in the router: {shown[:300]}{'...' * (len(shown) > 300)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def wire(self, interface: str) -> socket.socket:
        """A packet socket there."""
        with open("/proc/self/ns/net") as home, open(f"/proc/{self.process.pid}/ns/net") as there:
            if LIBC.setns(there.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
                opened.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
                opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
                # 3: every protocol.
                opened.bind((interface, 3))
            finally:
                LIBC.setns(home.fileno(), CLONE_NEWNET)
        opened.setblocking(False)
        return opened

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class End(Place):
    """One end of a wire to the router."""

    def __init__(self, name: str, router: Place):
        super().__init__()
        self.name = name
        subprocess.run(
            [
                "ip",
                "link",
                "add",
                name,
                "netns",
                str(router.process.pid),
                "address",
                mac(name),
                "type",
                "veth",
                "peer",
                "name",
                "wire",
                "netns",
                str(self.process.pid),
                "address",
                mac(name, 2),
            ],
            check=True,
        )
        # With GRO a veth takes frames that XDP sends it; one frame at a time, it joins none.
        self.run(
            "ip link set wire arp off addrgenmode none; sysctl -qw net.ipv6.conf.wire.disable_ipv6=1;"
            "ethtool -K wire gro on txvlan off >/dev/null; ip link set wire mtu 1500 promisc on up"
        )
        # So tags stay in frames, where XDP sees them, and this says so.
        router.run(f"ethtool -K {name} rxvlan off >/dev/null")
        self.socket = self.wire("wire")

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

    def is_running(self) -> bool:
        """Whether the wire is up, with a carrier."""
        # SIOCGIFFLAGS, IFF_RUNNING.
        answer = fcntl.ioctl(self.socket, 0x8913, struct.pack("16s24x", b"wire"))
        return bool(struct.unpack_from("H", answer, 16)[0] & 0x40)

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
        self.socket.close()
        super().close()


def whole(frame: bytes, control) -> bytes:
    """The frame as it was on the wire: Linux gives the VLAN tag beside it."""
    for level, kind, data in control:
        if (level, kind) != (SOL_PACKET, PACKET_AUXDATA):
            continue
        status, _, _, _, _, tag, protocol = struct.unpack("=IIIHHHH", data[:20])
        if status & VLAN_VALID:
            frame = frame[:12] + struct.pack("!HH", protocol or 0x8100, tag) + frame[12:]
    return frame


class Barrier:
    """Says when Linux has done all that it does at once with the frames sent before.

    It works off what is to be received by one core in turn: when a frame has come through a wire of the barrier's, so has what was sent
    before it on this core as far as the next wire; and no frame passes more wires than ROUNDS.
    """

    ROUNDS = 10
    FRAME = b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x88\xb5"
    # Linux drops what comes while more than 1,000 frames wait on a core, ours or anybody's.
    AT_MOST = 50

    def __init__(self):
        self.place = Place()
        self.place.run(
            "ip link add near type veth peer name far; for i in near far; do sysctl -qw net.ipv6.conf.$i.disable_ipv6=1; ip link set $i up; done"
        )
        self.place.run("until ip -o link show far | grep -q 'state UP'; do sleep 0.01; done; ip link set lo up")
        self.near, self.far = self.place.wire("near"), self.place.wire("far")
        self.far.settimeout(1)
        self.number = 0

    def wait(self) -> None:
        for _ in range(self.ROUNDS):
            self.number += 1
            frame = self.FRAME + self.number.to_bytes(46, "big")
            # One that is dropped is sent again.
            for _ in range(30):
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
        self.near.close()
        self.far.close()
        self.place.close()


class Network:
    """A router between ends."""

    def __init__(self, ends: tuple[str, ...]):
        os.sched_setaffinity(0, {CORE})
        self.barrier = Barrier()
        self.router = Place()
        self.ends = {}
        self.background = []
        try:
            for name in ends:
                self.ends[name] = End(name, self.router)
            self.router.run(ordinary(ends))
        except BaseException:
            self.close()
            raise

    def start(self, script: str) -> None:
        """A program that runs in the router until the end, and prints a line when it is ready."""
        command = ["setpriv", "--pdeathsig", "KILL", *self.router.command("sh", "-c", "exec " + script)]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.background.append(started)
        if not started.stdout.readline():
            raise Failed(f"{script} has ended")

    def links_settle(self) -> None:
        """Waits until Linux has done what it does some time after a link goes up or down: until then it loses what is sent there."""
        # The last command waits for whoever is at work on links.
        up = self.router.run(
            "for i in $(seq 500); do ip -o link show up | grep -qw -e NO-CARRIER -e DOWN -e LOWERLAYERDOWN || break; sleep 0.01; done;"
            "ip -o link show up; ip link set lo up"
        )
        for name, end in self.ends.items():
            wanted = f": {name}@" in up
            for _ in range(500):
                if end.is_running() == wanted:
                    break
                wait(0.01)
            else:
                raise Failed(f"the wire of {name} does not go {'up' if wanted else 'down'}")
        self.router.run("ip link set lo up")

    def taken(self, quiet: float) -> dict[str, list[bytes]]:
        """What has come at the ends, and what still comes until nothing has come for so many seconds."""
        frames = {name: [] for name in self.ends}
        self.barrier.wait()
        while True:
            ready, _, _ = select.select([end.socket for end in self.ends.values()], [], [], quiet)
            for name, end in self.ends.items():
                if end.socket in ready:
                    frames[name] += end.taken()
            if not ready:
                return frames

    def close(self) -> None:
        for started in self.background:
            started.terminate()
            started.wait()
            started.stdout.close()
        for place in [*self.ends.values(), self.router, self.barrier]:
            place.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


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


def ordinary(ends: tuple[str, ...]) -> str:
    """A router as most are, and one that says every time what it says only now and then otherwise."""
    sysctls = {
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
    lines = []
    for end in ends:
        sysctls |= {f"net.ipv4.conf.{end}.rp_filter": 0, f"net.ipv4.conf.{end}.send_redirects": 0}
        lines += [f"link set {end} addrgenmode none", *attached(end)]
    if "right" in ends:
        lines += [f"route add default via {v4('right', 2)}", f"route add ::/0 via {v6('right', 2)}"]
    # Not all kernels have all of them.
    settings = " ".join(f"{name}={value}" for name, value in sysctls.items())
    return f"sysctl -qew {settings} 2>/dev/null || true\n" + batch(lines)


def wait(seconds: float) -> None:
    time.sleep(seconds)
