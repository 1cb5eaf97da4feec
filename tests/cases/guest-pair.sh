#!/usr/bin/env bash
# Two virtual machines on one card, of which one leaves checksums and segmentation to its interface and takes them from it,
# and the other does everything itself, with buffers that hold one frame each.
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/network.sh"

start_card --port "vhost-user:$scratch/one.sock" --port "vhost-user:$scratch/two.sock" --connect 0-1
# shellcheck disable=SC2046
launch_guest one $(vhost_user client "$scratch/one.sock" mac=52:54:00:00:00:01)
# shellcheck disable=SC2046,SC2086
launch_guest two $(vhost_user client "$scratch/two.sock" mac=52:54:00:00:00:02 mrg_rxbuf=off $no_offloads)
await_guest one
await_guest two
guest_is_host one 1
guest_is_host two 2
for size in 56 1452 4500; do
    pings "guest one" 2 -s $size
    pings "guest two" 1 -s $size
done
serve "guest one" 4000000
serve "guest two" 4000000
fetch "guest one" "guest two" 2
fetch "guest two" "guest one" 1
check_neighbour 0 "guest one" eth0
check_neighbour 1 "guest two" eth0
stop_guest one
stop_guest two
check_counting
