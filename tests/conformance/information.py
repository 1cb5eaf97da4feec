"""Checks of the device itself: its name, the library's version, the device tree, plain access to registers."""
import re

import abi_version

from .catalogue import check
from .lab import Lab, Skipped, equal, expect

TEST_SPACE = ("-c", "cesnet,ofm,mi_test_space")


@check("1", "nfb-info in all its forms")
def information(lab: Lab) -> str:
    plain, more = lab.run("nfb-info"), lab.run("nfb-info", "-v")
    expect("RX queues" in plain.fields and "only" not in plain.out, "not all queues are available")
    equal("nfb-info -v complains", more.err, "")
    info = lab.info()
    rx, tx, interfaces, ports, card, slot = lab.run("nfb-info", "-q", "rx,tx,ethernet,port,card,pci").lines
    firmware = info["firmware"]
    equal("rx", (rx, rx), (str(firmware["rx_queues"]), str(firmware["rx_queues_available"])))
    equal("tx", (tx, tx), (str(firmware["tx_queues"]), str(firmware["tx_queues_available"])))
    equal("interfaces", (interfaces, ports), (str(lab.interfaces), str(info["board"]["network_interfaces"])))
    equal("card", card, firmware["card_name"])
    return f"{card} at {slot}: {rx} RX and {tx} TX queues, {interfaces} interfaces, {ports} ports"


@check("2", "the device's name, given in each way")
def names(lab: Lab) -> str:
    wanted = lab.run("nfb-info").out
    forms = {"-d": lab.device}
    if "libnfb-ext-" in str(lab.library):
        forms["deprecated form"] = f"{lab.library}:{lab.name}"
    for form, name in forms.items():
        said = lab.run("nfb-info", "-d", name, LIBNFB_DEFAULT_DEV=None)
        expect(said.out == wanted, f"another answer with {form} than with LIBNFB_DEFAULT_DEV")
    return f"the same answer with LIBNFB_DEFAULT_DEV, {', '.join(forms)}"


@check("3", "another version of the ABI")
def versions(lab: Lab) -> str:
    def with_version(major: int, minor: int):
        copy = lab.scratch / f"libnfb-ext-{major}-{minor}.so"
        try:
            abi_version.change(lab.library, copy, major, minor)
        except FileNotFoundError as error:
            raise Skipped(f"{error.filename} is not installed") from None
        return lab.attempt("nfb-info", "-d", f"libnfb-ext:{copy}:{lab.name}")

    major, minor = with_version(2, 0), with_version(1, 1)
    expect(major.code != 0 and "major version" in major.err, f"2.0: {major.complaint}")
    expect(minor.code == 0 and "minor version" in minor.err, f"1.1: {minor.complaint}")
    return "2.0 is refused, 1.1 brings a warning"


@check("4", "nfb-bus -l")
def components(lab: Lab) -> str:
    lines = lab.run("nfb-bus", "-l").lines
    malformed = [line for line in lines if not re.match(r"0x[0-9a-f]{8}: .* /firmware/\S+$", line)]
    expect(bool(lines) and not malformed, f"{malformed[:1]}")

    def count(compatible: str) -> int:
        return sum(f" {compatible} " in line for line in lines)

    firmware = lab.info()["firmware"]
    for kind, wanted in (("rxmac", lab.interfaces), ("txmac", lab.interfaces), ("tsu", 1)):
        equal(kind, count(f"netcope,{kind}"), wanted)
    for direction in ("rx", "tx"):
        kinds = [count(f"netcope,dma_ctrl_{kind}_{direction}") for kind in ("ndp", "sze")]
        kinds.append(count(f"cesnet,dma_ctrl_calypte_{direction}"))
        equal(f"{direction} controllers", sum(kinds), firmware[f"{direction}_queues"])
    return f"{len(lines)} nodes, as many MACs and controllers as interfaces and queues"


@check("5", "nfb-bus reads what it wrote")
def scratch_registers(lab: Lab) -> str:
    lab.bus(*TEST_SPACE, "1c", "deadbeef")
    equal("a word", lab.bus(*TEST_SPACE, "1c"), "deadbeef")
    lab.bus(*TEST_SPACE, "-b", "1c", "0102")
    equal("two bytes", lab.bus(*TEST_SPACE, "-b", "-n", "2", "1c"), "0102")
    equal("the word around them", lab.bus(*TEST_SPACE, "1c"), "dead0201")
    equal("all words", len(lab.bus(*TEST_SPACE, "-n", "64", "0").split()), 64)
    return "deadbeef and 0102; 256 bytes at once"


@check("6", "nfb-bus behind the end of a component")
def out_of_range(lab: Lab) -> str:
    said = lab.attempt("nfb-bus", *TEST_SPACE, "100")
    expect("outside the component range" in said.err, said.complaint)
    return said.err.strip()


@check("7", "nfb-bus without a component")
def whole_bus(lab: Lab) -> str:
    said = lab.attempt("nfb-bus", "1c")
    if said.code != 0 and "enable debug mode" in said.err:
        return "the bus has no reg: " + said.err.strip()
    expect(said.code == 0, said.complaint)
    lab.bus(*TEST_SPACE, "1c", "600dcafe")
    # The test space is where the bus begins.
    equal("address 0x1c of the bus", lab.bus("1c"), "600dcafe")
    return "the same registers at their absolute addresses"


@check("20", "LIBNFB_BUS_DEBUG")
def bus_trace(lab: Lab) -> str:
    said = lab.run("nfb-dma", "-v", LIBNFB_BUS_DEBUG="1")
    reads = re.findall(r"^libnfb: MI Read : +(\d+)B -> \[0x([0-9a-f]+)\] \| (.*)\|$", said.err, re.M)
    expect(bool(reads), said.complaint)
    bases = [int(line[2:10], 16) for line in lab.run("nfb-bus", "-l").lines if "dma_ctrl" in line]
    stray = [address for _, address, _ in reads if not any(0 <= int(address, 16) - base < 0x80 for base in bases)]
    expect(not stray, f"reads outside the controllers: {stray[:3]}")
    silent = [base for base in bases if not any(0 <= int(address, 16) - base < 0x80 for _, address, _ in reads)]
    expect(not silent, f"no reads of the controllers at {[hex(base) for base in silent]}")
    return f"{len(reads)} reads, all at absolute addresses of the {len(bases)} controllers"
