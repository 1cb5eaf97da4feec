"""Two processes that exchange messages by python/millrace.py: `message.py serve NAME`, `message.py drive NAME`."""
import array
import os
import select
import signal
import sys
import threading
import time

import millrace

ECHO, BACK, GIVE, WINDOW, DIE = 1, 2, 3, 4, 5
LONG = 30


def serve(name):
    with millrace.Endpoint(name) as endpoint:
        endpoint.claim(10, 19)
        room = bytearray(1 << 20)
        while True:
            message = endpoint.receive(room, mask=0)
            assert message.wait(LONG)
            sent = memoryview(room)[: len(message)]
            if message.tag == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            elif message.tag == GIVE:
                block = endpoint.allocate(message.peer, len(message), LONG)
                block.memory[:] = sent
                endpoint.give(message.peer, block, BACK)
            elif message.tag == WINDOW:
                window = endpoint.window(message.peer, int.from_bytes(sent, "little"), 4096)
                found = bytearray(5)
                window.nread(4091, found)
                window.nwrite(1, found)
                window.swrite(8, b"12345678")
                window.nwrite_r(16, b"r")
                window.close()
                assert endpoint.ring(message.peer, 7)
            else:
                answer = endpoint.send(message.peer, sent, BACK)
                assert answer.wait(LONG)
            sent.release()


def refused(kind, what):
    try:
        what()
    except kind:
        return
    raise AssertionError(f"{kind} is not raised")


def echo(endpoint, peer, buffer):
    room = bytearray(1 << 20)
    back = endpoint.receive(room, peer, BACK)
    refused(BufferError, lambda: room.append(1))
    sent = endpoint.send(peer, buffer, ECHO)
    assert sent.wait(LONG) and back.wait(LONG)
    assert (back.peer, back.tag, len(back)) == (peer, BACK, memoryview(buffer).nbytes)
    assert room[: len(back)] == bytes(memoryview(buffer).cast("B"))
    room.append(1)


def drive(name):
    refused(OSError, lambda: millrace.Endpoint("no name"))
    endpoint = millrace.Endpoint(adopt="heap")
    refused(ConnectionRefusedError, lambda: endpoint.connect("nobody-has-this-name", 0))
    # Ctrl-C ends a call of somebody who is not there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    began = time.monotonic()
    refused(KeyboardInterrupt, lambda: endpoint.connect("nobody-has-this-name", LONG))
    assert time.monotonic() - began < LONG / 2
    peer = endpoint.connect(name, LONG)
    assert endpoint.who(peer).name == name and endpoint.who(peer).user == os.geteuid()
    for buffer in [b"", b"bytes", bytearray(100_000), array.array("d", range(9999)), memoryview(b"0123456789")[3:7]]:
        echo(endpoint, peer, buffer)
    refused(BufferError, lambda: endpoint.send(peer, memoryview(b"0123")[::2], ECHO))
    refused(BufferError, lambda: endpoint.receive(b"constant", peer))
    refused(millrace.Lost, lambda: endpoint.send(peer + 1, b"x"))
    # Closed while another thread waits in it.
    other, raised = millrace.Endpoint(), []

    def waits():
        try:
            other.accept()
        except ValueError:
            raised.append(True)
    thread = threading.Thread(target=waits)
    thread.start()
    time.sleep(0.05)
    other.close()
    thread.join()
    assert raised == [True]
    print("buffers of all kinds")
    try:
        import numpy
        matrix = numpy.arange(600_000, dtype=numpy.int8).reshape(600, 1000)
        for _ in range(4):
            echo(endpoint, peer, matrix)
        refused((BufferError, ValueError), lambda: endpoint.send(peer, matrix[:, ::2], ECHO))
        room = numpy.zeros_like(matrix)
        back = endpoint.receive(room, peer, BACK)
        endpoint.send(peer, matrix, ECHO)
        assert back.wait(LONG) and (room == matrix).all()
        print("arrays of numpy")
    except ImportError:
        print("no numpy")

    # What nobody keeps is kept by the endpoint until it has ended.
    messages = [endpoint.receive(bytearray(1000), peer, BACK) for _ in range(50)]
    for _ in range(50):
        endpoint.send(peer, bytearray(b"x" * 1000), ECHO)
    assert all(message.wait(LONG) for message in messages)
    while endpoint.next(0) is not None:
        pass
    assert not endpoint._messages
    print("messages that nobody keeps")

    assert select.select([endpoint], [], [], 0)[0] == []
    assert endpoint.send_short(peer, b"short", ECHO)
    assert select.select([endpoint], [], [], 0.05)[0] == []
    room = bytearray(8)
    begin = time.monotonic()
    while (length := endpoint.receive_short(peer, room, BACK)) is None:
        assert time.monotonic() - begin < LONG
    assert room[:length] == b"short"
    endpoint.claim(7, 7)
    assert endpoint.bell(0) is None
    refused(OSError, lambda: endpoint.ring(peer, 9))
    print("short messages")

    for turn in range(20):
        wanted = endpoint.hold(peer, BACK)
        block = endpoint.allocate(peer, 700_000, LONG)
        block.memory[:] = bytes([turn]) * 700_000
        look = block.memory[5:6]
        refused(BufferError, lambda: endpoint.give(peer, block, GIVE))
        look.release()
        endpoint.give(peer, block, GIVE)
        refused(ValueError, lambda: endpoint.give(peer, block, GIVE))
        assert wanted.wait(LONG) and len(wanted) == 700_000 and wanted.memory[699_999] == turn
        wanted.give_back()
    block = endpoint.allocate(peer, 4096, LONG)
    block.memory[:] = bytes(4091) + b"12345"
    assert endpoint.send_short(peer, block.number.to_bytes(8, "little"), WINDOW)
    assert endpoint.bell(LONG) == (7, peer)
    assert bytes(block.memory[:17]) == b"\0" b"12345\0\0" b"12345678" b"r"
    block.free()
    print("memory that is handed over")

    # A thread that waits lets others run.
    wanted, done = endpoint.receive(bytearray(8), peer, BACK), []
    waits = threading.Thread(target=lambda: done.append(wanted.wait(LONG)))
    waits.start()
    endpoint.send(peer, b"thread", ECHO).wait(LONG)
    waits.join()
    assert done == [True] and len(wanted) == 6
    wanted = endpoint.receive(bytearray(8), peer, 99)
    assert not wanted.wait(0) and wanted.cancel() and wanted.wait(LONG) and wanted.is_cancelled
    wanted = endpoint.receive(bytearray(4), peer, BACK)
    endpoint.send(peer, b"12345", ECHO)
    refused(millrace.TooLong, lambda: wanted.wait(LONG))
    wanted = endpoint.receive(bytearray(8), peer, BACK)
    endpoint.send(peer, b"", DIE)
    refused(millrace.Lost, lambda: wanted.wait(LONG))
    assert endpoint.event(LONG) == ("gone", peer)
    endpoint.close()
    refused(ValueError, lambda: endpoint.accept(0))
    print("ends")


{"serve": serve, "drive": drive}[sys.argv[1]](sys.argv[2])
