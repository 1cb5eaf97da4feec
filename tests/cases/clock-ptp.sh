#!/usr/bin/env bash
# PTP with ptp4l as the neighbour, in both parts: docs/time.md as it stands, a crystal that is wrong by 100 ppm, steps, a master that goes
# and comes back; over Ethernet, UDP/IPv4 and UDP/IPv6, E2E and P2P, two-step and (sent) one-step. Nobody sets the clock of this host.
. "$(dirname "$0")/../lib.sh"
needs ip ptp4l setpriv python3
is_root || skip "network namespaces take root"
near=mrptpn$$ far=mrptpf$$
ip netns add "$near" 2>/dev/null || skip "a network namespace cannot be made here"
leave() {
    ip netns del "$near" 2>/dev/null || true
    ip netns del "$far" 2>/dev/null || true
}
trap 'code=$?; leave; (exit $code); cleanup' EXIT
ip netns del "$near"

look() { "$millrace" clock show --json | field "$1"; }
is() { [ "$(look "$1")" = "$2" ]; }
state() { await "$2" is state "$1" || fail "$3: not $1 but $("$millrace" clock show --json)"; }
# within NS EXPRESSION: of the fields of `clock show`; what is null is not.
within() {
    "$millrace" clock show --json | python3 -c '
import json, sys
now = json.load(sys.stdin)
sys.exit(not abs(eval(sys.argv[2], {}, now)) <= float(sys.argv[1]))' "$@" 2>/dev/null
}
end() {
    kill "$1"
    { wait "$1"; } 2>/dev/null || true
}

# As in the document, with names that are nobody else's, and a socket that is not that of a ptp4l of this machine.
lines=$(shown docs/time.md "A card that follows ptp4l, in five minutes" | sed '/^$/d')
lines=$(sed -E "s/\b(near|far)( |;|$)/mrptp-\1\2/g; s/mrptp-near/$near/g; s/mrptp-far/$far/g; s,ptp4l ,ptp4l --uds_address=$scratch/ptp4l.uds ," <<<"$lines")
first=${#pids[@]}
follow "$lines"
master=${pids[first]} follower=${pids[first + 2]}
export MILLRACE_DEVICE=unix:$scratch/card.sock
state locked 20 "the example"
await 10 within 50000 host_offset_ns || fail "locked, and far from the master's clock: $("$millrace" clock show --json)"
within 5 "frequency_ppm + 100" || fail "$(look frequency_ppm) ppm do not make up for a crystal that gains 100"
echo "docs/time.md, slave over Ethernet: offset $(look offset_ns) ns, from the master's clock $(look host_offset_ns) ns, path $(look path_delay_ns) ns, $(look frequency_ppm) ppm"
if "$millrace" clock adjust --step 1s 2>"$scratch/refused.log"; then fail "two steer one clock"; fi

# The master goes: in two seconds the crystal would be off by 200 us.
end "$master"
state holdover 5 "without its master"
sleep 2
within 100000 host_offset_ns || fail "holdover does not hold: $("$millrace" clock show --json)"
echo "after $(look holdover_s) s of holdover: $(look host_offset_ns) ns from the master's clock"

# neighbour NAME OPTION...: ptp4l at the other end, which cannot set the clock of this host, and has the servo of hardware stamps: it
# is locked within seconds.
neighbour() {
    local name=$1
    shift
    cat >"$scratch/$name.cfg" <<END
[global]
time_stamping software
pi_proportional_const 0.7
pi_integral_const 0.3
logSyncInterval -3
logMinDelayReqInterval -3
logMinPdelayReqInterval -3
logAnnounceInterval -2
summary_interval -4
tx_timestamp_timeout 100
uds_address $scratch/$name.uds
END
    background "$name" ip netns exec "$far" setpriv --bounding-set=-sys_time --inh-caps=-sys_time \
        ptp4l -f "$scratch/$name.cfg" -i far0 -m "$@"
    neighbour=$started
}
neighbour again -2
state locked 15 "when its master is back"
end "$follower"
state holdover 5 "without who leads it"
end "$neighbour"

intervals=(--sync -3 --delay -3 --announce -2)
ip -n "$far" address add 10.79.0.2/24 dev far0
ip -n "$far" address add fd79::2/64 dev far0 nodad

# Over IPv6 and with the delay of peers, from 3 s off and with a crystal that loses.
"$millrace" clock adjust --step 3s --oscillator -100
neighbour peer -6 -P
background peers "$millrace" clock follow ptp --role slave --udp fd79::1 --p2p "${intervals[@]}"
state locked 15 "over IPv6"
await 10 within 50000 host_offset_ns || fail "locked over IPv6, and far from the master's clock: $("$millrace" clock show --json)"
within 5 "frequency_ppm - 100" || fail "$(look frequency_ppm) ppm do not make up for a crystal that loses 100"
echo "slave over UDP/IPv6, P2P: from the master's clock $(look host_offset_ns) ns, path $(look path_delay_ns) ns"
end "$started"
end "$neighbour"

# The other part. ptp4l has to find what the card's clock really is off by.
follows() { grep -q "to SLAVE on MASTER_CLOCK_SELECTED" "$scratch/$1.out" && [ "$(grep -c "master offset .* s2" "$scratch/$1.out")" -ge 9 ]; }
# finds NAME: the middle one of the last nine offsets of ptp4l, less what the card's clock is off by, in ns.
finds() {
    local median
    median=$(grep -o "master offset *[-0-9]*" "$scratch/$1.out" | tail -9 | awk '{print $3}' | sort -n | sed -n 5p)
    echo $((median + $(look host_offset_ns)))
}
"$millrace" clock adjust --oscillator 0 --frequency 0
"$millrace" clock set now
for how in two-step one-step; do
    case $how in
    two-step) ours=(--udp 10.79.0.1) theirs=-4 most=50000 ;;
    # It says beforehand when it will leave: on a busy machine some do not, but not most of nine.
    one-step) ours=(--one-step) theirs=-2 most=1000000 ;;
    esac
    background "leads-$how" "$millrace" clock follow ptp --role master --priority1 100 "${ours[@]}" "${intervals[@]}"
    leader=$started
    state master 10 "as master, $how"
    neighbour "$how" "$theirs" -s
    await 15 follows "$how" || fail "ptp4l does not follow, $how: $(grep -v "failed to" "$scratch/$how.out" | tail -5)"
    near() { said=$(finds "$how") && [ "${said#-}" -lt "$most" ]; }
    await 20 near || fail "ptp4l finds the card's clock $said ns from where it is, $how"
    echo "ptp4l follows the card, $how, ${ours[*]}: it finds its clock $said ns from where it is"
    end "$neighbour"
    end "$leader"
