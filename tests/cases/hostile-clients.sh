#!/usr/bin/env bash
# Hostile programs, one kind after the other, beside a bystander that checks every frame: it loses nothing, a newcomer is
# served while they are at it, and nothing of theirs is left when they are gone.
. "$(dirname "$0")/../lib.sh"
needs python3 prlimit

start_card --queues 8 --engine sze@5 --engine calypte@6 --engine dd@7 --buffers 256 --ring 65536 --descriptors 256
fds() {
    find "/proc/$card/fd" -mindepth 1 -maxdepth 1 | wc -l
}

# A bystander that sleeps between frames, and one round of everything before the count, for what is made once.
background bystander "$millrace" pktgen --queue 0 --rate 2k --seconds 600 --linger 60 --json
bystander=$started
sleep 1
timeout 60 "$millrace" hostile memory --queue 4-7 --seconds 0.3 >/dev/null || fail "hostile memory ended with $?"
sleep 0.5
before=$(fds)

is_back() {
    [ "$(fds)" -le "$before" ]
}

# hostile KIND OPTION...: lets such a program go on for a second, while somebody else asks for something.
hostile() {
    local kind=$1
    timeout -k 5 60 "$millrace" hostile "$@" --seconds 1 >"$scratch/hostile" 2>"$scratch/hostile.log" &
    local pid=$!
    pids+=("$pid")
    sleep 0.4
    timeout -k 5 60 "$millrace" info --json >"$scratch/info" || fail "hostile $*: info ended with $?"
    wait "$pid" || fail "hostile $* ended with $?: $(cat "$scratch/hostile.log")"
    is_gone "$bystander" && fail "hostile $*: the bystander has ended"
    is_gone "$card" && fail "hostile $*: the card has ended"
    await 30 is_back || fail "hostile $*: the card has $(fds) fds, and had $before"
    echo "$kind ${*:2}: $(field operations <"$scratch/hostile") operations"
}
hostile memory --queue 4-7
for case in medusa-rx-no-fit medusa-rx-upper medusa-tx-endless medusa-tx-chains medusa-tx-upper; do
    hostile rings --case $case --queue 4
done
for case in sze-zero sze-tiny sze-jumps; do
    hostile rings --case $case --queue 5
done
hostile rings --case calypte-zero --queue 6
hostile rings --case calypte-random --queue 6
hostile rings --case dd-tx-zero --queue 7
hostile rings --case dd-rx-no-fit --queue 7
hostile requests
hostile rules
no_rules() {
    ! "$millrace" flow list | grep -q actions=
}
await 30 no_rules || fail "hostile rules: rules are left"
hostile connects
hostile fds
hostile locks

# Longer than anybody waits, unless the card leaves the closing to somebody else.
background linger "$millrace" hostile linger --seconds 240
sleep 2
timeout -k 5 60 "$millrace" info --json >"$scratch/info" || fail "hostile linger: info ended with $?"
slay "$started"
hostile registers --queue 0
[ "$(field operations <"$scratch/hostile")" -eq 0 ] || fail "registers of the bystander's queues were written"

# The bystander ends when asked, and has all its frames.
kill -INT "$bystander"
ended "$bystander" 60
python3 - "$scratch/bystander.out" <<'END_OF_CHECK' || fail "the bystander"
import json, sys
row = [json.loads(line) for line in open(sys.argv[1])][-1]
print(row)
assert row["received"] == row["sent"] > 0, row
assert row["lost"] == row["corrupt"] == row["reordered"] == row["duplicates"] == 0, row
END_OF_CHECK
check_counting

# Out of fds: whoever asks is answered, perhaps by a refusal, and the card ends when asked.
start_card
prlimit --pid "$card" --nofile=256:256
for number in 1 2 3 4 5 6 7 8; do
    background "fds$number" "$millrace" hostile fds --seconds 4
done
sleep 2
code=0
timeout -k 5 60 "$millrace" info --json >"$scratch/info" 2>"$scratch/info.log" || code=$?
[ "$code" -eq 0 ] || grep -qE "fds|connections" "$scratch/info.log" ||
    fail "out of fds: no answer, but $code: $(cat "$scratch/info.log")"
kill -TERM "$card"
ended "$card" 60
[ "$code" -eq 0 ] || fail "out of fds: the card ended with $code"

code=0
timeout 10 "$millrace" hostile rings --case no-such-ring >/dev/null 2>"$scratch/error" || code=$?
[ "$code" -eq 2 ] && grep -q medusa-tx-endless "$scratch/error" || fail "an unknown ring ended with $code"
