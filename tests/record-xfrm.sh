#!/usr/bin/env bash
# Records what the kernel of a Debian guest says over XFRM's netlink, and what `ip xfrm` prints of the same:
#
#   tests/record-xfrm.sh FOLDER
#
# FOLDER/xfrm.pcap has every message of XFRM (`LINKTYPE_NETLINK`, made by nlmon), in the order of the sections below; state.txt and
# policy.txt are what `ip -s -d xfrm` prints when everything is there. `crates/ipsec/tests/data` was made by this.
. "$(dirname "$0")/lib.sh"
guest_kind=ipsec
. "$tests/guest.sh"
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
needs tcpdump base64
# Busybox has an `ip` of its own, without XFRM.
cp "$(command -v ip)" "$scratch/ip"
guest_has=("$scratch/ip" "$(command -v tcpdump)")

# run COMMAND...: it has to succeed.
run() {
    local said
    said=$(guest one "$* && echo =well")
    [[ $said == *=well ]] || fail "$*: $said"
}

# file NAME COMMAND...: what a command of the guest prints.
file() {
    local name=$1
    shift
    guest one "$@" >"$folder/$name"
}

folder=$1 ip=$scratch/ip
mkdir -p "$folder"
start_guest one
key=0x000102030405060708090a0b0c0d0e0f
salt=a0a1a2a3
hash=0x808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f
run $ip link add nlmon0 type nlmon
run $ip link set nlmon0 up
# tcpdump wants to be somebody.
run "mkdir -p /etc && echo root:x:0:0::/:/bin/sh >/etc/passwd && echo root:x:0: >/etc/group"
guest one "tcpdump -Z root -i nlmon0 -s 0 -U -w /tmp/all.pcap >/tmp/log 2>&1 &"
guest one "$ip xfrm monitor >/tmp/said 2>&1 &"
run sleep 2

run $ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 reqid 1 mode tunnel replay-window 128 flag esn af-unspec \
    aead "'rfc4106(gcm(aes))'" $key$salt 128 limit byte-soft 1000000 limit byte-hard 2000000 limit time-hard 3600
run $ip xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002 mode transport replay-window 32 flag nopmtudisc noecn decap-dscp \
    enc "'cbc(aes)'" $key auth-trunc "'hmac(sha256)'" $hash 128 sel src 192.0.2.2/32 dst 192.0.2.1/32 proto 17 dport 53
run $ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1003 reqid 3 mode tunnel \
    aead "'rfc7539esp(chacha20,poly1305)'" ${hash}$salt 128 extra-flag dont-encap-dscp
run $ip xfrm state add src 192.0.2.1 dst 192.0.2.3 proto esp spi 0x1004 mode tunnel replay-window 32 replay-seq 0x22 replay-oseq 0x33 \
    aead "'rfc4106(gcm(aes))'" ${hash}$salt 128 encap espinudp 4500 4501 0.0.0.0 mark 0x7 mask 0xff if_id 0x2a
run $ip xfrm state add src 192.0.2.1 dst 192.0.2.4 proto esp spi 0x1005 mode tunnel replay-window 4096 flag esn replay-seq 0x5 \
    replay-seq-hi 0x1 replay-oseq 0x6 replay-oseq-hi 0x2 enc "'ecb(cipher_null)'" "''" auth "'hmac(sha512)'" ${hash}${hash#0x}
# What stays the kernel's.
run $ip xfrm state add src 192.0.2.1 dst 192.0.2.5 proto esp spi 0x1006 mode beet aead "'rfc4106(gcm(aes))'" $key$salt 128
run $ip xfrm state add src 192.0.2.1 dst 192.0.2.5 proto esp spi 0x1007 mode tunnel aead "'rfc4106(gcm(aes))'" $key$salt 64
# One that is over in a moment, of which the kernel then says so.
run $ip xfrm state add src 192.0.2.1 dst 192.0.2.6 proto esp spi 0x1008 mode tunnel aead "'rfc4106(gcm(aes))'" $key$salt 128 \
    limit time-soft 1 limit time-hard 2
run $ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 100 \
    tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
run $ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd priority 100 \
    tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel
run $ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in priority 100 \
    tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel level use
run $ip xfrm policy add src 2001:db8:1::/48 dst 2001:db8:2::/48 proto 6 dport 443 dir out priority 5 mark 1 mask 3 if_id 9 action block
run $ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out priority 900 tmpl proto esp mode transport
run sleep 4
run $ip xfrm state list
run $ip xfrm policy list
file state.txt $ip -s -d xfrm state list
file policy.txt $ip -s -d xfrm policy list
run $ip xfrm policy update src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 50 \
    tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
run $ip xfrm policy delete src 10.2.0.0/16 dst 10.1.0.0/16 dir in
run $ip xfrm state delete src 192.0.2.1 dst 192.0.2.3 proto esp spi 0x1004 mark 0x7 mask 0xff
run $ip xfrm policy setdefault in block fwd accept
run $ip xfrm policy flush
run $ip xfrm state flush
run sleep 2
guest one "cat /tmp/log; killall tcpdump; sleep 1"
guest one base64 /tmp/all.pcap | base64 -d >"$scratch/all.pcap"
python3 - "$scratch/all.pcap" "$folder/xfrm.pcap" <<'PYTHON'
"""Only packets of XFRM: the last two bytes of the header of 16 are the family, 6."""
import struct
import sys

data = open(sys.argv[1], "rb").read()
out, at, kept = bytearray(data[:24]), 24, 0
while at < len(data):
    taken, = struct.unpack_from("<I", data, at + 8)
    if data[at + 16 + 14 : at + 16 + 16] == b"\0\6":
        out += data[at : at + 16 + taken]
        kept += 1
    at += 16 + taken
open(sys.argv[2], "wb").write(out)
print(kept, "messages")
PYTHON
