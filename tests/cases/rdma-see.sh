#!/usr/bin/env bash
# `millrace rdma` shows the queue pairs, regions and counters of verbs programs that run, of both ends and of one; nothing when none runs.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs python3 ib_write_bw

start_card --queues 2
port=$((25000 + $$ % 5000))
# sees CONDITION COMMAND...: whether that holds of the `rows` of --json.
sees() {
    local condition=$1
    shift
    "$millrace" rdma "$@" --json >"$scratch/rows" || return 1
    python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[2])]
sys.exit(not eval(sys.argv[1]))' "$condition" "$scratch/rows"
}

background server env MILLRACE_VERBS="$device" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 60 -s 4096 -p "$port"
server=$started
await 30 listens "$port" "$server" || fail "the server does not listen"
background client env MILLRACE_VERBS="$device" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 60 -s 4096 -p "$port" localhost
client=$started

sending="sorted(row['state'] for row in rows if row['pid'] in ($server, $client)) == ['ReadyToReceive', 'ReadyToSend']"
await 30 sees "$sending" qps || fail "not a queue pair that sends and one that receives: $(cat "$scratch/rows")"
sees "all(row['service'] == 'ReliableConnection' and row['destination'] and row['remote_qp'] for row in rows)" qps --pid "$server" ||
    fail "queue pairs: $(cat "$scratch/rows")"
sees "{row['pid'] for row in rows} == {$client}" qps --pid "$client" || fail "--pid: $(cat "$scratch/rows")"
# A key that others could use is not told.
sees "rows and all(row['lkey'] == '' for row in rows if any('remote' in right for right in row['access']))" regions --pid "$server" ||
    fail "regions: $(cat "$scratch/rows")"
sees "any('remote-write' in row['access'] for row in rows)" regions --pid "$server" || fail "regions: $(cat "$scratch/rows")"
sees "any(row['counter'] == 'entries' and row['value'] >= 1 for row in rows)" iotlb --pid "$server" ||
    fail "iotlb: $(cat "$scratch/rows")"
sees "any(row['part'] == 'transport' for row in rows)" stats || fail "stats: $(cat "$scratch/rows")"
sees "len(rows) == 2" qps --pid "$client" --watch --count 2 || fail "--watch: $(cat "$scratch/rows")"
# A question changes nothing: both go on.
is_gone "$server" && fail "the server has ended"
is_gone "$client" && fail "the client has ended"
kill "$client" "$server"
await 10 sees "not [row for row in rows if row['pid'] in ($server, $client)]" qps || fail "programs that have ended are shown"

# With the engine in the card the card answers for its programs, and for itself.
start_card --queues 2 --rdma-cpu
engine=$card
background server env MILLRACE_VERBS="$device place=card" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 60 -s 4096 -p "$port"
server=$started
await 30 listens "$port" "$server" || fail "the server does not listen with place=card"
background client env MILLRACE_VERBS="$device place=card" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 60 -s 4096 -p "$port" localhost
client=$started
sending="sorted(row['state'] for row in rows if row['pid'] in ($server, $client)) == ['ReadyToReceive', 'ReadyToSend']"
await 30 sees "$sending" qps || fail "with place=card: $(cat "$scratch/rows")"
sees "rows and all(row['lkey'] == '' for row in rows if any('remote' in right for right in row['access']))" regions --pid "$server" ||
    fail "regions with place=card: $(cat "$scratch/rows")"
sees "any(row['counter'] == 'entries' and row['value'] >= 1 for row in rows)" iotlb --pid "$client" ||
    fail "iotlb with place=card: $(cat "$scratch/rows")"
sees "{row['counter'] for row in rows if row['value'] > 0} >= {'hits', 'lookups'}" iotlb --pid "$client" ||
    fail "hits with place=card: $(cat "$scratch/rows")"
sees "any(row['part'] == 'served' and row['counter'] == 'programs' and row['value'] == 2 for row in rows)" stats --pid "$engine" ||
    fail "stats of the engine: $(cat "$scratch/rows")"
await 10 sees "any(row['counter'] == 'copied_bytes' and row['value'] > 0 for row in rows)" stats --pid "$engine" ||
    fail "bytes copied by the engine: $(cat "$scratch/rows")"
kill "$client" "$server"
await 10 sees "not [row for row in rows if row['pid'] in ($server, $client)]" qps || fail "programs that have left the card are shown"
