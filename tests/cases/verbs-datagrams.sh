#!/usr/bin/env bash
# Datagrams over a wire between two cards, to a receiver that is stopped again and again: what does not come is counted, by the port of
# its card (no-room) or by its engine (no_buffer). None is lost in silence.
. "$(dirname "$0")/../lib.sh"
needs ib_send_bw python3
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
export LD_LIBRARY_PATH=$library
messages=200000

# accounted: whether all that was sent has come, or is counted.
accounted() {
    { "$millrace" stats --json --device "$receiving" && "$millrace" rdma stats --json --pid "$server"; } | python3 -c '
import json, sys
card, *rows = (json.loads(line) for line in sys.stdin)
engine = {row["counter"]: row["value"] for row in rows if row["part"] == "transport"}
no_room = sum(drop["count"] for port in card["ports"] for drop in port["rx_drops"] if drop["reason"] == "no-room")
print(engine["received"], "came,", engine["no_buffer"], "of them found no buffer;", no_room, "had no room in the queue")
sys.exit(no_room == 0 or engine["received"] + no_room != int(sys.argv[1]))' "$messages"
}

start_card --queues 2 --port "vhost-user:$scratch/wire"
receiving=$device
start_card --queues 2 --port "virtio-user:$scratch/wire"
sending=$device
port=$((20000 + RANDOM % 10000))
MILLRACE_VERBS="$receiving ip=198.18.0.1" background server ib_send_bw -c UD -n $messages -p $port
server=$started
await 10 grep -q "$(printf ':%04X ' $port)" /proc/net/tcp /proc/net/tcp6 || fail "the receiver does not listen"
MILLRACE_VERBS="$sending ip=198.18.0.2" background client ib_send_bw -c UD -n $messages -p $port localhost
client=$started
while kill -0 "$client" 2>/dev/null && ! grep -q "1024 .*$messages" "$scratch/client.out"; do
    kill -STOP "$server"
    sleep 0.02
    kill -CONT "$server"
    sleep 0.02
done
await 10 accounted >"$scratch/told" || fail "not all datagrams are accounted for: $(cat "$scratch/told")"
tail -n 1 "$scratch/told"
