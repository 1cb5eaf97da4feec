"""Wake-ups that must not be lost: threads and processes that sleep for a connection while others use it. The same with the socket
library (LD_PRELOAD) and without.

With names of tests: only those.
"""
import os
import select
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


TESTS = (room_for_a_sleeper,)


def main():
    wanted = sys.argv[1:]
    for test in TESTS:
        if not wanted or test.__name__ in wanted:
            start = time.monotonic()
            test()
            print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)


main()
