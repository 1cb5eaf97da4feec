"""Runs scenarios through Linux alone and through an engine of Millrace, and says where what comes out differs.

python3 judge.py [--millrace FILE] [--options TEXT] [--spoil SCRIPT] [--keep FOLDER] [--list] [SUBJECT[/NAME]...]

A subject is a file in scenarios/; without one, all are run. Without --millrace, Linux is compared with Linux: what differs then varies
by itself. --options are those of `millrace router start` beside --interfaces. --spoil runs a script in the second router, to see whether the judge
sees it. --keep leaves pcap files of all that came out.
Exit code: 0 equal, 1 different, 2 a scenario that does not work, 77 this machine cannot.
"""

import argparse
import importlib
import itertools
import os
import select
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import frames  # noqa: E402
from compare import Taken, difference, is_counted  # noqa: E402
from engine import Linux, Millrace  # noqa: E402
from places import Failed, Wires, wait  # noqa: E402
from scenario import Do, Freeze, Scenario, Send, Settle, Wait  # noqa: E402


def label(step) -> str:
    if isinstance(step, Send):
        return f"sent at {step.end}"
    return " ".join(step.script.split())[:60] if isinstance(step, Do) else "time passes"


class Side:
    """A scenario at one of the two engines."""

    def __init__(self, engine: Linux, scenario: Scenario):
        self.engine, self.network, self.taken = engine, engine.network, Taken(scenario.masks)

    def frames(self, step: Send) -> list[bytes]:
        return step.frames(self.taken) if callable(step.frames) else step.frames


