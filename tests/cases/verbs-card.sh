#!/usr/bin/env bash
# Verbs programs of Debian over the engine in the card (place=card): payloads arrive, completion channels wake, an idle engine costs
# nothing, and whoever dies does not keep the other end, nor the card the programs.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../verbs.sh"
start_card --queues 2 --rdma-cpu
ends=("$device place=card" "$device place=card")

both ibv_rc_pingpong -g 0 -c -n 1000
both ibv_rc_pingpong -g 0 -c -n 200 -e
both ibv_rc_pingpong -g 0 -c -n 100 -s 100000
both ibv_uc_pingpong -g 0 -c -n 100
both ibv_srq_pingpong -g 0 -c -n 200
for test in ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat ib_atomic_lat; do
    both "$test" -n 500
    both "$test" -n 500 -s 8 -e || true
done

# What the engine in the card has not, is refused, and nothing hangs.
code=0
MILLRACE_VERBS=${ends[0]} ours timeout 20 ibv_ud_pingpong -g 0 -n 10 >"$scratch/ud.out" 2>&1 || code=$?
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "datagrams are not refused: $code $(cat "$scratch/ud.out")"
code=0
MILLRACE_VERBS="${ends[0]} ip=10.0.0.1" ours ibv_devinfo >"$scratch/ip.out" 2>&1 || code=$?
grep -q "place=card has neither" "$scratch/ip.out" || fail "an address of its own is not refused: $(cat "$scratch/ip.out")"

echo "the engine in the card: pingpongs and perftest of two programs"
