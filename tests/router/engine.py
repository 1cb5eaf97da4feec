"""What forwards: Linux alone, or `millrace router` in the router's namespace."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from places import CORES, Failed, Place, wait

# How long the router may take to start and to end, in seconds: in a guest on a busy machine the verifier alone takes twenty.
PATIENCE = 60


class Linux:
    """Nobody but Linux."""

    def __init__(self, name: str = "Linux", spoil: str = ""):
        self.name, self.spoil = name, spoil
        self.fast = None
        self.said = ""

    def start(self, router: Place, interfaces: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
        if self.spoil:
            router.run(self.spoil)

    def settle(self, seconds: float) -> None:
        pass

    def freeze(self, until: bool) -> None:
        pass

    def look(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Millrace(Linux):
    """The router of the command `millrace`."""

    def __init__(self, millrace: str, options: list[str]):
        super().__init__("millrace")
        self.millrace, self.options = str(Path(millrace).resolve()), options
        self.process = None
        self.folder = tempfile.TemporaryDirectory(prefix="millrace-judge-")
        self.log = Path(self.folder.name) / "router.log"

    def command(self, *words: str) -> list[str]:
        return self.router.command("env", f"XDG_RUNTIME_DIR={self.folder.name}", self.millrace, "router", *words)

    def start(self, router: Place, interfaces: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
        self.router = router
        words = self.command("start", "--interfaces", ",".join(interfaces), *self.options, *options)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: os.sched_setaffinity(0, CORES),
            )
        end = time.monotonic() + PATIENCE
        while self.status() is None:
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failed(f"millrace router does not start: {self.log.read_text()}")
            wait(0.02)

    def status(self) -> dict | None:
        done = subprocess.run(self.command("status", "--json"), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[0]) if done.returncode == 0 and done.stdout.strip() else None

    def settle(self, seconds: float) -> None:
        wait(seconds)

    def freeze(self, until: bool) -> None:
        self.process.send_signal(signal.SIGCONT if until else signal.SIGSTOP)

    def look(self) -> None:
        if self.process.poll() is not None:
            raise Failed(f"millrace router has ended: {self.log.read_text()}")
        status = self.status() or {}
        counters = {one["reason"]: one["packets"] for one in status.get("counters", []) if one["packets"]}
        self.said = json.dumps(status | {"counters": counters})
        # A packet that is drawn for comparison went by its rule, too.
        self.fast = status.get("fast", 0) + counters.get("shadow", 0)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("millrace router does not end when asked") from None