def send(step: Send, sides: list[Side], wires: Wires) -> None:
    """One frame each in turns, so that for both of them as much time passes."""
    made = [side.frames(step) for side in sides]
    for number, frames_of_both in enumerate(itertools.zip_longest(*made), 1):
        for side, frame in zip(sides, frames_of_both):
            if frame is not None:
                side.network.ends[step.end].send(frame)
        if step.gap:
            wait(step.gap)
        if number % (wires.AT_MOST // len(sides)) == 0:
            wires.wait()


def together(script: str, sides: list[Side], found_as: str = "") -> None:
    """The script in both routers at once, and all that it does to links."""
    before = [side.engine.changes(found_as) if found_as else 0 for side in sides]
    for begun in [side.network.router.begin(script) for side in sides]:
        begun.end()
    for side in sides:
        side.network.links_settle()
        # What has changed is known to the daemon some microseconds later, or milliseconds on a busy machine.
        side.engine.settle()
    if found_as:
        for side, count in zip(sides, before):
            side.engine.finds(found_as, count)


def act(step, sides: list[Side], wires: Wires) -> None:
    if isinstance(step, Send):
        send(step, sides, wires)
    elif isinstance(step, Do):
        together(step.script, sides, step.found_as)
    elif isinstance(step, Wait):
        wait(step.seconds)
    else:
        if isinstance(step, Settle) and step.seconds:
            wait(step.seconds)
        for side in sides:
            if isinstance(step, Settle):
                side.engine.settle()
            elif isinstance(step, Freeze):
                side.engine.freeze(step.until)


def take(sides: list[Side], wires: Wires, quiet: float) -> list[dict[str, list[bytes]]]:
    """What has come at the ends, and what still comes until nothing has come for so many seconds."""
    found = [{name: [] for name in side.network.ends} for side in sides]
    sockets = {end.socket: (end, frames[name]) for side, frames in zip(sides, found) for name, end in side.network.ends.items()}
    wires.wait()
    while True:
        ready, _, _ = select.select(list(sockets), [], [], quiet)
        for one in ready:
            end, frames_there = sockets[one]
            frames_there += end.taken()
        if not ready:
            return found


def run(scenario: Scenario, engines: list[Linux], wires: Wires) -> list[Taken]:
    """What the scenario brings with each engine, all of them step by step beside one another; what was fast is counted when this returns."""
    for engine in engines:
        # What errors were said before counts for their limits.
        if "ratelimit" in scenario.setup:
            engine.close()
        engine.prepare(scenario.ends, scenario.options)
    sides = [Side(engine, scenario) for engine in engines]
    try:
        together(scenario.setup, sides)
        for side in sides:
            for script in scenario.background:
                side.network.start(script)
            side.engine.take(scenario.interfaces or scenario.ends)
        # What the router says by itself when it begins.
        take(sides, wires, scenario.quiet)
        for step in scenario.steps:
            act(step, sides, wires)
            for side, found in zip(sides, take(sides, wires, scenario.quiet)):
                side.taken.add(label(step), found)
        for engine in engines:
            engine.look()
    finally:
        for engine in engines:
            engine.leave()
    # Linux counts route errors and redirects by host for some seconds, whatever the scenario.
    if scenario.is_remembered() or any(is_counted(frame) for end in scenario.ends for frame in sides[0].taken.frames(end, own=True)):
        for engine in engines:
            engine.close()
    return [side.taken for side in sides]


def judge(scenario: Scenario, engines: list[Linux], wires: Wires, keep: Path | None) -> str:
    """What is wrong, in words; nothing if all is well."""
    engine = engines[1]
    linux, other = run(scenario, engines, wires)
    if keep:
        save(keep / scenario.name / "linux", linux, scenario)
        save(keep / scenario.name / engine.name, other, scenario)
    came = {end: len(linux.frames(end)) for end in scenario.ends}
    wanted = {end: scenario.comes.get(end, 0) for end in scenario.ends} if scenario.comes else came
    if came != wanted or not sum(came.values()):
        raise Failed(f"by Linux alone came {came}; the scenario expects {wanted}")
    said = difference(linux, other, engine.name)
    if not said and engine.fast is not None and engine.fast < scenario.fast:
        said = f"equal, but only {engine.fast} packets were fast; at least {scenario.fast} should have been\n{engine.why()}"
    return said


def save(folder: Path, taken: Taken, scenario: Scenario) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for end in scenario.ends:
        frames.write(folder / f"{end}.pcap", taken.frames(end))


def chosen(words: list[str]) -> list[Scenario]:
    subjects = sorted(file.stem for file in (FOLDER / "scenarios").glob("*.py"))
    found = []
    for word in words or subjects:
        subject, _, name = word.partition("/")
        if subject not in subjects:
            sys.exit(f"judge: there is no subject {subject}; there are {', '.join(subjects)}")
        scenarios = importlib.import_module(f"scenarios.{subject}").SCENARIOS
        for scenario in scenarios:
            if not scenario.name.startswith(subject + "/"):
                scenario.name = f"{subject}/{scenario.name}"
        some = [scenario for scenario in scenarios if name in ("", scenario.name.partition("/")[2])]
        if not some:
            sys.exit(f"judge: {subject} has no scenario {name}; it has {', '.join(one.name for one in scenarios)}")
        found += some
    return found


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--millrace")
    parser.add_argument("--options", default="")
    parser.add_argument("--spoil", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    scenarios = chosen(args.words)
    if args.list:
        print("\n".join(scenario.name for scenario in scenarios))
        return 0
    if os.geteuid() != 0:
        print("skipped: network namespaces take root")
        return 77
    code = 0
    wires = Wires()
    engine = Millrace(wires, args.millrace, args.options.split()) if args.millrace else Linux(wires, "Linux again", args.spoil)
    engines = [Linux(wires), engine]
    for scenario in scenarios:
        start = time.monotonic()
        engine.fast = None if not args.millrace else 0
        try:
            said, verdict = judge(scenario, engines, wires, args.keep), 1
        except Failed as why:
            said, verdict = str(why), 2
            # Whatever it has left behind goes with everything else.
            for one in engines:
                one.close()
        fast = f", {engine.fast} fast" if engine.fast is not None else ""
        if said and verdict == 1 and scenario.known and engine.fast is not None:
            print(f"{scenario.name:<32} known  ({time.monotonic() - start:.1f} s{fast}): {scenario.known}", flush=True)
            continue
        if not said and scenario.known and engine.fast is not None:
            said, verdict = f"it is equal by now, and is not known to differ any more: {scenario.known}", 1
        word = ("equal", "DIFFERENT", "BROKEN")[verdict if said else 0]
        print(f"{scenario.name:<32} {word}  ({time.monotonic() - start:.1f} s{fast})", flush=True)
        if said:
            print(f"  {said}", flush=True)
            code = max(code, verdict)
    for one in (*engines, wires):
        one.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
