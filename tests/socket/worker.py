"""One end of a connection: does what lines on standard input say, and answers each with a line of JSON.

Used by differential.py, which starts two of them, with and without the socket library.
"""
import array
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import tempfile
import termios
import zlib

signal.signal(signal.SIGPIPE, signal.SIG_IGN)
# As C programs see them.
WAITS = {"IN": select.POLLIN, "OUT": select.POLLOUT, "ERR": select.POLLERR, "HUP": select.POLLHUP, "RDHUP": select.POLLRDHUP}
state = {"listener": None, "socket": None, "epoll": None, "sent": 0, "got": 0, "where": None}


def pattern(start: int, count: int) -> bytes:
    """Bytes of the stream from a place on: no two places close to each other look alike."""
    block = start // 4096
    data = bytearray()
    while len(data) < count + start % 4096:
        part = (block * 2654435761 & 0xffffffff).to_bytes(4, "little")
        data += b"".join(((at * 40503 & 0xffff) ^ int.from_bytes(part[:2], "little")).to_bytes(2, "little") for at in range(2048))
        block += 1
    return bytes(data[start % 4096:start % 4096 + count])


def names(mask: int) -> list:
    return sorted(name for name, bit in WAITS.items() if mask & bit)


def said(data: bytes) -> list:
    return [len(data), zlib.crc32(data)]


def message(flags: list) -> int:
    return sum(getattr(socket, "MSG_" + name) for name in flags)


def listen(_):
    state["listener"] = socket.socket()
    state["listener"].bind(("127.0.0.1", 0))
    state["listener"].listen(16)
    return state["listener"].getsockname()[1]


def begin(new: socket.socket):
    state.update(socket=new, sent=0, got=0)


def connect(command):
    new = socket.socket()
    if command["how"] == "nonblocking":
        new.setblocking(False)
        code = new.connect_ex(("127.0.0.1", command["port"]))
        assert code in (0, errno.EINPROGRESS), code
        select.select([], [new], [])
        assert new.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        new.setblocking(True)
    elif command["how"] == "watched":
        # As nginx does.
        state["epoll"] = select.epoll()
        state["epoll"].register(new, select.EPOLLIN | select.EPOLLOUT)
        new.connect(("127.0.0.1", command["port"]))
    else:
        new.connect(("127.0.0.1", command["port"]))
    begin(new)


def accept(_):
    begin(state["listener"].accept()[0])


def send(command):
    data, how = pattern(state["sent"], command["count"]), command["how"]
    end = state["socket"]
    if how == "sendmsg":
        third = len(data) // 3
        count = end.sendmsg([data[:third], data[third:third], data[third:]], [], message(command["flags"]))
    elif how == "writev":
        count = os.writev(end.fileno(), [data[:1], data[1:]])
    elif how == "write":
        count = os.write(end.fileno(), data)
    elif how == "sendfile":
        with tempfile.TemporaryFile() as file:
            file.write(b"??" + data)
            file.flush()
            count = os.sendfile(end.fileno(), file.fileno(), 2, len(data))
    else:
        count = end.send(data, message(command["flags"]))
    state["sent"] += count
    return count


