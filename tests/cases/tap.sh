#!/usr/bin/env bash
# A tap port: what Linux sends to the interface is received from the card, and what is sent to the card comes to Linux.
. "$(dirname "$0")/../lib.sh"
. "$tests/wire.sh"
needs python3
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
start_card --port tap:mill0
echo 1 >/proc/sys/net/ipv6/conf/mill0/disable_ipv6 2>/dev/null || true
ip link set mill0 up
frames_pass mill0
echo "100 frames each way"
