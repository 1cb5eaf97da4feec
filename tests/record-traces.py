#!/usr/bin/env python3
"""Records what CESNET's programs read and write on the bus of a card, as crates/nfb/tests/traces/README.md describes.

  record-traces.py FOLDER [NAME...]

Every recording is made on a fresh card. PYTHON and TESTPMD as for nfb-conformance.py; what is not there is left out.
"""
import os
import re
import sys
import tempfile
from bisect import bisect_right
from pathlib import Path

from conformance.lab import Lab, Skipped, own_card
from conformance.programs import testpmd

ROOT = Path(__file__).resolve().parent.parent
MAC = "00:11:22:33:44:55"

# Programs by the name of their trace. A list of commands is one trace: later ones see what earlier ones left.
RECORDINGS = {
    "nfb-bus": ["nfb-bus -c cesnet,ofm,mi_test_space 1c deadbeef", "nfb-bus -c cesnet,ofm,mi_test_space 1c",
                "nfb-bus -c cesnet,ofm,mi_test_space -b 1c 0102", "nfb-bus -c cesnet,ofm,mi_test_space -b -n 2 1c",
                "nfb-bus -c cesnet,ofm,mi_test_space -n 64 0", "nfb-bus 1c"],
    "nfb-eth": ["nfb-eth"],
    "nfb-eth-v": ["nfb-eth -v"],
    "nfb-eth-j": ["nfb-eth -j"],
    "nfb-eth-q": ["nfb-eth -q rx_status,rx_link,rx_received,tx_status,tx_transmitted,pma_type,pma_speed"],
    "nfb-eth-e": ["nfb-eth -e0", "nfb-eth", "nfb-eth -e1", "nfb-eth"],
    "nfb-eth-R": ["nfb-eth -R", "nfb-eth"],
    "nfb-eth-S": ["nfb-eth -S"],
    "nfb-eth-P": ["nfb-eth -P"],
    "nfb-eth-Pv": ["nfb-eth -Pv"],
    "nfb-eth-Pc-loopback": ["nfb-eth -Pc '+PMA local loopback'", "nfb-mdio 1.0", "nfb-eth -Pc '-PMA local loopback'",
                            "nfb-mdio 1.0"],
    "nfb-eth-Pc-features": ["nfb-eth -Pc '+25G RS-FEC Enable'", "nfb-mdio 1.200", "nfb-eth -Pc '+Low power'",
                            "nfb-mdio 1.0", "nfb-eth -Pc '-Low power'", "nfb-mdio 1.0"],
    "nfb-eth-T": ["nfb-eth -T"],
    "nfb-eth-lengths": ["nfb-eth -r -L 9000", "nfb-eth -r -l 60", "nfb-eth -r -v"],
    "nfb-eth-m": ["nfb-eth -r -m 31", "nfb-eth -r -v"],
    "nfb-eth-M-table": [f"nfb-eth -r -M add {MAC}", "nfb-eth -r -M show", f"nfb-eth -r -M add 02{MAC[2:]}",
                        "nfb-eth -r -M show", f"nfb-eth -r -M remove {MAC}", "nfb-eth -r -M show",
                        "nfb-eth -r -M clear", "nfb-eth -r -M show"],
    "nfb-eth-M-modes": [f"nfb-eth -r -M {mode}" for mode in ("normal", "broadcast", "multicast", "promiscuous")]
                       + ["nfb-eth -r -v"],
    "nfb-dma": ["nfb-dma"],
    "nfb-dma-v": ["nfb-dma -v"],
    "nfb-dma-vv": ["nfb-dma -vv"],
    "nfb-dma-j": ["nfb-dma -j"],
    "nfb-dma-q": ["nfb-dma -q rx_received,rx_discarded,tx_sent"],
    "nfb-dma-R": ["nfb-dma -R", "nfb-dma"],
    "nfb-dma-RR": ["nfb-dma -RR"],
    "nfb-dma-T": ["nfb-dma -T"],
    "nfb-mdio": ["nfb-mdio 1.0", "nfb-mdio 1.0 2041", "nfb-mdio 1.0", "nfb-mdio 3.1", "nfb-mdio 1.7"],
    "nfb-tsu-D": ["timeout -s INT 3 nfb-tsu -D"],
    "sze-nfb-dma": ["nfb-dma -vv", "nfb-dma -R", "nfb-dma -T"],
    "calypte-nfb-dma": ["nfb-dma -vv", "nfb-dma -R", "nfb-dma -RR", "nfb-dma -T"],
}
ENGINES = ("sze", "calypte")


