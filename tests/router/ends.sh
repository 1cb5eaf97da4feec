# shellcheck shell=bash
# What the cases of `millrace router` share that are about its commands and its daemon: this network namespace is the router's; `left` and `right` lead to
# two ends, each a namespace with an interface `wire`. A case includes this behind `private_network "$@"`.
needs ip nsenter iperf3 ping python3 tc nft ethtool
export RUST_BACKTRACE=1

# end_of NAME NUMBER: an end at 10.0.NUMBER.2; its process id is in the variable NAME_end.
end_of() {
    background "end-$1" unshare -n sleep 1000
    local pid=$started
    declare -g "$1_end=$pid"
    await 5 test ! /proc/$pid/ns/net -ef /proc/self/ns/net || fail "there is no namespace for the end $1"
    ip link add "$1" type veth peer name wire netns "$pid" || skip "there is no veth here"
    ip address add "10.0.$2.1/24" dev "$1"
    ip link set "$1" up
    nsenter -t "$pid" -n sh -ec "ip link set lo up; ip address add 10.0.$2.2/24 dev wire; ip link set wire up; ip route add default via 10.0.$2.1"
}
ip link set lo up
end_of left 1
end_of right 2
sysctl -qw net.ipv4.ip_forward=1
# As XDP wants them, switched while both ends are up.
for end in "$left_end" "$right_end"; do
    nsenter -t "$end" -n ethtool -K wire gro on tx off txvlan off >/dev/null
done
ethtool -K left rxvlan off >/dev/null
ethtool -K right rxvlan off >/dev/null
at_left() { nsenter -t "$left_end" -n "$@"; }
at_right() { nsenter -t "$right_end" -n "$@"; }

routers=0
# Words before the command that starts a router.
launcher=()
# start_router OPTION...: its process id is in $router, its output in $scratch/routerN.out and .log.
start_router() {
    routers=$((routers + 1))
    background "router$routers" "${launcher[@]}" "$millrace" router start --interfaces left,right --json "$@"
    router=$started
    await 15 grep -q '"event":"routing"' "$scratch/router$routers.out" || fail "the router does not start"
}

# status EXPRESSION: of Python, about the router's status `s`.
status() {
    "$millrace" router status --json | python3 -c '
import json, sys
s = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$1"
}
is_so() { [ "$(status "$1")" = True ]; }

# The reason why an interface is off, or None.
off_of() { status "next(i['off'] for i in s['interfaces'] if i['name'] == '$1')"; }

listen() {
    background "iperf$1" nsenter -t "$right_end" -n iperf3 -s -p "$1"
    await 5 at_right sh -c "ss -Hltn 'sport = :$1' | grep -q ." || fail "iperf3 does not listen"
}

# Packets without Linux, so far.
fast() { status "s['fast']"; }

# gets_fast: whether packets go without Linux now.
gets_fast() {
    local before
    before=$(fast)
    at_left ping -q -i 0.01 -c 20 -W 1 10.0.2.2 >/dev/null || return 1
    [ "$(fast)" -gt $((before + 10)) ]
}
