#!/usr/bin/env bash
# The router's fast path beside Linux alone: what comes out of both is compared packet by packet (tests/router/judge.py). Each
# variant is a subject, a file of scenarios; `itself` sees whether the judge sees what is wrong. Without `millrace router` Linux is
# compared with Linux, which shows that nothing varies by itself.
# variants: itself routing policy multipath nat nat6 icmp tcp dscp bridge mtu header fragments checksums martians multicast filters conntrack control captures fuzzed
# waits: for timers of Linux and of rules
. "$(dirname "$0")/../lib.sh"
needs ip nft iptables ip6tables conntrack tc bridge ethtool nsenter unshare setpriv sysctl
# The one for which Debian has scapy.
python=/usr/bin/python3
$python -c 'import scapy' 2>/dev/null || skip "scapy is not installed"
is_root || skip "network namespaces take root"
unshare -n true 2>/dev/null || skip "a network namespace cannot be made here"
export MILLRACE_CAPTURES=$captures
judge() {
    $python "$tests/router/judge.py" "$@"
}

# spoiled SCENARIO SCRIPT WORDS...: with the script in one of the two routers, the judge says these words.
spoiled() {
    local scenario=$1 script=$2 words code=0
    shift 2
    judge --spoil "$script" "$scenario" >"$scratch/spoiled.log" || code=$?
    [ "$code" -eq 1 ] || fail "$scenario, spoiled by $script: $code"
    for words; do
        grep -qF -- "$words" "$scratch/spoiled.log" || fail "$scenario, spoiled by $script, does not say '$words'"
    done
}

if [ "$1" = itself ]; then
    spoiled routing/ipv4 "iptables -t mangle -A POSTROUTING -j DSCP --set-dscp 1" "differs" "tos" "step 1 (sent at left), at right"
    spoiled routing/ipv4 "iptables -A FORWARD -m statistic --mode nth --every 5 --packet 3 -j DROP" "frame 2 came with Linux alone (of the flow came 2 with Linux and 1"
    spoiled routing/ipv6 "ip6tables -A FORWARD -p udp --sport 1000 -j REJECT" "came with Linux"
    spoiled nat/masquerade "ip neighbour replace 10.0.2.2 lladdr 02:00:00:00:02:09 dev right nud permanent" "dst"
    judge routing/ipv4 >"$scratch/plain.log" || fail "nothing was spoiled"
    exit
fi
engine=()
if "$millrace" router --help >/dev/null 2>&1; then
    engine=(--millrace "$millrace")
else
    echo "there is no \`millrace router\`: Linux beside Linux"
fi
[ "$1" != captures ] || [ -d "$captures" ] || skip "there are no captures in $captures"
judge "${engine[@]}" "$1" || fail "$1"
