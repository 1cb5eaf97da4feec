#!/usr/bin/env bash
# Measures everything and leaves the results, one JSON object per line, and the plot in target/bench.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"
millrace=$target/release/millrace
results=$target/bench
mkdir -p "$results"

failed=()
# run NAME ARGUMENT...: what one of them cannot measure does not keep the others from it.
run() {
    local name=$1
    shift
    echo "== millrace bench $*"
    "$millrace" bench "$@" --json >"$results/$name.jsonl" || failed+=("$*")
    [ ! -s "$results/$name.jsonl" ] || python3 scripts/table.py <"$results/$name.jsonl"
}

run sync sync
run latency latency --plot "$results/latency.svg"
run throughput throughput
run peers peers
run nfb nfb
run matrix matrix --svg "$results/matrix.svg" --nodes "$results/nodes.svg"
run queues queues
run classify classify
run esp esp --size 64,576,1400
run launch launch
run clock clock
run rdma rdma
run agent agent
run rdma-sizes rdma --sweep --svg "$results/rdma.svg"
run message message --rounds 3
run message-sizes message --sweep
run router router --rounds 3
run message-buffers message --sweep=mtu --seconds 0.1 --svg "$results/message.svg"
echo "results, latency.svg, matrix.svg, nodes.svg, rdma.svg and message.svg are in $results"
if [ ${#failed[@]} -gt 0 ]; then
    echo "not everything could be measured: ${failed[*]}; a machine with nothing else to do helps"
    exit 1
fi
