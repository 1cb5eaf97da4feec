#!/usr/bin/env bash
# One of two verbs programs is killed at any moment, with eight queue pairs at work: the other one learns it by its completions,
# soon, and two others on the same card notice nothing.
# alone: its programs poll, and kills are about how soon
#
# MILLRACE_KILLS: how many (12).
. "$(dirname "$0")/../lib.sh"
needs ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw ibv_rc_pingpong
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
export LD_LIBRARY_PATH=$library
kills=${MILLRACE_KILLS:-12}

start_card --queues 4
export MILLRACE_VERBS=$device

# listens PORT: somebody does, which is state 0A there. A connection of an earlier run that waits for its end is none.
listens() {
    grep -qiE "$(printf ':%04X 0+:0000 0A ' "$1")" /proc/net/tcp /proc/net/tcp6
}

# Others: on queues of their own, with their payload checked.
background other timeout 600 ibv_rc_pingpong -g 0 -n 20000000 -c -p 18600
first=$started
await 10 listens 18600 || fail "ibv_rc_pingpong does not listen: $(cat "$scratch/other.log")"
background another timeout 600 ibv_rc_pingpong -g 0 -n 20000000 -c -p 18600 localhost
second=$started
sleep 1

RANDOM=57
works=("ib_write_bw -s 65536" "ib_write_bw -s 8" "ib_send_bw -s 4096" "ib_read_bw -s 16384" "ib_atomic_bw")
slowest=0
for round in $(seq "$kills"); do
    read -r -a work <<<"${works[RANDOM % ${#works[@]}]}"
    port=$((18700 + round))
    background server timeout 60 "${work[@]}" -D 20 -q 8 -p "$port"
    server=$started
    await 10 listens "$port" || fail "round $round: ${work[*]} does not listen: $(tail -n 3 "$scratch/server.log")"
    background client timeout 60 "${work[@]}" -D 20 -q 8 -p "$port" localhost
    client=$started
    sleep "0.$((RANDOM % 7 + 2))$((RANDOM % 10))"
    # Who only receives asks nothing, and learns nothing, as with hardware.
    if [ $((RANDOM % 2)) -eq 0 ] || [ "${work[0]}" = ib_send_bw ]; then dies=$server lives=$client; else dies=$client lives=$server; fi
    # The program itself: what was started is the `timeout` around it.
    pid=$(pgrep -P "$dies" || true)
    [ -n "$pid" ] || fail "round $round: ${work[*]} has ended before it was killed: $(tail -n 3 "$scratch"/{server,client}.log)"
    kill -KILL "$pid"
    begin=$(date +%s%N) took=0
    while kill -0 "$lives" 2>/dev/null; do
        took=$((($(date +%s%N) - begin) / 1000000))
        [ "$took" -lt 10000 ] || fail "round $round: ${work[*]} hangs when its other end is killed"
        sleep 0.01
    done
    [ "$took" -le "$slowest" ] || slowest=$took
    wait "$lives" "$dies" 2>/dev/null || true
    kill -0 "$first" 2>/dev/null && kill -0 "$second" 2>/dev/null ||
        fail "round $round: others have ended: $(tail -n 3 "$scratch"/{other,another}.log)"
done
kill -TERM "$first" "$second"
echo "$kills kills; the other end was gone after $slowest ms at the latest"
