"""Messages between programs (docs/message.md): endpoints by name, messages in any buffer, doorbells, and memory that is handed over.

    import millrace
    with millrace.Endpoint("solver") as endpoint:
        message = endpoint.receive(bytearray(1 << 20), tag=7)
        if message.wait(60):
            print(len(message), "bytes of process", endpoint.who(message.peer).pid)

and in another program

    import millrace
    with millrace.Endpoint() as endpoint:
        solver = endpoint.connect("solver")
        endpoint.send(solver, b"1" * 100_000, tag=7).wait(5)

A buffer is whatever has its bytes in one piece: bytes, bytearray, array.array, memoryview, mmap, arrays of numpy. No byte of it is copied in Python.
Until its message has ended it belongs to the library, which keeps it alive; a bytearray cannot be resized meanwhile.

Times are in seconds; None is for ever. It is libmillrace.so below (include/millrace.h), found as the dynamic linker finds it, or by MILLRACE_LIBRARY.
"""

import collections
import ctypes
import errno
import os
import threading
import time
import weakref

__all__ = ["ANY", "Block", "Endpoint", "Lost", "Message", "TooLong", "Window"]

#: All bits of a tag count.
ANY = (1 << 64) - 1
_EVENTS = ("joined", "gone", "broken")
_WAYS = {"fastest": 0, "eager": 1, "one-copy": 2, "zero-copy": 3}
_ADOPT = {None: 0, "mappings": 2, "heap": 4}
_SENT, _RECEIVED, _CANCELLED, _TOO_LONG, _FAILED, _LOST, _HELD = range(7)

Who = collections.namedtuple("Who", "name user pid host")


class Lost(ConnectionError):
    """The other endpoint is gone."""


class TooLong(OSError):
    """The message is longer than the room that the receiver has."""


class _End(ctypes.Structure):
    _fields_ = [
        ("request", ctypes.c_uint64), ("peer", ctypes.c_uint64), ("tag", ctypes.c_uint64), ("len", ctypes.c_uint64),
        ("bytes", ctypes.c_void_p), ("outcome", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("given", ctypes.c_void_p),
    ]


class _Other(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 65), ("user", ctypes.c_uint32), ("pid", ctypes.c_uint32),
                ("host", ctypes.c_char * 65)]


class _PyBuffer(ctypes.Structure):
    # Py_buffer of Python's C API.
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int], ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_PyBuffer)], None


class _Memory:
    """The bytes of an object, which stay where they are until release()."""

    def __init__(self, of, writable):
        self._buffer = _PyBuffer()
        # PyBUF_SIMPLE, PyBUF_WRITABLE: it raises BufferError if they do not lie together, or may not be written.
        _get_buffer(of, ctypes.byref(self._buffer), 1 if writable else 0)
        self.address, self.len = self._buffer.buf, self._buffer.len

    def release(self):
        if self._buffer is not None:
            _release_buffer(ctypes.byref(self._buffer))
            self._buffer = None


