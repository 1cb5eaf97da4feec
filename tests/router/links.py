"""What is asked of a network namespace without a program: sockets in it, its links by rtnetlink, its settings in /proc/sys/net."""

import ctypes
import os
import socket
import struct
from contextlib import contextmanager
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
# linux/if_packet.h
SOL_PACKET, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING = 263, 8, 23
SO_RCVBUFFORCE = 33
# linux/rtnetlink.h, linux/netlink.h
RTM_NEWLINK, RTM_GETLINK, NLMSG_ERROR, NLMSG_DONE = 16, 18, 2, 3
REQUEST, ACK, DUMP = 1, 4, 0x300
IFLA_IFNAME, IFLA_OPERSTATE = 3, 16
UP, RUNNING = 1, 0x40
IS_DOWN, LOWER_LAYER_DOWN = 2, 3
SETTINGS = Path("/proc/sys/net")
# Those of single interfaces come and go with them; these two are what interfaces that come get.
OF_ALL = ("all", "default")


@contextmanager
def inside(process: int):
    """This thread is in the network namespace of the process."""
    with open("/proc/thread-self/ns/net") as home, open(f"/proc/{process}/ns/net") as there:
        if LIBC.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            LIBC.setns(home.fileno(), CLONE_NEWNET)


def packet_socket(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    opened.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    # 3: every protocol.
    opened.bind((interface, 3))
    opened.setblocking(False)
    return opened


class Links:
    """The interfaces of a namespace."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self.socket.settimeout(10)

    def ask(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """The bodies of all messages of the answer."""
        self.socket.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, 1, 0) + body)
        found = []
        while True:
            data = self.socket.recv(1 << 20)
            at = 0
            while at < len(data):
                length, answer = struct.unpack_from("=IH", data, at)
                if answer in (NLMSG_ERROR, NLMSG_DONE):
                    return found
                found.append(data[at + 16 : at + length])
                at += (length + 3) & ~3

    def wait_for_others(self) -> None:
        """Until whoever is at work on links is done: this takes the lock that they have."""
        self.ask(RTM_NEWLINK, ACK, struct.pack("=BxHiII", 0, 0, 1, UP, UP))

    def all(self) -> dict[str, tuple[int, int]]:
        """Flags and operational state of each."""
        found = {}
        for body in self.ask(RTM_GETLINK, DUMP, bytes(16)):
            _, _, flags = struct.unpack_from("=HiI", body, 2)
            name, state, at = "", 0, 16
            while at + 4 <= len(body):
                length, kind = struct.unpack_from("=HH", body, at)
                value = body[at + 4 : at + length]
                if kind == IFLA_IFNAME:
                    name = value[:-1].decode()
                elif kind == IFLA_OPERSTATE:
                    state = value[0]
                at += max((length + 3) & ~3, 4)
            found[name] = (flags, state)
        return found

    def up(self) -> dict[str, bool]:
        """Those that are up, and whether frames may pass them."""
        is_ready = lambda flags, state: bool(flags & RUNNING) and state not in (IS_DOWN, LOWER_LAYER_DOWN)  # noqa: E731
        return {name: is_ready(flags, state) for name, (flags, state) in self.all().items() if flags & UP}

    def close(self) -> None:
        self.socket.close()


def settings() -> dict[str, str]:
    """All that can be read and written below /proc/sys/net of the namespace that this thread is in, but those of single interfaces."""
    found = {}
    for folder, folders, files in os.walk(SETTINGS):
        if os.path.basename(folder) in ("conf", "neigh"):
            folders[:] = [name for name in folders if name in OF_ALL]
        for name in files:
            file = f"{folder}/{name}"
            try:
                with open(file, "r+b", buffering=0) as opened:
                    found[file] = opened.read().decode()
            except OSError:
                continue
    return found


def restore(wanted: dict[str, str]) -> bool:
    """Makes all settings those again; whether they are. Some write others."""
    for _ in range(3):
        changed = [file for file, value in settings().items() if wanted.get(file, value) != value]
        if not changed:
            return True
        for file in changed:
            Path(file).write_text(wanted[file])
    return False
