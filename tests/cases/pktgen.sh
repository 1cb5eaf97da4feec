#!/usr/bin/env bash
# pktgen: real flows out and back on several queues, with mixes and rates; every loss is counted, by it and by the card.
. "$(dirname "$0")/../lib.sh"
needs python3

# rows: the JSON rows of $scratch/rows, for the Python program on the command line, in which `rows` and `row` (the last)
# are known.
rows() {
    python3 -c "
import json
rows = [json.loads(line) for line in open('$scratch/rows')]
row = rows[-1]
$1" || fail "$1"
}

for engine in medusa sze calypte; do
    "$millrace" pktgen --engine $engine --queues 4 --flows 50 --mix imix --count 6k --latency --json >"$scratch/rows" ||
        fail "pktgen on four queues of $engine"
    rows "assert [row['queue'] for row in rows] == ['0', '1', '2', '3', 'all']
assert all(row['sent'] == row['received'] == 6000 for row in rows[:4]) and row['received'] == 24000
# 500 cycles of twelve frames.
assert row['sent_bytes'] == 4 * 500 * (7 * 64 + 4 * 594 + 1518) == row['received_bytes']
assert row['flows'] == 200 and row['other'] == 0
for row in rows:
    assert row['lost'] == row['corrupt'] == row['reordered'] == row['duplicates'] == 0
    assert row['min_ns'] <= row['p50_ns'] <= row['p90_ns'] <= row['p99_ns'] <= row['p999_ns'] <= row['max_ns']"
done
"$millrace" pktgen --ipv6 --queue 1,3 --size 80-1500 --count 5k --flows 1k --threads 2 --mode mediated --json \
    >"$scratch/rows" || fail "pktgen with IPv6"
rows "assert [row['queue'] for row in rows] == ['1', '3', 'all'] and row['received'] == 10000"

# A rate is an upper limit, kept from below as well as a machine with other work can: no time is asserted here.
"$millrace" pktgen --rate 10k --seconds 0.5 --json >"$scratch/rows" || fail "pktgen at 10 kpps"
rows "assert 0 < row['sent'] <= 5001"
"$millrace" pktgen --rate 8Mbit --size 1000 --seconds 0.5 --window 64 --json >"$scratch/rows" || fail "pktgen at 8 Mbit/s"
rows "assert 0 < row['sent'] <= 502"

# A receiver that is too small: what it drops is lost here, and counted there.
start_card --engine sze@rx0 --queues 1 --ring 32K --buffer 16K --buffers 128 --discard
code=0
"$millrace" pktgen --count 5k --size 9000 --linger 0.3 --json >"$scratch/rows" 2>"$scratch/error" || code=$?
[ "$code" -eq 1 ] || fail "loss ended with $code"
grep -q ' lost, 0 corrupt, 0 reordered, 0 duplicated' "$scratch/error" || fail "$(cat "$scratch/error")"
check_counting
"$millrace" stats --json >"$scratch/stats"
rows "queue = next(queue for queue in json.load(open('$scratch/stats'))['queues'] if queue['queue'] == 'rx0')
dropped = sum(drop['count'] for drop in queue['drops'])
assert row['lost'] == dropped > 0 and row['received'] == queue['passed'] == 5000 - dropped, (row, queue)"
unset MILLRACE_DEVICE

# Frames that others send are neither received nor corrupt.
"$millrace" pktgen --device embedded:port=null,port=generator:rate=100k --queue 0 --count 10 --linger 0.2 --json \
    >"$scratch/rows" 2>"$scratch/error" && fail "nothing came back, and that was well"
rows "assert row['received'] == 0 and row['lost'] == 10 and row['corrupt'] == 0"
grep -q -- --no-receive "$scratch/error" || fail "$(cat "$scratch/error")"
"$millrace" pktgen --device embedded:port=null --no-receive --count 100k --json >"$scratch/rows" || fail "sending alone"
rows "assert row['sent'] == 100000 and 'lost' not in row"

# Ctrl-C: a full report, soon.
background pktgen "$millrace" pktgen --queues 2 --latency --json
sleep 0.5
kill -INT "$started"
ended "$started" 5
[ "$code" -eq 0 ] || fail "Ctrl-C ended with $code"
cp "$scratch/pktgen.out" "$scratch/rows"
rows "assert len(rows) == 3 and row['sent'] == row['received'] > 0 and row['lost'] == 0"
background pktgen "$millrace" pktgen --count 1G --json
sleep 0.3
kill -INT "$started"
ended "$started" 5
[ "$code" -eq 130 ] || fail "Ctrl-C before the goal ended with $code"

# What is wrong is said.
for line in "--size 59" "--mix imix --ipv6" "--flows 5M" "--src-ip ::1 --dst-ip 10.0.0.1" "--rate 1T"; do
    code=0
    # shellcheck disable=SC2086
    "$millrace" pktgen $line >/dev/null 2>"$scratch/error" || code=$?
    [ "$code" -eq 2 ] && [ -s "$scratch/error" ] || fail "pktgen $line ended with $code: $(cat "$scratch/error")"
done
