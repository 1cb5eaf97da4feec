#!/usr/bin/env python3
"""Random programs of socket calls do the same with the socket library at both ends, at one, and at none.

    differential.py LIBRARY [PROGRAMS [SEED]]

Without it, the kernel says what is right. A program is a sequence of calls at the two ends of a connection; before a call
whose answer depends on it, the end waits until it has what was sent to it.
"""
import json
import os
import random
import select
import subprocess
import sys

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
PYTHON = "/usr/bin/python3"
ROOM = 30000


class End:
    """A worker process."""

    def __init__(self, library):
        environment = dict(os.environ)
        environment.pop("LD_PRELOAD", None)
        if library:
            environment["LD_PRELOAD"] = library
        self.process = subprocess.Popen([PYTHON, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def do(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        # Nothing here takes long: whoever does not answer sleeps for ever.
        line = self.process.stdout.readline() if select.select([self.process.stdout], [], [], 60)[0] else None
        if not line:
            raise RuntimeError(f"the worker has ended, or hangs, at {command}")
        return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Program:
    """A random sequence of commands: which are drawn does not depend on what the ends answer, unless bytes are counted."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.unread = [0, 0]
        self.shut = [False, False]
        self.watched = [False, False]
        self.edges = [False, False]
        self.nonblocking = [False, False]

    def step(self, me):
        """A command of this end, and whether it has to be up to date before."""
        draw, other = self.random, 1 - me
        kinds = ["send"] * 6 + ["receive"] * 6 + ["wait"] * 4 + ["watch"] * 2 + ["option", "duplicate", "child", "peek", "bell", "shut"]
        kinds += ["program"] if draw.random() < 0.15 else []
        kind = draw.choice(kinds)
        if kind == "send":
            room = ROOM - self.unread[other]
            if room <= 0:
                return None
            count = draw.choice([1, 1, 7, 100, draw.randint(1, room), room])
            how = draw.choice(["send", "send", "sendmsg", "writev", "write", "sendfile"])
            flags = draw.sample(["DONTWAIT", "NOSIGNAL"], draw.randint(0, 2)) if how in ("send", "sendmsg") else []
            return {"do": "send", "count": min(count, room), "how": how, "flags": flags}
        if kind in ("receive", "peek"):
            how = draw.choice(["recv", "recv", "recvmsg", "recvmsg_into", "readv", "read", "recvfrom"])
            flags = ["PEEK"] if kind == "peek" else draw.choice([[], ["DONTWAIT"], ["WAITALL"], ["TRUNC"]])
            if how in ("readv", "read") or how != "recv" and flags == ["TRUNC"]:
                flags = []
            most = max(self.unread[me], 1)
            count = draw.choice([1, 5, draw.randint(1, most), most])
            can_wait = not self.unread[me] and not self.shut[other]
            if can_wait or flags == ["WAITALL"] and count > self.unread[me] and not self.shut[other]:
                if how in ("readv", "read"):
                    if not self.nonblocking[me]:
                        return None
                else:
                    flags = ["DONTWAIT"]
            return {"do": "receive", "count": count, "how": how, "flags": flags}
        if kind == "wait":
            how = draw.choice(["poll", "select"] + ["epoll"] * 2 * self.watched[me])
            events = draw.choice([["IN"], ["OUT"], ["IN", "OUT"], ["IN", "OUT", "RDHUP"]])
            return {"do": "wait", "how": how, "events": events, "time": draw.choice([0, 0, 0, 3])}
        if kind == "watch":
            events = draw.choice([["IN"], ["IN", "OUT"], ["OUT"], ["IN", "RDHUP"]])
            events = events + draw.choice([[], ["ET"], ["ONESHOT"], ["ET", "ONESHOT"]])
            how = "change" if self.watched[me] and draw.random() < 0.5 else "new"
            self.watched[me], self.edges[me] = True, "ET" in events
            return {"do": "watch", "how": how, "events": events}
        if kind == "option":
            what = draw.choice(["nonblocking", "error", "delay"])
            value = draw.randint(0, 1)
            if what == "nonblocking":
                self.nonblocking[me] = value == 1
            return {"do": "option", "what": what, "value": value}
        if kind == "duplicate":
            # The epoll knows the old number.
            return None if self.watched[me] else {"do": "duplicate", "how": draw.choice(["dup", "dup2", "fcntl"])}
        if kind == "child":
            before = list(self.watched), list(self.nonblocking), list(self.edges)
            inner = self.step(me)
            # What is not done changes nothing.
            self.watched, self.nonblocking, self.edges = before
            if inner is None or inner["do"] not in ("send", "receive", "wait") or inner.get("how") == "epoll":
                return None
            return {"do": "child", "command": inner}
        if kind == "program":
            if self.shut[me] or draw.random() < 0.5:
                return {"do": "program", "what": "receive", "count": 5} if self.unread[me] else None
            room = ROOM - self.unread[other]
            return {"do": "program", "what": "send", "count": min(room, 300)} if room > 0 else None
        if kind == "shut":
            if self.shut[me] or draw.random() < 0.7:
                return None
            return {"do": "shut", "how": "WR"}
        return {"do": "waiting"}

    def note(self, me, command, answer):
        """Counts what a command has done."""
        if command["do"] == "child":
            command = command["command"]
        if command["do"] == "send" and isinstance(answer, int):
            self.unread[1 - me] += answer
        elif command["do"] == "program":
            if command["what"] == "send":
                self.unread[1 - me] += command["count"]
            elif answer:
                self.unread[me] -= int(answer[0])
        elif command["do"] == "receive" and isinstance(answer, list) and "PEEK" not in command["flags"]:
            self.unread[me] -= answer[0]
        elif command["do"] == "shut" and answer is None:
            self.shut[me] = True


def run(kind, seed, ends, port, length):
    """Runs a program, and returns what the ends answered."""
    program, told = Program(seed), []
    how = program.random.choice(["blocking", "nonblocking", "watched"])
    ends[0].do(do="connect", port=port, how=how)
    program.watched[0] = how == "watched"
    ends[1].do(do="accept")
    for _ in range(length):
        me = program.random.randint(0, 1)
        command = program.step(me)
        if command is None:
            continue
        if command["do"] not in ("send", "option", "shut", "duplicate"):
            try:
                ready = ends[me].do(do="until", count=program.unread[me], ended=program.shut[1 - me])
            except RuntimeError as error:
                ready = error
            if ready is not None:
                before = "\n".join(f"    {line}" for line in told[-25:])
                sys.exit(f"failed: program {seed}, {kind}, call {len(told)}:\n{before}\n  {ready}")
        try:
            answer = ends[me].do(**command)
        except RuntimeError as error:
            before = "\n".join(f"    {line}" for line in told[-25:])
            sys.exit(f"failed: program {seed}, {kind}, call {len(told)}:\n{before}\n  {error}")
        # The kernel makes edges of its own when a connection changes its state, some of them when a timer ends.
        if command.get("how") == "epoll" and program.edges[me] and any(program.shut):
            answer = "an edge or none"
        program.note(me, command, answer)
        told.append((me, command, answer))
    # What is left comes too, and then the end.
    for me in (0, 1):
        if not program.shut[me]:
            ends[me].do(do="shut", how="WR")
            program.shut[me] = True
    for me in (0, 1):
        ends[me].do(do="option", what="nonblocking", value=0)
        while True:
            answer = ends[me].do(do="receive", count=1 << 20, how="recv", flags=[])
            told.append((me, "rest", answer))
            if not isinstance(answer, list) or answer[0] == 0:
                break
            program.unread[me] -= answer[0]
    for me in (0, 1):
        ends[me].do(do="close")
    # The rest may come in other pieces.
    return [line for line in told if line[1] != "rest"], list(program.unread)


def main():
    library = sys.argv[1]
    programs = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    kinds = {"none": (None, None), "both": (library, library), "connecting": (library, None), "accepting": (None, library)}
    workers = {name: tuple(End(which) for which in pair) for name, pair in kinds.items()}
    ports = {name: pair[1].do(do="listen") for name, pair in workers.items()}
    calls = 0
    for seed in range(first, first + programs):
        length = random.Random(seed).choice([5, 20, 60, 120])
        right = run("kernel", seed, workers["none"], ports["none"], length)
        calls += len(right[0])
        for name in list(kinds)[1:]:
            found = run(name, seed, workers[name], ports[name], length)
            if found == right:
                continue
            for at, (one, other) in enumerate(zip(right[0], found[0])):
                if one != other:
                    before = "\n".join(f"    {line}" for line in right[0][max(0, at - 25):at])
                    sys.exit(f"failed: program {seed}, library at {name}, call {at}:\n{before}\n  kernel  {one}\n  library {other}")
            sys.exit(f"failed: program {seed}, library at {name}: {right[1]} bytes were left, not {found[1]}")
    for pair in workers.values():
        for end in pair:
            end.stop()
    print(f"{programs} programs, {calls} calls: the same with the library at both ends, at either, at none")


main()
