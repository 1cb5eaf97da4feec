#!/usr/bin/env bash
# Commands without --device use the card that was started without --listen, and say so; where nobody listens they use one of
# their own, or refuse where that would be of no use.
. "$(dirname "$0")/../lib.sh"
needs python3

# refused WORDS COMMAND...: fails soon, and says so and what to do.
refused() {
    local words=$1 code=0
    shift
    timeout 20 "$millrace" "$@" >"$scratch/out" 2>"$scratch/said.log" || code=$?
    [ "$code" -eq 1 ] || fail "millrace $* ended with $code: $(cat "$scratch/said.log")"
    [ ! -s "$scratch/out" ] || fail "millrace $* writes to standard output"
    grep -qF -- "$words" "$scratch/said.log" || fail "millrace $* does not say: $words; but: $(cat "$scratch/said.log")"
}

for command in stats "ports plug 0 null" "workers --move 0=0" clients locks "generate --count 3" read loopback forward "receive $scratch/no.pcap" \
    "transmit $scratch/no.pcap"; do
    [ "$command" = "transmit $scratch/no.pcap" ] && "$millrace" receive "$scratch/no.pcap" --count 3 --device embedded:port=generator >/dev/null
    # shellcheck disable=SC2086
    refused "no card runs at $MILLRACE_SOCKET" $command
    grep -q 'start one with `millrace card`' "$scratch/said.log" || fail "$command: $(cat "$scratch/said.log")"
done
"$millrace" loopback-hw --count 100 >/dev/null 2>"$scratch/said.log" || fail "loopback-hw without a card"
grep -q "using one inside this program" "$scratch/said.log" || fail "$(cat "$scratch/said.log")"

background usual "$millrace" card --json --queues 3
usual=$started
await 20 test -S "$MILLRACE_SOCKET" || fail "the card does not listen on the usual path"
queues() {
    "$millrace" stats --json "$@" 2>"$scratch/said.log" | python3 -c 'import json, sys
print(len(json.load(sys.stdin)["queues"]))'
}
[ "$(queues)" -eq 6 ] || fail "stats shows another card"
grep -q "using the card at unix:$MILLRACE_SOCKET" "$scratch/said.log" || fail "$(cat "$scratch/said.log")"
[ "$(queues --device embedded)" -eq 4 ] || fail "--device does not decide"
[ ! -s "$scratch/said.log" ] || fail "it is said which card was asked for: $(cat "$scratch/said.log")"
"$millrace" ports plug 0 null >/dev/null 2>&1
"$millrace" ports --json 2>/dev/null | grep -q '"spec":"null"' || fail "the port of the running card is as it was"
"$millrace" transmit "$scratch/no.pcap" >/dev/null 2>&1 || fail "transmit over the running card"

# Benchmarks have a card of their own all the same.
"$millrace" bench latency --count 100 --engine sze --mode direct --json >"$scratch/out" 2>/dev/null || fail "bench latency"
grep -q '"engine":"sze"' "$scratch/out" || fail "$(cat "$scratch/out")"

kill -INT "$usual"
ended "$usual" 20
refused "no card runs" stats
