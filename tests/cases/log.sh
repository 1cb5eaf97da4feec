#!/usr/bin/env bash
# A card tells on standard error who comes and goes and what becomes of its ports, without being asked to; other commands
# tell only what is wrong.
. "$(dirname "$0")/../lib.sh"
unset MILLRACE_LOG

# tells WORDS: whether the card has said so; its log is written some time later.
tells() {
    grep -qE -- "$1" "$scratch/$log.log"
}

log=card1
start_card --port null
"$millrace" ports plug 0 loopback >"$scratch/out" 2>"$scratch/said.log"
[ ! -s "$scratch/said.log" ] || fail "a command that works says: $(cat "$scratch/said.log")"
await 20 tells 'program [0-9]+ of .* has connected' || fail "the card does not tell who connects"
await 20 tells 'port 0: plugged with "loopback"' || fail "the card does not tell of a port that is plugged"
"$millrace" ports plug 0 none >/dev/null
await 20 tells 'port 0: unplugged' || fail "the card does not tell of a port that is unplugged"
background reader "$millrace" read
reader=$started
held() {
    "$millrace" info --json | grep -q '"holders":\[[0-9]'
}
await 20 held || fail "nobody reads"
slay "$reader"
await 20 tells "program $reader of .* has gone without closing its queues" || fail "the card does not tell of a death"

kill -INT "$card"
ended "$card" 20

# Less on request; nonsense is said to be nonsense.
MILLRACE_LOG=warn
export MILLRACE_LOG
log=card$((${#pids[@]} + 1))
start_card
"$millrace" info >/dev/null
! tells 'has connected' || fail "MILLRACE_LOG=warn tells who connects"
MILLRACE_LOG=loud "$millrace" info 2>"$scratch/said.log" >/dev/null
grep -q 'MILLRACE_LOG=loud: there are off, error, warn' "$scratch/said.log" || fail "$(cat "$scratch/said.log")"
