"""What the checks work with: the vendor's programs, run as by hand, and what they say about the card."""
import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterator

# Longer than any program here should take, on a busy machine too.
PATIENCE = 60.0
PYTHON_CLIENT = Path(__file__).with_name("python_client.py")


class Failed(Exception):
    """A check saw something else than it should have."""


class Skipped(Exception):
    """A check cannot be done here."""


def expect(condition: bool, seen: str) -> None:
    if not condition:
        raise Failed(seen)


def equal(what: str, seen, wanted) -> None:
    expect(seen == wanted, f"{what}: {seen}, not {wanted}")


def settled(read, wanted, seconds: float = 5.0):
    """What `read` says once it is what is wanted, or when the time is up: counters may be a moment late."""
    end = time.monotonic() + seconds
    while (value := read()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return value


def listed(text: str) -> dict[str, str]:
    """Lines such as "Total frames   :   12". Of equal names the first counts."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^[ *]*(.+?) *: *(.*)$", text, re.M):
        found.setdefault(name, value.strip())
    return found


@dataclass
class Said:
    """What became of a program."""

    command: str
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        return f"{self.command} ended with {self.code}: {' | '.join(self.err.strip().splitlines()[-3:])}"

    @property
    def fields(self) -> dict[str, str]:
        return listed(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.split("\n")[:-1]

    @property
    def packets(self) -> int:
        """As the statistics of ndp-tool have it."""
        return int(self.fields.get("Packets", -1))


class Running:
    """A program that runs beside others. It does not outlive the `with` it is started in."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.command = " ".join(command[:1] + [shorten(word) for word in command[1:]])
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def interrupt(self) -> "Running":
        """As Ctrl-C."""
        self.process.send_signal(2)
        return self

    def end(self, seconds: float = PATIENCE) -> Said:
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, err = self.process.communicate()
            last = " | ".join(err.strip().splitlines()[-2:])
            raise Failed(f"{self.command} has not ended after {seconds:.0f} s: {last}") from None
        return Said(self.command, self.process.returncode, out, err)


def shorten(word: str) -> str:
    """Without the folders of libraries and sockets, for messages."""
    return re.sub(r"/[^:;,=]*/", "", word)


@dataclass
class Lab:
    """A card, by the name libnfb knows it by, and how much to ask of it."""

    library: Path
    name: str
    scratch: Path
    millrace: str
    python: str
    testpmd: str | None
    native: str | None
    queue: int = 0
    packets: int = 100_000
    cycles: int = 1000
    verbose: bool = False

    @property
    def device(self) -> str:
        return f"libnfb-ext:{self.library}:{self.name}"

    def with_card(self, name: str) -> "Lab":
        """The same for another card."""
        return replace(self, name=name)

    # ---- programs ----

    def environment(self, **more: str | None) -> dict[str, str]:
        all_of_it = {**os.environ, "LIBNFB_DEFAULT_DEV": self.device, "LC_ALL": "C", **more}
        return {name: value for name, value in all_of_it.items() if value is not None}

    def start(self, *command: str, **more: str | None) -> Running:
        """Runs a program beside others, with more environment; None takes a variable away."""
        if not shutil.which(command[0]):
            raise Skipped(f"{Path(command[0]).name} is not installed")
        return Running(list(command), self.environment(**more))

    def attempt(self, *command: str, seconds: float = PATIENCE, **more: str | None) -> Said:
        """Runs a program to its end, whatever that is."""
        with self.start(*command, **more) as program:
            said = program.end(seconds)
        if self.verbose:
            print(f"$ {said.command}\n{said.out}{said.err}", end="")
        return said

    def run(self, *command: str, seconds: float = PATIENCE, **more: str | None) -> Said:
        """Runs a program that has to succeed."""
        said = self.attempt(*command, seconds=seconds, **more)
        expect(said.code == 0, said.complaint)
        return said

    def run_python(self, task: str, *arguments: object, seconds: float = PATIENCE) -> str:
        """Runs a task of python_client.py under the interpreter that has CESNET's binding."""
        if self.attempt(self.python, "-c", "import nfb").code != 0:
            raise Skipped(f"{self.python} has no module nfb (PYTHON names another interpreter)")
        command = [self.python, str(PYTHON_CLIENT), task, self.device, *map(str, arguments)]
        said = self.attempt(*command, seconds=seconds)
        expect(said.code == 0, f"{task}: {said.out.strip()} {' | '.join(said.err.strip().splitlines()[-2:])}")
        return said.out.strip()

    def generate(self, *options: str, queue: int | None = None) -> Said:
        return self.run("ndp-generate", "-i", str(self.queue if queue is None else queue), *options)

    # ---- what the card says through them ----

    def info(self) -> dict:
        return json.loads(self.run("nfb-info", "-j").out)

    def asked(self, tool: str, *query: str) -> list[list[str]]:
        """What `-q` answers: for each component the values asked for."""
        lines = self.run(tool, "-q", ",".join(query)).lines
        return [lines[at:at + len(query)] for at in range(0, len(lines), len(query))]

    @property
    def interfaces(self) -> int:
        return len(self.macs())

    def macs(self) -> list[dict]:
        return json.loads(self.run("nfb-eth", "-j").out)["eth"]

    def mac_sum(self, direction: str, counter: str) -> int:
        """Of all interfaces; direction is "rxmac" or "txmac"."""
        return sum(interface[direction]["stats"][counter] for interface in self.macs())

    def queues(self) -> dict[str, list[dict]]:
        """Counters of the DMA controllers, as "rxq" and "txq"."""
        return json.loads(self.run("nfb-dma", "-j").out)

    def queue_sum(self, direction: str, counter: str = "pass") -> int:
        return sum(queue[counter] for queue in self.queues()[direction])

    def runs(self, direction: str) -> bool:
        """Whether somebody has started the queue; direction is "rx" or "tx"."""
        if "Running" in self.run("nfb-dma", f"-{direction[0]}", "-i", str(self.queue), "-v").out:
            return True
        # nfb-dma knows no DD, whose STATUS has the same bit in the same place.
        status = self.attempt("nfb-bus", "-c", f"millrace,dma_ctrl_dd_{direction}", "-i", str(self.queue), "4")
        return status.code == 0 and int(status.out, 16) & 1 == 1

    @property
    def largest_burst(self) -> str:
        """What ndp-tool can ask for; Calypte's own library has no more than 256 (docs/spec/nfb-card.md section 3.2.5)."""
        return "256" if self.queues()["txq"][self.queue]["type"] == "CALYPTE" else "1024"

    def moved(self) -> tuple[int, int]:
        """Packets that all queues have sent and received."""
        queues = self.queues()
        return sum(queue["pass"] for queue in queues["txq"]), sum(queue["pass"] for queue in queues["rxq"])

    def fresh(self) -> None:
        """MACs as after the start of a card, all counters zero."""
        for command in (["-e1"], ["-R"], ["-r", "-M", "promiscuous"]):
            self.run("nfb-eth", *command)
        self.run("nfb-dma", "-R")

    def mdio(self, *words: str) -> int:
        return int(self.run("nfb-mdio", *words).out or "0", 16)

    def bus(self, *words: str) -> str:
        return self.run("nfb-bus", *words).out.strip()


@contextmanager
def own_card(lab: Lab, name: str, options: list[str]) -> Iterator[Lab]:
    """A card process for as long as the `with` lasts."""
    socket = lab.scratch / f"{name}.sock"
    # It ends with its standard input, whatever becomes of us.
    with lab.start(lab.millrace, "card", "--until-eof", "--listen", str(socket), *options) as card:
        if not settled(lambda: socket.exists() or card.process.poll() is not None, True, 10) or not socket.exists():
            raise Failed(f"no card: {card.interrupt().end(5).complaint}")
        yield lab.with_card(f"unix:{socket}")
        said = card.end(10)
        expect(said.code == 0, said.complaint)
