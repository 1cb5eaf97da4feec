#!/usr/bin/env bash
# A port on AF_XDP: frames each way over a veth pair, short and long; a card that is killed leaves nothing on the interface;
# two cards, somebody else's program, an ordinary user, and a link that goes down, comes up and is taken away.
. "$(dirname "$0")/../lib.sh"
. "$tests/wire.sh"
needs python3 setpriv
private_network "$@"

# cable MTU: xdp-card, where the card is, and xdp-far.
cable() {
    ip link add xdp-card mtu "$1" type veth peer name xdp-far mtu "$1" || skip "there are no veth interfaces here"
    for end in xdp-card xdp-far; do
        echo 1 >"/proc/sys/net/ipv6/conf/$end/disable_ipv6"
        ip link set "$end" up
    done
}

has_program() {
    ip -details link show xdp-card | grep -q 'prog/xdp'
}

# refused WORDS COMMAND...: the card does not start, and says why.
refused() {
    local words=$1 code=0
    shift
    timeout 10 "$@" >"$scratch/refused.out" 2>"$scratch/refused.log" </dev/null || code=$?
    [ "$code" -eq 2 ] || fail "$* ended with $code"
    grep -qF -- "$words" "$scratch/refused.log" || fail "$* does not say: $words; but: $(cat "$scratch/refused.log")"
}

# says FIELD WORDS: whether the card says so of its port.
says() {
    "$millrace" ports --json | field "$1" | grep -qF -- "$2"
}

cable 1500
start_card --port af_xdp:xdp-card
has_program || fail "there is no program on the interface"
frames_pass xdp-far
says mode "native XDP, copied by the kernel" || fail "it runs otherwise: $("$millrace" ports --json)"
refused "in use by another card" "$millrace" card --port af_xdp:xdp-card --listen "$scratch/second.sock"
refused "no interface xdp-none" "$millrace" card --port af_xdp:xdp-none --listen "$scratch/second.sock"
refused "has no zero copy" "$millrace" card --port af_xdp:xdp-far,mode=zero-copy --listen "$scratch/second.sock"

slay "$card"
await 5 eval '! has_program' || fail "a card that was killed has left its program on the interface"
start_card --port af_xdp:xdp-card
frames_pass xdp-far

ip link set xdp-far down
await 5 says link False || fail "the card does not see that the link is down"
ip link set xdp-far up
await 5 says link True || fail "the card does not see that the link is up"
frames_pass xdp-far
kill -INT "$card"
ended "$card" 10
[ "$code" -eq 0 ] || fail "the card ended with $code"
! has_program || fail "a card that ended has left its program on the interface"

# Root may load programs and does not have to be root for it; an ordinary user may not.
cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch" "$scratch/millrace"
nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${nobody[@]}" --bounding-set=-all true 2>/dev/null; then
    refused "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" \
        "${nobody[@]}" "$scratch/millrace" card --port af_xdp:xdp-card --listen @none
fi

ip link delete xdp-card
cable 9000
start_card --port af_xdp:xdp-card --buffer 16384
frames_pass xdp-far 9014
ip link delete xdp-card
# It goes on without the interface, and does not spin.
sleep 0.5
before=$(cut -d' ' -f14 "/proc/$card/stat")
sleep 1
after=$(cut -d' ' -f14 "/proc/$card/stat")
[ $((after - before)) -lt 50 ] || fail "the card uses $((after - before)) % of a core without an interface"
says mode "the interface is gone" || fail "the card does not say that the interface is gone"
check_counting
# Another one of the same name takes its place.
cable 1500
"$millrace" ports plug 0 af_xdp:xdp-card >/dev/null
frames_pass xdp-far
echo "frames each way, 1500 and 9000 byte MTU; killed, down, up, gone, back"
