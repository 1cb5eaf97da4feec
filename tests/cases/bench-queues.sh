#!/usr/bin/env bash
# The benchmarks of many queues, as short as can be: all rows, all names, a drawing; no time is asserted.
# alone: it measures, with two threads that poll
. "$(dirname "$0")/../lib.sh"
needs python3

"$millrace" bench matrix --rounds 1 --seconds 0.01 --json --svg "$scratch/matrix.svg" >"$scratch/rows" 2>"$scratch/error.log" ||
    fail "bench matrix ended with $?"
python3 - "$scratch/rows" "$scratch/matrix.svg" <<'END' || fail "bench matrix"
import json, sys, xml.etree.ElementTree as tree
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [(row["queues"], row["size"]) for row in rows] == [
    (queues, size) for queues in (1, 2, 4, 8) for size in (64, 128, 256, 512, 1024, 1536)], rows
for row in rows:
    assert row["bench"] == "matrix" and row["engine"] and row["rounds"] == 1, row
    assert row["mpps"] >= 0 and row["gbps"] >= 0 and 0 < row["p50_ns"] <= row["p99_ns"], row
    assert row["vxlan_mpps"] >= 0 and row["vxlan_gbps"] >= 0 and 0 < row["vxlan_p50_ns"] <= row["vxlan_p99_ns"], row
drawing = tree.parse(sys.argv[2]).getroot()
texts = "".join(drawing.itertext())
for text in ("Throughput by packet size", "Median round trip by packet size", "8 queue pairs", "1536", "Gbit/s", "with VXLAN"):
    assert text in texts, text
# Four charts, four lines, six sizes.
assert len(drawing.findall(".//{*}circle")) == 96
END
"$millrace" bench matrix --rounds 1 --seconds 0.01 --queues 3 --size 100 --engine sze >"$scratch/table" 2>/dev/null ||
    fail "bench matrix as a table"
grep -Eq '^ +3 +100 .*[0-9]$' "$scratch/table" || fail "$(cat "$scratch/table")"

# Three processes: sender, card, receiver.
"$millrace" bench matrix --rounds 1 --seconds 0.2 --queues 1 --size 64,1518 --json --nodes "$scratch/nodes.svg" \
    >"$scratch/rows" 2>"$scratch/error.log" || fail "bench matrix --nodes ended with $?"
python3 - "$scratch/rows" "$scratch/nodes.svg" <<'END' || fail "bench matrix --nodes"
import json, sys, xml.etree.ElementTree as tree
rows = [row for row in map(json.loads, open(sys.argv[1])) if "nodes" in row]
assert [(row["size"], row["vxlan"]) for row in rows] == [(64, "off"), (1518, "off"), (64, "on"), (1518, "on")], rows
texts = "".join(tree.parse(sys.argv[2]).getroot().itertext())
for text in ("VXLAN off", "VXLAN on", "sender, card, receiver"):
    assert text in texts, text
END

queues() {
    "$millrace" bench queues --rounds 1 --seconds 0.01 --json "$@" >"$scratch/rows" 2>"$scratch/error.log"
}
queues --configured 40 --active 3 || fail "bench queues ended with $?"
python3 - "$scratch/rows" <<'END' || fail "bench queues"
import json, sys
(row,) = [json.loads(line) for line in open(sys.argv[1])]
assert (row["configured"], row["active"]) == (40, 3) and row["mpps"] >= 0 and row["rtt_p50_ns"] > 0, row
END
# A thousand pairs take more descriptors than some systems allow.
if [ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 16384 ]; then
    queues --configured 1000 --active 8 || fail "bench queues with a thousand"
    [ "$(field configured <"$scratch/rows") $(field active <"$scratch/rows")" = "1000 8" ] || fail "$(cat "$scratch/rows")"
fi
code=0
queues --configured 3 --active 4 || code=$?
[ "$code" -eq 2 ] || fail "more active than configured ended with $code"
