"""Checks of cards with several ports: the number of interfaces, and which queues are whose."""
import json

from .catalogue import check
from .lab import Lab, Skipped, equal, own_card, settled
from .programs import testpmd

PORTS, QUEUES = (1, 2, 4), 4


@check("interfaces", "cards with 1, 2 and 4 ports")
def interfaces(lab: Lab) -> str:
    seen = []
    for ports in PORTS:
        with own_card(lab, f"{ports}-ports", ["--port", "loopback"] * ports + ["--queues", str(QUEUES)]) as card:
            seen.append(f"{ports} ports: {one_card(card, ports)}")
    return f"{QUEUES} queues; " + "; ".join(seen)


def one_card(card: Lab, ports: int) -> str:
    firmware, board = card.info()["firmware"], card.info()["board"]
    equal("nfb-info: interfaces and ports", (len(card.macs()), board["network_interfaces"]), (ports, ports))
    equal("nfb-info: queues", (firmware["rx_queues"], firmware["tx_queues"]), (QUEUES, QUEUES))
    equal("nfb-mdio: register files", len(card.run("nfb-mdio", "-l").lines), ports)
    for queue in range(QUEUES):
        owner = queue * ports // QUEUES
        card.fresh()
        card.generate("-s", "64", "-p", "10", queue=queue)
        wanted = [10 if interface == owner else 0 for interface in range(ports)]
        for half in ("txmac", "rxmac"):
            def passed() -> list[int]:
                return [interface[half]["stats"]["pass"] for interface in card.macs()]

            equal(f"{ports} ports, queue {queue}: {half}", settled(passed, wanted), wanted)
    others = [also(card, ports) for also in (in_python, in_dpdk)]
    return f"queues {[queue * ports // QUEUES for queue in range(QUEUES)]}, {', '.join(others)}"


def in_python(card: Lab, ports: int) -> str:
    try:
        shape = json.loads(card.run_python("shape"))
    except Skipped:
        return "Python not asked"
    equal("Python", shape, {"interfaces": ports, "rx": QUEUES, "tx": QUEUES})
    return "Python agrees"


def in_dpdk(card: Lab, ports: int) -> str:
    each = QUEUES // ports
    try:
        said = testpmd(card, card.testpmd, "TESTPMD", "", ["show port info all"],
                       options=(f"--rxq={each}", f"--txq={each}"))
    except Skipped:
        return "DPDK not asked"
    names = [port for port in range(ports) if f"net_vdev_nfb_eth{port}\n" in said.out]
    equal("DPDK: ports", names, list(range(ports)))
    equal("DPDK: queues of each port", said.out.count(f"Max possible RX queues: {each}\n"), ports)
    return "DPDK agrees"
