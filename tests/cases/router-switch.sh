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
await 3 gets_fast || fail "nothing is fast"

# stays_slow WORDS: from a second later on nothing goes without Linux.
stays_slow() {
    local before
    sleep 1
    before=$(fast)
    at_left ping -q -i 0.02 -c 20 -W 1 10.0.2.2 >/dev/null || fail "$1: nothing arrives"
    [ "$(fast)" -eq "$before" ] || fail "$1: packets still go without Linux"
}
"$millrace" router off
stays_slow "off"
"$millrace" router on
await 3 gets_fast || fail "on again, nothing is fast: $("$millrace" router status)"
"$millrace" router off --interface right
[ "$(off_of right)" = switched-off ] || fail "right is not switched off"
stays_slow "right is off"
"$millrace" router on --interface right
await 3 gets_fast || fail "right on again, nothing is fast"
"$millrace" router only fdb,vlan
stays_slow "only fdb,vlan"
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
