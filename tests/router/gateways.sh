# shellcheck shell=bash
# Two gateways of IPsec, each a namespace with a host behind it, for the cases `router-esp*`. A case includes this behind `private_network "$@"`.
#
#   host 10.1.0.2 - inner [this namespace] wire 192.0.2.1 - 192.0.2.2 wire [there] inner - host 10.2.0.2
needs ip nsenter ping python3 nft ethtool
export RUST_BACKTRACE=1

# namespace NAME: its process is in the variable NAME.
namespace() {
    background "$1" unshare -n sleep 1000
    local pid=$started
    declare -g "$1=$pid"
    await 5 test ! /proc/$pid/ns/net -ef /proc/self/ns/net || fail "there is no namespace $1"
    nsenter -t "$pid" -n ip link set lo up
}
# in_ NAME COMMAND...
in_() {
    local pid=${!1}
    shift
    nsenter -t "$pid" -n "$@"
}
namespace here
namespace there
namespace host1
namespace host2

# link ONE NAME ADDRESSES OTHER NAME ADDRESSES: a pair of interfaces.
link() {
    local address
    in_ "$1" ip link add "$2" type veth peer name "$5" netns "${!4}" || skip "there is no veth here"
    for address in $3; do in_ "$1" ip address add "$address" dev "$2" nodad 2>/dev/null || in_ "$1" ip address add "$address" dev "$2"; done
    for address in $6; do in_ "$4" ip address add "$address" dev "$5" nodad 2>/dev/null || in_ "$4" ip address add "$address" dev "$5"; done
    # XDP sees tags only where no end keeps them beside the frame.
    in_ "$1" ethtool -K "$2" rxvlan off txvlan off >/dev/null
    in_ "$4" ethtool -K "$5" rxvlan off txvlan off >/dev/null
    in_ "$1" ip link set "$2" up
    in_ "$4" ip link set "$5" up
}
link here wire "192.0.2.1/24 2001:db8::1/64" there wire "192.0.2.2/24 2001:db8::2/64"
link here inner "10.1.0.1/24 2001:db8:1::1/64" host1 wire "10.1.0.2/24 2001:db8:1::2/64"
link there inner "10.2.0.1/24 2001:db8:2::1/64" host2 wire "10.2.0.2/24 2001:db8:2::2/64"
for side in here there; do
    in_ $side sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
done
for side in 1 2; do
    in_ host$side ip route add default via 10.$side.0.1
    in_ host$side ip route add default via 2001:db8:$side::1
done

# entries NUMBER FAMILY ALGORITHM: associations and policies of a tunnel for both families, as this end and the other have them, into $scratch/here.conf
# and there.conf. FAMILY is that of the outer addresses; `udp` is IPv4 in UDP.
entries() {
    local number=$1 family=$2 algorithm=$3 one=192.0.2.1 two=192.0.2.2 extra='' inner level side mine its
    [ "$family" != 6 ] || one=2001:db8::1 two=2001:db8::2
    [ "$family" != udp ] || extra="encap espinudp 4500 4500 0.0.0.0"
    for side in here there; do
        echo "state add src $one dst $two proto esp spi $((0x1000 + number)) reqid 1 mode tunnel flag af-unspec replay-window 64 $algorithm $extra"
        echo "state add src $two dst $one proto esp spi $((0x2000 + number)) reqid 1 mode tunnel flag af-unspec replay-window 64 $algorithm $extra"
        level="proto esp reqid 1 mode tunnel"
        for inner in "10.1.0.0/24 10.2.0.0/24" "2001:db8:1::/64 2001:db8:2::/64"; do
            read -r mine its <<<"$inner"
            if [ $side = here ]; then
                set -- "$mine" "$its" "$one" "$two"
            else
                set -- "$its" "$mine" "$two" "$one"
            fi
            echo "policy add dir out src $1 dst $2 tmpl src $3 dst $4 $level"
            echo "policy add dir in src $2 dst $1 tmpl src $4 dst $3 $level"
            echo "policy add dir fwd src $2 dst $1 tmpl src $4 dst $3 $level"
        done
        set --
    done >"$scratch/all.conf"
    head -n 8 "$scratch/all.conf" >"$scratch/here.conf"
    tail -n 8 "$scratch/all.conf" >"$scratch/there.conf"
}

# start_gateway SIDE OPTION...: its process is in the variable SIDE_gateway. GATEWAY_OPTIONS are for all of them (--interfaces wire,inner).
start_gateway() {
    local side=$1
    shift
    background "gateway-$side" nsenter -t "${!side}" -n "$millrace" router ipsec start --json --file "$scratch/$side.conf" ${GATEWAY_OPTIONS:-} "$@"
    declare -g "${side}_gateway=$started"
    await 15 grep -q '"event":"ready"' "$scratch/gateway-$side.out" || fail "the gateway $side does not start"
    case $side in
    here) in_ here ip route add 10.2.0.0/24 dev ipsec0 && in_ here ip route add 2001:db8:2::/64 dev ipsec0 ;;
    there) in_ there ip route add 10.1.0.0/24 dev ipsec0 && in_ there ip route add 2001:db8:1::/64 dev ipsec0 ;;
    esac
}

# status SIDE EXPRESSION: of Python, about the gateway's status `s`; `dropped(name)` is a counter.
status() {
    in_ "$1" "$millrace" router ipsec status --json | python3 -c '
import json, sys
s = json.load(sys.stdin)
dropped = lambda name: sum(count for _, reason, count in s["drops"] if reason == name)
print(eval(sys.argv[1]))' "$2"
}
# is_so SIDE EXPRESSION
is_so() { [ "$(status "$1" "$2")" = True ]; }

key16=000102030405060708090a0b0c0d0e0f key32=${key16}101112131415161718191a1b1c1d1e1f
gcm="aead rfc4106(gcm(aes)) 0x${key16}a0a1a2a3 128"
chacha="aead rfc7539esp(chacha20,poly1305) 0x${key32}a0a1a2a3 128"
cbc="enc cbc(aes) 0x$key16 auth-trunc hmac(sha256) 0x$key32 128"