def _load():
    library = ctypes.CDLL(os.environ.get("MILLRACE_LIBRARY", "libmillrace.so.0"))
    u64, u32, u16, size, address, number = (
        ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint16, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
    out = ctypes.POINTER(ctypes.c_void_p)
    for name, arguments in {
        "open_between": [ctypes.c_char_p, u32, ctypes.POINTER(ctypes.c_char_p), size, ctypes.c_char_p, out], "close": [address],
        "connect": [address, ctypes.c_char_p, u64, number],
        "accept": [address, u64, number], "leave": [address, u64], "who": [address, u64, ctypes.POINTER(_Other)],
        "event": [address, u64, number], "send": [address, u64, u64, address, size, u32, number],
        "receive": [address, u64, u64, u64, address, size, number], "receive_held": [address, u64, u64, u64, address, size, number],
        "wait": [address, u64, u64, ctypes.POINTER(_End)], "cancel": [address, u64],
        "send_short": [address, u64, u64, address, size], "receive_short": [address, u64, u64, u64, address, size],
        "claim": [address, u16, u16, u32], "release": [address, u32], "ring": [address, u64, u16, ctypes.c_int],
        "bell": [address, u64, number], "descriptor": [address], "allocate": [address, u64, size, u64, out, out],
        "give": [address, u64, u64, address], "block_free": [address], "block_number": [address, number], "give_back": [address],
        "window_open": [address, u64, u64, u64, out], "window_close": [address], "nread": [address, size, address, size],
        "nwrite": [address, size, address, size], "nwrite_r": [address, size, address, size], "swrite": [address, size, address, size],
    }.items():
        function = getattr(library, "millrace_message_" + name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.millrace_last_error.restype = ctypes.c_char_p
    return library


_library = _load()


def _call(name, *arguments, maybe=()):
    """Calls a function; those errors are None instead of an exception."""
    code = getattr(_library, "millrace_message_" + name)(*arguments)
    if code >= 0:
        return code
    if -code in maybe:
        return None
    # OSError makes ConnectionRefusedError and its like of the others.
    kind = {errno.ENOTCONN: Lost, errno.EMSGSIZE: TooLong}.get(-code, OSError)
    raise kind(-code, _library.millrace_last_error().decode())


def _nanoseconds(patience):
    return ANY if patience is None else max(0, int(patience * 1e9))


def _patiently(patience, attempt, piece=100_000_000):
    """Tries for a tenth of a second at a time, or so many nanoseconds, so that Ctrl-C is heard, and another thread can close the endpoint. None: not in that
    time."""
    until = None if patience is None else time.monotonic() + patience
    while True:
        left = piece if until is None else max(0, int((until - time.monotonic()) * 1e9))
        found = attempt(min(left, piece))
        if found is not None or (until is not None and left <= piece):
            return found


class _Handle:
    """Something of the library that is destroyed when no thread is in a call of it any more."""

    def __init__(self, raw, destroy):
        self._raw, self._destroy, self._running, self._changes = raw, destroy, 0, threading.Condition()

    def call(self, name, *arguments, maybe=()):
        with self._changes:
            raw = self._raw
            if raw is None:
                raise ValueError("it is closed")
            self._running += 1
        try:
            return _call(name, raw, *arguments, maybe=maybe)
        finally:
            with self._changes:
                self._running -= 1
                self._changes.notify_all()

    def destroy(self):
        """False: it was before."""
        with self._changes:
            raw, self._raw = self._raw, None
            while self._running:
                self._changes.wait()
        if raw is not None:
            _call(self._destroy, raw)
        return raw is not None


class _Shared:
    """Memory that both ends have, as one may see it as long as this is not let go."""

    def __init__(self, address, length):
        # Of a class of its own, which can be asked whether somebody has it still: so has everything that was made of the view.
        region = type("Region", (ctypes.c_char * length,), {}).from_address(address) if length else None
        self._alive = weakref.ref(region) if length else lambda: None
        self.view = memoryview(region).cast("B") if length else memoryview(b"")

    def let_go(self):
        """BufferError: somebody has the view, or a slice or array of it."""
        view, self.view = self.view, None
        del view
        if self._alive() is not None:
            self.view = memoryview(self._alive()).cast("B")
            raise BufferError("somebody still looks at the memory: a slice, or an array")


class Message:
    """A message that is sent or wanted. When it has ended: len() bytes, from peer, with tag."""

    def __init__(self, endpoint, memory, is_send):
        self._endpoint, self._memory, self._is_send = endpoint, memory, is_send
        self._end = self._given = self._shared = None

    def wait(self, patience=None):
        """Waits until it has ended: False if it has not in that time. Raises Lost, TooLong or OSError if it has ended badly."""
        if self._end is None and not self._endpoint._wait(self, patience):
            return False
        if self._end.outcome == _LOST:
            raise Lost(errno.ENOTCONN, "the other endpoint is gone")
        if self._end.outcome == _TOO_LONG:
            raise TooLong(errno.EMSGSIZE, "the message is longer than the room that the receiver has")
        if self._end.outcome == _FAILED:
            raise OSError(errno.EIO, "the bytes of the message could not be copied")
        return True

    def cancel(self):
        """Ends it before its time, if that is possible: False if it is too late. wait() says what came of it."""
        return self._end is None and self._endpoint._handle.call("cancel", self._number, maybe=(errno.ENOENT,)) == 0

    @property
    def is_cancelled(self):
        return self._end is not None and self._end.outcome == _CANCELLED

    @property
    def peer(self):
        return self._end.peer if self._end else None

    @property
    def tag(self):
        return self._end.tag if self._end else None

    def __len__(self):
        return self._end.len if self._end else 0

    @property
    def memory(self):
        """Where it is, of one that was handed over (Endpoint.hold): until give_back()."""
        return self._shared and self._shared.view

    def give_back(self):
        """What was handed over is the sender's again. BufferError: somebody still looks at the memory."""
        if self._shared is not None:
            self._shared.let_go()
            given, self._given, self._shared = self._given, None, None
            _call("give_back", given)

    def __del__(self):
        try:
            self.give_back()
        except (BufferError, AttributeError):
            pass  # Somebody looks at it: it stays as long as the process.

    def _ended(self, end):
        self._end = end
        self._memory.release()
        if end.outcome == _HELD:
            self._given, self._shared = end.given, _Shared(end.bytes, end.len)


class Block:
    """Memory for another end of this host: fill .memory, then give it; or keep it, and tell its number."""

    def __init__(self, handle, address, length):
        self._handle, self._shared = handle, _Shared(address, length)
        number = ctypes.c_uint64()
        _call("block_number", handle, ctypes.byref(number))
        #: By which the other end opens it (Endpoint.window).
        self.number = number.value

    def _take(self):
        self._shared.let_go()
        # One thread gets it.
        handle = self.__dict__.pop("_handle", None)
        if handle is None:
            raise ValueError("the block was given, or freed")
        return handle

    @property
    def memory(self):
        """The memory, to be filled."""
        return self._shared.view

    def free(self):
        """It is not given."""
        _call("block_free", self._take())

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            try:
                self.free()
            except BufferError:
                pass  # Somebody looks at it: it stays as long as the process.


class Window:
    """Memory of another end: NREAD, NWRITE, NWRITE_R and SWRITE."""

    def __init__(self, handle):
        self._handle = _Handle(handle, "window_close")

    def _move(self, name, offset, buffer, writable=False):
        memory = _Memory(buffer, writable)
        try:
            self._handle.call(name, offset, memory.address, memory.len)
        finally:
            memory.release()

    def nwrite(self, offset, buffer):
        """Writes; a doorbell or message that is sent afterwards arrives behind it."""
        self._move("nwrite", offset, buffer)

    def nwrite_r(self, offset, buffer):
        """Writes; when it returns, whoever looks sees it."""
        self._move("nwrite_r", offset, buffer)

    def swrite(self, offset, buffer):
        """Writes multiples of 8 bytes at multiples of 8."""
        self._move("swrite", offset, buffer)

    def nread(self, offset, buffer):
        """Reads as many bytes as the buffer has."""
        self._move("nread", offset, buffer, True)

    def close(self):
        self._handle.destroy()

    def __del__(self):
        self.close()


class Endpoint:
    """An endpoint, found by name, or nameless. Any number of threads may use it. A child of os.fork() must not use that of its parent."""

    def __init__(self, name=None, *, anybody=False, adopt=None, rails=(), host=None):
        """anybody: endpoints of all users may connect. adopt: memory that is sent again becomes shared memory in place, "mappings" or "heap"
        (docs/message.md says what that means). rails: cards ("unix:PATH") and ports by which endpoints of other hosts are reached ("b:solver"), and by
        which they find this one; host: what they call this host."""
        self._handle, self._lock, self._messages, self._has_rails = None, threading.Lock(), {}, bool(rails)
        handle = ctypes.c_void_p()
        flags = (1 if anybody else 0) | _ADOPT[adopt]
        specs = (ctypes.c_char_p * len(rails))(*[rail.encode() for rail in rails])
        own = [None if text is None else text.encode() for text in (name, host)]
        _call("open_between", own[0], flags, specs, len(rails), own[1], ctypes.byref(handle))
        self._handle = _Handle(handle, "close")

    def close(self):
        """Closes it, when other threads have come out of their calls, in which they get a ValueError next. Messages that have not ended are not sent, or
        received, any more."""
        if self._handle is not None and self._handle.destroy():
            for message in self._messages.values():
                message._memory.release()
            self._messages.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def connect(self, name, patience=5.0):
        """Connects to the endpoint of that name; waits for one that is not there yet."""
        peer, why = ctypes.c_uint64(), None

        def attempt(most):
            nonlocal why
            try:
                self._handle.call("connect", name.encode(), most, ctypes.byref(peer))
            except ConnectionRefusedError as error:
                # Nobody is there yet.
                why = error
            except TimeoutError as error:
                # Whoever has been called on this host and does not answer may have let this one in: it is called once. A host may take longer.
                if not self._has_rails:
                    raise
                why = error
            else:
                return peer.value
            return None

        found = _patiently(patience, attempt, 500_000_000)
        if found is None:
            raise why
        return found

    def accept(self, patience=None):
        """Waits for somebody who connects; None if nobody has."""
        found = self._from("accept", patience)
        return found and found[1]

    def _from(self, name, patience):
        """What a call that waits says, and of whom."""
        peer = ctypes.c_uint64()
        code = _patiently(patience, lambda most: self._handle.call(name, most, ctypes.byref(peer), maybe=(errno.ETIMEDOUT,)))
        return None if code is None else (code, peer.value)

    def event(self, patience=None):
        """Waits for what happens to others: ("joined" | "gone" | "broken", peer); None if nothing has."""
        found = self._from("event", patience)
        return found and (_EVENTS[found[0]], found[1])

    def who(self, peer):
        """Who that is: its name, user and process."""
        other = _Other()
        self._handle.call("who", peer, ctypes.byref(other))
        return Who(other.name.decode(), other.user, other.pid, other.host.decode() or None)

    def leave(self, peer):
        """Ends a connection."""
        self._handle.call("leave", peer)

    def send(self, peer, buffer, tag=0, way="fastest"):
        """Sends a message. way: "fastest", "eager", "one-copy" or "zero-copy"."""
        return self._begin("send", _Memory(buffer, False), True, lambda at, len: (peer, tag, at, len, _WAYS[way]))

    def receive(self, buffer, peer=None, tag=0, mask=ANY):
        """Wants a message of as many bytes as the buffer has, or fewer: from that peer, or anybody; with those bits of tag that are in mask."""
        return self._begin("receive", _Memory(buffer, True), False, lambda at, len: (peer or 0, tag, mask, at, len))

    def hold(self, peer=None, tag=0, mask=ANY, buffer=None):
        """Wants a message that is handed over: it stays where it is (Message.memory) until give_back(). Others come into the buffer."""
        memory = _Memory(bytearray() if buffer is None else buffer, True)
        return self._begin("receive_held", memory, False, lambda at, len: (peer or 0, tag, mask, at, len))

    def _begin(self, name, memory, is_send, arguments):
        message, number = Message(self, memory, is_send), ctypes.c_uint64()
        with self._lock:
            # No other thread hears of its end before it is known.
            try:
                self._handle.call(name, *arguments(memory.address, memory.len), ctypes.byref(number))
            except BaseException:
                memory.release()
                raise
            message._number = number.value
            self._messages[number.value] = message
        return message

    def _wait(self, message, patience):
        def attempt(most):
            # Another thread may have been told of it.
            return True if message._end is not None else self._ended(message._number, most)
        return _patiently(patience, attempt) is not None

    def _ended(self, number, nanoseconds):
        """The message that has ended: that one, or any (0)."""
        end = _End()
        code = self._handle.call("wait", number, nanoseconds, ctypes.byref(end), maybe=(errno.ETIMEDOUT,))
        return None if code is None else self._told(end)

    def _told(self, end):
        with self._lock:
            message = self._messages.pop(end.request)
        message._ended(end)
        return message

    def next(self, patience=None):
        """Waits until any message has ended; None if none has. Message.wait() says what came of it."""
        return _patiently(patience, lambda most: self._ended(0, most))

    def send_short(self, peer, buffer, tag=0):
        """Sends a message of up to 1,328 bytes that is not waited for: False if it cannot go at once."""
        memory = _Memory(buffer, False)
        try:
            return self._handle.call("send_short", peer, tag, memory.address, memory.len, maybe=(errno.EAGAIN,)) is not None
        finally:
            memory.release()

    def receive_short(self, peer, buffer, tag=0, mask=ANY):
        """Takes a short message that is there: how many bytes it has, or None."""
        memory = _Memory(buffer, True)
        try:
            return self._handle.call("receive_short", peer, tag, mask, memory.address, memory.len, maybe=(errno.EAGAIN,))
        finally:
            memory.release()

    def claim(self, first, last, owner=0):
        """This program wants these doorbells."""
        self._handle.call("claim", first, last, owner)

    def release(self, owner=0):
        """Nobody wants the doorbells of that owner any more."""
        self._handle.call("release", owner)

    def ring(self, peer, number, once=False):
        """Rings a doorbell, a number of 16 bits: False if as many wait as may, or the same one does already (once)."""
        return self._handle.call("ring", peer, number, once, maybe=(errno.EAGAIN,)) == 0

    def bell(self, patience=None):
        """Waits for a doorbell: (number, peer); None if there was none."""
        return self._from("bell", patience)

    def fileno(self):
        """A descriptor for select, poll and asyncio: readable as long as there is something that was not taken. It is not to be read."""
        return self._handle.call("descriptor")

    def allocate(self, peer, length, patience=None):
        """Memory for a message to another end of this host that is handed over instead of being copied."""
        handle, address = ctypes.c_void_p(), ctypes.c_void_p()

        def attempt(most, maybe=(errno.EAGAIN,)):
            return self._handle.call("allocate", peer, length, most, ctypes.byref(handle), ctypes.byref(address), maybe=maybe)
        if _patiently(patience, attempt) is None:
            attempt(0, ())
        return Block(handle, address.value, length)

    def give(self, peer, block, tag=0):
        """Hands a block over. BufferError: somebody still looks at its memory."""
        self._handle.call("give", peer, tag, block._take())

    def window(self, peer, number, length):
        """Memory of another end: a block that it has allocated for this one, and told the number of."""
        handle = ctypes.c_void_p()
        self._handle.call("window_open", peer, number, length, ctypes.byref(handle))
        return Window(handle)
