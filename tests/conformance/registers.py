"""Checks of what a program sees and sets through registers: MACs, PCS/PMA, time-stamp unit, DMA controllers."""
import re
import time

import frames

from .catalogue import check
from .lab import Lab, equal, expect, listed, settled

# Bytes of the FCS: MACs count it, frames here have none.
FCS = 4
# Sizes without FCS, and the counter of etherStats that counts each of them (docs/spec/nfb-card.md section 2.4).
BINS = {
    60: "etherStatsPkts64Octets",
    100: "etherStatsPkts65to127Octets",
    200: "etherStatsPkts128to255Octets",
    400: "etherStatsPkts256to511Octets",
    800: "etherStatsPkts512to1023Octets",
    1200: "etherStatsPkts1024to1518Octets",
    1600: "etherStatsPkts1519to2047Octets",
}
DESTINATION, OTHER, BROADCAST, MULTICAST = (
    bytes.fromhex(text) for text in ("001122334455", "001122334466", "ffffffffffff", "01005e000001"))


@check("8", "nfb-eth -e1, -e0, -P")
def enable(lab: Lab) -> str:
    def states() -> list[str]:
        said = lab.run("nfb-eth")
        equal("nfb-eth complains", said.err, "")
        return re.findall(r"^[RT]XMAC status +: (\w+)", said.out, re.M)

    lab.run("nfb-eth", "-e1")
    equal("after -e1", states(), ["ENABLED"] * 2 * lab.interfaces)
    equal("link", re.findall(r"^Link status +: (\w+)", lab.run("nfb-eth").out, re.M), ["UP"] * lab.interfaces)
    layers = lab.run("nfb-eth", "-P")
    equal("nfb-eth -P complains", layers.err, "")
    speeds = set(re.findall(r"^Speed +: (.*)", layers.out, re.M))
    expect(bool(speeds) and all(re.fullmatch(r"\d+ Gb/s", speed) for speed in speeds), f"speed {speeds}")
    lab.run("nfb-eth", "-e0")
    equal("after -e0", states(), ["DISABLED"] * 2 * lab.interfaces)
    lab.run("nfb-eth", "-e1")
    return f"ENABLED, DISABLED, link UP, {' and '.join(sorted(speeds))}"


@check("9", "MAC counters and settings")
def mac(lab: Lab) -> str:
    lab.fresh()
    for interface in lab.macs():
        for half in ("rxmac", "txmac"):
            used = {name: value for name, value in interface[half]["stats"].items() if value}
            equal(f"{half} after nfb-eth -R", used, {})
    count = count_frames(lab)
    settings(lab)
    return f"zero, then {count} frames in every counter and bin that they belong to; settings read back"


def count_frames(lab: Lab) -> int:
    each = 10
    for size in BINS:
        lab.generate("-s", str(size), "-p", str(each))
    count, octets = each * len(BINS), each * sum(size + FCS for size in BINS)
    for half in ("txmac", "rxmac"):
        equal(f"{half} passed", settled(lambda: lab.mac_sum(half, "pass"), count), count)
        for interface in lab.macs():
            stats = interface[half]["stats"]
            equal(f"{half}: total against passed + dropped", stats["total"], stats["pass"] + stats["drop"])
        for counter in ("total_octets", "pass_octets"):
            equal(f"{half} {counter}", lab.mac_sum(half, counter), octets)
    parts = lab.run("nfb-eth", "-S").out.split("Ethernet interface")[1:]
    tables = [listed(part[part.index("etherStatsTable"):]) for part in parts]
    totals = {name: sum(int(table[name]) for table in tables) for name in tables[0] if name.startswith("etherStats")}
    equal("etherStatsPkts", totals["etherStatsPkts"], count)
    equal("etherStatsOctets", totals["etherStatsOctets"], octets)
    for name in BINS.values():
        equal(name, totals[name], each)
    answers = lab.asked("nfb-eth", "rx_link", "rx_received", "tx_transmitted", "pma_speed")
    equal("rx_link", {answer[0] for answer in answers}, {"UP"})
    equal("rx_received", sum(int(answer[1]) for answer in answers), count)
    equal("tx_transmitted", sum(int(answer[2]) for answer in answers), count)
    return count


