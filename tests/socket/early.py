"""Sockets that an epoll knows before they are connected, as nginx has them: every word that the kernel would say is said, and the
connection goes through shared memory all the same. The same with the socket library (LD_PRELOAD) and without.

With names of tests: only those.
"""
import ctypes
import errno
import os
import select
import socket
import sys
import threading
import time

HAS_LIBRARY = "millrace" in os.environ.get("LD_PRELOAD", "")
TOTAL = 3 << 20
C = ctypes.CDLL(None, use_errno=True)


def has_met(end):
    """Whether the connection goes through shared memory: it cannot be handed over then."""
    one, other = socket.socketpair()
    with one, other:
        try:
            socket.send_fds(one, [b"x"], [end.fileno()])
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP, error
            return True
        for number in socket.recv_fds(other, 1, 1)[1]:
            os.close(number)
        return False


def serve(child):
    """A listener, whose connection a child serves."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(listener.accept()[0])
            code = 0
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(code)
    return listener, pid


def ended(pid, code=0):
    assert os.waitpid(pid, 0)[1] == code, "the child failed"


def answers(end):
    """Sends much for a line, twice."""
    for _ in range(2):
        assert end.recv(2, socket.MSG_WAITALL) == b"go"
        end.sendall(b"z" * TOTAL)
    assert end.recv(1) == b""


def socket_of(*epolls, events):
    end = socket.socket()
    end.setblocking(False)
    for epoll in epolls:
        epoll.register(end, events)
    return end


def connect(end, listener):
    assert end.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS)


def until(epoll, end, event, modify=None):
    """Waits until an epoll says that of a socket. One that is not connected yet is said to be over, at once and once."""
    while True:
        said = epoll.poll(10)
        assert said, "nothing is said"
        assert said[0][0] == end.fileno(), said
        if modify is not None:
            epoll.modify(end, modify)
        if said[0][1] & event:
            return said[0][1]


def fetch(end, waits):
    """Asks for much, and receives it when that is said."""
    for _ in range(2):
        assert end.send(b"go") == 2
        got = 0
        while got < TOTAL:
            waits()
            try:
                while got < TOTAL:
                    part = len(end.recv(40960))
                    assert part, "the end"
                    got += part
            except BlockingIOError:
                pass
    assert has_met(end) == HAS_LIBRARY, "it has not met"


def renamed():
    """An epoll whose first number is closed goes on under its copy, and that number may be another epoll's."""
    reads, writes = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT
    for more in (0, select.EPOLLET):
        for watches_first in (True, False):
            listener, pid = serve(answers)
            first = select.epoll()
            end = socket.socket()
            end.setblocking(False)
            if watches_first:
                first.register(end, reads | writes | more)
            number, copy = first.fileno(), select.epoll.fromfd(os.dup(first.fileno()))
            if not watches_first:
                first.register(end, reads | writes | more)
            first.close()
            other, (one, another) = select.epoll(), socket.socketpair()
            assert other.fileno() == number
            other.register(one, select.EPOLLIN)
            connect(end, listener)
            until(copy, end, writes)
            if not more:
                copy.modify(end, reads)
            fetch(end, lambda: until(copy, end, select.EPOLLIN))
            assert other.poll(0) == []
            another.send(b"x")
            assert other.poll(10) == [(one.fileno(), select.EPOLLIN)]
            # Nothing of it is left in either: who has its number next is watched by nobody.
            was = end.fileno()
            end.close()
            next_one, peer = socket.socketpair()
            peer.send(b"x")
            assert was in (next_one.fileno(), peer.fileno()) and copy.poll(0) == []
            for file in (copy, other, one, another, next_one, peer, listener):
                file.close()
            ended(pid)


def modes():
    """Level, edge, once: by poll, through the epoll, and through a copy of it that was made when it was empty."""
    reads, writes = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT
    for more in (0, select.EPOLLET, select.EPOLLONESHOT, select.EPOLLET | select.EPOLLONESHOT):
        for is_copied in (False, True):
            listener, pid = serve(answers)
            epoll = select.epoll()
            asked = select.epoll.fromfd(os.dup(epoll.fileno())) if is_copied else epoll
            once = more & select.EPOLLONESHOT
            both = reads | more if not more & select.EPOLLET else reads | writes | more
            end = socket_of(epoll, events=reads | writes | more)
            connect(end, listener)
            if once:
                epoll.modify(end, reads | writes | more)
            until(asked, end, writes, reads | writes | more if once else None)
            if not more & select.EPOLLET:
                epoll.modify(end, both)
            fetch(end, lambda: until(asked, end, select.EPOLLIN, both if once else None))
            end.close()
            ended(pid)
            epoll.close()
            listener.close()


