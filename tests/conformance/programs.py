"""Checks with other clients of libnfb: CESNET's Python binding and DPDK's driver."""
import os
import re
import time
from pathlib import Path

from .catalogue import check
from .lab import Failed, Lab, Said, Skipped, expect, shorten

# DPDK without huge pages and PCI devices, on two cores.
DPDK = ["-l", "0-1", "--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--iova-mode=va"]
LISTENING = "testpmd> "


@check("21", "Python: nfb.open and everything behind it")
def python(lab: Lab) -> str:
    lab.fresh()
    return lab.run_python("exchange", lab.queue)


def testpmd(lab: Lab, program: str | None, variable: str, arguments: str, commands: list[str],
            options: tuple[str, ...] = ()) -> Said:
    """Types commands into testpmd; a number is a pause in seconds."""
    if not program:
        raise Skipped(f"{variable} names no dpdk-testpmd")
    with lab.start(program, *DPDK, "--file-prefix", f"conformance{os.getpid()}",
                   f"--vdev=net_vdev_nfb,dev={lab.device}{arguments}", "--", "-i", "--total-num-mbufs=8192",
                   *options) as tester:
        time.sleep(3)
        try:
            for command in [*commands, "quit"]:
                if re.fullmatch(r"[\d.]+", command):
                    time.sleep(float(command))
                else:
                    tester.say(command)
                    time.sleep(0.3)
        except BrokenPipeError:
            pass
        said = tester.end()
    said.command = f"{Path(program).name} {arguments}"
    return said


def figure(said: Said, what: str, port: int = 0) -> int:
    """Of `show port stats`."""
    found = re.findall(rf"NIC statistics for port {port} .*?{what}: *(\d+)", said.out, re.S)
    if not found:
        raise Failed(f"no {what} of port {port}: {said.complaint}")
    return int(found[0])


def forwarded(said: Said) -> list[int]:
    """Packets that testpmd itself received, for each run."""
    return [int(count) for count in re.findall(r"Accumulated forward.*?RX-packets: *(\d+)", said.out, re.S)]


@check("22", "DPDK: start, stop, statistics, link, filter, MTU")
def dpdk(lab: Lab) -> str:
    lab.fresh()
    # Only `set link-up` enables MACs that are disabled.
    lab.run("nfb-eth", "-e0")
    ports = lab.interfaces
    queues = min(lab.info()["firmware"][f"{direction}_queues"] for direction in ("rx", "tx")) // ports
    try:
        said = testpmd(lab, lab.testpmd, "TESTPMD", "", [
            "show port info 0", *(f"set link-up port {port}" for port in range(ports)), "show port info 0",
            "set fwd io", "start tx_first 4", "2", "stop", "show port stats all",
            "port stop all", "port start all", "show port info 0",
            *(f"set promisc {port} off" for port in range(ports)), "show port info 0", "start tx_first 2", "1", "stop",
            *(f"set promisc {port} on" for port in range(ports)),
            "port stop 0", "port config mtu 0 2000", "port start 0", "show port info 0", "start tx_first 2", "1",
            "stop",
        ], options=(f"--rxq={queues}", f"--txq={queues}"))
    finally:
        lab.run("nfb-eth", "-e1")
        lab.run("nfb-eth", "-r", "-M", "promiscuous")
        lab.run("nfb-eth", "-r", "-L", "16387")
    expect(said.code == 0, said.complaint)
    for wanted in ("net_vdev_nfb_eth0", "Link status: down", "Link status: up", "Promiscuous mode: disabled",
                   "MTU: 2000"):
        expect(wanted in said.out, f"no '{wanted}': {said.complaint}")
    speed = re.search(r"Link speed: (.*)", said.out)[1]
    expect(speed != "None", "no link speed")
    runs = forwarded(said)
    # What testpmd sends is for somebody else: without promiscuous mode nothing of it comes back.
    expect(len(runs) == 3 and runs[0] and not runs[1] and runs[2], f"received, with the filter, with a new MTU: {runs}")
    rx, tx = figure(said, "RX-packets"), figure(said, "TX-packets")
    expect(rx == tx > 0, f"the MAC of port 0 received {rx} and sent {tx}")
    return (f"{ports} ports with {queues} queues, {speed}; {runs[0]} packets received; port 0 rx = tx = {rx}; "
            f"promiscuous mode, MTU and stops work")


@check("23", "DPDK: the driver that moves packets itself")
def native(lab: Lab) -> str:
    # It gives the card addresses of its own memory, so the card has to be in its process: no other tool sees that one.
    # A second `=` in the argument of a virtual device is lost to DPDK.
    card = lab.with_card("embedded:queues:2")
    said = testpmd(card, lab.native, "TESTPMD_NATIVE", ",queue_driver=native", [
        "set link-up port 0", "set fwd io", "start tx_first 4", "2", "stop", "show port stats all", "port stop all"])
    expect(said.code == 0, said.complaint)
    expect("Using Native driver" in said.out + said.err, f"not the native driver: {said.complaint}")
    trouble = re.findall(r"NDP (?:RxQ|TxQ|queue).*|.*(?:didn't stop|dirty state).*", said.out + said.err)
    expect(not trouble, f"{trouble[:2]}")
    rx, tx = figure(said, "RX-packets"), figure(said, "TX-packets")
    # This driver counts by itself. What was sent first goes around until testpmd stops receiving: 4 bursts of 32.
    expect(rx > 128 and tx == rx + 128, f"{tx} sent, {rx} received")
    return f"{shorten(card.device)}: {tx} packets sent, {rx} received, {tx - rx} on their way at the end"


@check("24", "DPDK without a native driver")
def no_native(lab: Lab) -> str:
    said = testpmd(lab, lab.testpmd, "TESTPMD", ",queue_driver=native", [])
    refusal = re.search(r".*Failed to parse device arguments.*", said.out + said.err)
    expect(bool(refusal), f"it was not refused: {said.complaint}")
    return refusal[0].strip()
