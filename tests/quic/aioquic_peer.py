"""Servers and clients of aioquic for tests/cases/quic-stacks.sh; go/main.go and quic_quinn.rs do the same with theirs.

    aioquic_peer.py server ADDRESS:PORT NUMBER         answers on every stream which server it is
    aioquic_peer.py client ADDRESS:PORT COUNT FIRST    COUNT connections from 10.1.0.0 + FIRST on; each asks, and has another port
                                                       before it asks again, twice; prints what came of it as JSON
"""

import asyncio
import collections
import datetime
import json
import ssl
import sys

from aioquic.asyncio.client import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived

PROTOCOL = "mr"
# Connections that are opened, or ask, at one time.
AT_ONCE = 20


def certificate():
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server.test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
    return builder.sign(key, hashes.SHA256()), key


class Answering(QuicConnectionProtocol):
    number = 0

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, str(self.number).encode(), end_stream=True)
            self.transmit()


class Asking(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.answers = {}

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.stream_id in self.answers:
            text, done = self.answers[event.stream_id]
            text.append(event.data)
            if event.end_stream and not done.done():
                done.set_result(b"".join(text).decode())

    async def ask(self):
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        self.answers[stream] = ([], done)
        self._quic.send_stream_data(stream, b"who?", end_stream=True)
        self.transmit()
        return await asyncio.wait_for(done, 40)


class Client:
    def __init__(self, number):
        self.own = f"10.1.{number >> 8}.{number & 255}"
        self.server = None
        self.transport = None

    async def move(self):
        """Another port, of which the connection is not told, as behind a NAT."""
        old = self.transport
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self.protocol, local_addr=(self.own, 0))
        if old is not None:
            old.close()

    async def open(self, to):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=[PROTOCOL], verify_mode=ssl.CERT_NONE)
        configuration.idle_timeout = 120
        configuration.server_name = "server.test"
        self.protocol = Asking(QuicConnection(configuration=configuration))
        await self.move()
        self.protocol.connect(to)
        await asyncio.wait_for(self.protocol.wait_connected(), 40)
        self.server = await self.protocol.ask()

    async def move_and_ask(self):
        await self.move()
        server = await self.protocol.ask()
        if server != self.server:
            raise RuntimeError(f"server {server} answers instead of {self.server}")


async def run_server(address, number):
    Answering.number = number
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[PROTOCOL])
    configuration.idle_timeout = 120
    configuration.certificate, configuration.private_key = certificate()
    await serve(*address, configuration=configuration, create_protocol=Answering)
    await asyncio.Event().wait()


async def run_clients(address, count, first):
    clients = [Client(first + at) for at in range(count)]
    failed = collections.Counter()

    async def each(what, do):
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(client):
            async with slots:
                try:
                    await do(client)
                except Exception as error:  # Whatever ends a connection is counted.
                    failed[f"{what}: {type(error).__name__} {error}"] += 1

        await asyncio.gather(*(one(client) for client in clients if what == "open" or client.server is not None))

    await each("open", lambda client: client.open(address))
    await each("first move", Client.move_and_ask)
    await each("second move", Client.move_and_ask)
    servers = collections.Counter(client.server for client in clients)
    print(json.dumps({"connections": count, "failed": failed, "servers": servers}))


def main():
    role, address, number = sys.argv[1], sys.argv[2].split(":"), int(sys.argv[3])
    address = (address[0], int(address[1]))
    if role == "server":
        asyncio.run(run_server(address, number))
    else:
        asyncio.run(run_clients(address, number, int(sys.argv[4])))


main()
