"""Explains every packet of every capture, whatever its link: as many answers as there are packets, and where the EtherType
decides, the one that it decides."""
import json
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

RULES = """
# By EtherType: drop, forward, process; the rest goes to the slow path.
miss=punt
group=1,rss,queues=0-3,symmetric
table=0,priority=40,arp,actions=drop
table=0,priority=30,ipv6,actions=output:1
table=0,priority=20,ip,actions=goto_table:1
table=1,priority=10,udp,udp_dst=4789,actions=decap_vxlan,goto_table:2
table=1,priority=0,actions=rss:1
table=2,tcp,actions=push_pppoe:5,goto_table:3
table=2,priority=0,actions=queue:7
table=3,pppoe,actions=pop_pppoe,encap_vxlan(vni=9,src=192.0.2.1,dst=192.0.2.2),goto_table:4
table=4,udp,udp_dst=4789,actions=decap_vxlan,goto_table:5
table=5,actions=queue:6
"""
CLASSES = {0x0806: "drop", 0x86DD: "forward"}


def packets(data: bytes) -> list[tuple[int, bytes]]:
    """Link type and bytes of each packet."""
    if data[:4] == b"\n\r\r\n":
        return blocks(data)
    order = "<" if data[0] in (0xD4, 0x4D) else ">"
    link = struct.unpack_from(order + "I", data, 20)[0] & 0x03FFFFFF
    found, at = [], 24
    while at + 16 <= len(data):
        length = struct.unpack_from(order + "I", data, at + 8)[0]
        if at + 16 + length > len(data):
            break
        found.append((link, data[at + 16:at + 16 + length]))
        at += 16 + length
    return found


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    found, links, at = [], [], 0
    order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    while at + 12 <= len(data):
        kind, length = struct.unpack_from(order + "II", data, at)
        if kind == 1:
            links.append(struct.unpack_from(order + "H", data, at + 8)[0])
        if kind == 6:
            interface, _, _, captured = struct.unpack_from(order + "IIII", data, at + 8)
            found.append((links[interface], data[at + 28:at + 28 + captured]))
        at += length
    return found


def ether_type(frame: bytes) -> int:
    """The EtherType behind at most two VLAN tags."""
    at = 12
    for _ in range(2):
        if frame[at:at + 2] in (b"\x81\x00", b"\x88\xa8"):
            at += 4
    return int.from_bytes(frame[at:at + 2], "big") if len(frame) >= at + 2 else 0


def explain(millrace: str, path: Path, rules: Path) -> Counter:
    command = [millrace, "explain", path, "--rules", rules, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    answers = [row for row in rows if row["kind"] == "packet"]
    [summary] = [row for row in rows if row["kind"] == "summary"]
    there = packets(path.read_bytes())
    if run.returncode != 0 or len(answers) != len(there):
        sys.exit(f"{path.name}: {len(answers)} answers to {len(there)} packets, code {run.returncode}: {run.stderr}")
    for (link, frame), answer in zip(there, answers):
        if answer["link"] not in (link, 0) or (answer["skipped"] is None) == (answer.get("class") is None):
            sys.exit(f"{path.name}: packet {answer['packet']}: {answer}")
        wanted = CLASSES.get(ether_type(frame)) if link == 1 and answer["skipped"] is None else None
        if answer["skipped"] is None and (answer["class"] == "drop") != (answer["sent"] == []) and not answer["stopped"]:
            sys.exit(f"{path.name}: packet {answer['packet']}: {answer}")
        if wanted and answer["class"] != wanted:
            sys.exit(f"{path.name}: packet {answer['packet']} is {answer['class']} and not {wanted}: {answer}")
    fates = ("drop", "forward", "process", "skipped")
    if sum(summary[fate] for fate in fates) != summary["packets"] or summary["packets"] != len(there):
        sys.exit(f"{path.name}: {summary}")
    return Counter({fate: summary[fate] for fate in (*fates, "malformed", "stopped")})


def main() -> None:
    millrace, captures, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    rules = scratch / "rules.txt"
    rules.write_text(RULES)
    files = sorted(captures.iterdir())
    total = sum((explain(millrace, path, rules) for path in files), Counter())
    print(f"{len(files)} captures: {dict(total)}")
    if not all(total[fate] for fate in ("drop", "forward", "process", "skipped")):
        sys.exit("a fate that no packet had")


main()
