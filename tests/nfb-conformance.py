#!/usr/bin/env python3
"""Runs CESNET's own programs, its Python binding and DPDK against a card and checks what they say: every check of
docs/spec/nfb-card.md section 7. The programs are those on PATH; a check whose program is not there is skipped.

  nfb-conformance.py [OPTION]... [-- CARD OPTION...]

By default with a card of its own, which has two queue pairs and room for the largest bursts that programs ask for.

Environment:
  PYTHON            interpreter that can `import nfb` (default: python3)
  TESTPMD           dpdk-testpmd with the upstream nfb driver
  TESTPMD_NATIVE    dpdk-testpmd from CESNET/dpdk-nfb, whose driver has queue_driver=native

Exit code 0: no check failed; 1: one did; 2: they could not be run.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

# They fill the catalogue, in this order.
from conformance import information, registers, traffic, programs, interfaces, dd  # noqa: F401
from conformance.catalogue import CHECKS, Check
from conformance.lab import Failed, Lab, Skipped, own_card

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "libnfb-ext-millrace.so"
CARD = ["--queues", "2"]
# Checks that need nothing of the vendor's are tests of ours.
OURS = "25: see crates/nfb/tests, crates/ring/tests and crates/card/tests"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say which checks there are")
    parser.add_argument("--only", metavar="LIST", help="only these checks, such as 5,9b")
    parser.add_argument("--device", metavar="NAME", help="a card that runs already, such as unix:/tmp/card.sock; "
                        "its ports have to be loopbacks and nobody else may use it")
    parser.add_argument("--library", metavar="PATH", type=Path, help=f"default: {LIBRARY} beside the millrace program")
    parser.add_argument("--millrace", metavar="PATH", help="default: $MILLRACE, the one built here, or from PATH")
    parser.add_argument("--queue", metavar="N", type=int, default=0, help="queue pair to send and receive with")
    parser.add_argument("--packets", metavar="N", type=int, default=100_000, help="packets of larger runs (100000)")
    parser.add_argument("--cycles", metavar="N", type=int, default=1000, help="how often check 19 opens (1000)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--verbose", action="store_true", help="also print what each program said")
    parser.add_argument("card", nargs="*", metavar="CARD OPTION", help="options of `millrace card`, after --")
    return parser.parse_args()


def give_up(reason: str) -> NoReturn:
    print(f"nfb-conformance.py: {reason}", file=sys.stderr)
    sys.exit(2)


def find_millrace(given: str | None) -> str:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for candidate in (given, os.environ.get("MILLRACE"), target / "release" / "millrace", "millrace"):
        if candidate and (found := shutil.which(str(candidate))):
            return found
    give_up("there is no millrace program; make build, or --millrace")


def find_library(given: Path | None, millrace: str) -> Path:
    library = given or Path(millrace).with_name(LIBRARY)
    if not library.exists():
        # As `make install` has it.
        library = library.parent.parent / "lib" / library.name
    if not library.exists():
        give_up(f"{given or LIBRARY} is not there; make build, or --library")
    return library.resolve()


def chosen(only: str | None) -> list[Check]:
    if not only:
        return CHECKS
    wanted = only.split(",")
    known = {check.number for check in CHECKS}
    if unknown := [number for number in wanted if number not in known]:
        give_up(f"no check {', '.join(unknown)}; --list says which there are ({OURS})")
    return [check for check in CHECKS if check.number in wanted]


def perform(check: Check, lab: Lab) -> tuple[str, str]:
    try:
        return "PASS", check.do(lab)
    except Skipped as reason:
        return "SKIP", str(reason)
    except Failed as seen:
        return "FAIL", str(seen)
    except Exception as error:  # What a program printed is not what this script can read.
        at = error.__traceback__
        while at.tb_next:
            at = at.tb_next
        place = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        return "FAIL", f"not understood: {type(error).__name__}: {error} ({place})"


def perform_all(checks: list[Check], lab: Lab, as_json: bool) -> int:
    if not lab.info()["firmware"]["tx_queues"]:
        give_up("NFB programs see no queues on this card: they do not know DD; check dd has a card of its own")
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for check in checks:
        begin = time.monotonic()
        result, seen = perform(check, lab)
        counts[result] += 1
        if as_json:
            print(json.dumps({"check": check.number, "title": check.title, "result": result, "seen": seen,
                              "seconds": round(time.monotonic() - begin, 1)}), flush=True)
        else:
            print(f"{result} {check.number:<10} {check.title}: {seen}", flush=True)
    if as_json:
        print(json.dumps({"passed": counts["PASS"], "failed": counts["FAIL"], "skipped": counts["SKIP"]}))
    else:
        print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped")
    return 1 if counts["FAIL"] else 0


def main() -> int:
    arguments = options()
    if arguments.list:
        print(*(f"{check.number:<10} {check.title}" for check in CHECKS), OURS, sep="\n")
        return 0
    checks = chosen(arguments.only)
    if not shutil.which("nfb-info"):
        give_up("CESNET's programs are not on PATH (nfb-info)")
    millrace = find_millrace(arguments.millrace)
    with tempfile.TemporaryDirectory(prefix="nfb-conformance.") as scratch:
        lab = Lab(find_library(arguments.library, millrace), arguments.device or "", Path(scratch), millrace,
                  os.environ.get("PYTHON", "python3"), os.environ.get("TESTPMD"), os.environ.get("TESTPMD_NATIVE"),
                  arguments.queue, arguments.packets, arguments.cycles, arguments.verbose)
        if arguments.device:
            return perform_all(checks, lab, arguments.json)
        try:
            with own_card(lab, "card", arguments.card or CARD) as mine:
                return perform_all(checks, mine, arguments.json)
        except Failed as reason:
            give_up(str(reason))


if __name__ == "__main__":
    sys.exit(main())
