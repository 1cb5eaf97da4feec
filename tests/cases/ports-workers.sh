#!/usr/bin/env bash
# Ports plugged, connected and unplugged, queues moved between workers: by command, while a program uses the card.
. "$(dirname "$0")/../lib.sh"

start_card --queues 4 --workers 3 --priority 1 --port loopback --port none
run() { "$millrace" "$@" --device "$device"; }

# One JSON object per row.
row() { # row TABLE-COMMAND KEY VALUE FIELD
    run "$1" --json | python3 -c '
import json, sys
key, value, field = sys.argv[1:]
rows = [json.loads(line) for line in sys.stdin]
[row] = [row for row in rows if str(row[key]) == value]
print(row[field])' "$2" "$3" "$4"
}

[ "$(row ports port 1 spec)" = none ] || fail "port 1 is not empty"
[ "$(row ports port 1 link)" = False ] || fail "an empty port has a link"
[ "$(row workers worker 2 queues)" = "['rx1', 'tx1']" ] || fail "the priority class is not alone: $(run workers)"

# A loopback that runs while its queues go from worker to worker loses nothing.
background loop "$millrace" pktgen --device "$device" --queue 0 --seconds 1.5 --flows 10
for worker in 1 0 1 0 2 0 1; do
    run workers --move "0=$worker" >/dev/null
    [ "$(row workers worker $worker queues | grep -c "rx0")" = 1 ] || fail "queue 0 is not with worker $worker"
done
wait "$started" || fail "pktgen lost something while its queues moved"

# A capture goes through the card without a queue.
made='import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import frames'
python3 -c "$made
frames.write(Path(sys.argv[2]), [bytes([2, 0, 0, 0, 0, 1] + [at % 256] * (54 + at * 7 % 1400)) for at in range(500)])
" "$tests" "$scratch/in.pcap"
run ports plug 1 "pcap:,write=$scratch/out.pcap" >/dev/null
run ports plug 0 none >/dev/null
run ports connect 0 1 >/dev/null
run ports plug 0 "pcap:$scratch/in.pcap" >/dev/null
arrived() { [ "$(row ports port 1 tx_frames)" = 500 ]; }
await 10 arrived || fail "frames are missing: $(run ports)"
[ "$(row ports port 0 connected)" = 1 ] || fail "the ports are not connected"
run ports unplug 1 >/dev/null
python3 -c "$made
sys.exit(frames.read(Path(sys.argv[2])) != frames.read(Path(sys.argv[3])))
" "$tests" "$scratch/in.pcap" "$scratch/out.pcap" || fail "the capture has changed on its way"

# What cannot be is said, and nothing else happens.
run ports plug 9 null 2>"$scratch/said" && fail "port 9 was plugged"
grep -q "there is no port 9" "$scratch/said" || fail "not said: $(cat "$scratch/said")"
run workers --move 0=7 2>"$scratch/said" && fail "worker 7 was given a queue"
grep -q "there is no worker 7" "$scratch/said" || fail "not said: $(cat "$scratch/said")"
