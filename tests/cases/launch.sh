#!/usr/bin/env bash
# Launch times: frames of `millrace send` leave at their times and never before, with a verdict on each that the statistics of the card agree with; what is
# late or too far ahead is treated as asked; Ctrl-C ends with a report; and the example of docs/time.md works.
. "$(dirname "$0")/../lib.sh"
needs python3
start_card --engine dd --queues 4 --port null --tsu

# rows PROGRAM: the JSON lines of $scratch/rows, for the Python program; `row` is the last.
rows() {
    python3 -c "
import json
rows = [json.loads(line) for line in open('$scratch/rows')]
row = rows[-1]
$1" || fail "$1: $(cat "$scratch/rows")"
}

"$millrace" send --at +20ms --period 50us --count 2000 --slack 4s --verdicts --json >"$scratch/rows" || fail "send"
rows "each = rows[:-1]
assert len(each) == 2000 and all(one['actual_ns'] >= one['scheduled_ns'] for one in each)
assert [b['scheduled_ns'] - a['scheduled_ns'] for a, b in zip(each, each[1:])] == [50_000] * 1999
assert all(a['actual_ns'] <= b['actual_ns'] for a, b in zip(each, each[1:]))
assert row['frames'] == row['sent'] == row['on_time'] == 2000 and row['early'] == row['waiting'] == 0
assert row['late_p50_ns'] <= row['late_p99_ns'] <= row['late_max_ns']"

