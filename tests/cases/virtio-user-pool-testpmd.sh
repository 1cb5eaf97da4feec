#!/usr/bin/env bash
# DPDK's net_vhost writes into the pool of a program: frames go round between dpdk-testpmd and `millrace forward`, and the
# receiving queues copy none. The program then ends and comes again, with another pool, while dpdk-testpmd lives. As client and
# as server.
. "$(dirname "$0")/../lib.sh"
needs python3 dpdk-testpmd

# Each queue has passed as many frames as that, and received ones without a copy.
went_round() {
    "$millrace" stats --json | python3 -c '
import json, sys
for queue in json.load(sys.stdin)["queues"]:
    is_rx = queue["queue"].startswith("rx")
    if queue["passed"] < int(sys.argv[1]) or queue["copies"] != (0 if is_rx else queue["passed"]):
        sys.exit(1)' "$1"
}

for role in client server; do
    # Who makes the sockets.
    ours='' theirs=''
    [ "$role" = client ] || ours=,server theirs=,client=1
    start_card --engine dd --rx 2 --tx 2 --port "virtio-user:$scratch/1.sock$ours" --port "virtio-user:$scratch/2.sock$ours"
    background forward "$millrace" forward --queue 0,1
    forwarder=$started
    # It begins with 32 frames at each port, which then go round.
    background testpmd dpdk-testpmd --no-huge -m 256 --no-pci --no-telemetry --no-shconf --file-prefix "vp$$$role" \
        --vdev="net_vhost0,iface=$scratch/1.sock$theirs" --vdev="net_vhost1,iface=$scratch/2.sock$theirs" \
        -- --forward-mode=io --tx-first --auto-start --stats-period 1 --no-mlockall --total-num-mbufs=16384
    program=$started
    await 30 on_pools 2 || fail "net_vhost does not work on the pool: $("$millrace" stats; tail "$scratch/testpmd.out")"
    await 30 went_round 20000 || fail "frames do not go round without copies: $("$millrace" stats)"
    for round in 2 3; do
        kill -INT "$forwarder"
        ended "$forwarder" 10
        [ "$code" -eq 0 ] || fail "the forwarder ended with $code"
        await 10 on_pools 0 || fail "net_vhost still works on the pool of a program that has ended"
        check_counting
        background "forward$round" "$millrace" forward --queue 0,1
        forwarder=$started
        await 30 on_pools 2 || fail "net_vhost does not work on another pool: $("$millrace" stats)"
    done
    for pid in "$forwarder" "$program" "$card"; do
        kill -INT "$pid"
        ended "$pid" 10
    done
    rm -f "$scratch"/*.sock
done
