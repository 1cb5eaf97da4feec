#!/usr/bin/env bash
# The router in a Debian guest, whose kernel is Linux 6.1 and has what this one has not: 8021q. What it makes of frames is compared with
# what Linux alone makes of them there, as in router-judge.sh.
# variants: vlan
guest_kind=router
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
needs ip nft bridge ethtool nsenter unshare setpriv sysctl
/usr/bin/python3 -c 'import scapy' 2>/dev/null || skip "scapy is not installed"
start_guest one
# judges MODE SCENARIO...
judges() {
    local mode=$1
    shift
    guest one "echo Linux \$(uname -r), $mode; /usr/bin/python3 -B $tests/router/judge.py --millrace $millrace --options '--mode $mode' $*" ||
        fail "$mode: $*"
}
case $1 in
vlan)
    judges xdp vlan
    # Where Linux has taken the first tag off already.
    judges tc vlan/routed vlan/bridge
    ;;
esac
stop_guest one
