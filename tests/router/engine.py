"""What forwards: Linux alone, or `millrace router` in the router's namespace."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from places import CORES, Failed, Network, Place, Wires, wait

# How long the router may take to start, to answer and to end on a busy machine, in seconds.
PATIENCE = 60
PROTOCOL = Path(__file__).resolve().parents[2] / "crates/router/src/daemon/protocol.rs"
# What the router waits for while there is no scenario: an interface that never comes.
NONE = "none"


class Linux:
    """Nobody but Linux, in a network that is new for each scenario."""

    def __init__(self, wires: Wires, name: str = "Linux", spoil: str = ""):
        self.wires, self.name, self.spoil = wires, name, spoil
        self.network = None
        self.fast = None

    def prepare(self, ends: tuple[str, ...], options: tuple[str, ...]) -> None:
        """A router between these ends, as if nothing had been there before, with these options if it is not Linux."""
        self.close()
        self.network = Network(self.wires)
        self.network.build(ends)

    def take(self, interfaces: tuple[str, ...]) -> None:
        """The engine takes these interfaces of the router, which is set up."""
        if self.spoil:
            self.network.router.run(self.spoil)

    def settle(self) -> None:
        """What has happened until now is known to the engine."""

    def changes(self, name: str) -> int:
        """How often it has found a change of this name."""
        return 0

    def finds(self, name: str, before: int) -> None:
        """Waits until it has found one more."""

    def freeze(self, until: bool) -> None:
        """Its daemon does nothing until this is called with `until`."""

    def look(self) -> None:
        """Counts what was fast."""

    def why(self) -> str:
        """What became of the packets of the last scenario, and how the engine is."""
        return ""

    def leave(self) -> None:
        """The scenario is over."""

    def close(self) -> None:
        if self.network:
            self.network.close()
            self.network = None


class Millrace(Linux):
    """The router of the command `millrace`: one process for all scenarios, in a network that is made bare again between them."""

    def __init__(self, wires: Wires, millrace: str, options: list[str]):
        super().__init__(wires, "millrace")
        self.millrace, self.usual_options, self.options = str(Path(millrace).resolve()), options, ()
        self.process = self.control = None
        self.interfaces = []
        self.before, self.reasons = {}, {}
        self.is_frozen = False
        self.folder = tempfile.TemporaryDirectory(prefix="millrace-judge-")
        self.log = Path(self.folder.name) / "router.log"

    def command(self, *words: str) -> list[str]:
        return self.network.router.command("env", f"XDG_RUNTIME_DIR={self.folder.name}", self.millrace, "router", *words)

    def prepare(self, ends: tuple[str, ...], options: tuple[str, ...]) -> None:
        if self.network and options != self.options:
            self.close()
        if self.network and not (self.process.poll() is None and self.network.clear()):
            print("  (a new router: the last scenario has left something)", flush=True)
            self.close()
        if not self.network:
            self.network = Network(self.wires)
            self.network.remember()
            self.options = options
            self.start()
        self.network.build(ends)

    def start(self) -> None:
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command("start", "--interfaces", NONE, *self.usual_options, *self.options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: os.sched_setaffinity(0, CORES),
            )
        end = time.monotonic() + PATIENCE
        self.control = Control(self.network.router)
        while not self.control.is_there():
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failed(f"millrace router does not start: {self.log.read_text()}")
            wait(0.01)

    def take(self, interfaces: tuple[str, ...]) -> None:
        self.interfaces = list(interfaces)
        self.control.add(self.interfaces)
        self.settle()
        self.before = self.control.counters()

    def settle(self) -> None:
        if self.is_frozen or not self.interfaces:
            return
        # What has come before the first question has been taken in before the second is answered.
        self.control.counters()
        self.control.counters()

    def changes(self, name: str) -> int:
        return dict(json.loads(self.said())["changes"]).get(name, 0)

    def finds(self, name: str, before: int) -> None:
        end = time.monotonic() + PATIENCE
        while self.changes(name) == before:
            if time.monotonic() > end:
                raise Failed(f"millrace router does not find that {name} have changed")
            wait(0.1)

    def freeze(self, until: bool) -> None:
        self.is_frozen = not until
        self.process.send_signal(signal.SIGCONT if until else signal.SIGSTOP)

    def look(self) -> None:
        if self.process.poll() is not None:
            raise Failed(f"millrace router has ended: {self.log.read_text()}")
        counts = {reason: count - self.before.get(reason, 0) for reason, count in self.control.counters().items()}
        self.reasons = {reason: count for reason, count in counts.items() if count}
        # A packet that is drawn for comparison went by its rule, too, and an error may have been said without Linux, as `status` counts it.
        self.fast = sum(counts.get(reason, 0) for reason in ("fast", "shadow", "error-sent", "error-limited"))

    def why(self) -> str:
        return f"what became of its packets: {self.reasons}\n{self.said()}"

    def said(self) -> str:
        done = subprocess.run(self.command("status", "--json"), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.stdout or done.stderr

    def leave(self) -> None:
        if self.is_frozen:
            self.freeze(until=True)
        if self.interfaces:
            interfaces, self.interfaces = self.interfaces, []
            self.control.remove(interfaces)
            self.control.flush()

    def close(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise Failed("millrace router does not end when asked") from None
            finally:
                self.process = None
                super().close()
        super().close()


class Control:
    """The router's socket: requests of crates/router/src/daemon/protocol.rs, as postcard writes them."""

    COUNTERS, ADD, REMOVE, FLUSH = 1, 6, 7, 9
    DONE, REFUSED, TO_COUNTERS = 0, 1, 3

    def __init__(self, router: Place):
        self.router = router

    def connected(self) -> socket.socket:
        with self.router.inside():
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.settimeout(PATIENCE)
        try:
            opened.connect("\0millrace-router")
        except BaseException:
            opened.close()
            raise
        return opened

    def is_there(self) -> bool:
        try:
            self.connected().close()
        except ConnectionRefusedError:
            return False
        return True

    def ask(self, request: int, body: bytes = b"") -> "Reader":
        try:
            with self.connected() as opened:
                opened.send(bytes([version(), request]) + body)
                answer = Reader(opened.recv(1 << 16))
        except (TimeoutError, ConnectionError) as error:
            raise Failed(f"millrace router does not answer: {error}") from None
        kind = answer.number()
        if kind == self.REFUSED:
            raise Failed(f"millrace router refuses: {answer.text()}")
        if kind != (self.TO_COUNTERS if request == self.COUNTERS else self.DONE):
            raise Failed(f"millrace router answers {kind} to {request}: its protocol is another one")
        return answer

    def counters(self) -> dict[str, int]:
        answer, found = self.ask(self.COUNTERS), {}
        for _ in range(answer.number()):
            answer.number()
            name = answer.text()
            answer.text()
            found[name] = answer.number()
        return found

    def add(self, interfaces: list[str]) -> None:
        self.ask(self.ADD, texts(interfaces))

    def remove(self, interfaces: list[str]) -> None:
        self.ask(self.REMOVE, texts(interfaces))

    def flush(self) -> None:
        self.ask(self.FLUSH)


def version() -> int:
    """Of the protocol, which is below 128."""
    return int(re.search(r"const VERSION: u32 = (\d+);", PROTOCOL.read_text())[1])


def texts(all_of_them: list[str]) -> bytes:
    """All of them shorter, and fewer, than 128."""
    return bytes([len(all_of_them)]) + b"".join(bytes([len(text)]) + text.encode() for text in all_of_them)


class Reader:
    """What postcard has written."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def number(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> str:
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at].decode()
