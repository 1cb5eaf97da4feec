"""Signals and children of connections that send: EINTR or going on, SIGIO, posix_spawn. The same with the socket library (LD_PRELOAD) and
without. Every connection here has met before, with the library. One thread only: the library then sleeps where the kernel goes on.
"""
import ctypes
import errno
import fcntl
import os
import signal
import socket
import sys
import time

C = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def pair(child):
    """A connection that has carried bytes both ways; the other end is in a child that does `child(end)`."""
    listener = socket.create_server(("127.0.0.1", 0))
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


def send(end, count):
    """One call; how many bytes, or why none."""
    done = C.send(end.fileno(), bytes(count), count, 0)
    return done if done >= 0 else -ctypes.get_errno()


def handles(restarts):
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(time.monotonic()))
    signal.siginterrupt(signal.SIGUSR1, not restarts)
    return told


def fill(end):
    """Until there is no room, and stays so."""
    while True:
        try:
            end.send(bytes(1 << 16), socket.MSG_DONTWAIT)
        except BlockingIOError:
            time.sleep(0.05)
            try:
                end.send(bytes(1), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return


def sent_in_part():
    """A send that has sent something and is interrupted says how much, whatever the handler wants."""
    def child(end):
        time.sleep(0.2)
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.3)
        while end.recv(1 << 20):
            pass
    for restarts in (False, True):
        told = handles(restarts)
        end, pid = pair(child)
        start, count = time.monotonic(), 64 << 20
        done = send(end, count)
        assert 0 < done < count, (restarts, done)
        assert time.monotonic() - start < 0.45, "it went on"
        del told
        end.close()
        ended(pid)


def nothing_sent():
    """A send that has sent nothing goes on (SA_RESTART), or fails with EINTR; with a time limit it always fails."""
    def child(end):
        time.sleep(0.4)
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.4)
        while end.recv(1 << 20):
            pass
    for restarts, limit in ((False, 0), (True, 0), (True, 20)):
        handles(restarts)
        end, pid = pair(child)
        if limit:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit.to_bytes(8, "little") + bytes(8))
        fill(end)
        done = send(end, 5)
        assert done == (5 if restarts and not limit else -errno.EINTR), (restarts, limit, done)
        end.close()
        ended(pid)


def by_signal():
    """O_ASYNC: SIGIO says that bytes have come, each time. It is asked for when the ends have met, or before."""
    def child(end):
        for _ in range(5):
            time.sleep(0.03)
            end.sendall(b"x" * 1000)
        assert end.recv(1) == b"!"

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    for is_early in (False, True):
        if is_early:
            listener = socket.create_server(("127.0.0.1", 0))
            pid = os.fork()
            if pid == 0:
                end = socket.create_connection(listener.getsockname())
                end.sendall(b"hello")
                assert end.recv(7, socket.MSG_WAITALL) == b"welcome"
                child(end)
                os._exit(0)
            end = listener.accept()[0]
        else:
            end, pid = pair(child)

        end.setblocking(False)
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)

        def take(count, end=end):
            """What is there, and what comes when a signal says so."""
            got = 0
            while True:
                try:
                    while part := len(end.recv(300)):
                        got += part
                except BlockingIOError:
                    pass
                if got >= count:
                    assert got == count, got
                    return
                assert signal.sigtimedwait([signal.SIGIO], 5), f"no signal: {is_early}, {got} of {count}"
        if is_early:
            take(5)
            end.send(b"welcome")
        take(5000)
        end.sendall(b"!")
        end.close()
        ended(pid)


def spawned():
    """A program that posix_spawn has started writes to a connection that it has as its standard output, or under its own number."""
    def child(end):
        data = b""
        while part := end.recv(100):
            data += part
        assert data == b"before, by echo\nby python, behind", data
    end, pid = pair(child)
    end.sendall(b"before, ")
    environment = dict(os.environ)
    actions = [(os.POSIX_SPAWN_DUP2, end.fileno(), 1)]
    ended(os.posix_spawn("/bin/echo", ["echo", "by echo"], environment, file_actions=actions))
    # Nothing of it is left to programs that are started later.
    reading, writing = os.pipe()
    list_files = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    bare = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    ended(os.posix_spawn("/bin/ls", ["ls", "-l", "/proc/self/fd"], bare, file_actions=list_files))
    os.close(writing)
    listed = os.read(reading, 1 << 16)
    assert b"memfd" not in listed, listed
    os.set_inheritable(end.fileno(), True)
    code = f"import os; os.write({end.fileno()}, b'by python, ')"
    ended(os.posix_spawn(sys.executable, [sys.executable, "-c", code], environment))
    end.sendall(b"behind")
    end.close()
    ended(pid)


def main():
    for test in (sent_in_part, nothing_sent, by_signal, spawned):
        if not sys.argv[1:] or test.__name__ in sys.argv[1:]:
            start = time.monotonic()
            test()
            print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)


main()
