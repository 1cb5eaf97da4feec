#!/usr/bin/env bash
# Verbs programs of Debian over the engine in the card (place=card): payloads arrive, completion channels wake, an idle engine costs
# nothing, and whoever dies does not keep the other end, nor the card the programs.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../verbs.sh"
start_card --queues 2 --rdma-cpu
ends=("$device place=card" "$device place=card")

both ibv_rc_pingpong -g 0 -c -n 1000
both ibv_rc_pingpong -g 0 -c -n 200 -e
both ibv_rc_pingpong -g 0 -c -n 100 -s 100000
both ibv_uc_pingpong -g 0 -c -n 100
both ibv_srq_pingpong -g 0 -c -n 200
both ibv_ud_pingpong -g 0 -c -n 200
both ibv_ud_pingpong -g 1 -c -n 100 -e
both ib_send_bw -c UD -n 500
both ib_send_lat -c UD -n 500 -I 64
for test in ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat ib_atomic_lat; do
    both "$test" -n 500
done
both ib_write_bw -n 500 -s 8
both ib_write_bw -n 100 -s 1048576
both ib_send_bw -n 500 -s 4096 -e

# cpu_ns: time on a core of all threads of the card.
cpu_ns() {
    cat "/proc/$card"/task/*/schedstat | awk '{ sum += $1 } END { printf "%d\n", sum }'
}
# A program that waits for its other end, and a card that has served others.
port=$((24000 + $$ % 1000))
background server env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" ibv_rc_pingpong -g 0 -n 100000000 -p "$port"
server=$started
await 30 listens "$port" "$server" || fail "the server does not listen"
sleep 0.5
before=$(cpu_ns)
sleep 2
share=$(awk "BEGIN { printf \"%.3f\", ($(cpu_ns) - $before) / 2e7 }")
awk "BEGIN { exit !($share < 1.0) }" || fail "an idle engine uses $share % of a core"

slay "$server"

# The target of WRITEs is killed: who writes has errors. (Who only waits for a message waits on, as with hardware.)
background target env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 50 -p "$port"
target=$started
await 30 listens "$port" "$target" || fail "the target does not listen"
background writer env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" timeout 60 ib_write_bw -D 50 -p "$port" localhost
writer=$started
sleep 2
kill -0 "$writer" || fail "the writer has ended: $(tail -n 3 "$scratch/writer.log")"
slay "$target"
ended "$writer" 5
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "the writer does not see that its target was killed: $code"

# The card is killed: the programs end.
background server env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" timeout 60 ibv_rc_pingpong -g 0 -n 100000000 -p "$port"
server=$started
await 30 listens "$port" "$server" || fail "the server does not listen again"
background client env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" timeout 60 ibv_rc_pingpong -g 0 -n 100000000 -e -p "$port" localhost
client=$started
sleep 1
kill -0 "$client" || fail "the second client has ended: $(tail -n 3 "$scratch/client.log")"
# What the engine in the card has not, is refused, and nothing hangs.
code=0
MILLRACE_VERBS="${ends[0]} ip=10.0.0.1" ours ibv_devinfo >"$scratch/ip.out" 2>&1 || code=$?
grep -q "place=card: it has neither" "$scratch/ip.out" || fail "an address of its own is not refused: $(cat "$scratch/ip.out")"

kill -KILL "$card"
for program in "$server" "$client"; do
    ended "$program" 5
    [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a program does not see that the card was killed: $code"
done

echo "idle: $share % of a core"
echo "the engine in the card: pingpongs and perftest of two programs"
