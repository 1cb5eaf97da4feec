#!/usr/bin/env bash
# ESP of `millrace-ipsec` beside Linux's, in a Debian guest: every algorithm, tunnels and transport, both families of addresses inside
# and outside, extended numbers across the end of 32 bits, in UDP. Linux has to understand what comes from here, and answers
# through its own ESP. Then both have to have counted the same, and to have refused what came twice or changed. At last its kernel is
# told by netlink how far they are, and that some are over.
. "$(dirname "$0")/../lib.sh"
guest_kind=ipsec
. "$tests/guest.sh"
needs cc
ip=$scratch/ip
# Busybox has an `ip` of its own, without XFRM.
cp "$(command -v ip)" "$ip"
cc -O1 -Wall -Werror -o "$scratch/encap" "$tests/guest/encap.c"
examples=${CARGO_TARGET_DIR:-$root/target}/debug/examples
peer=$examples/esp_peer report=$examples/xfrm_report
[ -x "$peer" ] && [ -x "$report" ] || (cd "$root" && cargo build --locked --quiet -p millrace-ipsec --examples) || fail "the examples cannot be built"

key16=000102030405060708090a0b0c0d0e0f key24=${key16}1011121314151617 key32=${key24}18191a1b1c1d1e1f
key48=${key32}$key16 key64=${key32}$key32
entries=$scratch/entries
linux=$scratch/linux

# on_both STATE...: an association that both have.
on_both() {
    echo "xfrm state add $*" | tee -a "$entries" >>"$linux"
}

# protect MODE FAMILY INNER ALGORITHM...: two associations, and policies for pings from here to the guest.
count=0
protect() {
    local mode=$1 family=$2 inner=$3 here there mine its only='' level
    shift 3
    count=$((count + 1))
    case $family in
    4) here=192.0.2.$((100 + count)) there=192.0.2.2 ;;
    6) here=2001:db8::$((100 + count)) there=2001:db8::2 ;;
    esac
    mine=$here its=$there
    [ "$mode" = transport ] || case $inner in
    4) mine=10.1.$count.1 its=10.2.$count.1 ;;
    6) mine=2001:db8:1:$count::1 its=2001:db8:2:$count::1 ;;
    esac
    on_both "src $here dst $there proto esp spi $((0x1000 + count)) reqid $count mode $mode flag af-unspec $*"
    on_both "src $there dst $here proto esp spi $((0x2000 + count)) reqid $count mode $mode flag af-unspec $*"
    # Linux asks the policies for UDP of port 4500 as well, where IKE makes an exception.
    [ "$mode" = tunnel ] || case $family in
    4) only="proto 1" ;;
    6) only="proto 58" ;;
    esac
    level="proto esp reqid $count mode $mode"
    echo "xfrm policy add src $mine dst $its $only dir out tmpl src $here dst $there $level" >>"$entries"
    echo "xfrm policy add src $its dst $mine $only dir in tmpl src $there dst $here $level" >>"$entries"
    echo "xfrm policy add src $its dst $mine $only dir out tmpl src $there dst $here $level" >>"$linux"
    echo "xfrm policy add src $mine dst $its $only dir in tmpl src $here dst $there $level" >>"$linux"
    addresses+=" $here=$its"
}

gcm() {
    echo "aead rfc4106(gcm(aes)) 0x${1}a0a1a2a3 128 replay-window 64"
}
chacha="aead rfc7539esp(chacha20,poly1305) 0x${key32}a0a1a2a3 128 replay-window 64"
cbc() {
    echo "enc cbc(aes) 0x$1 auth-trunc hmac($2) 0x$3 $4 replay-window 64"
}
esn="flag esn replay-seq 0xfffffffb replay-oseq 0xfffffffb"
udp="encap espinudp 4500 4500 0.0.0.0"
addresses=
protect tunnel 4 4 "$(gcm $key16)"
protect tunnel 4 6 "$(gcm $key24)"
protect tunnel 6 4 "$(gcm $key32)"
protect tunnel 6 6 "$chacha"
protect transport 4 4 "$(gcm $key16)"
protect transport 6 6 "$chacha"
protect tunnel 4 4 "$(cbc $key16 sha256 $key32 128)"
protect transport 4 4 "$(cbc $key24 sha384 $key48 192)"
protect tunnel 6 6 "$(cbc $key32 sha512 $key64 256)"
protect tunnel 4 4 "enc ecb(cipher_null) '' auth-trunc hmac(sha256) 0x$key32 96 replay-window 32"
protect tunnel 4 4 "$(gcm $key16) $esn"
protect transport 6 6 "$chacha $esn"
protect tunnel 4 4 "$(cbc $key16 sha256 $key32 128) $esn"
protect tunnel 4 4 "enc ecb(cipher_null) '' auth-trunc hmac(sha512) 0x$key64 256 replay-window 2048 $esn"
protect tunnel 4 4 "$(gcm $key32) $udp"
protect tunnel 6 4 "$chacha $udp"
protect transport 4 4 "$(gcm $key16) $udp"
protect tunnel 4 6 "$(cbc $key16 sha256 $key32 128) $udp $esn"

guest_has=("$ip" "$scratch/encap" "$linux" "$report")
mac=52:54:00:00:00:02
start_guest one -netdev "dgram,id=n,local.type=unix,local.path=$scratch/guest.sock,remote.type=unix,remote.path=$scratch/peer.sock" \
    -device "virtio-net-pci,netdev=n,romfile=,mac=$mac"
guest one "ip link set eth0 up && ip address add 192.0.2.2/24 dev eth0 && ip address add 2001:db8::2/64 dev eth0 && sleep 1"
guest one "$ip route add 10.1.0.0/16 via 192.0.2.1 dev eth0; $ip route add 2001:db8:1::/48 via 2001:db8::1 dev eth0"
guest one "for there in 192.0.2.1 2001:db8::1; do $ip neighbour add \$there lladdr 02:00:00:00:00:01 dev eth0; done"
guest one "for pair in $addresses; do $ip neighbour add \${pair%=*} lladdr 02:00:00:00:00:01 dev eth0; \
    case \${pair#*=} in 10.*) $ip address add \${pair#*=}/32 dev lo ;; 2001:db8:2:*) $ip address add \${pair#*=}/128 dev lo ;; esac; done"
guest one "$scratch/encap >/tmp/encap 2>&1 &"
guest one "$ip -batch $linux && echo all" >"$scratch/batch"
grep -q '^all$' "$scratch/batch" || fail "ip in the guest: $(cat "$scratch/batch")"

background peer "$peer" "$scratch/peer.sock" "$scratch/guest.sock" "$mac" "$entries" "$scratch/states"
exchanged() {
    grep -q exchanged "$scratch/peer.out" || is_gone "$started"
}
await 100 exchanged || fail "nothing ends"
! is_gone "$started" || fail "Linux and we do not understand each other: $(cat "$scratch/peer.log")"
sleep 1
guest one "$ip -s xfrm state" >"$scratch/states.part"
mv "$scratch/states.part" "$scratch/states"
wait "$started" || fail "they have not counted the same: $(cat "$scratch/peer.log")"
cat "$scratch/peer.out"
guest one "$report" >"$scratch/reported"
grep '^reported: 36 ' "$scratch/reported" || fail "the kernel was told something else: $(cat "$scratch/reported")"
stop_guest one