def settings(lab: Lab) -> None:
    before = configuration(lab)
    commands = [["-L", "9000"], ["-l", "60"], ["-m", "31"], ["-M", "add", text(DESTINATION)], ["-M", "multicast"]]
    for command in commands:
        # Without -r these complain that TX MACs have none of this.
        equal(f"nfb-eth -r {command} complains", lab.run("nfb-eth", "-r", *command).err, "")
    changed = configuration(lab)
    for name, wanted in (("longest", "9000"), ("shortest", "60"), ("mask", "0x1F")):
        equal(name, changed[name], wanted)
    expect("multicast" in changed["mode"].lower(), f"mode {changed['mode']}")
    expect(text(DESTINATION) in changed["table"], f"the table: {changed['table']}")
    lab.run("nfb-eth", "-r", "-M", "remove", text(DESTINATION))
    lab.run("nfb-eth", "-r", "-M", "promiscuous")
    restore(lab, before)
    equal("all as before", configuration(lab), before)


def configuration(lab: Lab) -> dict[str, str]:
    """Settings of the first RX MAC."""
    out = lab.run("nfb-eth", "-i", "0", "-v").out
    shortest, longest = re.findall(r"\* length +: (\d+)", out)[:2]
    mode = re.search(r"\* mode +: (.*)", out)[1]
    table = lab.run("nfb-eth", "-i", "0", "-r", "-M", "show").out.lower()
    return {"shortest": shortest, "longest": longest, "mode": mode, "mask": listed(out)["Error mask register"],
            "table": table}


def restore(lab: Lab, before: dict[str, str]) -> None:
    for option, name in (("-L", "longest"), ("-l", "shortest")):
        lab.run("nfb-eth", "-r", option, before[name])
    lab.run("nfb-eth", "-r", "-m", str(int(before["mask"], 16)))


def text(address: bytes) -> str:
    return address.hex(":")


@check("filters", "what an RX MAC lets pass")
def filters(lab: Lab) -> str:
    lab.fresh()
    before = configuration(lab)
    capture = lab.scratch / "addresses.pcap"
    rest = bytes.fromhex("020000000001 0800") + bytes(range(86))
    frames.write(capture, [address + rest for address in (DESTINATION, OTHER, BROADCAST, MULTICAST)])
    seen = []
    try:
        lab.run("nfb-eth", "-r", "-m", "31")
        lab.run("nfb-eth", "-r", "-M", "add", text(DESTINATION))
        for mode, passed in (("promiscuous", 4), ("normal", 1), ("broadcast", 2), ("multicast", 3)):
            lab.run("nfb-eth", "-r", "-M", mode)
            seen.append(f"{mode} {send(lab, capture, passed, 4 - passed, 'drop_filtered')}")
        lab.run("nfb-eth", "-r", "-M", "promiscuous")
        # Lengths with FCS: the frames have 104 bytes.
        for option, value, passed in (("-L", "103", 0), ("-L", "104", 4), ("-l", "105", 0), ("-l", "104", 4)):
            lab.run("nfb-eth", "-r", option, value)
            seen.append(f"{option} {value} {send(lab, capture, passed, 4 - passed, 'drop_err_length')}")
            restore(lab, before)
            lab.run("nfb-eth", "-r", "-m", "31")
    finally:
        lab.run("nfb-eth", "-r", "-M", "promiscuous")
        lab.run("nfb-eth", "-r", "-M", "remove", text(DESTINATION))
        restore(lab, before)
    return "passed of 4: " + ", ".join(seen)


def send(lab: Lab, capture, passed: int, dropped: int, reason: str) -> int:
    """Sends four frames; how many of them the RX MACs passed."""
    lab.run("nfb-eth", "-R")
    lab.run("ndp-transmit", "-i", str(lab.queue), "-f", str(capture), "-p", "4")
    equal("frames at the RX MACs", settled(lambda: lab.mac_sum("rxmac", "total"), 4), 4)
    got = lab.mac_sum("rxmac", "pass")
    equal(f"passed, {reason}", (got, lab.mac_sum("rxmac", reason)), (passed, dropped))
    return got


