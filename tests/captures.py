#!/usr/bin/env python3
"""Carries every capture of a folder through a card and compares what came back, byte for byte.

  captures.py MILLRACE FOLDER embedded|daemon ENGINE MODE SCRATCH

daemon    one card process that sends back what it is sent; for each file `receive` in one process and `transmit` in
          another
embedded  for each file one process, `loopback`: its card reads the file at its port, hands the frames to the program,
          takes them back and writes them to another file
"""
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import frames

PATIENCE = 20.0
# A card large enough for the longest frame there is.
CARD = {"buffers": "256", "buffer": "16384"}
# Files on their way at once, on a pair of queues each.
LANES = 2


class Failed(Exception):
    """A capture was not carried as it should have been."""


def candidates(folder: Path) -> list[tuple[Path, list[bytes]]]:
    """Files with at least one Ethernet frame of legal size, and their frames."""
    found = []
    for path in sorted(folder.iterdir()):
        try:
            content = frames.read(path)
        except frames.NotACapture:
            continue
        if any(frames.SHORTEST <= len(frame) <= frames.LONGEST for frame in content):
            found.append((path, content))
    return found


def start(arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen, what: str, accepted: tuple[int, ...] = (0,), look=lambda: "") -> str:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        # How the card sees it, before the end of the process changes that.
        state = look()
        if state:
            print(state)
        process.terminate()
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        raise Failed(f"{what} did not end: {out.decode().strip()} {err.decode().strip()}") from None
    if process.returncode not in accepted:
        raise Failed(f"{what} ended with {process.returncode}: {err.decode().strip()}")
    return out.decode()


def through_daemon(millrace: str, card: str, options: list[str], file: Path, content: list[bytes], scratch: Path,
                   lane: int) -> None:
    wanted = [frames.padded(frame) for frame in content if 0 < len(frame) <= frames.LONGEST]
    out = scratch / f"{lane}.pcap"
    out.unlink(missing_ok=True)
    options = options + ["--device", card, "--queue", str(lane), "--json"]
    receiver = start([millrace, "receive", str(out), "--count", str(len(wanted))] + options)
    try:
        deadline = time.monotonic() + PATIENCE
        # `receive` makes its file when its queue runs.
        while not out.exists() and receiver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        # A file that breaks off is sent as far as it goes, and the command fails; so does one with absurd records.
        sender = start([millrace, "transmit", str(file)] + options)
        finish(sender, "transmit", (0,) if frames.is_whole(file) else (0, 1))
    except Failed:
        receiver.terminate()
        receiver.communicate()
        raise
    finish(receiver, "receive", look=lambda: queues_of(millrace, card))
    check(wanted, out)


def queues_of(millrace: str, card: str) -> str:
    return subprocess.run([millrace, "stats", "--device", card], capture_output=True, text=True, check=False).stdout


def through_embedded(millrace: str, options: list[str], file: Path, content: list[bytes], scratch: Path,
                     lane: int) -> None:
    wanted = [frames.padded(frame) for frame in content if frames.HEADER <= len(frame) <= frames.LONGEST]
    out = scratch / f"{lane}.pcap"
    out.unlink(missing_ok=True)
    # A link with a plain name: the name of a capture may hold what means something in the name of a card.
    plain = scratch / f"{lane}.in"
    plain.unlink(missing_ok=True)
    plain.symlink_to(file.resolve())
    card = ",".join(f"{word}={value}" for word, value in CARD.items())
    device = f"embedded:queues=1,{card},port=(pcap:{plain},write={out})"
    command = [millrace, "loopback", "--device", device, "--count", str(len(wanted)), "--json"]
    finish(start(command + options), "loopback")
    check(wanted, out)


def check(wanted: list[bytes], out: Path) -> None:
    difference = frames.difference(wanted, frames.read(out))
    if difference:
        raise Failed(difference)


def equation(millrace: str, card: str) -> None:
    """Nothing is lost without a count: offered = passed + dropped, and what was sent was received."""
    stats = json.loads(subprocess.check_output([millrace, "stats", "--json", "--device", card]))
    for queue in stats["queues"]:
        dropped = sum(drop["count"] for drop in queue["drops"])
        if queue["offered"] != queue["passed"] + dropped or dropped:
            raise Failed(f"{queue['queue']}: {queue['offered']} offered, {queue['passed']} passed, {dropped} dropped")
    sides = {side: sum(queue["passed"] for queue in stats["queues"] if queue["queue"].startswith(side))
             for side in ("tx", "rx")}
    if sides["tx"] != sides["rx"]:
        raise Failed(f"{sides['tx']} frames sent, {sides['rx']} received")
    print(f"  counted: {sides['tx']} frames sent, as many received, none dropped")


def main() -> int:
    millrace, folder, placement, engine, mode, scratch = sys.argv[1:]
    scratch_folder = Path(scratch)
    files = candidates(Path(folder))
    if not files:
        print(f"no capture in {folder} holds an Ethernet frame of legal size")
        return 77
    options = ["--mode", mode, "--engine", engine]
    os.environ.pop("MILLRACE_DEVICE", None)
    begin = time.monotonic()
    daemon, card, failures = None, "", 0
    if placement == "daemon":
        arguments = [f"--{word}={value}" for word, value in CARD.items()]
        daemon = subprocess.Popen(
            [millrace, "card", "--json", "--until-eof", "--engine", engine, "--queues", str(LANES),
             "--listen", str(scratch_folder / "card.sock")] + arguments,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        card = json.loads(daemon.stdout.readline())["device"]

    def carry(lane: int) -> list[str]:
        problems = []
        for file, content in files[lane::LANES]:
            try:
                if daemon:
                    through_daemon(millrace, card, options, file, content, scratch_folder, lane)
                else:
                    through_embedded(millrace, options, file, content, scratch_folder, lane)
            except (Failed, frames.NotACapture, OSError) as problem:
                problems.append(f"{file.name}: {problem}")
                # Twenty times the same says no more than once.
                if len(problems) == 3:
                    problems.append("and so on: given up")
                    break
        return problems

    try:
        with ThreadPoolExecutor(LANES) as pool:
            problems = [line for lines in pool.map(carry, range(LANES)) for line in lines]
        if daemon and not problems:
            try:
                equation(millrace, card)
            except Failed as problem:
                problems.append(str(problem))
    finally:
        if daemon:
            daemon.stdin.close()
            if daemon.wait(10) != 0:
                problems.append(f"the card ended with {daemon.returncode}")
    for problem in problems:
        print(f"  {engine} {mode} {placement}: {problem}")
    count = sum(len(content) for _, content in files)
    print(f"  {engine} {mode} {placement}: {len(files)} captures, {count} frames, "
          f"{len(problems)} problems, {time.monotonic() - begin:.1f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
