"""Runs scenarios through Linux alone and through an engine of Millrace, and says where what comes out differs.

python3 judge.py [--millrace FILE] [--options TEXT] [--spoil SCRIPT] [--keep FOLDER] [--list] [SUBJECT[/NAME]...]

A subject is a file in scenarios/; without one, all are run. Without --millrace, Linux is compared with Linux: what differs then varies
by itself. --options are those of `millrace router start` beside --interfaces. --spoil runs a script in the second router, to see whether the judge
sees it. --keep leaves pcap files of all that came out.
Exit code: 0 equal, 1 different, 2 a scenario that does not work, 77 this machine cannot.
"""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import frames  # noqa: E402
from compare import Taken, difference  # noqa: E402
from engine import Linux, Millrace  # noqa: E402
from places import Barrier, Failed, Network, wait  # noqa: E402
from scenario import Do, Freeze, Scenario, Send, Settle, Wait  # noqa: E402


def label(step) -> str:
    if isinstance(step, Send):
        return f"sent at {step.end}"
    return " ".join(step.script.split())[:60] if isinstance(step, Do) else "time passes"


def act(step, network: Network, taken: Taken, engine) -> None:
    if isinstance(step, Send):
        made = step.frames(taken) if callable(step.frames) else step.frames
        for number, frame in enumerate(made, 1):
            network.ends[step.end].send(frame)
            if step.gap:
                wait(step.gap)
            if number % Barrier.AT_MOST == 0:
                network.barrier.wait()
    elif isinstance(step, Do):
        network.router.run(step.script)
        network.links_settle()
    elif isinstance(step, Wait):
        wait(step.seconds)
    elif isinstance(step, Settle):
        engine.settle(step.seconds)
    elif isinstance(step, Freeze):
        engine.freeze(step.until)


def run(scenario: Scenario, engine) -> Taken:
    """What the scenario brings with this engine, which has counted what was fast when this returns."""
    with Network(scenario.ends) as network:
        if scenario.setup:
            network.router.run(scenario.setup)
        for script in scenario.background:
            network.start(script)
        network.links_settle()
        engine.start(network.router, scenario.interfaces or scenario.ends, scenario.options)
        try:
            # What the router says by itself when it begins.
            network.taken(scenario.quiet)
            taken = Taken(scenario.masks)
            for step in scenario.steps:
                act(step, network, taken, engine)
                taken.add(label(step), network.taken(scenario.quiet))
            engine.look()
        finally:
            engine.stop()
    return taken


def judge(scenario: Scenario, engine, keep: Path | None) -> str:
    """What is wrong, in words; nothing if all is well."""
    linux = run(scenario, Linux())
    came = {end: len(linux.frames(end)) for end in scenario.ends}
    if keep:
        save(keep / scenario.name / "linux", linux, scenario)
    wanted = {end: scenario.comes.get(end, 0) for end in scenario.ends} if scenario.comes else came
    if came != wanted or not sum(came.values()):
        raise Failed(f"by Linux alone came {came}; the scenario expects {wanted}")
    other = run(scenario, engine)
    if keep:
        save(keep / scenario.name / engine.name, other, scenario)
    said = difference(linux, other, engine.name)
    if not said and engine.fast is not None and engine.fast < scenario.fast:
        said = f"equal, but only {engine.fast} packets were fast; at least {scenario.fast} should have been\n{engine.said}"
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
    for scenario in scenarios:
        start = time.monotonic()
        engine = Millrace(args.millrace, args.options.split()) if args.millrace else Linux("Linux again", args.spoil)
        try:
            said, verdict = judge(scenario, engine, args.keep), 1
        except Failed as why:
            said, verdict = str(why), 2
        fast = f", {engine.fast} fast" if engine.fast is not None else ""
        if said and verdict == 1 and scenario.known and engine.fast is not None:
            print(f"{scenario.name:<32} known  ({time.monotonic() - start:.1f} s{fast}): {scenario.known}", flush=True)
            continue
        word = ("equal", "DIFFERENT", "BROKEN")[verdict if said else 0]
        print(f"{scenario.name:<32} {word}  ({time.monotonic() - start:.1f} s{fast})", flush=True)
        if said:
            print(f"  {said}", flush=True)
            code = max(code, verdict)
    return code


if __name__ == "__main__":
    sys.exit(main())
