#!/usr/bin/env bash
# A program of ours in a virtual machine that has the card as a PCI function, by vfio-pci and the emulated IOMMU: device name `pci:ADDRESS`. Frames of a
# capture go into the guest and back out, by the commands that the host has, and come back whole; the guest's program sleeps until an interrupt comes. What a user meets who does not know what vfio-pci wants; two programs at once; a program that is killed.
. "$(dirname "$0")/../lib.sh"
guest_qemu=${CARGO_TARGET_DIR:-$root/target}/qemu-vfio-user/qemu
[ -x "$guest_qemu" ] || skip "there is no $guest_qemu (scripts/setup.sh downloads it)"
guest_kind=vfio
. "$tests/guest.sh"
needs python3 strip
guest_machine=q35 guest_memory=512M
frames=100

# The command is large, and the guest has all of its files in memory.
strip -o "$scratch/millrace" "$millrace"
guest_has=("$scratch/millrace")
python3 - "$scratch/sent.pcap" "$frames" <<'END'
import random
import struct
import sys

random.seed(7)
with open(sys.argv[1], "wb") as out:
    out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    for number in range(int(sys.argv[2])):
        frame = bytes.fromhex("020000000001020000000002" "88b5") + struct.pack("<I", number) + random.randbytes(random.randint(42, 1400))
        out.write(struct.pack("<IIII", number, 0, len(frame), len(frame)) + frame)
END

# Slowly, so that the guest's program sleeps in between.
start_card --queues 1 --port "pcap:$scratch/sent.pcap,write=$scratch/back.pcap,speed=100pps,loop=forever" --vfio-user "$scratch/pci.sock"
# shellcheck disable=SC2046
start_guest one -device intel-iommu,caching-mode=on,intremap=on -device pcie-root-port,id=express,slot=1 \
    -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"express\",\"socket\":{\"type\":\"unix\",\"path\":\"$scratch/pci.sock\"}}"
guest one "ln -s $scratch/millrace /bin/millrace"
address=$(guest one 'for f in /sys/bus/pci/devices/*; do [ "$(cat $f/vendor)" = 0x18ec ] && basename $f; done')
name=pci:$address
echo "the function is $name"

# refused TEXT COMMAND...: in the guest, with that in what it says.
refused() {
    local text=$1 said
    shift
    said=$(guest one "$* 2>&1") && fail "not refused: $*"
    [[ $said == *"$text"* ]] || fail "$*: $said"
}
refused "is no card" "millrace info --device pci:00:00.0"
refused "there is no PCI function" "millrace info --device pci:00:1e.0"
refused "echo $address >/sys/bus/pci/drivers_probe" "millrace info --device $name"
guest one "echo vfio-pci >/sys/bus/pci/devices/$address/driver_override; echo $address >/sys/bus/pci/drivers_probe"
refused "echo 32 >/proc/sys/vm/nr_hugepages" "millrace generate --count 1 --device $name"
guest one "echo 32 >/proc/sys/vm/nr_hugepages"
guest one "millrace info --device $name" >"$scratch/info.out" || fail "the guest does not know what it has"
guest one "millrace tree --device $name" | grep -q "millrace,doorbell" || fail "the guest has no device tree"

# holder QUEUE: who has it.
holder() {
    "$millrace" stats --json | python3 -c 'import json, sys
print(*(queue["holders"] for queue in json.load(sys.stdin)["queues"] if queue["queue"] == sys.argv[1] and queue["state"] == "running"))' "$1"
}
runs() {
    [ -n "$(holder "$1")" ]
}
is_free() {
    [ -z "$(holder "$1")" ]
}
# works COMMAND...: in the guest; what it says is shown when it fails.
works() {
    guest one "timeout 60 $* >/tmp/log 2>&1 || { tail -c 600 /tmp/log; false; }"
}
works "millrace receive /tmp/got.pcap --count $frames --device $name" || fail "not all frames have come"
guest one "grep -q vfio-msix /proc/interrupts" && fail "the program has ended, and its interrupt has not"
works "millrace transmit /tmp/got.pcap --device $name" || fail "the guest cannot send"

# A program has the function to itself, and what is killed leaves nothing behind.
guest one "(millrace receive /tmp/more.pcap --device $name >/tmp/log 2>&1 & echo \$! >/tmp/pid)"
await 30 runs rx0 || fail "the guest does not receive a second time: $(guest one 'cat /tmp/log')"
[ "$(holder rx0)" = "[${guests[one]}]" ] || fail "rx0 is shown as that of $(holder rx0), and not of the machine, which is ${guests[one]}"
refused "another program has the PCI function" "millrace info --device $name"
guest one 'until grep -q vfio-msix /proc/interrupts; do sleep 0.1; done; kill -9 $(cat /tmp/pid)'
await 30 is_free rx0 || fail "the queue of the killed program still runs"
works "millrace transmit /tmp/got.pcap --device $name" || fail "the guest cannot send after a program was killed"
said=$(guest one "millrace stats --device $name --json")
python3 -c 'import json, sys
queues = json.loads(sys.argv[1])["queues"]
assert [queue["queue"] for queue in queues] == ["rx0", "tx0"], queues' "$said"
stop_guest one
kill "$card"
await 10 is_gone "$card" || fail "the card does not end"
python3 - "$tests" "$scratch/sent.pcap" "$scratch/back.pcap" <<'END' || fail "other frames came back than were sent"
import sys
sys.path.insert(0, sys.argv[1])
import frames
# Those that nobody was there for, or that came while the machine stood still, are lost as on a wire: what has come is in order, and both times the same.
sent, back = frames.read(sys.argv[2]), frames.read(sys.argv[3])
half = len(back) // 2
numbers = [sent.index(frame) for frame in back[:half]]
steps = sum((after - before) % len(sent) or len(sent) for before, after in zip(numbers, numbers[1:]))
print(f"{half} frames, {steps + 1 - half} lost in between")
sys.exit(half != len(sent) or back[:half] != back[half:] or steps > 20 * half)
END
interrupts=$(grep -o "[0-9]* interrupts" "$scratch"/card*.log | head -n 1)
[ "${interrupts% *}" -gt 2 ] || fail "$interrupts for $frames frames that came one by one"
echo "$frames frames went into the guest and back, with $interrupts"