@check("9b", "PMA local loopback")
def pma_loopback(lab: Lab) -> str:
    lab.run("nfb-eth", "-Pc", "+PMA local loopback")
    on = lab.mdio("1.0")
    lab.run("nfb-eth", "-Pc", "-PMA local loopback")
    off = lab.mdio("1.0")
    expect(on & 1 == 1 and off & 1 == 0, f"register 1.0 is {on:04x} with it and {off:04x} without")
    return f"register 1.0 is {on:04x}, then {off:04x}"


@check("10", "nfb-mdio")
def mdio(lab: Lab) -> str:
    said = lab.run("nfb-mdio", "1.0").out.strip()
    expect(bool(re.fullmatch("[0-9a-f]{4}", said)), f"1.0 reads '{said}'")
    before = int(said, 16)
    lab.run("nfb-mdio", "1.0", f"{before ^ 1:x}")
    changed = lab.mdio("1.0")
    lab.run("nfb-mdio", "1.0", f"{before:x}")
    equal("1.0 after it was written", f"{changed:04x}", f"{before ^ 1:04x}")
    equal("1.0 after it was written back", f"{lab.mdio('1.0'):04x}", said)
    equal("register files", len(lab.run("nfb-mdio", "-l").lines), lab.interfaces)
    return f"1.0 is {said}, and {changed:04x} once that was written"


@check("11", "nfb-tsu")
def time_stamps(lab: Lab) -> str:
    with lab.start("nfb-tsu", "-D") as unit:
        time.sleep(6)
        running = lab.bus("-c", "netcope,tsu", "14")
        said = unit.interrupt().end()
    expect(said.code == 0 and "Terminating" in said.err, said.complaint)
    offsets = [float(offset) for offset in re.findall(r"TSU-SYS off.*?: *([-+0-9.]+) us", said.out)]
    expect(len(offsets) >= 2, f"{len(offsets)} comparisons; {said.complaint}")
    expect(abs(offsets[-1]) < 1000, f"off by {offsets[-1]} us in the end: {offsets}")
    expect("TSU inc" in said.out, "no increments printed")
    equal("enabled while it runs, and afterwards", (running, lab.bus("-c", "netcope,tsu", "14")),
          ("00000001", "00000000"))
    return f"off by {', '.join(f'{offset:g}' for offset in offsets)} us; disabled in the end"


@check("12", "nfb-dma in all its forms")
def dma(lab: Lab) -> str:
    lab.fresh()
    count = sum(lab.info()["firmware"][f"{direction}_queues"] for direction in ("rx", "tx"))
    kinds = re.findall(r"[RT]X \d+ (\w+) controller", lab.run("nfb-dma").out)
    equal("controllers", len(kinds), count)
    expect(set(kinds) <= {"NDP", "SZE", "CALYPTE"}, f"kinds {set(kinds)}")
    expect("mask" in lab.run("nfb-dma", "-v").out and "base" in lab.run("nfb-dma", "-vv").out, "no masks or no bases")
    for option in ("-T", "-TT"):
        sums = [listed(part) for part in re.split(r"[RT]X SUM", lab.run("nfb-dma", option).out)[-2:]]
        equal(f"{option} after -R", (sums[0]["Received"], sums[1]["Sent"]), ("0", "0"))
    lab.generate("-s", "64", "-p", "10")
    answer = lab.run("nfb-dma", "-i", str(lab.queue), "-q", "rx_received,tx_sent").lines
    equal("-q rx_received,tx_sent", answer, ["0", "10"])
    equal("-j", lab.queue_sum("txq"), 10)
    read = sum(int(sent) for sent in re.findall(r"^Sent +: (\d+)", lab.run("nfb-dma", "-RR").out, re.M))
    equal("-RR", read, 10)
    equal("after -RR", (lab.queue_sum("txq"), lab.queue_sum("rxq", "drop")), (0, 0))
    return f"{count} controllers ({', '.join(sorted(set(kinds)))}); 10 sent, read by -q, -j and -RR, then 0"
