"""The same commands of ovs-ofctl to two switches, and what each answers: openflow_beside.py OURS OTHERS, targets such as tcp:127.0.0.1:6653.

Answers are compared without what is chance: durations, counters, numbers of messages. What is known to differ has words that must be in both
answers, so that a difference that goes is noticed, too.
"""

import os
import re
import subprocess
import sys
import tempfile

OURS, THEIRS = sys.argv[1:3]
FLOWS = "table=1,priority=3,tcp,tcp_dst=80,actions=output:1\ntable=1,priority=2,udp,actions=drop\n"
MIXED = "group add group_id=77,type=all,bucket=output:1\nflow add table=8,priority=1,actions=group:77\n"
TORN = "group add group_id=78,type=all,bucket=output:1\nflow add table=8,priority=2,actions=group:79\n"
WRONG = "table=2,priority=1,actions=drop\ntable=2,priority=2,actions=group:77\n"

# Command and arguments behind the target; files by @name.
SAME = [
    # Entries: added, over one another, modified and deleted, strictly and loosely.
    ("add-flow", "cookie=0x11,priority=5,in_port=1,actions=output:2"),
    ("add-flow", "cookie=0x12,priority=5,in_port=2,actions=output:1"),
    ("add-flow", "cookie=0x13,priority=6,ip,nw_dst=192.0.2.0/24,actions=dec_ttl,output:2"),
    ("add-flow", "priority=6,ip,nw_dst=192.0.2.0/24,actions=output:1"),
    ("add-flow", "priority=7,tcp,tcp_dst=80,actions=set_field:192.0.2.9->ip_dst,output:2"),
    ("add-flow", "priority=7,ipv6,ipv6_dst=2001:db8::/32,actions=set_field:2001:db8::9->ipv6_src,output:2"),
    ("add-flow", "priority=8,arp,arp_tpa=192.0.2.1,actions=CONTROLLER:65535"),
    ("add-flow", "priority=8,dl_vlan=5,actions=pop_vlan,output:2"),
    ("add-flow", "priority=9,in_port=2,actions=push_vlan:0x8100,set_field:4101->vlan_vid,output:1"),
    ("add-flow", "priority=9,in_port=1,actions=write_metadata:0x5/0xff,goto_table:3"),
    ("add-flow", "table=3,metadata=0x5/0xff,actions=IN_PORT"),
    ("add-flow", "table=4,idle_timeout=300,hard_timeout=900,send_flow_rem,priority=1,icmp,actions=drop"),
    ("add-flow", "table=4,priority=0,actions=ALL"),
    ("add-flow", "check_overlap,priority=5,ip,actions=drop"),
    ("add-flow", "check_overlap,priority=50,ip,actions=drop"),
    ("dump-flows",),
    ("dump-flows", "table=4"),
    ("dump-flows", "tcp"),
    ("dump-flows", "out_port=1"),
    ("dump-flows", "cookie=0x11/-1"),
    ("dump-aggregate",),
    ("dump-aggregate", "ip"),
    ("mod-flows", "tcp,actions=drop"),
    ("--strict", "mod-flows", "priority=5,in_port=1,actions=IN_PORT"),
    ("--strict", "mod-flows", "priority=55,in_port=1,actions=IN_PORT"),
    ("mod-flows", "cookie=0x12/-1,actions=output:2"),
    ("dump-flows",),
    ("--strict", "del-flows", "priority=7,tcp,tcp_dst=80"),
    ("--strict", "del-flows", "priority=1,tcp,tcp_dst=80"),
    ("del-flows", "table=4"),
    ("del-flows", "out_port=2"),
    ("dump-flows",),
    # Bundles, whole or not at all.
    ("--bundle", "add-flows", "@flows"),
    ("--bundle", "add-flows", "@wrong"),
    ("dump-flows", "table=1"),
    ("dump-flows", "table=2"),
    ("--bundle", "replace-flows", "@flows"),
    ("diff-flows", "@flows"),
    ("dump-flows",),
    ("bundle", "@mixed"),
    ("bundle", "@torn"),
    ("dump-flows", "table=8"),
    ("dump-groups",),
    # Groups and meters.
    ("add-group", "group_id=1,type=all,bucket=output:1,bucket=output:2"),
    ("add-group", "group_id=1,type=all,bucket=output:1"),
    ("add-group", "group_id=2,type=indirect,bucket=output:1"),
    ("add-group", "group_id=3,type=ff,bucket=watch_port:1,output:1,bucket=watch_port:2,output:2"),
    ("add-group", "group_id=4,type=select,bucket=weight:3,output:1,bucket=weight:1,output:2"),
    ("mod-group", "group_id=9,type=all,bucket=output:1"),
    ("mod-group", "group_id=2,type=indirect,bucket=output:2"),
    ("add-flow", "priority=3,icmp,actions=group:1"),
    ("add-flow", "priority=3,udp,actions=group:2"),
    ("add-flow", "priority=2,udp,actions=group:4"),
    ("dump-groups",),
    ("dump-groups", "2"),
    ("add-meter", "meter=1,pktps,burst,band=type=drop,rate=1000,burst_size=100"),
    ("add-meter", "meter=1,kbps,band=type=drop,rate=10000"),
    ("mod-meter", "meter=1,kbps,burst,band=type=drop,rate=10000,burst_size=1000"),
    ("mod-meter", "meter=7,kbps,band=type=drop,rate=10000"),
    ("add-flow", "priority=3,sctp,actions=meter:1,output:1"),
    ("dump-meters",),
    ("dump-flows",),
    ("del-groups", "group_id=1"),
    ("del-meters",),
    ("del-groups",),
    ("dump-flows",),
    ("dump-groups",),
    ("dump-meters",),
    # What cannot be.
    ("add-flow", "actions=group:9"),
    ("add-flow", "table=9,actions=goto_table:10"),
    ("add-group", "group_id=5,type=indirect,bucket=output:1,bucket=output:2"),
    ("packet-out", f"in_port=controller packet={'ff' * 6}02000000000188b5{'00' * 46} actions=output:2"),
    ("packet-out", f"in_port=1 packet={'ff' * 6}02000000000188b5{'00' * 46} actions=TABLE"),
    ("mod-port", "2", "no-forward"),
    ("mod-port", "2", "forward"),
    ("mod-port", "99", "down"),
    ("get-frags",),
    ("probe",),
    ("ping",),
    ("del-flows",),
    ("dump-flows",),
]
# Known to differ, and why: words of our answer, of the other's.
OTHERWISE = [
    (("add-flow", "actions=output:77"), "OFPBAC_BAD_OUT_PORT", ""),  # Open vSwitch takes a port that may come later.
    (("add-flow", "actions=NORMAL"), "OFPBAC_BAD_OUT_PORT", ""),
    # It is for packets of controllers only (section 7.2.1).
    (("add-flow", "actions=TABLE"), "OFPBAC_BAD_OUT_PORT", ""),
    (("add-flow", "mpls,actions=pop_mpls:0x800"), "OFPBAC_BAD_TYPE", ""),
    (("add-flow", "actions=resubmit(,2)"), "OFPBAC_BAD_VENDOR", ""),  # Its word for the experimenter.
    (("add-flow", "table=100,actions=drop"), "OFPFMFC_BAD_TABLE_ID", ""),  # 64 tables, and 254.
    # The number could be a meter's, and none has it.
    (("add-flow", "priority=3,sctp,actions=meter:7,output:1"), "OFPMMFC_UNKNOWN_METER", "OFPMMFC_INVALID_METER"),
    # A flow may have another Ethernet address for each next hop there.
    (("add-group", "group_id=6,type=select,bucket=dec_ttl,output:1,bucket=output:2"), "OFPGMFC_BAD_BUCKET", ""),
    # Its switching in user space does not mark packets.
    (("add-meter", "meter=5,kbps,band=type=dscp_remark,rate=10000,prec_level=1"), "", "OFPMMFC_BAD_BAND"),
]

