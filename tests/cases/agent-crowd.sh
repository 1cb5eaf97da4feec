#!/usr/bin/env bash
# A crowd of one network asks for what costs much, takes all places that it can have, and more that say nothing: a controller of another network that was
# there before stays and is answered, and another one gets in (decision 123).
. "$(dirname "$0")/../lib.sh"
needs python3 ip
[ "$(id -u)" -eq 0 ] || skip "this needs a network of its own, as root"
private_network "$@"
ip link set lo up

background card "$millrace" card --port null --port null --queues 2 --listen "$scratch/card.sock"
card=$started
await 20 test -S "$scratch/card.sock" || fail "no card: $(cat "$scratch/card.log")"
background agent "$millrace" agent --device "unix:$scratch/card.sock" --listen ptcp:6653:127.0.0.1
agent=$started
await 20 grep -q "controllers may connect" "$scratch/agent.log" || fail "no agent: $(cat "$scratch/agent.log")"

timeout 200 python3 - >"$scratch/crowd" 2>&1 <<'P' || fail "$(cat "$scratch/crowd" "$scratch/agent.log")"
import select, socket, struct, threading, time

def message(kind, body=b"", xid=7):
    return struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body

HELLO, BARRIER = message(0), message(20)
ALL = message(18, struct.pack("!HHI", 1, 0, 0) + struct.pack("!B3xII4xQQ", 255, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + bytes.fromhex("0001000400000000"))

def entry(priority):
    head = struct.pack("!QQBBHHHIIIHH", 0, 0, 0, 0, 0, 0, priority, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0)
    return message(14, head + bytes.fromhex("0001000400000000"))

def connect(source):
    return socket.create_connection(("127.0.0.1", 6653), timeout=60, source_address=(source, 0))

def read(peer, wanted, held=b""):
    while True:
        while len(held) >= 8:
            _, kind, length, _ = struct.unpack("!BBHI", held[:8])
            if len(held) < length:
                break
            if kind == wanted:
                return
            held = held[length:]
        more = peer.recv(1 << 16)
        assert more, "closed"
        held += more

def is_answered(peer):
    peer.sendall(message(2, b"there?"))
    read(peer, 3)

def is_open(peer):
    readable, _, _ = select.select([peer], [], [], 0)
    try:
        return not readable or bool(peer.recv(1 << 16))
    except OSError:
        return False

good = connect("127.0.0.1")
good.sendall(HELLO + b"".join(entry(1 + at) for at in range(2000)) + BARRIER)
read(good, 21)

# As many as there are places at all, and more.
def hello(at):
    peer = connect("127.0.1.1")
    peer.sendall(HELLO)
    return peer

crowd = [hello(at) for at in range(300)]
silent = [connect("127.0.1.1") for _ in range(200)]

def ask(peer):
    def drain():
        try:
            while peer.recv(1 << 20):
                pass
        except OSError:
            pass
    threading.Thread(target=drain, daemon=True).start()
    try:
        while True:
            peer.sendall(ALL)
    except OSError:
        pass

asking = crowd[:8] + crowd[-8:]
for peer in asking:
    threading.Thread(target=ask, args=(peer,), daemon=True).start()
for _ in range(5):
    is_answered(good)
late = connect("127.0.0.1")
late.sendall(HELLO)
read(late, 0)
for _ in range(5):
    is_answered(late)
    is_answered(good)
rest = [peer for peer in crowd if peer not in asking]
until = time.monotonic() + 60
while (here := sum(map(is_open, rest))) > 128:
    assert time.monotonic() < until, f"{here} of one network have places"
    time.sleep(0.1)
assert here > 0, "nobody of the crowd has a place"
while (here := sum(map(is_open, silent))) > 128:
    assert time.monotonic() < until, f"{here} that say nothing wait"
    time.sleep(0.1)
is_answered(good)
is_answered(late)
print("passed")
P
kill -INT "$agent"
ended "$agent" 20
kill -INT "$card"
ended "$card" 20
