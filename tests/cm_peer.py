"""Two ends of connections over librdmacm, with queue pairs that carry nothing: what matters is who is connected with whom, and who is told.

    cm_peer.py serve PORT                    accepts who says FRIEND, refuses all others, until a friend says END
    cm_peer.py lose ADDRESS PORT FILE        both ends of a connection, whose card is killed: all that sleeps is woken, every identifier is told, and
                                             calls fail. When FILE is there, the same with the next card, which stays
    cm_peer.py call ADDRESS PORT COUNT       so many connections, made and ended, some at once
        --hold FILE                          they are ended when FILE is there, and nothing may happen to them before
        --until FILE                         no more of them are begun when FILE is there
        --patient                            who is refused or not answered calls again
        --end                                says END afterwards

The last line that it prints is a JSON object that says how often each event has come."""
import argparse
import ctypes
import errno
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

FRIEND, END = b"millrace friend", b"millrace end"
TCP = 0x0106
NAMES = {0: "address", 1: "no-address", 2: "route", 3: "no-route", 4: "called", 5: "answered", 6: "error", 7: "unreachable",
         8: "rejected", 9: "established", 10: "disconnected", 11: "removed", 15: "forgotten"}
AT_ONCE = 8
# The reason for which a program refuses; its device has others: nobody listens, too many call, the number of a caller that has gone.
BY_PROGRAM = 28
# Seconds.
SOON = 20

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for made in (verbs.ibv_alloc_pd, verbs.ibv_create_cq, verbs.ibv_create_qp, verbs.ibv_create_comp_channel):
    made.restype = ctypes.c_void_p


class Param(ctypes.Structure):
    _fields_ = [("private", ctypes.c_void_p), ("length", ctypes.c_uint8), ("resources", ctypes.c_uint8),
                ("depth", ctypes.c_uint8), ("flow_control", ctypes.c_uint8), ("retries", ctypes.c_uint8),
                ("rnr_retries", ctypes.c_uint8), ("srq", ctypes.c_uint8), ("qpn", ctypes.c_uint32)]


class Event(ctypes.Structure):
    _fields_ = [("id", ctypes.c_void_p), ("listener", ctypes.c_void_p), ("kind", ctypes.c_int), ("status", ctypes.c_int),
                ("param", Param), ("rest", ctypes.c_uint8 * 64)]


class PairInit(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("send_cq", ctypes.c_void_p), ("recv_cq", ctypes.c_void_p), ("srq", ctypes.c_void_p),
                ("cap", ctypes.c_uint32 * 5), ("kind", ctypes.c_int), ("signal_all", ctypes.c_int)]


class Pair(ctypes.Structure):
    _fields_ = [("objects", ctypes.c_void_p * 6), ("handle", ctypes.c_uint32), ("number", ctypes.c_uint32)]


class Channel(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int)]


