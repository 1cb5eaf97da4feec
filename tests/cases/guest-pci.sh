#!/usr/bin/env bash
# The card as a PCI function of a virtual machine: QEMU that speaks vfio-user, a guest with nothing but Linux's sysfs, and a small driver there
# (tests/guest/pci.c). It finds the function, reads the device tree from configuration space, starts queues by registers and sends frames round, which come back whole.
# Its doorbells are stores: messages between QEMU and the card are counted by QEMU. Two functions of one card in two guests; a guest that is killed in the middle, and one
# that resets the function; a card that ends under a guest.
. "$(dirname "$0")/../lib.sh"
guest_qemu=${CARGO_TARGET_DIR:-$root/target}/qemu-vfio-user/qemu
[ -x "$guest_qemu" ] || skip "there is no $guest_qemu (scripts/setup.sh downloads it)"
. "$tests/guest.sh"
needs cc xz python3
guest_machine=q35

# has_function NAME SOCKET: QEMU's options for the function, behind a port of PCI Express as hardware is.
has_function() {
    echo "-device pcie-root-port,id=express,slot=1 -trace vfio_user_recv_hdr -D $scratch/$1-trace.out"
    echo "-device {\"driver\":\"vfio-user-pci\",\"bus\":\"express\",\"socket\":{\"type\":\"unix\",\"path\":\"$2\"}}"
}

# messages NAME: how many QEMU has had from the card.
messages() {
    { cat "$scratch/$1-trace.out" 2>/dev/null || true; } | grep -c vfio_user_recv_hdr || true
}

# prepare NAME: the guest has its huge pages and the tree, and says where the function is.
prepare() {
    guest "$1" 'echo 8 >/proc/sys/vm/nr_hugepages; f=$(pci find); pci tree $f >/tmp/tree.xz && xz -dc /tmp/tree.xz >/tmp/tree && echo $f'
}

cc -O2 -Wall -Werror -static -o "$scratch/pci" "$tests/guest/pci.c"
guest_has=("$scratch/pci")

start_card --queues 2 --vfio-user "$scratch/pci.sock,functions=2" --poll
# shellcheck disable=SC2046
launch_guest one $(has_function one "$scratch/pci.sock.0")
# shellcheck disable=SC2046
launch_guest two $(has_function two "$scratch/pci.sock.1")
await_guest one
await_guest two
for name in one two; do
    guest $name "ln -s $scratch/pci /bin/pci"
    function=$(prepare $name) || fail "no tree: $function"
    echo "guest $name has the function at $function"
done
for count in 2000 20000; do
    before=$(messages one)
    said=$(guest one "pci loopback $function /tmp/tree $count") || fail "guest one: $said"
    took=$(($(messages one) - before))
    echo "$said messages $took"
    [[ $said == "frames $count "*" kicks 0" ]] || fail "doorbells took registers"
    [ "$took" -lt 80 ] || fail "$took messages for $count frames: doorbells are no stores"
done
# A reset in the middle: what runs fails, what comes after works.
guest two "(pci loopback $function /tmp/tree 100000000 >/tmp/log 2>&1; echo \$? >/tmp/code) & sleep 1; echo 1 >/sys/bus/pci/devices/$function/reset; kill %1; true" >/dev/null
said=$(guest two "pci loopback $function /tmp/tree 2000") || fail "guest two after a reset: $said"
echo "after a reset: $said"

# Killed in the middle: the function is free, and the other guest does not notice.
guest one "(pci loopback $function /tmp/tree 100000000 >/dev/null 2>&1 &)"
moves() {
    local before
    before=$(passed)
    await 10 has_passed $((before + 1000)) || fail "guest one sends nothing"
}
# holders DIRECTION QUEUE: who has it.
holders() {
    "$millrace" stats --json | python3 -c 'import json, sys
for queue in json.load(sys.stdin)["queues"]:
    if queue["queue"] == sys.argv[1]: print(queue["holders"])' "$1$2"
}
moves
slay "${guests[one]}"
said=$(guest two "pci loopback $function /tmp/tree 2000") || fail "guest two beside a guest that died: $said"
echo "beside a guest that was killed: $said"
[ "$(holders tx 0)" = "[]" ] || fail "the queue still belongs to the guest that was killed"
# Another machine has it as soon as its firmware looks around.
# shellcheck disable=SC2046
launch_guest next $(has_function next "$scratch/pci.sock.0")
answered() {
    [ "$(messages next)" -gt 50 ]
}
await 60 answered || fail "the next guest does not get the function"
slay "${guests[next]}"
stop_guest two
grep -q "has left the PCI function" "$scratch"/card*.log || fail "the log does not say that the machines have gone"
