#!/usr/bin/env bash
# A virtual machine and Linux on the two sides of a card: pings of both protocols, whole and in fragments, transfers both
# ways, ordinary and jumbo frames, when the card is asked for checksums and segmentation and when it is not.
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/network.sh"
needs ping
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"

start_card --port "vhost-user:$scratch/one.sock" --port tap:mill0 --connect 0-1
be_host 1 mill0
serve here 8000000

for offloads in "" "$no_offloads"; do
    # shellcheck disable=SC2046,SC2086
    start_guest one $(vhost_user client "$scratch/one.sock" $offloads)
    guest_is_host one 2
    serve "guest one" 8000000
    # The longest packet of a frame is 28 or 48 bytes of headers and the rest.
    for mtu in 1500 9000; do
        ip link set mill0 mtu $mtu
        guest one ip link set eth0 mtu $mtu
        for size in 56 $((mtu - 48)) $((3 * mtu)); do
            pings here 2 -s $size
            pings "guest one" 1 -s $size
        done
        fetch here "guest one" 2
        fetch "guest one" here 1
        echo "frames of $mtu bytes, ${offloads:-checksum and segmentation offload}"
    done
    stop_guest one
done
check_neighbour 1 here mill0
check_counting
