#!/usr/bin/env python3
"""A program of CESNET's Python binding, run under the interpreter that has it.

  python_client.py exchange DEVICE QUEUE           sends, receives and compares, asks for statistics
  python_client.py cycles DEVICE QUEUE COUNT       opens and closes without leaving anything behind
  python_client.py shape DEVICE                    how many interfaces and queues it sees, as JSON
"""
import gc
import json
import os
import random
import sys

import nfb


def exchange(device: str, queue: str) -> None:
    card = nfb.open(device)
    interfaces, tx, rx = list(card.eth), card.ndp.tx[int(queue)], card.ndp.rx[int(queue)]
    card.eth.enable()
    card.eth.reset_stats()
    assert all(card.eth.is_link()), "a link is down"
    tx.start(), rx.start()
    rx.recv(timeout=0.05)
    tx.reset_stats(), rx.reset_stats()
    packets = [random.randbytes(random.randint(60, 1514)) for _ in range(500)]
    # Sending waits without end for room: no more at once than the smallest rings hold.
    for at in range(0, len(packets), 25):
        tx.send(packets[at:at + 25])
        got = rx.recv(len(packets[at:at + 25]), timeout=5)
        assert got == packets[at:at + 25], f"after {at} packets {len(got)} came back, or others"
    tx.send(packets[0])
    data, header, flags = rx.recvmsg(1, timeout=5)[0][:3]
    assert data == packets[0], "another packet"
    count = len(packets) + 1
    for name, counted in (("tx", tx.read_stats()), ("rx", rx.read_stats())):
        assert counted["passed"] == count, f"{name}: {counted}"
    for half in ("rxmac", "txmac"):
        passed = sum(getattr(interface, half).read_stats()["passed"] for interface in interfaces)
        assert passed == count, f"{half}: {passed}"
    loopback(interfaces[0])
    tx.stop(), rx.stop()
    print(f"{count} packets are the same, with {len(header)} bytes of header and flags {flags}; counters agree; "
          f"transceivers {[transceiver(interface) for interface in interfaces]}")


def loopback(interface) -> None:
    before = interface.pma_local_loopback
    interface.pma_local_loopback = True
    assert interface.pma_local_loopback, "PMA loopback does not stay"
    interface.pma_local_loopback = before


def transceiver(interface) -> str:
    if not interface.pmd or not interface.pmd.is_present():
        return "not plugged"
    return " ".join(str(word).strip() for word in (interface.pmd.vendor_name, interface.pmd.vendor_pn))


def state() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum(1 for _ in open("/proc/self/maps")),
        "KiB": int(status["VmRSS"].split()[0]),
    }


def cycles(device: str, queue: str, count: str) -> None:
    settle, before = min(20, int(count) // 2), {}
    for turn in range(int(count)):
        card = nfb.open(device)
        if turn % 2 == 0:
            tx, rx = card.ndp.tx[int(queue)], card.ndp.rx[int(queue)]
            tx.start(), rx.start()
            tx.send([bytes(64)] * 4)
            rx.recv(timeout=0)
            # Closed while they run.
            del tx, rx
        del card
        gc.collect()
        if turn == settle:
            before = state()
    after = state()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["threads"] == 0 and grown["descriptors"] == 0, f"{before} grew by {grown}"
    assert grown["mappings"] < 8 and grown["KiB"] < 8192, f"{before} grew by {grown}"
    print(f"opened {count} times; {after['threads']} threads and {after['descriptors']} descriptors as before")


def shape(device: str) -> None:
    card = nfb.open(device)
    print(json.dumps({"interfaces": len(list(card.eth)), "rx": len(card.ndp.rx), "tx": len(card.ndp.tx)}))


if __name__ == "__main__":
    {"exchange": exchange, "cycles": cycles, "shape": shape}[sys.argv[1]](*sys.argv[2:])
