"""A stream of UDP whose losses are counted exactly: a sender that says how many it has sent, and a receiver that says what has come of them.

python3 stream.py send ADDRESS PORT FLOWS PACKETS_A_SECOND   from ports 20000, 20001, ..., one after the other, until it is ended by SIGTERM
python3 stream.py receive PORT                              until it is ended by SIGTERM

Both print a line "ready" when they are, and a line of JSON at the end: of each flow, by the number of its port, how many were `sent`, or have `come`;
`twice`, `late` (behind one that was sent after it), and the longest `silence` between two packets of any flow, in seconds.
"""

import json
import signal
import socket
import struct
import sys
import time

FIRST_PORT = 20000
# linux/socket.h: as much room as is wanted, for a receiver that is not run for a while.
SO_RCVBUFFORCE = 33


class Ended(Exception):
    """SIGTERM has come."""


is_over = False


def ended(_signal, _frame):
    """The receiver is called away from what it waits for; the sender counts what it has just sent."""
    global is_over
    is_over = True
    if sys.argv[1] == "receive":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Ended


def send(address: str, port: int, flows: int, rate: int) -> dict:
    sockets = []
    for number in range(flows):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("", FIRST_PORT + number))
        one.connect((address, port))
        sockets.append(one)
    sent = [0] * flows
    begin, total = time.monotonic(), 0
    print("ready", flush=True)
    while not is_over:
        # What is late is sent, too, a few at a time: nobody's queue is to be tried here.
        due = min(int((time.monotonic() - begin) * rate) - total, 32)
        for _ in range(due):
            number = total % flows
            total += 1
            try:
                sockets[number].send(struct.pack("!I", sent[number]) + bytes(96))
            except OSError:
                # An error that an earlier packet has brought back, or no way out: it has not been sent.
                continue
            sent[number] += 1
        time.sleep(0.001)
    return {FIRST_PORT + number: count for number, count in enumerate(sent)}


def receive(port: int) -> dict:
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    taken.bind(("", port))
    come, highest, late, twice = {}, {}, 0, 0
    seen, last, silence = set(), None, 0.0
    print("ready", flush=True)
    try:
        while True:
            packet, (_, source) = taken.recvfrom(2048)
            now = time.monotonic()
            silence, last = max(silence, now - (last or now)), now
            number = struct.unpack_from("!I", packet)[0]
            if (source, number) in seen:
                twice += 1
                continue
            seen.add((source, number))
            come[source] = come.get(source, 0) + 1
            late += number < highest.get(source, -1)
            highest[source] = max(number, highest.get(source, -1))
    except Ended:
        return {"come": come, "late": late, "twice": twice, "silence": round(silence, 3)}


signal.signal(signal.SIGTERM, ended)
if sys.argv[1] == "send":
    print(json.dumps({"sent": send(sys.argv[2], *map(int, sys.argv[3:]))}), flush=True)
else:
    print(json.dumps(receive(int(sys.argv[2]))), flush=True)
