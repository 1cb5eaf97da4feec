"""Wake-ups that must not be lost: threads and processes that sleep for a connection while others use it. The same with the socket
library (LD_PRELOAD) and without.

With names of tests: only those.
"""
import ctypes
import errno
import os
import select
import signal
import socket
import sys
import threading
import time


def pair(child, before=lambda end: None, greets=True):
    """A connection whose other end is in a child that does `child(end)`; `before(end)` is done here as soon as it is there. Unless it
    `greets`, nothing was sent yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            end = socket.create_connection(listener.getsockname())
            listener.close()
            if greets:
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
    before(end)
    if greets:
        assert end.recv(5) == b"hello"
        end.sendall(b"welcome")
        assert end.recv(1) == b"."
    return end, pid


def ended(pid, code=0):
    assert os.waitpid(pid, 0)[1] == code, "the child failed"


def fill(end):
    """Writes until there is no room."""
    while True:
        try:
            end.send(bytes(65536))
        except BlockingIOError:
            return


def room_for_a_sleeper():
    """Who sleeps in an epoll while there is room hears of new room, if another thread has filled the connection meanwhile."""
    into, out = os.pipe()

    def child(end):
        os.read(into, 1)
        while end.recv(1 << 20):
            pass
    end, pid = pair(child)
    end.setblocking(False)
    epoll, found = select.epoll(), []
    epoll.register(end, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    assert epoll.poll(5)[0][1] == select.EPOLLOUT
    sleeper = threading.Thread(target=lambda: found.extend(epoll.poll(10)))
    sleeper.start()
    time.sleep(0.1)
    fill(end)
    start = time.monotonic()
    os.write(out, b"x")
    sleeper.join()
    assert found and found[0][1] == select.EPOLLOUT and time.monotonic() - start < 5, "nobody said that there is room"
    end.shutdown(socket.SHUT_WR)
    ended(pid)


def by_poll(end):
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return end.recv(6) if poll.poll(20000) else b""


def by_epoll(end):
    with select.epoll() as epoll:
        epoll.register(end, select.EPOLLIN)
        return end.recv(6) if epoll.poll(20) else b""


WAYS = (lambda end: end.recv(6), by_poll, lambda end: end.recv(6) if select.select([end], [], [], 20)[0] else b"", by_epoll)


def in_thread(work):
    """Starts it; what it returned is asked for with a call, and comes soon."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def result():
        thread.join(5)
        assert not thread.is_alive(), "it sleeps for ever"
        return found[0]
    return result


def banner():
    """One thread sleeps already when another one is the first to send (SSH, SMTP)."""
    def child(end):
        assert end.recv(6) == b"banner"
        time.sleep(0.05)
        end.sendall(b"answer")
        assert end.recv(1) == b""
    for way in WAYS:
        end, pid = pair(child, greets=False)
        answer = in_thread(lambda way=way, end=end: way(end))
        time.sleep(0.05)
        end.sendall(b"banner")
        assert answer() == b"answer"
        end.close()
        ended(pid)


def asleep_before_the_other():
    """The end that has connected: one thread sleeps since before the ends have met, and another one sleeps and wakes meanwhile."""
    for way in WAYS:
        into, out = os.pipe()

        def serve(end, into=into, out=out):
            assert end.recv(5) == b"hello"
            os.close(out)
            os.read(into, 1)
            end.sendall(b"answer")

        def child(end, way=way, out=out):
            end.sendall(b"hello")
            answer = in_thread(lambda: way(end))
            time.sleep(0.1)
            poll = select.poll()
            poll.register(end, select.POLLIN)
            assert not poll.poll(100)
            os.write(out, b"x")
            assert answer() == b"answer"
        end, pid = pair(child, serve, greets=False)
        ended(pid)
        end.close()


def signal_at_a_look():
    """A signal that only a `ppoll` lets through ends it, at any time (MILLRACE_STREAMS=spin=100000 makes it a long look)."""
    c = ctypes.CDLL(None, use_errno=True)

    class Entry(ctypes.Structure):
        _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
    into, _out = os.pipe()
    end, pid = pair(lambda end: end.recv(1))
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    entries = (Entry * 2)(Entry(end.fileno(), select.POLLIN), Entry(into, select.POLLIN))
    time_limit, nothing = (ctypes.c_long * 2)(5, 0), ctypes.create_string_buffer(128)
    # Nothing is left for the kernel to say.
    assert c.ppoll(entries, 2, (ctypes.c_long * 2)(0, 200_000_000), nothing) == 0
    victim = threading.get_ident()
    threading.Timer(0.02, lambda: signal.pthread_kill(victim, signal.SIGUSR1)).start()
    done = c.ppoll(entries, 2, time_limit, nothing)
    assert (done, ctypes.get_errno()) == (-1, errno.EINTR), (done, ctypes.get_errno())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    end.close()
    ended(pid)


def others_behind_the_busy():
    """A connection that is always ready does not keep a program from hearing of a pipe, one event at a time."""
    into, out = os.pipe()
    end, pid = pair(lambda end: end.sendall(b"unread") or end.recv(1))
    with select.epoll() as epoll:
        epoll.register(end, select.EPOLLIN)
        assert epoll.poll(5)
        epoll.register(into, select.EPOLLIN)
        os.write(out, b"x")
        assert into in {epoll.poll(5, 1)[0][0] for _ in range(100)}
    assert end.recv(6) == b"unread"
    end.close()
    ended(pid)


def restarted():
    """A signal whose handler wants it (SA_RESTART) does not end a `recv`; another one does. Before the ends have met, and after."""
    c = ctypes.CDLL(None, use_errno=True)
    into, out = os.pipe()

    def child(end):
        for _ in range(2):
            # On a busy machine, who is to be interrupted may not be in its `recv` yet.
            for _ in range(50):
                time.sleep(0.1)
                os.kill(os.getppid(), signal.SIGUSR1)
                if select.select([into], [], [], 0.1)[0] or restarts:
                    break
            else:
                raise AssertionError("no signal ends it")
            if not restarts:
                os.read(into, 1)
            end.sendall(b"!")
        assert end.recv(1) == b""
    for greets in (False, True):
        for restarts in (True, False):
            signal.signal(signal.SIGUSR1, lambda *_: None)
            signal.siginterrupt(signal.SIGUSR1, not restarts)
            end, pid = pair(child, greets=greets)
            to, got = ctypes.create_string_buffer(4), []
            while len(got) < (2 if restarts else 4):
                count = c.recv(end.fileno(), to, 1, 0)
                one = (count, ctypes.get_errno() if count < 0 else 0)
                if count < 0 and got[-1:] == [one]:
                    continue
                got.append(one)
                if count < 0:
                    os.write(out, b"x")
            assert got == [(1, 0)] * 2 if restarts else [(-1, errno.EINTR), (1, 0)] * 2, (greets, restarts, got)
            end.close()
            ended(pid)


# The first in a process that has no threads yet.
TESTS = (restarted, room_for_a_sleeper, banner, asleep_before_the_other, signal_at_a_look, others_behind_the_busy)


def main():
    wanted = sys.argv[1:]
    for test in TESTS:
        if not wanted or test.__name__ in wanted:
            start = time.monotonic()
            test()
            print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)


main()