# Times long gone: dropped, or marked and sent.
"$millrace" send --at 5 --period 1us --count 30 --late drop --queue 1 --json >"$scratch/rows" 2>"$scratch/said" && fail "nothing was sent, and that is fine?"
rows "assert (row['too_late'], row['sent'], row['frames']) == (30, 0, 30)"
"$millrace" send --at 5 --period 1us --count 30 --late mark --queue 1 --json >"$scratch/rows" 2>"$scratch/marked" || fail "send --late mark"
rows "assert (row['late'], row['sent']) == (30, 30)"
grep -q "5 was long ago" "$scratch/said" || fail "it is not said that this was 1970: $(cat "$scratch/said")"
# Too far: refused at once.
"$millrace" send --at +100s --count 3 --period 1s --too-far refuse --queue 2 --json >"$scratch/rows" && fail "100 s are not too far?"
rows "assert (row['too_far'], row['sent']) == (3, 0)"
# Held, until Ctrl-C.
"$millrace" send --at +100s --too-far hold --queue 2 --json >"$scratch/held" 2>"$scratch/held.log" &
held=$!
# It has a handler by then: its frame waits.
waits() { "$millrace" stats --json | python3 -c 'import json, sys
sys.exit(not any(queue["queue"] == "tx2" and queue["state"] == "running" for queue in json.load(sys.stdin)["queues"]))'; }
await 10 waits || fail "queue 2 does not run: $("$millrace" stats --json)"
kill -INT $held
wait $held && fail "a frame of in 100 s was sent"
cp "$scratch/held" "$scratch/rows"
rows "assert (row['frames'], row['waiting']) == (0, 1)"

# What the card counted is the same.
"$millrace" stats --json >"$scratch/rows"
rows "queues = {queue['queue']: queue for queue in row['queues'] if queue['launch']}
told = {name: {one['reason']: one['count'] for one in queue['launch']['verdicts']} for name, queue in queues.items()}
assert told == {'tx0': {'on-time': 2000}, 'tx1': {'late': 30, 'too-late': 30}, 'tx2': {'too-far': 3}}, told
for queue in queues.values():
    launch = queue['launch']
    assert launch['frames'] == sum(one['count'] for one in launch['verdicts'])
    assert queue['passed'] == sum(bucket['count'] for bucket in launch['late'])"
check_counting

# A gate of class 6 that is open 100 us in 1 ms: frames of queue 3 leave in bunches, those of the other queues whenever they like but then.
cat >"$scratch/line.toml" <<'TOML'
port = 0
speed = "1G"
[[gate]]
open = [6]
lasts = "100us"
[[gate]]
open = [0]
lasts = "900us"
[[queue]]
queues = "3"
class = 6
TOML
"$millrace" schedule set "$scratch/line.toml" --json >"$scratch/rows" || fail "schedule set"
rows "assert row['cycle_ns'] == 1_000_000 and not row['pending'] and row['queues'] == [{'queue': 3, 'class': 6, 'rate': 0}]"
# Each in its window, from its first bit to its last; and those of class 0 in theirs, at the same time. Cycles begin at whole milliseconds.
"$millrace" send --queue 0 --at +10ms --period 10us --count 1000 --size 60 --slack 3s --verdicts --json >"$scratch/others" &
others=$!
"$millrace" send --queue 3 --at +10ms --period 10us --count 1000 --size 60 --slack 3s --verdicts --json >"$scratch/rows" || fail "send in a schedule"
wait $others || fail "send in the other windows"
rows "assert row['sent'] == 1000 and row['early'] == 0 and row['late_p50_ns'] > 100_000, row"
in_window() { # in_window BEGIN END: in ns of the cycle
    rows "lasts = (60 + 24) * 8
phases = [one['actual_ns'] % 1_000_000 for one in rows[:-1]]
assert len(phases) == 1000 and all($1 <= phase and phase + lasts <= $2 for phase in phases), sorted(phases)[::50] + [max(phases)]"
}
in_window 0 100_000
cp "$scratch/others" "$scratch/rows"
in_window 100_000 1_000_000
"$millrace" schedule show --json >"$scratch/rows"
rows "assert row['port'] == 0 and len(row['gates']) == 2"

# Rules and the schedule at once: the gate says when a frame leaves its ring, a rule what becomes of it then.
tx_frames() { "$millrace" stats --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["ports"][0]["tx_frames"])'; }
before=$(tx_frames)
"$millrace" flow add 'in_port=local,actions=drop' >"$scratch/said" || fail "flow add"
"$millrace" send --queue 3 --at +10ms --period 10us --count 500 --slack 3s --json >"$scratch/rows" || fail "send with a rule that drops"
rows "assert row['sent'] == 500 and row['early'] == 0 and row['late_p50_ns'] > 100_000, row"
[ "$(tx_frames)" = "$before" ] || fail "a rule that drops has sent $(($(tx_frames) - before)) frames"
"$millrace" flow delete in_port=local >"$scratch/said" || fail "flow delete"
"$millrace" flow add 'in_port=local,actions=output:0' >"$scratch/said" || fail "flow add"
"$millrace" send --queue 3 --at +10ms --period 10us --count 500 --slack 3s --json >"$scratch/rows" || fail "send with a rule that sends"
rows "assert row['sent'] == 500 and row['early'] == 0 and row['late_p50_ns'] > 100_000, row"
[ "$(tx_frames)" = $((before + 500)) ] || fail "a rule that sends has sent $(($(tx_frames) - before)) frames of 500"
"$millrace" flow delete in_port=local >"$scratch/said" || fail "flow delete"
check_counting

sed 's/class = 6/class = 9/' "$scratch/line.toml" >"$scratch/bad.toml"
"$millrace" schedule set "$scratch/bad.toml" 2>"$scratch/said" && fail "a class 9"
grep -q "class from 0 to 7" "$scratch/said" || fail "it is not said what is wrong: $(cat "$scratch/said")"
printf 'port = 0\nspeed = "1G"\n[[queue]]\nqueues = "3"\nrate = "100G"\n' >"$scratch/bad.toml"
"$millrace" schedule set "$scratch/bad.toml" 2>"$scratch/said" && fail "a queue faster than its wire"
grep -q "at most the speed of the wire" "$scratch/said" || fail "it is not said what is wrong: $(cat "$scratch/said")"
# What is to come is not yet in force.
sed "s/^port/base = 5000000000000000000\nport/" "$scratch/line.toml" >"$scratch/later.toml"
"$millrace" schedule set "$scratch/later.toml" --json >"$scratch/rows"
rows "assert row['pending']"
"$millrace" schedule clear 0 --json >"$scratch/rows"
[ ! -s "$scratch/rows" ] || fail "the schedule is still there"
check_counting

# The example of the document.
cd "$root"
follow "$(shown docs/time.md "Five minutes")"
