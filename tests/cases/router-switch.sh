#!/usr/bin/env bash
# The router is switched off and on, everywhere, at an interface and in parts, while a connection goes through it: off, everything goes through Linux within a second;
# nothing breaks. Who may only look cannot switch.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/ends.sh"

start_router --group 65534
listen 5201
background client nsenter -t "$left_end" -n iperf3 -c 10.0.2.2 -t 9 --json
client=$started
# And a flow that goes on to the end.
background pings nsenter -t "$left_end" -n ping -q -i 0.05 10.0.2.2
await 3 gets_fast || fail "nothing is fast"

# stays_slow WORDS REASON: from a second later on nothing goes without Linux, and `why` gives the reason.
stays_slow() {
    local before
    sleep 1
    before=$(fast)
    at_left ping -q -i 0.02 -c 20 -W 1 10.0.2.2 >/dev/null || fail "$1: nothing arrives"
    [ "$(fast)" -eq "$before" ] || fail "$1: packets still go without Linux"
    "$millrace" router why 10.0.2.2 10.0.1.2 --json >"$scratch/why" || fail "$1: why fails"
    grep -q "$2" "$scratch/why" || fail "$1: why does not say '$2': $(cat "$scratch/why")"
    ! grep -q '"is_fast":true' "$scratch/why" || fail "$1: why says that something is fast: $(cat "$scratch/why")"
}
"$millrace" router off
stays_slow "off" "the router is off"
"$millrace" router on
await 3 gets_fast || fail "on again, nothing is fast: $("$millrace" router status)"
"$millrace" router off --interface right
[ "$(off_of right)" = switched-off ] || fail "right is not switched off"
stays_slow "right is off" "the fast path is off at right: switched off; .millrace router on --interface right. switches it on"
"$millrace" router on --interface right
await 3 gets_fast || fail "right on again, nothing is fast"
is_since() {
    "$millrace" router why 10.0.2.2 10.0.1.2 --protocol icmp --json | python3 -c '
import json, sys
flows = [json.loads(line) for line in sys.stdin]
fast = [flow["rule"] for flow in flows if flow.get("is_fast") and flow["packets_per_s"] > 0]
# It was made when the pings began, and is in force again since a moment ago.
sys.exit(not any(rule["state_s"] < rule["age_s"] - 0.9 for rule in fast))'
}
await 3 is_since || fail "since when it is fast is not said right: $("$millrace" router why 10.0.2.2 10.0.1.2 --json)"
"$millrace" router remove right
stays_slow "right is removed" "right is no interface of the router; .millrace router add right. makes it one"
"$millrace" router rules 10.0.2.2 --json >"$scratch/rules"
grep -q '"state":"off"' "$scratch/rules" || fail "the rules do not say that it is off: $("$millrace" router rules)"
! grep -q '"state":"active"' "$scratch/rules" || fail "a rule of an interface that was removed is active: $("$millrace" router rules)"
"$millrace" router add right
await 3 gets_fast || fail "right is there again, and nothing is fast"
"$millrace" router only fdb,vlan
stays_slow "only fdb,vlan" "the part ipv4 is switched off"
"$millrace" router only all
await 3 gets_fast || fail "all parts on again, nothing is fast"
"$millrace" router flush
await 3 gets_fast || fail "after a flush nothing is fast"
ended "$client" 15
[ "$code" -eq 0 ] || fail "the connection broke: $(tail -3 "$scratch/client.out")"

# Nonsense is refused, and what may only look may not change.
! "$millrace" router off --interface nosuch 2>"$scratch/said" || fail "an interface that is not there is switched off"
grep -q "no interface of the router is called nosuch" "$scratch/said" || fail "it says: $(cat "$scratch/said")"
! "$millrace" router only wood 2>"$scratch/said" || fail "a part that is none is taken"
cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch" "$scratch/millrace"
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$scratch/millrace" router "$@"; }
as_nobody status >/dev/null || fail "the group may not look"
! as_nobody off 2>"$scratch/said" || fail "the group may switch"
grep -q "may change it" "$scratch/said" || fail "it says: $(cat "$scratch/said")"
! setpriv --reuid 65533 --regid 65533 --clear-groups "$scratch/millrace" router status 2>"$scratch/said" || fail "a stranger may look"
is_so "s['is_on']" || fail "somebody has switched it off"

# A name that nothing has may be a mistake.
"$millrace" router add rihgt 2>"$scratch/said" || fail "an interface that may come later is refused"
grep -q "there is no interface rihgt yet" "$scratch/said" || fail "add says nothing of it: $(cat "$scratch/said")"
"$millrace" router remove rihgt || fail "it is not removed again"

# Who asks a router that does not answer is not kept from ending.
kill -STOP "$router"
background asks "$millrace" router status
catches_term() { ((0x$(sed -n 's/^SigCgt:\t//p' "/proc/$1/status") & 1 << 14)); }
await 10 catches_term "$started" || fail "a command does not catch SIGTERM"
sleep 0.3
kill -TERM "$started"
ended "$started" 3
kill -CONT "$router"
[ "$code" -eq 130 ] || fail "a command that waits for the router ends with $code"
