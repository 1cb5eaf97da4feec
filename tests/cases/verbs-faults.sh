#!/usr/bin/env bash
# Verbs programs over a wire that loses, doubles, reorders and damages frames, as its seed says: the port has counted the faults, and what
# the programs sent arrives, with what goodput is printed. ibv_rc_pingpong looks at every byte.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs python3
work="ib_write_bw -n 400 -s 65536"

# faulty COUNTERS OPTIONS COMMAND...: both ends of the command on a card whose two ports are the ends of one wire with these faults, which it
# has counted under these names.
faulty() {
    local counters=$1 options=$2 socket=$scratch/wire${#pids[@]}.sock
    shift 2
    start_card --queues 2 --workers 1 --frame-max 9000 --buffer 16384 \
        --port "fault:seed=3${options:+,$options},port=(vhost-user:$socket)" --port "virtio-user:$socket"
    await 10 wire_is_up || fail "the ports are not connected: $options"
    ends=("$device local=off tx=0 rx=0 ${extended:-}" "$device local=off tx=1 rx=1 ${extended:-}")
    both "$@"
    "$millrace" stats --json | python3 -c '
import json, sys
port = json.load(sys.stdin)["ports"][0]
seen = {count.get("reason") or count.get("event") for way in ("rx", "tx") for kind in ("drops", "events")
        for count in port[f"{way}_{kind}"] if count["count"]}
if not set(sys.argv[1:]) <= seen:
    sys.exit("failed: the port has counted %s" % sorted(seen))' $counters || exit 1
    check_counting
    slay "$card"
    goodput "${options:-nothing}${extended:+, $extended}: $*"
}

# goodput WORDS: the rate that the client has printed.
goodput() {
    awk -v words="$1" '/bytes in/ { rate = $(NF - 1) / 8 } /^ *65536 / { rate = $4 } END { printf "%10s  %s\n", rate ? sprintf("%.1f MB/s", rate) : "whole", words }' \
        "$scratch/client.out"
}

pingpong="ibv_rc_pingpong -g 0 -n 300 -c -s 20000 -m 4096"
# shellcheck disable=SC2086
{
    faulty "" "" $pingpong
    faulty fault-loss loss=1% $pingpong
    faulty fault-duplicate duplicate=2% $pingpong
    faulty fault-reorder reorder=2% $pingpong
    faulty fault-corrupt corrupt=1% $pingpong
    all=loss=1%,duplicate=1%,reorder=1%,corrupt=1%
    counters="fault-loss fault-duplicate fault-reorder fault-corrupt"
    faulty "$counters" $all $pingpong
    faulty "$counters" $all ibv_srq_pingpong -g 0 -n 200 -q 4
    faulty "" "" $work
    faulty fault-loss loss=1% $work
    faulty "$counters" $all $work
    faulty "$counters" $all ib_read_bw -n 300 -s 65536
    faulty "$counters" $all ib_send_bw -n 300 -s 65536
    faulty "$counters" $all ib_atomic_bw -n 200
    # As strangers speak with one another: all from what is missing on is sent again.
    extended=extended=off
    faulty fault-loss loss=1% $work
    faulty "$counters" $all $pingpong
}
