#!/usr/bin/env bash
# What is on either side of a vhost-user socket dies and comes back: the card, while the guest runs on, whoever of the two
# listens; and the guest, while the card runs on.
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/network.sh"
needs ping
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"

# start_wire ROLE: a card, which is that on its socket, and the namespace as host 1 at its other port.
start_wire() {
    start_card --port "vhost-user:$scratch/one.sock,$1" --port tap:mill0 --connect 0-1
    # Always the same address: the guest believes in the one that it knows while its interface was down for less than a second.
    ip link set mill0 address 02:00:00:00:00:01
    be_host 1 mill0
}

carrier() {
    [ "$(guest one cat /sys/class/net/eth0/carrier)" = "$1" ]
}

for role in server client; do
    [ $role = server ] && guests_role=client || guests_role=server
    start_wire $role
    # shellcheck disable=SC2046
    start_guest one $(vhost_user $guests_role "$scratch/one.sock")
    guest_is_host one 2
    carrier 1 || fail "the guest's interface has no carrier"
    pings "guest one" 1
    for _ in 1 2; do
        slay "$card"
        await 10 carrier 0 || fail "the guest's interface has a carrier without a card"
        start_wire $role
        await 10 carrier 1 || fail "the guest's interface has no carrier after the card has come back"
        pings "guest one" 1
        pings here 2
    done
    echo "the card as $role: came back twice"
    [ $role = server ] || continue
    slay "${guests[one]}"
    # shellcheck disable=SC2046
    start_guest one $(vhost_user $guests_role "$scratch/one.sock")
    guest_is_host one 2
    pings "guest one" 1
    echo "the guest: killed, and another one in its place"
    check_counting
    stop_guest one
    kill "$card"
    ended "$card" 10
done
check_counting
