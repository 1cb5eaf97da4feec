#!/usr/bin/env bash
# `make soak` for seconds instead of an hour: programs are killed, memory is scribbled on, and bystanders lose nothing; at
# the end the card has the fds, mappings, threads, memory and open queues that it had before.
# alone: it has programs killed in a given time
. "$(dirname "$0")/../lib.sh"
needs python3

"$millrace" soak --seconds 6 --kills 20 --json >"$scratch/row" 2>"$scratch/error.log" || fail "soak ended with $?"
python3 - "$scratch/row" <<'END_OF_CHECK' || fail "soak"
import json, sys
(row,) = [json.loads(line) for line in open(sys.argv[1])]
print({name: row[name] for name in ("kills", "hostile_writes", "bystander_frames", "request_p50_ms", "request_p99_ms")})
assert row["kills"] >= 20 and row["hostile_writes"] > 0 and row["seconds"] >= 6, row
assert row["bystander_frames"] > 0 and row["bystander_bad"] == 0 and row["violations"] == 0, row
assert row["requests"] > 0 and 0 < row["request_p50_ms"] <= row["request_p99_ms"], row
for name in ("fds", "shared_maps", "threads", "openers"):
    assert 0 < row[name + "_after"] <= row[name + "_before"], (name, row)
END_OF_CHECK

# It says so when somebody is hurt: a card that is killed ends it with 1.
background killed "$millrace" soak --seconds 60 --kills 1
await 30 pgrep -P "$started" -f " card --json" >/dev/null || fail "soak has started no card"
soak=$started
await 60 pgrep -P "$soak" -f "role victim" >/dev/null || fail "soak has started no victim"
kill -KILL "$(pgrep -P "$soak" -f " card --json")"
ended "$soak" 150
[ "$code" -eq 1 ] || fail "a soak whose card was killed ended with $code"
