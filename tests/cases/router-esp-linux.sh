#!/usr/bin/env bash
# `millrace router ipsec` at one end of tunnels and the kernel of a Debian guest at the other: each kind of cipher, both versions of IP, in UDP. Linux counts
# what has come, and has nothing to complain about.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
guest_kind=ipsec
. "$tests/guest.sh"
needs cc nft ping python3
ip=$scratch/ip
# Busybox has an `ip` of its own, without XFRM.
cp "$(command -v ip)" "$ip"
cc -O1 -Wall -Werror -o "$scratch/encap" "$tests/guest/encap.c"
[ -e /dev/net/tun ] || skip "there is no /dev/net/tun"
key16=000102030405060708090a0b0c0d0e0f key32=${key16}101112131415161718191a1b1c1d1e1f

# protect ALGORITHM [udp] [6]: a tunnel of its own between 10.1.N.1 here and 10.2.N.1 there, or the same of IPv6.
count=0
protect() {
    local algorithm=$1 kind=${2:-} one two mine its extra='' level state
    count=$((count + 1))
    one=192.0.2.1 two=192.0.2.2 mine=10.1.$count.1 its=10.2.$count.1
    [ "$kind" != 6 ] || one=2001:db8::1 two=2001:db8::2 mine=2001:db8:1:$count::1 its=2001:db8:2:$count::1
    [ "$kind" != udp ] || extra="encap espinudp 4500 4500 0.0.0.0"
    level="proto esp reqid $count mode tunnel"
    for state in "src $one dst $two proto esp spi $((0x1000 + count))" "src $two dst $one proto esp spi $((0x2000 + count))"; do
        echo "xfrm state add $state reqid $count mode tunnel replay-window 64 $algorithm $extra" | tee -a "$scratch/linux" >>"$scratch/entries"
    done
    echo "xfrm policy add src $mine dst $its dir out tmpl src $one dst $two $level" >>"$scratch/entries"
    echo "xfrm policy add src $its dst $mine dir in tmpl src $two dst $one $level" >>"$scratch/entries"
    echo "xfrm policy add src $its dst $mine dir out tmpl src $two dst $one $level" >>"$scratch/linux"
    echo "xfrm policy add src $mine dst $its dir in tmpl src $one dst $two $level" >>"$scratch/linux"
    pairs+=" $mine=$its"
}
pairs=
protect "aead rfc4106(gcm(aes)) 0x${key16}a0a1a2a3 128"
protect "aead rfc7539esp(chacha20,poly1305) 0x${key32}a0a1a2a3 128" 6
protect "enc cbc(aes) 0x$key16 auth-trunc hmac(sha256) 0x$key32 128"
protect "aead rfc4106(gcm(aes)) 0x${key32}a0a1a2a3 128 flag esn replay-seq 0xfffffffd replay-oseq 0xfffffffd" udp

ip link set lo up
ip tuntap add wire mode tap
ip address add 192.0.2.1/24 dev wire
ip address add 2001:db8::1/64 dev wire nodad
ip link set wire up
guest_has=("$ip" "$scratch/linux" "$scratch/encap")
start_guest one -netdev "tap,id=n,ifname=wire,script=no,downscript=no" -device "virtio-net-pci,netdev=n,romfile="
guest one "ip link set eth0 up && ip address add 192.0.2.2/24 dev eth0 && ip address add 2001:db8::2/64 dev eth0"
guest one "for pair in $pairs; do case \${pair#*=} in 10.*) $ip address add \${pair#*=}/32 dev lo ;; *) $ip address add \${pair#*=}/128 dev lo ;; esac; done"
guest one "$ip route add 10.1.0.0/16 via 192.0.2.1 dev eth0; $ip route add 2001:db8:1::/48 via 2001:db8::1 dev eth0"
guest one "$scratch/encap >/tmp/encap 2>&1 &"
guest one "$ip -batch $scratch/linux && echo all" >"$scratch/batch"
grep -q '^all$' "$scratch/batch" || fail "ip in the guest: $(cat "$scratch/batch")"

own=$(for pair in $pairs; do echo "${pair%=*}"; done | paste -sd,)
background gateway "$millrace" router ipsec start --json --file "$scratch/entries" --address "$own"
gateway=$started
await 15 grep -q '"event":"ready"' "$scratch/gateway.out" || fail "the gateway does not start"
for pair in $pairs; do
    ip route add "${pair#*=}" dev ipsec0 src "${pair%=*}"
    await 5 ping -qc 1 -W 2 "${pair#*=}" >/dev/null || fail "no ping to ${pair#*=}: $("$millrace" router ipsec status)"
    ping -qc 5 -i 0.1 -W 5 -s 1300 "${pair#*=}" >/dev/null || fail "no long pings to ${pair#*=}: $("$millrace" router ipsec status)"
done
guest one "cat /proc/net/xfrm_stat" >"$scratch/stat"
awk '$2 > 0 { bad = 1; print } END { exit bad }' "$scratch/stat" || fail "Linux complains"
# What we have sent by each association is what Linux has received.
guest one "$ip -s xfrm state" >"$scratch/states"
"$millrace" router sa list --json | python3 -c '
import json, re, sys
states = open(sys.argv[1]).read()
for line in sys.stdin:
    own = json.loads(line)["association"]
    if not own or own["spi"] >= 0x2000:
        continue
    state = re.search(r"spi 0x%08x\(.*?(?=\nsrc |\Z)" % own["spi"], states, re.S).group(0)
    packets = int(re.search(r"(\d+)\(packets\)", state[state.index("lifetime current"):]).group(1))
    assert packets == own["packets"] >= 6, (packets, own)
    print("agreed: SPI %#x, %d packets" % (own["spi"], packets))
' "$scratch/states" || fail "they have not counted the same"
"$millrace" router ipsec stop
ended "$gateway" 10
stop_guest one
