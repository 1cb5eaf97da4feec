"""Checks with packets: ndp-tool in all its modes, on a card whose ports are loopbacks."""
import random
import time
from pathlib import Path

import frames

from .catalogue import check
from .lab import Lab, Running, equal, expect, settled

NANOSECONDS = b"\x4d\x3c\xb2\xa1"


@check("13", "ndp-generate")
def generate(lab: Lab) -> str:
    lab.fresh()
    equal("packets", lab.generate("-s", "64", "-p", "1000").packets, 1000)
    equal("tx_sent", settled(lambda: lab.queue_sum("txq"), 1000), 1000)
    if any("pass_bytes" in queue for queue in lab.queues()["txq"]):  # SZE counts no bytes.
        equal("tx_sent_bytes", lab.queue_sum("txq", "pass_bytes"), 64_000)
    equal("TX MAC total", lab.mac_sum("txmac", "total"), 1000)
    return "1000 packets of 64 bytes sent, 1000 through the TX MAC"


@check("14", "ndp-loopback-hw: nothing is lost, nothing is changed")
def loopback(lab: Lab) -> str:
    speeds, mixed = [], ["-s", "64-1500"]
    for options in (mixed, [*mixed, "-l"], ["-s", "60-200", "-B", lab.largest_burst], ["-s", "64", "-U"]):
        lab.fresh()
        said = lab.run("ndp-loopback-hw", "-i", str(lab.queue), "-p", str(lab.packets), *options, seconds=120)
        form = " ".join(options[1:])
        wanted = (lab.packets, lab.packets)
        equal(f"{form}: sent and received", settled(lab.moved, wanted), wanted)
        expect("-l" not in options or "Avg latency (ms)" in said.fields, "-l prints no latency")
        latency = f", {said.fields['Avg latency (ms)']} ms" if "-l" in options else ""
        speeds.append(f"{form}: {said.fields['Avg speed [Mpps]']} Mpps{latency}")
    return f"{lab.packets} packets each; {'; '.join(speeds)}"


@check("15", "ndp-read beside ndp-generate")
def read(lab: Lab) -> str:
    lab.fresh()
    count = min(lab.packets, 20_000)
    with lab.start("ndp-read", "-i", str(lab.queue), "-p", str(count)) as reader:
        wait_for_queue(lab, reader)
        lab.generate("-s", "64-256", "-p", str(count), "--speed", "200")
        said = reader.end(20)
    equal("packets", said.packets, count)
    equal("RX MAC received", lab.mac_sum("rxmac", "pass"), count)
    equal("overflowed and discarded", (lab.mac_sum("rxmac", "drop_overflow"), lab.queue_sum("rxq", "drop")), (0, 0))
    return f"{count} read, as many received by the RX MAC, none dropped"


def wait_for_queue(lab: Lab, user: Running) -> None:
    """Until the user has started its RX queue."""
    def running() -> bool:
        return lab.runs("rx") or user.process.poll() is not None

    expect(settled(running, True), f"{user.command} has not started its queue")


@check("16", "ndp-transmit and ndp-receive, with time stamps")
def captures(lab: Lab) -> str:
    lab.fresh()
    sent, received = lab.scratch / "sent.pcap", lab.scratch / "received.pcap"
    frames.write(sent, sample(1000))
    with lab.start("nfb-tsu", "-D") as unit:
        expect(settled(lambda: lab.bus("-c", "netcope,tsu", "14"), "00000001"), "the time-stamp unit is not enabled")
        receive = ("ndp-receive", "-i", str(lab.queue), "-f", str(received), "-t", "header:32", "-p", "1000")
        begin = time.time()
        with lab.start(*receive) as receiver:
            wait_for_queue(lab, receiver)
            lab.run("ndp-transmit", "-i", str(lab.queue), "-f", str(sent), "-p", "1000")
            said = receiver.end(20)
        end = time.time()
        unit.interrupt().end()
    expect(said.code == 0, said.complaint)
    difference = frames.difference(frames.read(sent), frames.read(received))
    expect(not difference, difference)
    expect("too short" not in said.err, said.err.strip().splitlines()[-1:])
    stamps = times(received)
    expect(stamps == sorted(stamps), "stamps go back")
    expect(begin - 1 < stamps[0] <= stamps[-1] < end + 1, f"stamps from {stamps[0]} to {stamps[-1]} at {begin}")
    return f"1000 frames are the same, stamped within {(stamps[-1] - stamps[0]) * 1e3:.1f} ms of each other, in order"


