#!/usr/bin/env bash
# The engine in the card reaches other hosts: by a port of its own, and by queues of the card. Two cards, joined by a wire of shared
# memory, stand for two hosts; at the other end is an engine in a card, or one in a program.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../verbs.sh"
wire=$scratch/wire

# start_hosts: two cards, with the options of ${one[@]} and ${other[@]}.
first=()
start_hosts() {
    # Those of cards that were killed.
    rm -f "$scratch"/*.sock*
    background one "$millrace" card --queues 2 --listen "$scratch/one.sock" --rdma-cpu --rdma-ip 192.0.2.1 "${one[@]}"
    first=("$started")
    await 10 test -S "$scratch/one.sock.rdma" || fail "the first card is not there: $(cat "$scratch/one.log")"
    background other "$millrace" card --queues 2 --listen "$scratch/other.sock" --rdma-cpu --rdma-ip 192.0.2.2 "${other[@]}"
    first+=("$started")
    await 10 test -S "$scratch/other.sock.rdma" || fail "the second card is not there: $(cat "$scratch/other.log")"
    ends=("unix:$scratch/one.sock place=card" "unix:$scratch/other.sock place=card")
}
end_hosts() {
    for card in "${first[@]}"; do
        slay "$card"
    done
}
all_kinds() {
    both ibv_rc_pingpong -g 0 -c -n 500
    both ibv_rc_pingpong -g 0 -c -n 100 -s 100000 -e
    both ibv_uc_pingpong -g 0 -c -n 100
    both ibv_ud_pingpong -g 0 -c -n 100
    both ibv_srq_pingpong -g 0 -c -n 100
    for test in ib_write_bw ib_read_bw ib_send_bw ib_atomic_lat; do
        both "$test" -n 200
    done
}

# A port of the engine's own.
one=(--rdma-wire "vhost-user:$wire") other=(--rdma-wire "virtio-user:$wire")
start_hosts
all_kinds
# Two programs of one card go on reaching each other, without the wire.
ends=("${ends[0]}" "${ends[0]}")
both ibv_rc_pingpong -g 0 -c -n 100
# The other end is a program with an engine of its own.
slay "${first[1]}"
ends=("unix:$scratch/one.sock place=card" "port=virtio-user:$wire ip=192.0.2.7")
all_kinds
# Who is not there is not found.
code=0
MILLRACE_VERBS="unix:$scratch/one.sock place=card" ours /usr/bin/python3 - <<'END' >"$scratch/nobody.out" 2>&1 || code=$?
import pyverbs.device, pyverbs.pd, pyverbs.addr
context = pyverbs.device.Context(name="millrace0")
domain = pyverbs.pd.PD(context)
gid = "0000:0000:0000:0000:0000:ffff:c000:02c8"
way = pyverbs.addr.GlobalRoute(dgid=pyverbs.addr.GID(gid), sgid_index=0)
pyverbs.addr.AH(domain, attr=pyverbs.addr.AHAttr(gr=way, is_global=1, port_num=1))
END
[ "$code" -ne 0 ] && grep -q "host" "$scratch/nobody.out" || fail "nobody is found: $code $(cat "$scratch/nobody.out")"
slay "${first[0]}"

# Queues of the cards, whose ports are the ends of a wire.
rm -f "$wire"
one=(--port "vhost-user:$wire" --rdma-wire queue:0) other=(--port "virtio-user:$wire" --rdma-wire queue:0)
start_hosts
all_kinds
end_hosts
echo "the engine in the card: other hosts by a port of its own and by queues, to engines in cards and in programs"
