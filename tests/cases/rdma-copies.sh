#!/usr/bin/env bash
# What verbs programs count of bytes that they copy (`stats=FILE`): one copy into memory of the same host, four by the ring or a wire of shared
# memory, two and those of the card in frames. And when what happened to requests (`profile=FILE`).
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs python3

size=65536
count=200

# copied LEAST MOST PARTS COMMAND...: each byte of $count messages was copied so often by both ends, and some by each of these parts.
copied() {
    local least=$1 most=$2 parts=$3 server=${ends[0]} client=${ends[1]}
    shift 3
    rm -f "$scratch"/*.json
    ends=("$server stats=$scratch/server.json" "$client stats=$scratch/client.json")
    both "$@" -s "$size" -n "$count"
    ends=("$server" "$client")
    python3 - "$least" "$most" "$parts" $((size * count)) "$scratch/server.json" "$scratch/client.json" <<'END' || fail "$*"
import json, sys
least, most, parts, moved, *files = sys.argv[1:]
told = [json.load(open(file))["copied"] for file in files]
total = {part: sum(end[part] for end in told) / int(moved) for part in told[0]}
print({part: round(copies, 2) for part, copies in total.items() if copies})
missing = [part for part in parts.split() if not total[part]]
if missing or not float(least) <= sum(total.values()) <= float(most):
    sys.exit(f"failed: {total}")
END
}

start_card --queues 2
# The first ones are packets, because the other end is still to learn that it is connected. Packets may be sent again where both ends and the
# card wait for a core, and frames have headers.
ends=("$device" "$device")
copied 1 2.5 "reached" ib_write_bw
copied 1 2.5 "reached" ib_read_bw
copied 4 5 "regions rings" ib_send_bw
ends=("$device local=off" "$device local=off")
copied 2 4 "regions" ib_write_bw
ends=("port=vhost-user:$scratch/wire.sock ip=198.18.0.1" "port=virtio-user:$scratch/wire.sock ip=198.18.0.2")
copied 4 8 "regions port" ib_write_bw

# Stamps of a ping-pong: in the order of time, and as many as there were messages.
ends=("$device local=off profile=$scratch/server.json" "$device local=off profile=$scratch/client.json")
both ib_send_lat -s 64 -n 300
python3 - "$scratch/server.json" "$scratch/client.json" <<'END' || fail "stamps"
import json, sys
for file in sys.argv[1:]:
    told = json.load(open(file))
    ticks = [tick for tick, _ in told["stamps"]]
    of = lambda name: [tick for tick, stage in told["stamps"] if stage == name]
    counts = {name: len(of(name)) for name in ("asked", "posted", "begun", "sent", "came", "done", "polled")}
    if not 0 < told["ns_per_tick"] < 100 or min(counts.values()) < 300 or counts["asked"] != counts["posted"]:
        sys.exit(f"failed: {told['ns_per_tick']} {counts}")
    if any(asked > posted for asked, posted in zip(of("asked"), of("posted"))) or of("polled") != sorted(of("polled")):
        sys.exit("failed: not in order")
    print(counts)
END
