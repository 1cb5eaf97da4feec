#!/usr/bin/env bash
# What verbs programs send, seen on the wire between two ports: tshark finds no fault with any frame, scapy works out the same invariant CRCs,
# and all services and operations are there, in RoCE v2 over IPv4 and IPv6 and in RoCE v1.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs tshark
/usr/bin/python3 -c "import scapy.contrib.roce" 2>/dev/null || skip "/usr/bin/python3 has no scapy (Debian's package python3-scapy)"

start_card --queues 2 --workers 1 --frame-max 9000 --buffer 16384 \
    --port "trace:$scratch/wire.pcap,port=(vhost-user:$scratch/wire.sock)" --port "virtio-user:$scratch/wire.sock"
await 10 wire_is_up || fail "the ports are not connected"
ends=("$device local=off tx=0 rx=0" "$device local=off tx=1 rx=1")
for gid in 0 1 2 3; do
    both ibv_rc_pingpong -g $gid -n 5 -s 2000 -m 256 -c
    both ibv_uc_pingpong -g $gid -n 5 -s 2000 -m 256
    both ibv_ud_pingpong -g $gid -n 5 -s 301
done
for work in write read send; do
    both ib_${work}_bw -n 5 -s 65536
    both ib_${work}_lat -n 5 -s 3
done
for work in write send; do
    both ib_${work}_lat -c UC -n 5 -s 3
    both ib_${work}_lat -c UC -n 5 -s 10000
done
both ib_atomic_bw -n 5
both ib_atomic_bw -n 5 -A CMP_AND_SWAP
kill -INT "$card"
ended "$card" 10

cd "$tests"
# Only what a program sets a request with has others: immediate data, and what is invalidated.
wanted="00 01 02 04 06 07 08 0a 0c 0d 0e 0f 10 11 12 13 14 20 21 22 24 26 27 28 2a 64"
found=$(/usr/bin/python3 roce.py opcodes "$scratch/wire.pcap")
for opcode in $wanted; do
    [[ " $found " = *" $opcode "* ]] || fail "no packet has the opcode $opcode: $found"
done
echo "opcodes $found"
# The pingpongs ask for a hop limit of 1, which it remarks on. It guesses what a payload is, and then finds fault with what is not that.
guesses=(smc smb_direct rpcordma nvme-rdma lnet iser infiniband_sdp infiniband.eoib fcoib)
tshark -n -o ip.check_checksum:TRUE -o udp.ignore_ipv6_zero_checksum:TRUE "${guesses[@]/#/--disable-protocol=}" -r "$scratch/wire.pcap" \
    -Y '_ws.malformed || (_ws.expert && !ip.ttl.too_small) || ip.checksum.status == 0' >"$scratch/faults" 2>"$scratch/tshark.log"
[ ! -s "$scratch/faults" ] || fail "tshark finds fault: $(head -n 5 "$scratch/faults")"
frames=$(tshark -n -r "$scratch/wire.pcap" -Y infiniband.bth 2>>"$scratch/tshark.log" | wc -l)
[ "$frames" -gt 300 ] || fail "tshark has read only $frames frames of RoCE"
echo "tshark has read $frames frames of RoCE and finds no fault with any frame"
/usr/bin/python3 roce.py icrc "$scratch/wire.pcap"
