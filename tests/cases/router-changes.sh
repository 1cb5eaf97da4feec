#!/usr/bin/env bash
# A router in which something changes all the time, at random, with 400 flows, and every packet compared with what Linux makes of it: no difference. `make soak` does the
# same with 10,000 flows for ten minutes.
# waits: for timers of Linux and of rules
. "$(dirname "$0")/../lib.sh"
needs ip nft conntrack ethtool nsenter unshare setpriv sysctl
/usr/bin/python3 -c 'import scapy' 2>/dev/null || skip "scapy is not installed"
is_root || skip "network namespaces take root"
unshare -n true 2>/dev/null || skip "a network namespace cannot be made here"
/usr/bin/python3 -B "$tests/router/changes.py" "$millrace" "${CHANGES_SECONDS:-15}" "${CHANGES_FLOWS:-400}" ${CHANGES_SEED:-} || fail "what the router does is not what Linux does, or nothing was compared"