done

# A queue whose worker never looks at the port: what crosses has the stamp of its arrival, in both parts.
end "${pids[first + 1]}"
background elsewhere ip netns exec "$near" "$millrace" card --port af_packet:card0 --queues 2 --workers 2 --tsu --listen "$scratch/two.sock"
export MILLRACE_DEVICE=unix:$scratch/two.sock
await 10 test -S "$scratch/two.sock" || fail "the card with two workers does not listen"
"$millrace" clock adjust --step -1s
neighbour two -2
background two-follows "$millrace" clock follow ptp --role slave --queue 1 --steer "${intervals[@]}"
state locked 15 "at the queue of another worker: $(cat "$scratch/two-follows.log")"
await 10 within 50000 host_offset_ns || fail "locked at another worker's queue, and far from the master's clock: $("$millrace" clock show --json)"
echo "slave at the queue of another worker: from the master's clock $(look host_offset_ns) ns, path $(look path_delay_ns) ns"
"$millrace" stats --json | python3 -c 'import json, sys
sys.exit(not any(one["reason"] == "crossed" and one["count"] for one in json.load(sys.stdin)["flows"]))' || fail "nothing has crossed: the case tests nothing"
end "$started"
end "$neighbour"
"$millrace" clock set now
is state free || fail "set by hand, and $(look state)"
background two-leads "$millrace" clock follow ptp --role master --priority1 100 --queue 1 --steer "${intervals[@]}"
state master 10 "as master at another worker's queue"
neighbour two-led -2 -s
await 15 follows two-led || fail "ptp4l does not follow: $(grep -v "failed to" "$scratch/two-led.out" | tail -5)"
said=$(finds two-led)
echo "ptp4l follows the queue of another worker: it finds its clock $said ns from where it is"
[ "${said#-}" -lt 50000 ] || fail "ptp4l finds the clock behind another worker's queue $said ns from where it is"
