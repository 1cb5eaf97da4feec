"""Questions and answers over many connections at once; every answer is checked.

    talk.py serve PORT       asyncio: each question is a length and so many bytes, the answer has them backwards; until SIGTERM
    talk.py ask PORT         asyncio: asks that server
    talk.py memcached PORT   threads: keep values in memcached, and look at them
"""
import asyncio
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor


async def answer(reader, writer):
    while line := await reader.readline():
        question = await reader.readexactly(int(line))
        writer.write(line + question[::-1])
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    server.close()


async def ask_one(port, which):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn in range(50):
        question = os.urandom((turn * 7919 + which) % 200000)
        writer.write(b"%d\n" % len(question) + question)
        await writer.drain()
        assert await reader.readline() == b"%d\n" % len(question)
        assert await reader.readexactly(len(question)) == question[::-1]
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def ask(port):
    await asyncio.gather(*(ask_one(port, which) for which in range(8)))


def remember(port, which):
    with socket.create_connection(("127.0.0.1", port)) as end, end.makefile("rb") as said:
        for turn in range(100):
            value, key = os.urandom(turn * 977 % 30000).hex().encode(), b"%d_%d" % (which, turn)
            end.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
            assert said.readline() == b"STORED\r\n"
            end.sendall(b"get %s\r\n" % key)
            assert said.readline() == b"VALUE %s 0 %d\r\n" % (key, len(value))
            assert said.read(len(value) + 7) == value + b"\r\nEND\r\n"
        end.sendall(b"quit\r\n")
        assert said.read() == b""


def main():
    what, port = sys.argv[1], int(sys.argv[2])
    if what == "memcached":
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda which: remember(port, which), range(8)))
    else:
        asyncio.run({"serve": serve, "ask": ask}[what](port))


main()
