#!/usr/bin/env bash
# QEMU with a PCI function of the card, killed at any moment from its first message to a Linux that looks at its devices; two at a time. Nothing of them is left in the card:
# neither descriptors nor mapped memory nor queues; and a program of the host on the same card receives all frames, in order, meanwhile.
# MILLRACE_KILLS=100 kills so many, and not 8.
. "$(dirname "$0")/../lib.sh"
guest_qemu=${CARGO_TARGET_DIR:-$root/target}/qemu-vfio-user/qemu
[ -x "$guest_qemu" ] || skip "there is no $guest_qemu (scripts/setup.sh downloads it)"
. "$tests/guest.sh"
guest_machine=q35
kills=${MILLRACE_KILLS:-8}

start_card --queues 3 --port generator:rate=1000 --vfio-user "$scratch/pci.sock,functions=3"
# launch FUNCTION: a machine that has it.
launch() {
    launch_guest "$1" -device pcie-root-port,id=express,slot=1 \
        -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"express\",\"socket\":{\"type\":\"unix\",\"path\":\"$scratch/pci.sock.$1\"}}"
}
# holdings: descriptors of the card, and how often it has memory of files mapped.
holdings() {
    echo "$(find "/proc/$card/fd" | wc -l) $(grep -c memfd: "/proc/$card/maps")"
}
# left COUNT: so many machines have left.
left() {
    [ "$(grep -c "has left the PCI function" "$scratch"/card*.log)" -ge "$1" ]
}
connected() {
    [ "$(grep -c "has connected to the PCI function" "$scratch"/card*.log)" -ge "$1" ]
}

background bystander "$millrace" read --check --queue 0 --json
bystander=$started
# states: queues that run, or that somebody has.
states() {
    "$millrace" stats --json | python3 -c 'import json, sys
print(*(queue["queue"] for queue in json.load(sys.stdin)["queues"] if queue["state"] != "stopped" or queue["holders"]))'
}
receives() {
    [ "$(states)" = rx0 ]
}
await 10 receives || fail "the program of the host does not receive"
before=$(holdings)
RANDOM=4711
for ((kill = 1; kill <= kills; kill += 2)); do
    launch 1
    launch 2
    # Both have said something, so that there is something to be left behind.
    await 60 connected $((kill + 1)) || fail "the machines do not connect"
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    slay "${guests[1]}"
    slay "${guests[2]}"
    await 30 left $((kill + 1)) || fail "a machine that was killed has not left"
done
is_like_before() {
    [ "$(holdings)" = "$before" ]
}
await 30 is_like_before || fail "descriptors and mappings: $(holdings), and $before before"
is_gone "$bystander" && fail "the program of the host has ended"
[ "$(states)" = rx0 ] || fail "still held: $(states)"
kill -INT "$bystander"
ended "$bystander" 30
frames=$(field frames <"$scratch/bystander.out")
[ "$code" -eq 0 ] && [ "$frames" -gt 1000 ] || fail "the program of the host has had $frames frames, and ended with $code"
echo "$kills machines were killed, beside $frames frames"