def sample(count: int) -> list[bytes]:
    source = random.Random(1)
    head = bytes.fromhex("020000000001 020000000002 0800")
    sizes = [60, 61, 64, 65, 127, 128, 511, 1000, 1499, 1514]
    return [head + source.randbytes(source.choice(sizes) - len(head)) for _ in range(count)]


def times(capture: Path) -> list[float]:
    """Time stamps of a capture in nanoseconds and this machine's byte order, as ndp-receive writes them."""
    data, at, found = capture.read_bytes(), 24, []
    equal("magic", data[:4], NANOSECONDS)
    while at + 16 <= len(data):
        seconds, nanoseconds, length = (int.from_bytes(data[at + i:at + i + 4], "little") for i in (0, 4, 8))
        expect(nanoseconds < 10**9, f"a stamp of {nanoseconds} ns")
        found.append(seconds + nanoseconds * 1e-9)
        at += 16 + length
    return found


@check("17", "all queues at once, until Ctrl-C")
def all_queues(lab: Lab) -> str:
    lab.fresh()
    queues = lab.info()["firmware"]["tx_queues"]
    with lab.start("ndp-tool", "generate", "-s", "64", "-I", "0", "-B", lab.largest_burst) as generator:
        time.sleep(1.5)
        threads = len(list(Path(f"/proc/{generator.process.pid}/task").iterdir()))
        said = generator.interrupt().end(10)
    expect(threads >= queues, f"{threads} threads for {queues} queues")
    expect(said.packets > 0, f"{said.packets} packets; {said.complaint}")
    idle = [queue["id"] for queue in lab.queues()["txq"] if queue["pass"] == 0]
    equal("queues that sent nothing", idle, [])
    equal("sent", settled(lambda: lab.queue_sum("txq"), said.packets), said.packets)
    return f"{said.packets} packets by {queues} queues, all counted; ended when asked"


@check("18", "two users of a queue")
def two_users(lab: Lab) -> str:
    shared = [second_user(lab, *command) for command in USERS]
    alone = [second_user(lab, *command, "-U") for command in USERS]
    # Whether the default is to share is the card's choice, -U is not.
    expect(all(alone), "a second user with -U was not refused")
    word = {True: "refused", False: "shares"}
    return f"the second is refused with -U; without, a reader {word[shared[0]]}, a writer {word[shared[1]]}"


USERS = (["ndp-read"], ["ndp-generate", "-s", "64", "--speed", "1"])


def second_user(lab: Lab, program: str, *options: str) -> bool:
    """Whether it is refused a queue that another process uses."""
    command = (program, "-i", str(lab.queue), *options)
    direction = "rx" if program == "ndp-read" else "tx"
    with lab.start(*command) as first:
        expect(settled(lambda: lab.runs(direction), True), f"{first.command} has not started its queue")
        with lab.start(*command) as second:
            time.sleep(0.7)
            refused = second.process.poll() is not None
            said = (second if refused else second.interrupt()).end(10)
        said_first = first.interrupt().end(10)
    expect(not refused or said.code != 0, "refused with exit code 0")
    expect(said_first.packets >= 0, f"the first user: {said_first.complaint}")
    return refused


@check("19", "users that end in the middle")
def endings(lab: Lab) -> str:
    lab.fresh()
    for _ in range(5):
        with lab.start("ndp-read", "-i", str(lab.queue)) as reader:
            wait_for_queue(lab, reader)
            said = reader.interrupt().end(10)
        expect(said.code >= 0 and said.packets >= 0, f"on Ctrl-C: {said.complaint}")
    for _ in range(5):
        with lab.start("ndp-read", "-i", str(lab.queue), "-U") as reader:
            wait_for_queue(lab, reader)
            expect(reader.process.poll() is None, "a queue is still taken after its user was killed")
        # Leaving the `with` kills it; a user alone may follow as soon as the card has noticed.
        time.sleep(0.3)
    seen = lab.run_python("cycles", lab.queue, lab.cycles, seconds=600)
    return f"Ctrl-C and kill -9 leave the queue free; {seen}"