def words(command: str) -> list[str]:
    return [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|(\S+)", command)]


def run_commands(card: Lab, commands: list[str]) -> list[tuple[str, str]]:
    """Each command with what libnfb said."""
    return [(command, card.attempt(*words(command), LIBNFB_BUS_DEBUG="1").err) for command in commands]


def run_python(card: Lab) -> list[tuple[str, str]]:
    program = "import nfb; card = nfb.open(); eth = card.eth[0]; print(eth.pmd.is_present() and eth.pmd.vendor_name)"
    return [("python: nfb.open(), vendor of the transceiver",
             card.run(card.python, "-c", program, LIBNFB_BUS_DEBUG="1").err)]


def run_dpdk(card: Lab) -> list[tuple[str, str]]:
    os.environ["LIBNFB_BUS_DEBUG"] = "1"
    try:
        commands = ["set link-up port 0", "port stop 0", "port start 0", "show port stats 0", "set promisc 0 off",
                    "set allmulti 0 on", "set link-down port 0"]
        said = testpmd(card, card.testpmd, "TESTPMD", "", commands)
    finally:
        del os.environ["LIBNFB_BUS_DEBUG"]
    return [(f"testpmd: start, {', '.join(commands)}, quit", said.err)]


class Trace:
    """Accesses in our format, with the bytes left out that nobody can expect."""

    def __init__(self, components: list[tuple[int, str]]):
        self.components = sorted(components)
        self.lines: list[str] = []
        self.where = ""
        self.written: set[int] = set()
        self.command = b""

    def add_command(self, command: str, err: str) -> None:
        self.lines.append(f"# {command}")
        self.where = ""
        for kind, address, data in accesses(err):
            if command.startswith("nfb-bus"):
                # It begins with a write of length 0 behind the last byte, which libnfb does not print (trap T10).
                self.add("Write", address + len(data), b"")
            self.add(kind, address, data)

    def add(self, kind: str, address: int, data: bytes) -> None:
        base, name = self.components[bisect_right(self.components, (address, "~")) - 1]
        if name != self.where:
            self.where = name
            self.lines.append(f"# {name}")
        block, offset = re.sub(r"\d+$", "", name), address - base
        if kind == "Write":
            self.written.update(range(address, address + len(data)))
            if (block, offset) == ("tsu", 0x0C):
                self.command = data
            self.lines.append(f"W {address:08x}: {data.hex(' ')}".rstrip())
        else:
            shown = [".." if self.is_open(block, offset + i, address + i) else f"{byte:02x}"
                     for i, byte in enumerate(data)]
            self.lines.append(f"R {address:08x} {len(data)}: {' '.join(shown)}")

    def is_open(self, block: str, offset: int, address: int) -> bool:
        if block == "tsu" and offset < 0x0C:
            # What was latched last (section 2.8): the increment, which stays, or the time, which passes. Of its seconds
            # the upper half stays what it was set to.
            return self.command[:1] in (b"\5", b"\7") and offset < 0x0A
        fresh = address not in self.written
        # Error mask and longest frame of a fresh MAC, timeout of a fresh controller: the card's choice.
        choices = {"rxmac": [*range(0x24, 0x28), *range(0x34, 0x38)], "dma_ctrl_ndp": range(0x20, 0x24),
                   "dma_ctrl_calypte": range(0x20, 0x24), "dma_ctrl_sze": range(0x18, 0x1C)}
        return fresh and offset in choices.get(block.removesuffix("_rx").removesuffix("_tx"), [])


def accesses(err: str) -> list[tuple[str, int, bytes]]:
    """What LIBNFB_BUS_DEBUG printed; long accesses go over several lines."""
    found: list[tuple[str, int, bytearray, int]] = []
    for line in err.splitlines():
        if match := re.match(r".*libnfb: MI (Read|Write) ?: +(\d+)B -> \[0x([0-9a-f]+)\] \|(.*)", line):
            kind, length, address, rest = match.groups()
            found.append((kind, int(address, 16), bytearray(), int(length)))
        elif found and len(found[-1][2]) < found[-1][3] and (match := re.match(r"libnfb: {20,}(.*)", line)):
            rest = match[1]
        else:
            continue
        found[-1][2].extend(bytes.fromhex(rest.replace("|", "")))
    for kind, address, data, length in found:
        assert len(data) == length, f"{kind} of {length} bytes at {address:#x}: {len(data)} printed"
    return [(kind, address, bytes(data)) for kind, address, data, _ in found]


def record(card: Lab, run) -> str:
    listed = [re.match(r"0x([0-9a-f]+): .*/(\S+)$", line) for line in card.run("nfb-bus", "-l").lines]
    trace = Trace([(int(match[1], 16), match[2]) for match in listed if match[2] != "mi_bus0"])
    for command, err in run(card):
        trace.add_command(command, err)
    return "\n".join(trace.lines) + "\n"


def main() -> None:
    folder, only = Path(sys.argv[1]), sys.argv[2:]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    millrace = os.environ.get("MILLRACE", str(target / "millrace"))
    runs = {name: lambda card, commands=commands: run_commands(card, commands)
            for name, commands in RECORDINGS.items()}
    runs |= {"python-open": run_python, "dpdk": run_dpdk}
    with tempfile.TemporaryDirectory(prefix="record-traces.") as scratch:
        lab = Lab(Path(millrace).with_name("libnfb-ext-millrace.so").resolve(), "", Path(scratch), millrace,
                  os.environ.get("PYTHON", "python3"), os.environ.get("TESTPMD"), None)
        for name, run in runs.items():
            if only and name not in only:
                continue
            engine = name.split("-")[0] if name.startswith(ENGINES) else "medusa"
            try:
                with own_card(lab, name, ["--queues", "2", "--engine", engine]) as card:
                    (folder / f"{name}.trace").write_text(record(card, run))
            except Skipped as reason:
                print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