CHANCE = re.compile(
    r"(,? ?(duration|idle_age|n_packets|n_bytes|packet_count|byte_count|packets|bytes)=[0-9.]+s?|\(xid=0x[0-9a-f]+\)|tcp:127\.0\.0\.1:[0-9]+"
    r"|^[0-9T:.Z-]+\|[0-9]+\|[a-z_]+\|WARN\||xid=[0-9a-f]+|[0-9.]+ ms)"
)


def ask(target, words, folder):
    words = [os.path.join(folder, word[1:]) if word.startswith("@") else word for word in words]
    at = next(at for at, word in enumerate(words) if not word.startswith("--")) + 1
    line = ["ovs-ofctl", "-O", "OpenFlow13", "--timeout=20", *words[:at], target, *words[at:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout + done.stderr


def shown(answer):
    code, text = answer
    lines = [CHANCE.sub("", line).strip(" ,") for line in text.splitlines()]
    # Of an error the name counts: the message that it quotes has another number. Dumps have no order among equals.
    errors = sorted(set(re.findall(r"OFP[A-Z]{1,3}C_[A-Z_]+", text)))
    if errors:
        return code != 0, errors
    return code, sorted(line for line in lines if line)


def main():
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("flows", FLOWS), ("wrong", WRONG), ("mixed", MIXED), ("torn", TORN)):
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
        for words in SAME:
            ours, theirs = (shown(ask(target, words, folder)) for target in (OURS, THEIRS))
            if ours != theirs:
                wrong += 1
                print(f"{' '.join(words)}\n  ours:   {ours}\n  theirs: {theirs}")
        for words, ours, theirs in OTHERWISE:
            (our_code, our_text), (their_code, their_text) = (ask(target, words, folder) for target in (OURS, THEIRS))
            if ours not in our_text or theirs not in their_text or (theirs == "" and their_code != 0):
                wrong += 1
                print(f"{' '.join(words)}\n  ours:   {our_code} {our_text}\n  theirs: {their_code} {their_text}")
    print(f"{len(SAME) + len(OTHERWISE)} commands, {wrong} with other answers than are known")
    sys.exit(wrong > 0)


main()
