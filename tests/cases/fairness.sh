#!/usr/bin/env bash
# `bench fairness`, as short as can be: every metric and every case prints numbers that can be; no goal is asserted.
# alone: it measures, with hostile programs on the same cores
. "$(dirname "$0")/../lib.sh"
needs python3

fairness() {
    "$millrace" bench fairness --rounds 1 --seconds 0.05 --json "$@" >>"$scratch/rows" 2>"$scratch/error.log"
}
fairness --metric bystander_rtt_ratio || fail "bystander_rtt_ratio ended with $?"
fairness --metric flooded_share || fail "flooded_share ended with $?"
# Not `fds`: it takes the card to its limit, which hostile-clients.sh does.
for case in alone connects requests; do
    fairness --metric request_p99_ms --case $case || fail "request_p99_ms $case ended with $?"
done
fairness --metric cold_look_p99_us --busy 10 --quiet 40 || fail "cold_look_p99_us ended with $?"
python3 - "$scratch/rows" <<'END_OF_CHECK' || fail "bench fairness"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert all(row["bench"] == "fairness" for row in rows), rows
values = {(row["metric"], row["case"]): row["value"] for row in rows if "case" in row}
worst = [row for row in rows if "worst_case" in row]
for metric, count in [("bystander_rtt_ratio", 12), ("flooded_share", 2), ("request_p99_ms", 3), ("cold_look_p99_us", 2)]:
    of_metric = {case: value for (name, case), value in values.items() if name == metric}
    assert len(of_metric) == count, (metric, of_metric)
    assert all(value is not None and value > 0 for value in of_metric.values()), (metric, of_metric)
    found = [row for row in worst if row["metric"] == metric]
    assert found and all(row["goal"] and row["met"] in ("yes", "no") for row in found), found
ratio = [row for row in worst if row["metric"] == "bystander_rtt_ratio"][0]
assert ratio["worst"] == max(value for (name, _), value in values.items() if name == "bystander_rtt_ratio"), ratio
END_OF_CHECK

# refused WORD OPTION...: ends with 2, and names what there is.
refused() {
    local word=$1 code=0
    shift
    "$millrace" bench fairness "$@" >"$scratch/out" 2>"$scratch/error" || code=$?
    [ "$code" -eq 2 ] || fail "bench fairness $* ended with $code"
    grep -q "$word" "$scratch/error" || fail "bench fairness $* does not say $word: $(cat "$scratch/error")"
}
refused flooded_share --metric speed
refused medusa-tx-endless --case slow
refused "leave --device out" --device embedded

# Ctrl-C: an honest exit code, and no process of it is left.
background interrupted "$millrace" bench fairness --metric bystander_rtt_ratio --seconds 20
await 20 pgrep -P "$started" -f "hostile rings" >/dev/null || fail "no hostile program was started"
children=$(pgrep -P "$started")
kill -INT "$started"
ended "$started" 20
[ "$code" -eq 130 ] || fail "interrupted, it ended with $code"
for child in $children; do
    await 10 is_gone "$child" || fail "process $child is left"
done
