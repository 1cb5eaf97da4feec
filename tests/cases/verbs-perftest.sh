#!/usr/bin/env bash
# perftest and the pingpongs with the options that people give them: all sizes, both directions, several queue pairs, events, path MTUs, lists of
# requests, shared receive queues, RoCE v1, unreliable connections; and as the device of a maker that perftest knows, to which it posts by
# ibv_wr_... (part=4129).
# alone: its programs poll, and give up when the other end has no core for half a second
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
start_card --queues 2

ends=("$device" "$device")
for size in 1 4194304; do both ibv_rc_pingpong -g 0 -c -n 10 -s $size; done
for mtu in 256 512 1024; do both ibv_rc_pingpong -g 0 -c -n 20 -s 10000 -m $mtu; done
both ibv_rc_pingpong -g 0 -n 50 -N
both ibv_rc_pingpong -g 0 -n 100000

for work in write read send; do
    both ib_${work}_bw -F -a -n 20
    both ib_${work}_bw -F -b -n 200 -s 4096
    both ib_${work}_bw -F -q 8 -n 200 -s 4096
    both ib_${work}_bw -F -m 256 -n 200 -s 10000
    both ib_${work}_bw -F -x 1 -n 100
    both ib_${work}_lat -F -a -n 20
done
both ib_write_bw -F -l 16 -n 320 -s 4096
both ib_write_bw -F -D 2
both ib_atomic_bw -F -q 8 -n 200

ends=("$device vendor=0x2c9 part=4129" "$device vendor=0x2c9 part=4129")
for work in write read send; do
    both ib_${work}_bw -F -q 8 -n 200 -s 4096
    both ib_${work}_lat -F -n 200
done
both ib_write_bw -F -c UC -n 200
both ib_write_lat -F -c UC -n 200
both ib_send_bw -F -c UC -n 200
both ib_send_lat -F -c UC -n 200
both ib_send_bw -F -e -n 200
both ib_send_lat -F -e -n 200
both ib_send_bw -F --use-srq -q 2 -n 200
both ib_atomic_bw -F -b -n 200
both ib_atomic_lat -F -n 200
echo "perftest with options, and as a device that it knows"
