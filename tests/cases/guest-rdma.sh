#!/usr/bin/env bash
# RDMA between two virtual machines and this one: each machine has a function of one card, and runs Debian's rping over our libraries by vfio-pci
# (`pci:ADDRESS`); a program of the host has queues of the same card; rules of the card bring to each end what is for it. One machine serves, the other one and
# then the host read and write its memory. Then it is killed, and the others reach each other without it.
. "$(dirname "$0")/../lib.sh"
guest_qemu=${CARGO_TARGET_DIR:-$root/target}/qemu-vfio-user/qemu
[ -x "$guest_qemu" ] || skip "there is no $guest_qemu (scripts/setup.sh downloads it)"
guest_kind=vfio
. "$tests/guest.sh"
. "$tests/verbs.sh"
needs rping stdbuf strip
guest_machine=q35 guest_memory=512M
pings=20

for library in libibverbs.so.1 librdmacm.so.1; do
    strip -o "$scratch/$library" "$verbs_library/$library"
done
# A server says that it listens, at once and not when it ends.
guest_has=("$(command -v rping)" "$scratch/libibverbs.so.1" "$scratch/librdmacm.so.1" "$(command -v stdbuf)" /usr/libexec/coreutils/libstdbuf.so)

# Ends have the addresses 198.18.0.1 and so on, from which their MAC addresses follow.
cat >"$scratch/rules" <<'END'
dl_dst=02:4d:c6:12:00:01,actions=queue:0
dl_dst=02:4d:c6:12:00:02,actions=queue:1
dl_dst=02:4d:c6:12:00:03,actions=queue:2
arp,actions=queue:0,queue:1,queue:2
END
start_card --queues 3 --port loopback --rules "$scratch/rules" --vfio-user "$scratch/pci.sock,functions=3"

# has_function NAME NUMBER: a guest that has that function of the card.
has_function() {
    launch_guest "$1" -device intel-iommu,caching-mode=on,intremap=on -device pcie-root-port,id=express,slot=1 \
        -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"express\",\"socket\":{\"type\":\"unix\",\"path\":\"$scratch/pci.sock.$2\"}}"
}
has_function one 0
has_function two 1
for name in one two; do
    await_guest "$name"
    guest "$name" 'for f in /sys/bus/pci/devices/*; do [ "$(cat $f/vendor)" != 0x18ec ] || basename $f >/tmp/address; done;
        echo vfio-pci >/sys/bus/pci/devices/$(cat /tmp/address)/driver_override; cat /tmp/address >/sys/bus/pci/drivers_probe;
        echo 32 >/proc/sys/vm/nr_hugepages'
done

# at NAME ADDRESS COMMAND...: in the guest, as the end with that address.
at() {
    guest "$1" "LD_LIBRARY_PATH=$scratch MILLRACE_VERBS=\"pci:\$(cat /tmp/address) ip=$2 tx=0 rx=0\" timeout 120 ${*:3}"
}
# serves NAME ADDRESS: rping waits there for somebody to connect.
serves() {
    at "$1" "$2" "stdbuf -oL rping -d -s -a $2 -C $pings -V >/tmp/server 2>&1 &"
    guest "$1" 'for i in $(seq 600); do grep -q rdma_listen /tmp/server && break; sleep 0.1; done; grep -q rdma_listen /tmp/server' ||
        fail "rping does not listen in guest $1: $(guest "$1" 'tail -n 5 /tmp/server')"
}
# served NAME: it has answered all pings, and holds the function no more.
served() {
    guest "$1" "for i in \$(seq 600); do grep -q DISCONNECTED /tmp/server && ! grep -q vfio-msix /proc/interrupts && break; sleep 0.1; done;
        [ \$(grep -c 'server rdma write complete' /tmp/server) -eq $pings ]" ||
        fail "rping in guest $1: $(guest "$1" 'tail -n 5 /tmp/server')"
}
# calls NAME ADDRESS SERVER
calls() {
    at "$1" "$2" "rping -c -a $3 -C $pings -V >/tmp/client 2>&1" || fail "guest $1 does not reach $3: $(guest "$1" 'tail -n 5 /tmp/client')"
}

serves one 198.18.0.1
calls two 198.18.0.2 198.18.0.1
served one
echo "one machine reaches another"

serves one 198.18.0.1
MILLRACE_VERBS="$device ip=198.18.0.3 tx=2 rx=2" ours timeout 120 rping -c -a 198.18.0.1 -C "$pings" -V >"$scratch/client.out" 2>"$scratch/client.log" ||
    fail "the host does not reach guest one: $(tail -n 5 "$scratch"/client.*)"
served one
echo "the host reaches a machine"

kill -9 "${guests[one]}"
background server env MILLRACE_VERBS="$device ip=198.18.0.3 tx=2 rx=2" LD_LIBRARY_PATH="$verbs_library" stdbuf -oL rping -d -s -a 198.18.0.3 -C "$pings" -V
server=$started
await 30 grep -qs rdma_listen "$scratch/server.out" || fail "rping does not listen: $(tail -n 5 "$scratch"/server.*)"
calls two 198.18.0.2 198.18.0.3
ended "$server" 60
[ "$(grep -c "server rdma write complete" "$scratch/server.out")" -eq "$pings" ] || fail "rping of the host: $(tail -n 5 "$scratch"/server.*)"
echo "a machine reaches the host, after the other one was killed"