def several():
    """Two epolls, one of them level and one edge, hear of one socket; and who sleeps in a third since before the socket was in it."""
    listener, pid = serve(answers)
    level, edge, third = select.epoll(), select.epoll(), select.epoll()
    found = []
    sleeper = threading.Thread(target=lambda: found.extend(third.poll(20)))
    sleeper.start()
    time.sleep(0.1)
    end = socket_of(level, events=select.EPOLLIN)
    edge.register(end, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    connect(end, listener)
    until(edge, end, select.EPOLLOUT)
    third.register(end, select.EPOLLIN | select.EPOLLET)

    def both():
        assert until(level, end, select.EPOLLIN)
        assert until(edge, end, select.EPOLLIN)
        # Before all is read: a sleeper on a busy machine would find nothing any more.
        sleeper.join(10)
    fetch(end, both)
    assert not sleeper.is_alive() and found[0][0] == end.fileno(), found
    end.close()
    ended(pid)


def refused_before():
    """A connection that is refused, and another one by the same socket, which stays in its epoll."""
    nobody = socket.create_server(("127.0.0.1", 0))
    address = nobody.getsockname()
    nobody.close()
    listener, pid = serve(answers)
    epoll = select.epoll()
    both = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
    end = socket_of(epoll, events=both)
    assert end.connect_ex(address) in (errno.EINPROGRESS, errno.ECONNREFUSED)
    until(epoll, end, select.EPOLLERR | select.EPOLLHUP)
    end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    # Linux says ECONNABORTED once.
    if end.connect_ex(listener.getsockname()) == errno.ECONNABORTED:
        connect(end, listener)
    until(epoll, end, select.EPOLLOUT)
    while end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or not connected(end):
        time.sleep(0.001)
    fetch(end, lambda: until(epoll, end, select.EPOLLIN))
    end.close()
    ended(pid)


def connected(end):
    try:
        end.getpeername()
        return True
    except OSError:
        return False


def connected_again():
    """A socket that gives up its connection (AF_UNSPEC) and makes another one stays in its epoll."""
    def repeats(times):
        def child(end):
            end.sendall(end.recv(4, socket.MSG_WAITALL) * times)
            try:
                assert end.recv(1) == b""
            except ConnectionResetError:
                pass
        return child
    for events in (select.EPOLLIN, select.EPOLLIN | select.EPOLLET):
        epoll = select.epoll()
        end = socket.socket()
        epoll.register(end, events)
        for times in (1, 2, 3):
            listener, pid = serve(repeats(times))
            end.connect(listener.getsockname())
            end.sendall(b"word")
            until(epoll, end, select.EPOLLIN)
            assert end.recv(4 * times, socket.MSG_WAITALL) == b"word" * times
            assert has_met(end) == HAS_LIBRARY
            assert C.connect(end.fileno(), bytes(16), 16) == 0
            ended(pid)
            listener.close()
        end.close()
        epoll.close()


def listens_later():
    """A socket that is in an epoll before it listens is heard of when somebody connects."""
    epoll = select.epoll()
    listener = socket.socket()
    epoll.register(listener, select.EPOLLIN)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
    until(epoll, listener, select.EPOLLIN)
    listener.accept()[0].close()
    epoll.modify(listener, select.EPOLLIN | select.EPOLLET)
    epoll.unregister(listener)


def copied_before():
    """A socket that has a second number before it is connected is used by both."""
    listener, pid = serve(answers)
    end = socket.socket()
    epoll = select.epoll()
    epoll.register(end, select.EPOLLIN | select.EPOLLET)
    copy = end.dup()
    late = socket.socket(fileno=os.dup(copy.fileno()))
    late.connect(listener.getsockname())
    late.setblocking(False)

    turn = [end, copy, late]

    class Any:
        def send(self, data):
            return copy.send(data)

        def recv(self, count):
            turn.append(turn.pop(0))
            return turn[0].recv(count)

        def fileno(self):
            return late.fileno()
    fetch(Any(), lambda: until(epoll, end, select.EPOLLIN))
    for one in (end, copy, late):
        one.close()
    ended(pid)


def put_in_while_asleep():
    """A thread sleeps in an epoll with nothing in it; a connection that has met, and has bytes, is put in."""
    def child(end):
        assert end.recv(2, socket.MSG_WAITALL) == b"go"
        end.sendall(b"word")
        assert end.recv(1) == b""
    for events in (select.EPOLLIN, select.EPOLLIN | select.EPOLLET):
        listener, pid = serve(child)
        end = socket.create_connection(listener.getsockname())
        end.sendall(b"go")
        assert end.recv(1, socket.MSG_PEEK) == b"w" and has_met(end) == HAS_LIBRARY
        epoll, found = select.epoll(), []
        sleeper = threading.Thread(target=lambda: found.extend(epoll.poll(10)))
        sleeper.start()
        time.sleep(0.1)
        epoll.register(end, events)
        start = time.monotonic()
        sleeper.join(12)
        assert found == [(end.fileno(), select.EPOLLIN)], found
        assert time.monotonic() - start < 5
        assert end.recv(4, socket.MSG_WAITALL) == b"word"
        end.close()
        ended(pid)


def closed_by_a_child():
    """A connection that was taken out of an epoll, and is closed by a child meanwhile, is heard of when it is put in again."""
    def child(end):
        for _ in range(2):
            assert end.recv(2, socket.MSG_WAITALL) == b"go"
            time.sleep(0.3)
            end.sendall(b"word")
        assert end.recv(1) == b""
    listener, pid = serve(child)
    end = socket.create_connection(listener.getsockname())
    epoll = select.epoll()
    epoll.register(end, select.EPOLLIN)
    end.sendall(b"go")
    until(epoll, end, select.EPOLLIN)
    assert end.recv(4, socket.MSG_WAITALL) == b"word" and has_met(end) == HAS_LIBRARY
    epoll.unregister(end)
    other = os.fork()
    if other == 0:
        end.close()
        os._exit(0)
    ended(other)
    epoll.register(end, select.EPOLLIN)
    start = time.monotonic()
    end.sendall(b"go")
    until(epoll, end, select.EPOLLIN)
    assert time.monotonic() - start < 5, "only the end of a sleep has shown it"
    assert end.recv(4, socket.MSG_WAITALL) == b"word"
    end.close()
    ended(pid)


TESTS = (modes, renamed, several, refused_before, connected_again, listens_later, copied_before, put_in_while_asleep, closed_by_a_child)


def main():
    wanted = sys.argv[1:]
    for test in TESTS:
        if not wanted or test.__name__ in wanted:
            start = time.monotonic()
            test()
            print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)


main()
