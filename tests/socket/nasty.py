"""What programs do to sockets that is not everyday: full buffers, time limits, killed and resetting ends, threads and children that
share a connection, descriptors handed over, thousands of connections. The same with the socket library (LD_PRELOAD) and without.
"""
import errno
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import zlib

HAS_LIBRARY = "millrace" in os.environ.get("LD_PRELOAD", "")
signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def pair(child):
    """A connection that has carried bytes both ways; the other end is in a child that does `child(end)`. The end and the child."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            end = socket.create_connection(listener.getsockname())
            listener.close()
            end.sendall(b"hello")
            assert end.recv(100) == b"welcome"
            end.sendall(b".")
            child(end)
            code = 0
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(code)
    end = listener.accept()[0]
    listener.close()
    assert end.recv(5) == b"hello"
    end.sendall(b"welcome")
    assert end.recv(1) == b"."
    return end, pid


def ended(pid, code=0):
    assert os.waitpid(pid, 0)[1] == code, "the child failed"


def block(number, count=65536):
    return struct.pack("<I", number) * (count // 4)


def can_write(end):
    poll, epoll = select.poll(), select.epoll()
    poll.register(end, select.POLLOUT)
    epoll.register(end, select.EPOLLOUT)
    answers = [bool(poll.poll(0)), bool(select.select([], [end], [], 0)[1]), bool(epoll.poll(0))]
    epoll.close()
    assert len(set(answers)) == 1, answers
    return answers[0]


def full():
    """A full connection is not writable by any call, until the other end has read; nothing is lost."""
    into, out = os.pipe()

    def child(end):
        os.read(into, 1)
        got = zlib.crc32(b"")
        while data := end.recv(100000):
            got = zlib.crc32(data, got)
        assert got == int.from_bytes(os.read(into, 4), "little")
    end, pid = pair(child)
    end.setblocking(False)
    sent, number = zlib.crc32(b""), 0
    while True:
        data = block(number)
        try:
            count = end.send(data)
        except BlockingIOError:
            time.sleep(0.05)
            if not can_write(end):
                break
            continue
        sent, number = zlib.crc32(data[:count], sent), number + 1
    started = time.monotonic()
    epoll = select.epoll()
    epoll.register(end, select.EPOLLOUT | select.EPOLLET)
    assert not epoll.poll(0.1) and time.monotonic() - started >= 0.09
    os.write(out, b"x")
    assert epoll.poll(10), "nobody said that there is room"
    end.setblocking(True)
    for number in range(200):
        data = block(number)
        end.sendall(data)
        sent = zlib.crc32(data, sent)
    os.write(out, sent.to_bytes(4, "little"))
    end.shutdown(socket.SHUT_WR)
    ended(pid)


def time_limits():
    """SO_RCVTIMEO, SO_SNDTIMEO, and the time of each call that waits."""
    end, pid = pair(lambda end: end.recv(1))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 60000))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 60000))

    def takes(call, least):
        start = time.monotonic()
        call()
        assert time.monotonic() - start >= least, "too soon"

    def refused(call):
        try:
            call()
        except BlockingIOError:
            return
        raise AssertionError("it did not wait for nothing")
    takes(lambda: refused(lambda: end.recv(1)), 0.055)
    takes(lambda: select.select([end], [], [], 0.05), 0.045)
    poll, epoll = select.poll(), select.epoll()
    poll.register(end, select.POLLIN)
    epoll.register(end, select.EPOLLIN)
    takes(lambda: poll.poll(50), 0.045)
    takes(lambda: epoll.poll(0.05), 0.045)
    end.shutdown(socket.SHUT_WR)
    ended(pid)
    end, pid = pair(lambda _: time.sleep(60))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 60000))
    takes(lambda: refused(lambda: [end.send(bytes(1 << 20)) for _ in range(1000)]), 0.055)
    os.kill(pid, signal.SIGKILL)
    ended(pid, signal.SIGKILL)


def killed():
    """An end that is killed: what it has sent comes first. Who writes to it is told, with a signal."""
    def child(end):
        end.sendall(b"last words")
        os.kill(os.getpid(), signal.SIGKILL)
    end, pid = pair(child)
    ended(pid, signal.SIGKILL)
    data = b""
    while part := end.recv(3):
        data += part
    assert data == b"last words", data
    told = []
    signal.signal(signal.SIGPIPE, lambda *_: told.append(True))
    for _ in range(1000):
        try:
            end.send(b"nobody reads this")
        except (BrokenPipeError, ConnectionResetError):
            break
        time.sleep(0.002)
    else:
        raise AssertionError("nobody said that the other end is gone")
    for _ in range(3):
        try:
            end.send(b"x")
        except BrokenPipeError:
            pass
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    assert told, "no signal"


def killed_while_waited_for():
    """Whoever waits, in any call, for an end that is killed then is woken."""
    for wait in (lambda end: end.recv(1), lambda end: select.select([end], [], []), lambda end: poll_for(end, select.POLLIN),
                 lambda end: poll_for(end, select.POLLRDHUP), lambda end: epoll_for(end, select.EPOLLIN),
                 lambda end: epoll_for(end, select.EPOLLRDHUP | select.EPOLLET)):
        end, pid = pair(lambda _: time.sleep(60))
        threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
        wait(end)
        ended(pid, signal.SIGKILL)
        assert end.recv(1) == b""


def end_of_a_watched_one():
    """That the other end was killed is seen by receiving and by looking, whoever else watches, and though nobody asks him."""
    for flags in (0, socket.MSG_PEEK):
        end, pid = pair(lambda _: time.sleep(60))
        end.setblocking(False)
        with select.epoll() as epoll:
            epoll.register(end, select.EPOLLIN)
            assert not epoll.poll(0.05)
            os.kill(pid, signal.SIGKILL)
            ended(pid, signal.SIGKILL)
            start = time.monotonic()
            while True:
                assert time.monotonic() - start < 5, "nobody says that the other end is gone"
                try:
                    assert end.recv(1, flags) == b""
                    break
                except BlockingIOError:
                    pass


def poll_for(end, events):
    poll = select.poll()
    poll.register(end, events)
    assert poll.poll(20000)


def epoll_for(end, events):
    with select.epoll() as epoll:
        epoll.register(end, events)
        assert epoll.poll(20)


def closed_behind_much():
    """Who has waited for room and closes has closed one direction: what he sent is read, and nobody hears of an end of both."""
    def child(end):
        end.setblocking(False)
        # It is to hear of room.
        epoll, sent = select.epoll(), 0
        epoll.register(end, select.EPOLLOUT)
        try:
            while True:
                sent += end.send(bytes(65536))
        except BlockingIOError:
            pass
        end.close()
        os.write(out, b"%d" % sent)
    for is_epoll in (True, False):
        into, out = os.pipe()
        end, pid = pair(child)
        sent, got = int(os.read(into, 100)), 0
        ended(pid)
        watch = select.epoll() if is_epoll else select.poll()
        watch.register(end, select.POLLIN | select.POLLRDHUP)
        # What nobody asks for would be said all the same.
        over = select.POLLHUP | select.POLLERR
        while True:
            found = watch.poll(5 if is_epoll else 5000)
            assert found and not found[0][1] & over, found
            part = end.recv(4096)
            if not part:
                break
            got += len(part)
        assert got == sent, (got, sent)
        watch.modify(end, 0)
        before = time.process_time()
        assert not watch.poll(0.3 if is_epoll else 300)
        assert time.process_time() - before < 0.15, "it does not sleep"
        end.close()


def reset():
    """SO_LINGER with 0 seconds: ECONNRESET, perhaps behind what was sent before, then the end."""
    def child(end):
        end.sendall(b"before")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
    end, pid = pair(child)
    ended(pid)
    try:
        assert end.recv(100) == b"before"
        end.recv(100)
    except ConnectionResetError:
        pass
    else:
        raise AssertionError("no ECONNRESET")
    assert end.recv(100) == b""


def threads():
    """One thread sends and one receives, at both ends, more than fits; two receive together, and each byte comes once."""
    blocks = 600

    def both(end):
        crc = [0]

        def send():
            for number in range(blocks):
                end.sendall(block(number))
            end.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        while data := end.recv(50000):
            crc[0] = zlib.crc32(data, crc[0])
        sender.join()
        right = 0
        for number in range(blocks):
            right = zlib.crc32(block(number), right)
        assert crc[0] == right
    end, pid = pair(both)
    both(end)
    ended(pid)

    def slowly(end):
        for number in range(300):
            end.sendall(bytes([number % 251]) * 1000)
            if number % 30 == 0:
                time.sleep(0.002)
    end, pid = pair(slowly)
    counts = []

    def receive():
        while data := end.recv(777):
            counts.append(len(data))
    receivers = [threading.Thread(target=receive) for _ in range(3)]
    for receiver in receivers:
        receiver.start()
    for receiver in receivers:
        receiver.join(30)
        assert not receiver.is_alive(), "a receiver sleeps for ever"
    assert sum(counts) == 300000
    ended(pid)


def children():
    """Children write to one connection, and some are killed at it: no byte of the others is lost, and nobody waits for the dead."""
    def read_all(end):
        kinds = {}
        while data := end.recv(100000):
            for kind in (b"a", b"b", b"k"):
                kinds[kind] = kinds.get(kind, 0) + data.count(kind)
        assert kinds[b"a"] == kinds[b"b"] == 400 * 1000, kinds
    end, pid = pair(read_all)

    def write(kind, count):
        child = os.fork()
        if child == 0:
            for _ in range(count):
                end.sendall(kind * 1000)
            os._exit(0)
        return child
    victims = [write(b"k", 1 << 30) for _ in range(3)]
    writers = [write(b"a", 400), write(b"b", 400)]
    for victim in victims:
        time.sleep(0.03)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
    for writer in writers:
        ended(writer)
    end.close()
    ended(pid)


def asleep():
    """Who sleeps is woken at once, whatever TCP keeps back: nothing comes the other way, so that it has no reason to acknowledge."""
    rounds = 100

    def listen(end):
        slowest = 0
        while data := end.recv(8):
            rests.append(time.monotonic() - struct.unpack("d", data)[0])
            slowest = max(slowest, rests[-1])
        # A core that is busy with others may be late, but not each time that TCP would wait.
        late = sum(rest > 0.01 for rest in rests)
        assert late < rounds // 4, f"{late} of {rounds} came late, one after {slowest} s"
    rests = []
    end, pid = pair(listen)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if HAS_LIBRARY:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 1
    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    for _ in range(rounds):
        end.sendall(struct.pack("d", time.monotonic()))
        # Longer than anybody looks before it sleeps.
        time.sleep(0.003)
    end.close()
    ended(pid)


def handed_over():
    """A connection that has met is not for others, who are told so; one of the kernel goes."""
    end, pid = pair(lambda end: end.recv(1))
    one, other = socket.socketpair()
    try:
        socket.send_fds(one, [b"x"], [end.fileno()])
        assert not HAS_LIBRARY, "handed over"
    except OSError as error:
        assert HAS_LIBRARY and error.errno == errno.EOPNOTSUPP, error
    # Not used yet, and so the kernel's.
    listener = socket.create_server(("127.0.0.1", 0))
    fresh = socket.create_connection(listener.getsockname())
    served = listener.accept()[0]
    socket.send_fds(one, [b"y"], [served.fileno()])
    served.close()
    message = socket.recv_fds(other, 1, 1)
    if message[0] == b"x":
        message = socket.recv_fds(other, 1, 1)
    taken = socket.socket(fileno=message[1][0])
    fresh.sendall(b"to whom?")
    assert taken.recv(100) == b"to whom?"
    taken.sendall(b"to me")
    assert fresh.recv(100) == b"to me"
    end.shutdown(socket.SHUT_WR)
    ended(pid)


def stdio():
    """Files of the C library over connections, before and after they have met."""
    import ctypes
    c = ctypes.CDLL(None, use_errno=True)
    c.fdopen.restype = ctypes.c_void_p
    c.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    c.fflush.argtypes = [ctypes.c_void_p]
    end, pid = pair(lambda end: end.sendall(end.recv(100)))
    file = c.fdopen(os.dup(end.fileno()), b"w")
    assert file and c.fputs(b"by stdio", file) >= 0 and c.fflush(file) == 0
    assert end.recv(100) == b"by stdio"
    ended(pid)


def printed():
    """What the C library writes by itself: `dprintf`, and `printf` after a connection has become standard output."""
    import ctypes
    c = ctypes.CDLL(None, use_errno=True)
    c.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(4096)
    c.fileno.argtypes = [ctypes.c_void_p]

    def child(end):
        numbers = [ctypes.c_double(number / 4) for number in range(1, 11)]
        count = c.dprintf(end.fileno(), b"%d %s" + b" %.2f" * 10 + b" %d %d %d\n", 7, b"text", *numbers, 8, 9, 10)
        assert count == 64, count
        assert c.__dprintf_chk(end.fileno(), 1, b"%s %.1f %d\n", b"checked", ctypes.c_double(1.5), 3) == 14
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), buffer, 0, 4096)
        c.printf(b"before, ")
        os.dup2(end.fileno(), 1)
        c.printf(b"behind %d\n", 5)
        c.fflush(None)
        assert c.fileno(ctypes.c_void_p.in_dll(c, "stdout")) == 1
        end.close()
        os.close(1)
    end, pid = pair(child)
    with end.makefile() as lines:
        numbers = " ".join(f"{number / 4:.2f}" for number in range(1, 11))
        assert lines.read() == f"7 text {numbers} 8 9 10\nchecked 1.5 3\nbefore, behind 5\n"
    ended(pid)


def stray():
    """A byte that is sent past the library is lost, and counted; nobody looks at it again and again."""
    import ctypes

    def child(end):
        time.sleep(0.1)
        assert ctypes.CDLL(None).syscall(1, end.fileno(), b"x", 1) == 1
        time.sleep(0.6)
        end.sendall(b"rest")
    end, pid = pair(child)
    if HAS_LIBRARY and os.uname().machine == "x86_64":
        start = time.process_time()
        assert end.recv(100) == b"rest"
        assert time.process_time() - start < 0.3, "it has not slept"
    assert end.recv(100, socket.MSG_WAITALL) in (b"", b"xrest")
    end.close()
    ended(pid)


def connected_again():
    """A socket that gives up its connection (AF_UNSPEC) and makes another one."""
    import ctypes
    c = ctypes.CDLL(None, use_errno=True)

    def child(end):
        unspecified = bytes(16)
        assert c.connect(end.fileno(), unspecified, len(unspecified)) == 0
        end.connect(second.getsockname())
        end.sendall(b"once more")
        assert end.recv(100) == b"welcome"
    second = socket.create_server(("127.0.0.1", 0))
    end, pid = pair(child)
    other = second.accept()[0]
    other.settimeout(10)
    assert other.recv(100) == b"once more"
    other.sendall(b"welcome")
    ended(pid)
    other.close()
    end.close()


def wide_select():
    """A `select` that names all numbers there may be, with sets of the usual size: what lies behind them is not touched."""
    import ctypes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16384), hard), hard))
    end, pid = pair(lambda end: end.sendall(b"x") or end.recv(1))
    reads = ctypes.create_string_buffer(b"\0" * 128 + b"\xff" * 8192, 8320)
    reads[end.fileno() // 8] = 1 << end.fileno() % 8
    before = reads.raw
    done = ctypes.CDLL(None).select(resource.getrlimit(resource.RLIMIT_NOFILE)[0], reads, None, None, (ctypes.c_long * 2)(5, 0))
    assert done == 1 and reads.raw == before and end.recv(1) == b"x"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    end.close()
    ended(pid)


def many():
    """Many connections in one epoll, of which some are quiet for long."""
    count = 1500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16384), hard), hard))
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    address = listener.getsockname()
    pid = os.fork()
    if pid == 0:
        listener.close()
        os._exit(client_of_many(address, count))
    ends, epoll = {}, select.epoll()
    epoll.register(listener, select.EPOLLIN)
    left = count
    while left:
        for fd, _ in epoll.poll(20):
            if fd == listener.fileno():
                end = listener.accept()[0]
                end.setblocking(False)
                ends[end.fileno()] = end
                epoll.register(end, select.EPOLLIN | (select.EPOLLET if len(ends) % 2 else 0))
                continue
            try:
                while data := ends[fd].recv(100):
                    ends[fd].sendall(data)
                epoll.unregister(fd)
                ends.pop(fd).close()
                left -= 1
            except BlockingIOError:
                pass
    ended(pid)


def watched_early():
    # In an epoll before it is connected, edge-triggered: no edge is lost.
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    total = 3 << 20
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            end, _ = listener.accept()
            end.recv(4)
            end.sendall(b"z" * total)
            end.recv(1)
            os._exit(0)
        end = socket.socket()
        end.setblocking(False)
        epoll = select.epoll()
        epoll.register(end, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
        end.connect_ex(listener.getsockname())
        epoll.poll(10)
        end.send(b"go\n\n")
        got = 0
        while got < total:
            assert epoll.poll(10), f"nothing is said after {got} bytes"
            try:
                while got < total:
                    got += len(end.recv(4096))
            except BlockingIOError:
                pass
        end.close()
        epoll.close()
        ended(pid)


def client_of_many(address, count):
    ends = [socket.create_connection(address) for _ in range(count)]
    for turn in range(4):
        for at, end in enumerate(ends):
            if turn in (0, 3) or at % 7 == turn:
                end.sendall(b"%d-%d" % (turn, at))
        for at, end in enumerate(ends):
            if turn in (0, 3) or at % 7 == turn:
                assert end.recv(100) == b"%d-%d" % (turn, at), (turn, at)
    for end in ends:
        end.close()
    return 0


def main():
    for test in (full, time_limits, killed, killed_while_waited_for, end_of_a_watched_one, closed_behind_much, reset, threads, children,
                 asleep, handed_over, stdio, printed, stray, connected_again, wide_select, watched_early):
        start = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    many()
    print("many", flush=True)


main()
