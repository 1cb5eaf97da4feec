"""One TCP connection that brings random bytes and takes them back.

python3 transfer.py serve ADDRESS PORT           sends back what one connection brings
python3 transfer.py send ADDRESS PORT BYTES      fails unless as many bytes come back as they were
"""
import os
import socket
import sys
import threading
import time

what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
if what == "serve":
    with socket.create_server((address, port), family=family) as server:
        server.settimeout(20)
        connection, _ = server.accept()
        connection.settimeout(20)
        while data := connection.recv(1 << 16):
            connection.sendall(data)
        connection.close()
else:
    data = os.urandom(int(sys.argv[4]))
    end = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=20)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    back = bytearray()

    def take():
        while part := connection.recv(1 << 16):
            back.extend(part)

    taker = threading.Thread(target=take)
    taker.start()
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    taker.join(20)
    if bytes(back) != data:
        sys.exit(f"{len(back)} of {len(data)} bytes came back, or others")
