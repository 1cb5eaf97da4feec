#!/usr/bin/env bash
# The router in a Debian guest, whose kernel is Linux 6.1 and has what this one has not: 8021q, PPP, ESP. What it makes of frames,
# as XDP and at tc, is compared with what Linux alone makes of them there, as in router-judge.sh. And it is a gateway of strongSwan.
# variants: xdp tc strongswan
guest_kind=router
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
needs ip nft bridge ethtool nsenter unshare setpriv sysctl
/usr/bin/python3 -c 'import scapy' 2>/dev/null || skip "scapy is not installed"
[ "$1" != strongswan ] || needs swanctl charon-systemd
# For a shell in another folder.
millrace=$(realpath "$millrace")
start_guest one
# An emulated machine takes a minute for a scenario: some of them here, and all with ROUTER_GUEST=all, which `make soak` does.
case $1-${ROUTER_GUEST:-some} in
xdp-some) scenarios="vlan/routed bridge_vlans pppoe xfrm" ;;
xdp-all) scenarios="vlan bridge_vlans pppoe xfrm" ;;
# Where Linux has taken the first tag off already, and what it has decrypted comes by once more.
tc-some) scenarios="vlan/bridge xfrm/inwards" ;;
tc-all) scenarios="vlan/routed vlan/bridge bridge_vlans/changes xfrm/inwards" ;;
strongswan-*)
    guest one "$tests/router/strongswan.sh $millrace" || fail "strongSwan"
    scenarios=
    ;;
esac
[ -z "$scenarios" ] ||
    guest one "echo Linux \$(uname -r); /usr/bin/python3 -B $tests/router/judge.py --millrace $millrace --options '--mode $1' $scenarios" || fail "$1"
stop_guest one
