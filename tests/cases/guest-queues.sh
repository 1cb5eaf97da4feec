#!/usr/bin/env bash
# A virtual machine with two processors and an interface of two queues: the flows of several transfers at once.
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/network.sh"
needs ping
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"

start_card --port "vhost-user:$scratch/one.sock,queues=2" --port tap:mill0,queues=2 --connect 0-1
be_host 1 mill0
serve here 1000000
# shellcheck disable=SC2046
start_guest one -smp 2 $(vhost_user client "$scratch/one.sock" queues=2)
guest_is_host one 2
pings "guest one" 1
pings here 2
[ "$(guest one 'ls /sys/class/net/eth0/queues | grep -c tx')" -eq 2 ] || fail "the guest has not two queues"
wanted=$(here "md5sum <served/data")
# Several flows at once, which the guest's processors send on queues of their own.
[ "$(guest one 'for i in 1 2 3 4 5 6 7 8; do wget -q -O - http://192.0.2.1/data | md5sum & done; wait' | sort -u)" = \
    "$wanted" ] || fail "what came is not what was sent"
check_neighbour 0 "guest one" eth0
check_neighbour 1 here mill0
stop_guest one
check_counting