def done(code: int, what: str) -> None:
    if code != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def address(ip: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(ip) + bytes(8)


class End:
    """An event channel with its identifiers."""

    def __init__(self) -> None:
        self.channel = ctypes.c_void_p(cm.rdma_create_event_channel())
        if not self.channel.value:
            raise OSError(ctypes.get_errno(), "rdma_create_event_channel")
        self.counts: Counter[str] = Counter()
        self.domain = self.queue = None
        self.pairs: dict[int, int] = {}

    def bound(self, port: int) -> int:
        """An identifier at which others call."""
        listener = self.identifier()
        done(cm.rdma_bind_addr(ctypes.c_void_p(listener), address("0.0.0.0", port)), "rdma_bind_addr")
        done(cm.rdma_listen(ctypes.c_void_p(listener), 0), "rdma_listen")
        return listener

    def identifier(self) -> int:
        made = ctypes.c_void_p()
        done(cm.rdma_create_id(self.channel, ctypes.byref(made), None, TCP), "rdma_create_id")
        return made.value

    def is_ready(self, seconds: float) -> bool:
        fd = ctypes.cast(self.channel, ctypes.POINTER(Channel)).contents.fd
        return bool(select.select([fd], [], [], seconds)[0])

    def event(self) -> tuple[str, int, bytes]:
        """What has happened, to which identifier, and what the other end says."""
        found = ctypes.POINTER(Event)()
        done(cm.rdma_get_cm_event(self.channel, ctypes.byref(found)), "rdma_get_cm_event")
        event = found.contents
        private = ctypes.string_at(event.param.private, event.param.length) if event.param.private else b""
        name, who = NAMES.get(event.kind, str(event.kind)), event.id
        if name == "rejected" and event.status != BY_PROGRAM:
            name = "turned-away"
        self.counts[name] += 1
        done(cm.rdma_ack_cm_event(found), "rdma_ack_cm_event")
        return name, who, private

    def soon(self) -> tuple[str, int, bytes]:
        """As `event`, for which nobody waits long."""
        if not self.is_ready(SOON):
            sys.exit("failed: nothing happens")
        return self.event()

    def expects(self, wanted: str, whom: int | None = None) -> int:
        """That happens now, to that identifier. To which."""
        name, who, _ = self.soon()
        if name != wanted or whom not in (who, None):
            sys.exit(f"failed: {name} instead of {wanted}")
        return who

    def pair(self, who: int) -> int:
        """The number of a queue pair that is this identifier's."""
        if self.domain is None:
            # The first that an identifier has is its device.
            device = ctypes.c_void_p.from_address(who)
            self.domain = ctypes.c_void_p(verbs.ibv_alloc_pd(device))
            self.queue = ctypes.c_void_p(verbs.ibv_create_cq(device, 1, None, None, 0))
        if who not in self.pairs:
            init = PairInit(None, self.queue, self.queue, None, (1, 1, 1, 1, 0), 2, 0)
            made = verbs.ibv_create_qp(self.domain, ctypes.byref(init))
            if not made:
                raise OSError(ctypes.get_errno(), "ibv_create_qp")
            self.pairs[who] = made
        return Pair.from_address(self.pairs[who]).number

    def param(self, private: bytes, who: int) -> Param:
        self.said = ctypes.create_string_buffer(private)
        return Param(ctypes.addressof(self.said), len(private), 1, 1, 0, 7, 7, 0, self.pair(who))

    def destroy(self, who: int) -> None:
        if who in self.pairs:
            done(verbs.ibv_destroy_qp(ctypes.c_void_p(self.pairs.pop(who))), "ibv_destroy_qp")
        done(cm.rdma_destroy_id(ctypes.c_void_p(who)), "rdma_destroy_id")


def serve(port: int) -> Counter[str]:
    end = End()
    end.bound(port)
    print("listens", flush=True)
    is_over = False
    while not is_over:
        name, who, private = end.event()
        if name == "called" and private.startswith(FRIEND):
            # Who has been refused or has gone meanwhile is told as an event.
            cm.rdma_accept(ctypes.c_void_p(who), ctypes.byref(end.param(FRIEND, who)))
        elif name == "called":
            is_over = private.startswith(END)
            end.counts["strangers"] += not is_over
            cm.rdma_reject(ctypes.c_void_p(who), None, 0)
            end.destroy(who)
        elif name in ("disconnected", "unreachable", "rejected", "turned-away", "error"):
            end.destroy(who)
    return end.counts


class Sleeper(threading.Thread):
    """A call that sleeps; what it says in the end."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call, self.said = call, None
        self.start()

    def run(self) -> None:
        self.said = self.call()

    def awake(self, what: str) -> object:
        self.join(SOON)
        if self.is_alive():
            sys.exit(f"failed: {what} sleeps on")
        return self.said


def refused(what: str, code: int) -> None:
    if code == 0 or ctypes.get_errno() != errno.ENODEV:
        sys.exit(f"failed: {what} without a card: {code}, {os.strerror(ctypes.get_errno())}")


def connected(target: bytes, port: int) -> tuple[End, End, set[int], set[int]]:
    """Both ends of a connection, and their identifiers; one of the caller's has only looked for its other end."""
    server, client = End(), End()
    listener, caller, idle = server.bound(port), client.identifier(), client.identifier()
    for who in (caller, idle):
        done(cm.rdma_resolve_addr(ctypes.c_void_p(who), None, target, 5000), "rdma_resolve_addr")
        client.expects("address", who)
    done(cm.rdma_resolve_route(ctypes.c_void_p(caller), 5000), "rdma_resolve_route")
    client.expects("route", caller)
    done(cm.rdma_connect(ctypes.c_void_p(caller), ctypes.byref(client.param(FRIEND, caller))), "rdma_connect")
    called = server.expects("called")
    done(cm.rdma_accept(ctypes.c_void_p(called), ctypes.byref(server.param(FRIEND, called))), "rdma_accept")
    client.expects("answered", caller)
    done(cm.rdma_establish(ctypes.c_void_p(caller)), "rdma_establish")
    server.expects("established", called)
    return server, client, {listener, called}, {caller, idle}


def lose(options: argparse.Namespace) -> Counter[str]:
    target = address(options.address, options.port)
    server, client, ours, theirs = connected(target, options.port)
    # One that has no channel of the program's: its calls sleep.
    alone = ctypes.c_void_p()
    done(cm.rdma_create_id(None, ctypes.byref(alone), None, TCP), "rdma_create_id")
    done(cm.rdma_bind_addr(alone, address("0.0.0.0", options.port + 1)), "rdma_bind_addr")
    done(cm.rdma_listen(alone, 0), "rdma_listen")
    device = ctypes.c_void_p.from_address(next(iter(theirs)))
    channel = ctypes.c_void_p(verbs.ibv_create_comp_channel(device))
    queue = ctypes.c_void_p(verbs.ibv_create_cq(device, 1, None, channel, 0))
    found, context, made = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    fatal = (ctypes.c_uint64 * 2)()
    asleep = {
        "rdma_get_request": Sleeper(lambda: (cm.rdma_get_request(alone, ctypes.byref(made)), ctypes.get_errno())),
        "rdma_get_cm_event": Sleeper(server.event),
        "ibv_get_async_event": Sleeper(lambda: verbs.ibv_get_async_event(device, ctypes.byref(fatal))),
    }
    # An engine of the program's own goes on, and ends what needs the card by completions; this queue has none.
    if "place=card" in os.environ["MILLRACE_VERBS"]:
        sleeps = Sleeper(lambda: verbs.ibv_get_cq_event(channel, ctypes.byref(found), ctypes.byref(context)))
        asleep["ibv_get_cq_event"] = sleeps
    print("connected", flush=True)
    # The card is killed now.
    told = [client.soon() for _ in theirs]
    said = {name: sleeper.awake(name) for name, sleeper in asleep.items()}
    told += [said["rdma_get_cm_event"], server.soon()]
    if {who for name, who, _ in told if name == "removed"} != ours | theirs:
        sys.exit(f"failed: {told} instead of {ours | theirs}, each of them removed")
    if said["rdma_get_request"] != (-1, errno.ENODEV) or said["ibv_get_async_event"] != 0 or said.get("ibv_get_cq_event", 0) != 0:
        sys.exit(f"failed: {said}")
    verbs.ibv_ack_cq_events(queue, int("ibv_get_cq_event" in said))
    verbs.ibv_ack_async_event(ctypes.byref(fatal))
    one = ctypes.c_void_p(next(iter(theirs)))
    refused("rdma_resolve_addr", cm.rdma_resolve_addr(one, None, target, 5000))
    refused("rdma_connect", cm.rdma_connect(one, ctypes.byref(client.param(FRIEND, one.value))))
    refused("rdma_disconnect", cm.rdma_disconnect(one))
    for end, all_of_it in ((server, ours), (client, theirs)):
        for who in all_of_it:
            end.destroy(who)
        if end.is_ready(0):
            sys.exit(f"failed: more has happened: {end.event()}")
    done(verbs.ibv_destroy_cq(queue), "ibv_destroy_cq")
    done(cm.rdma_destroy_id(alone), "rdma_destroy_id")
    print("lost", flush=True)
    while not os.path.exists(options.file):
        time.sleep(0.01)
    server, client, ours, theirs = connected(target, options.port)
    for end, all_of_it in ((client, theirs), (server, ours)):
        for who in all_of_it:
            end.destroy(who)
    return server.counts


class Caller:
    """Makes and ends connections."""

    def __init__(self, options: argparse.Namespace, private: bytes, wanted: str) -> None:
        self.end, self.private, self.wanted = End(), private, wanted
        self.target = address(options.address, options.port)
        self.hold, self.until, self.is_patient = options.hold, options.until, options.patient
        self.up: list[int] = []
        self.complete = 0

    def begin(self) -> None:
        made = self.end.identifier()
        done(cm.rdma_resolve_addr(ctypes.c_void_p(made), None, self.target, 5000), "rdma_resolve_addr")

    def again(self, who: int, name: str) -> None:
        if not self.is_patient:
            sys.exit(f"failed: {name}")
        if who in self.up:
            self.up.remove(who)
        self.end.destroy(who)
        self.begin()

    def over(self, who: int) -> None:
        self.end.destroy(who)
        self.complete += 1

    def step(self) -> None:
        name, who, _ = self.end.event()
        pointer = ctypes.c_void_p(who)
        if name == "address":
            done(cm.rdma_resolve_route(pointer, 5000), "rdma_resolve_route")
        elif name == "route":
            done(cm.rdma_connect(pointer, ctypes.byref(self.end.param(self.private, who))), "rdma_connect")
        elif name == "answered":
            done(cm.rdma_establish(pointer), "rdma_establish")
            self.up.append(who)
            if not self.hold:
                self.leave(who)
        elif name == self.wanted and (name != "disconnected" or who not in self.up):
            self.over(who)
        elif name != "forgotten":
            self.again(who, name)

    def leave(self, who: int) -> None:
        self.up.remove(who)
        done(cm.rdma_disconnect(ctypes.c_void_p(who)), "rdma_disconnect")

    def calls(self, count: int) -> None:
        begun = 0
        while self.complete < count:
            if self.until and os.path.exists(self.until):
                count = begun
            while begun < count and begun - self.complete < AT_ONCE:
                self.begin()
                begun += 1
            self.step()
            if self.hold and len(self.up) == count:
                self.holds()

    def holds(self) -> None:
        print("connected", flush=True)
        while not os.path.exists(self.hold):
            if self.end.is_ready(0.05):
                sys.exit(f"failed: a connection that nobody has ended: {self.end.event()[0]}")
        for who in list(self.up):
            self.leave(who)


def call(options: argparse.Namespace) -> Counter[str]:
    caller = Caller(options, FRIEND, "disconnected")
    caller.calls(options.count)
    if options.end:
        options.hold = options.until = None
        Caller(options, END, "rejected").calls(1)
    return caller.end.counts


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    server = commands.add_parser("serve")
    server.add_argument("port", type=int)
    server.set_defaults(run=lambda options: serve(options.port))
    loser = commands.add_parser("lose")
    loser.add_argument("address")
    loser.add_argument("port", type=int)
    loser.add_argument("file")
    loser.set_defaults(run=lose)
    client = commands.add_parser("call")
    client.add_argument("address")
    client.add_argument("port", type=int)
    client.add_argument("count", type=int)
    client.add_argument("--hold")
    client.add_argument("--until")
    client.add_argument("--patient", action="store_true")
    client.add_argument("--end", action="store_true")
    client.set_defaults(run=call)
    options = parser.parse_args()
    run: Callable[[argparse.Namespace], Counter[str]] = options.run
    print(json.dumps(run(options)))


main()