def receive(command):
    end, count, how, flags = state["socket"], command["count"], command["how"], message(command["flags"])
    if how == "recvmsg":
        data = end.recvmsg(count, 0, flags)[0]
    elif how == "recvmsg_into":
        parts = [bytearray(count // 3), bytearray(0), bytearray(count - count // 3)]
        size = end.recvmsg_into(parts, 0, flags)[0]
        data = b"".join(parts)[:size]
    elif how == "readv":
        parts = [bytearray(count // 2), bytearray(count - count // 2)]
        size = os.readv(end.fileno(), parts)
        data = b"".join(parts)[:size]
    elif how == "read":
        data = os.read(end.fileno(), count)
    elif how == "recvfrom":
        data = end.recvfrom(count, flags)[0]
    else:
        data = end.recv(count, flags)
    # Thrown away, not copied.
    return [len(data), 0] if "TRUNC" in command["flags"] else said(data)


def child(command):
    """The same in a child, which has the connection by a fork."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = outcome(command["command"])
        os.write(into, json.dumps([answer, state["sent"]]).encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as file:
        answer, state["sent"] = json.loads(file.read())
    os.waitpid(pid, 0)
    return answer


PROGRAM = """
import os, socket, sys, zlib
end = socket.socket(fileno=int(sys.argv[1]))
data = end.recv(int(sys.argv[2]), socket.MSG_DONTWAIT) if sys.argv[3] == "receive" else b""
if sys.argv[3] == "send":
    end.sendall(sys.stdin.buffer.read())
print(len(data), zlib.crc32(data))
os._exit(0) if sys.stdout.flush() is None else None
"""


def program(command):
    """The same in another program, which has the connection because it is not closed at exec."""
    import subprocess
    end = state["socket"]
    os.set_inheritable(end.fileno(), True)
    data = pattern(state["sent"], command["count"]) if command["what"] == "send" else b""
    arguments = [sys.executable, "-c", PROGRAM, str(end.fileno()), str(command["count"]), command["what"]]
    done = subprocess.run(arguments, input=data, stdout=subprocess.PIPE, pass_fds=[end.fileno()], check=False)
    state["sent"] += len(data)
    return done.stdout.decode().split()


def duplicate(command):
    old = state["socket"]
    number = {"dup": lambda: os.dup(old.fileno()),
              "dup2": lambda: os.dup2(old.fileno(), 200 if old.fileno() != 200 else 201),
              "fcntl": lambda: fcntl.fcntl(old.fileno(), fcntl.F_DUPFD, 100)}[command["how"]]()
    state["socket"] = socket.socket(fileno=number)
    old.close()


def wait(command):
    """What is ready now, by each of the calls for that."""
    end, milliseconds = state["socket"], command["time"]
    if command["how"] == "poll":
        poll = select.poll()
        poll.register(end, sum(WAITS[name] for name in command["events"]))
        return names(dict(poll.poll(milliseconds)).get(end.fileno(), 0))
    if command["how"] == "select":
        reads, writes = ([end] if name in command["events"] else [] for name in ("IN", "OUT"))
        ready = select.select(reads, writes, [], milliseconds / 1000)
        return [len(part) for part in ready]
    return [names(event) for _, event in state["epoll"].poll(milliseconds / 1000)]


def watch(command):
    """An epoll, or a change of what is watched."""
    mask = sum(WAITS.get(name, 0) for name in command["events"])
    for name, bit in (("ET", select.EPOLLET), ("ONESHOT", select.EPOLLONESHOT)):
        mask |= bit if name in command["events"] else 0
    if command["how"] == "new":
        if state["epoll"]:
            state["epoll"].close()
        state["epoll"] = select.epoll()
        state["epoll"].register(state["socket"], mask)
    else:
        state["epoll"].modify(state["socket"], mask)


def waiting(_):
    count = array.array("i", [0])
    fcntl.ioctl(state["socket"].fileno(), termios.FIONREAD, count)
    return count[0]


def until(command):
    """Waits until so many bytes can be read, and the end is known if it was sent."""
    import time
    deadline = time.monotonic() + 20
    while waiting(None) != command["count"]:
        assert time.monotonic() < deadline, (waiting(None), command)
        time.sleep(0.0002)
    if command["ended"]:
        poll = select.poll()
        poll.register(state["socket"], select.POLLRDHUP)
        assert poll.poll(20000), "no end"


def option(command):
    end = state["socket"]
    what = command["what"]
    if what == "timeouts":
        return fcntl.fcntl(end.fileno(), fcntl.F_SETFL, fcntl.fcntl(end.fileno(), fcntl.F_GETFL) & ~os.O_NONBLOCK) and None
    if what == "nonblocking":
        end.setblocking(command["value"] == 0)
        return None
    if what == "error":
        return end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if what == "receive-time":
        import struct
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, command["value"] * 1000))
        return None
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, command["value"])
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def hand_over(_):
    """A descriptor for somebody else: refused when the connection is not the kernel's, and harmless otherwise."""
    one, other = socket.socketpair()
    with one, other:
        try:
            socket.send_fds(one, [b"x"], [state["socket"].fileno()])
        except OSError as error:
            return errno.errorcode[error.errno]
        os.close(socket.recv_fds(other, 1, 1)[1][0])
        return "gone"


def shut(command):
    state["socket"].shutdown({"WR": socket.SHUT_WR, "RD": socket.SHUT_RD, "RDWR": socket.SHUT_RDWR}[command["how"]])


def close(_):
    state["socket"].close()


def fill(_):
    """Sends until there is no room; whether it is writable then."""
    end = state["socket"]
    sent = 0
    while True:
        try:
            count = end.send(pattern(state["sent"], 8192), socket.MSG_DONTWAIT)
        except BlockingIOError:
            # The kernel moves what it has taken, and may have room again.
            import time
            time.sleep(0.02)
            if not select.select([], [end], [], 0)[1]:
                break
            continue
        state["sent"] += count
        sent += count
    return sent


def drain(command):
    """Receives as many bytes; whether they are the stream from that place on."""
    left, at = command["count"], command["at"]
    while left:
        data = state["socket"].recv(min(left, 100000))
        if data != pattern(at, len(data)):
            return "other bytes than sent"
        if not data:
            return "too few"
        left, at = left - len(data), at + len(data)
    return "all"


def outcome(command):
    try:
        return ACTIONS[command["do"]](command)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


ACTIONS = {action.__name__: action for action in (
    listen, connect, accept, send, receive, child, program, duplicate, wait, watch, waiting, until, option, hand_over, shut,
    close, fill, drain)}

for line in sys.stdin:
    print(json.dumps(outcome(json.loads(line))), flush=True)
