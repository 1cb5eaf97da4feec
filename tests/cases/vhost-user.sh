#!/usr/bin/env bash
# A DPDK program as the neighbour: two virtio drivers of dpdk-testpmd on two vhost-user ports that are connected in the card,
# with two queues each. Frames go round and round. The program is killed and comes again while the card runs.
. "$(dirname "$0")/../lib.sh"
needs dpdk-testpmd python3
is_root || skip "dpdk-testpmd takes root"

drivers=()
for port in a b; do
    drivers+=("--vdev=net_virtio_user_$port,path=$scratch/$port.sock,queues=2,queue_size=256,in_order=0")
done
testpmd=(dpdk-testpmd -l "0,1" --main-lcore 0 --no-pci --no-huge -m 128 --no-telemetry --file-prefix "vhost-$$" "${drivers[@]}"
    -- -i --rxq=2 --txq=2 --nb-cores=1 --total-num-mbufs=8192)

# How many frames have come from testpmd by way of port 0.
sent() {
    "$millrace" stats --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["ports"][0]["rx_frames"])'
}
sent_so_many() {
    [ "$(sent)" -ge "$1" ]
}

# neighbour: runs testpmd until thousands of frames have gone round, and says how many came back to it.
neighbour() {
    local enough=$(($(sent) + 10000))
    {
        sleep 1; echo "start tx_first"
        await 10 sent_so_many $enough || true
        echo stop; sleep 0.3; echo "show port stats all"; sleep 0.3; echo quit
    } |
        timeout -k 5 60 "${testpmd[@]}" >"$scratch/testpmd.log" 2>&1 || true
    grep -ao 'RX-packets: *[0-9]*' "$scratch/testpmd.log" | awk '{ sum += $2 } END { print sum + 0 }'
}

came_back() {
    local frames
    frames=$(neighbour)
    [ "$frames" -ge 1000 ] || fail "$1: only $frames frames came back to testpmd"
}

start_card --port "vhost-user:$scratch/a.sock,queues=2" --port "vhost-user:$scratch/b.sock,queues=2"
"$millrace" ports connect 0 1 >/dev/null
came_back "first time"
came_back "testpmd started again"
# Killed in the middle: the card has to notice, and to be ready for the next.
mkfifo "$scratch/commands"
exec 9<>"$scratch/commands"
"${testpmd[@]}" <&9 >"$scratch/killed.log" 2>&1 &
half=$!
pids+=("$half")
echo "start tx_first" >&9
# What testpmd says stands in its buffer until it ends; the card knows better.
forwards() {
    "$millrace" ports --json | grep -q "driver ready"
}
await 20 forwards || fail "testpmd does not forward: $("$millrace" ports --json)"
sleep 0.5
slay "$half"
came_back "after testpmd was killed"
kill -INT "$card"
ended "$card" 10
[ ! -e "$scratch/a.sock" ] || fail "the card has left its socket behind"
# A card that was killed leaves its socket; the next one takes its place.
start_card --port "vhost-user:$scratch/a.sock,queues=2" --port "vhost-user:$scratch/b.sock,queues=2"
slay "$card"
start_card --port "vhost-user:$scratch/a.sock,queues=2" --port "vhost-user:$scratch/b.sock,queues=2"
"$millrace" ports connect 0 1 >/dev/null
came_back "after the card was killed"
echo "frames came back each time"
