"""What a scenario is made of. Files in scenarios/ make lists of them; judge.py runs them."""

import re
from dataclasses import dataclass, field
from typing import Callable, Union

from compare import Taken

Frames = Union[list[bytes], Callable[[Taken], list[bytes]]]


@dataclass
class Send:
    """Frames into the wire at an end. A function makes them of what has come so far, to answer it."""

    end: str
    frames: Frames
    # Seconds between two of them.
    gap: float = 0.0


@dataclass
class Do:
    """Something changes in the router."""

    script: str
    # Of what no event tells: the name by which `changes` of the router's status counts that the engine has found it.
    found_as: str = ""


@dataclass
class Settle:
    """The engine brings its rules up to what has happened. Linux needs no time for that."""

    # What the daemon looks at by the clock, errors that Linux has sent for one, takes it twice 50 ms; some things take longer.
    seconds: float = 0.1


@dataclass
class Wait:
    """Time passes, for both."""

    seconds: float


@dataclass
class Freeze:
    """The engine's daemon does nothing until the next step of this kind, as on a busy machine; its program in the kernel goes on."""

    until: bool = False


Step = Union[Send, Do, Settle, Wait, Freeze]


# What somebody remembers when it is gone: Linux that there were rules of routing once, or local routes by hand, and its old tables of iptables;
# the engine an MTU of a route.
REMEMBERED = re.compile(r"ip (-6 )?rule |ip (-6 )?route add local |ip (-6 )?route .* mtu |tables-legacy")


@dataclass
class Scenario:
    name: str
    steps: list[Step]
    # The router, beside what every router of the judge has (places.py).
    setup: str = ""
    ends: tuple[str, ...] = ("left", "right")
    # Frames that come to each end by Linux: a scenario in which nothing passes judges nothing. Without it, any number above zero.
    comes: dict[str, int] = field(default_factory=dict)
    # Packets that the engine must have taken, at least.
    fast: int = 0
    # Why the engine may differ from Linux here: a decision, or something that is still to be mended. It is said, and fails nothing.
    known: str = ""
    # Interfaces of the router that the engine gets; all ends if there are none.
    interfaces: tuple[str, ...] = ()
    # Options of the engine.
    options: tuple[str, ...] = ()
    # Programs in the router, each of which prints a line when it is ready.
    background: tuple[str, ...] = ()
    # What Linux chooses anew each time beside what compare.py knows.
    masks: tuple[Callable[[bytes], bytes], ...] = ()
    # What Linux does at once is awaited in any case; what it does later comes within so many seconds of one another.
    quiet: float = 0.001

    def is_remembered(self) -> bool:
        """Whether the next scenario needs a new router."""
        scripts = [self.setup, *(step.script for step in self.steps if isinstance(step, Do))]
        return any(REMEMBERED.search(script) for script in scripts)
