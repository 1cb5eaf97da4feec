#!/usr/bin/env bash
# The router's daemon comes and goes: stopped it leaves nothing behind; killed it lets everything through Linux within a second, and the next start takes the place of
# what it left; a second one is refused by name; a connection through it goes on all the time. What is missing is named.
# waits: for timers of Linux and of rules
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/ends.sh"

attached() { tc filter show dev left ingress | grep -q router_ || ip -details link show dev left | grep -q 'prog/xdp'; }

start_router
# Linux tells of the carrier of a pair of interfaces once a second at most.
on_everywhere() { is_so "s['mode'] == 'route' and s['is_on'] and all(i['off'] is None for i in s['interfaces'])"; }
await 5 on_everywhere || fail "it is not on everywhere: $("$millrace" router status)"
await 5 gets_fast || fail "nothing is fast: $("$millrace" router status)"
attached || fail "no program is there"

# Somebody takes the place of its programs away: they come back.
tc qdisc del dev right clsact
back() {
    is_so "all(i['off'] is None for i in s['interfaces'])" && tc filter show dev right egress | grep -q router_judge
}
await 5 back || fail "its judge does not come back: $(tc filter show dev right egress) $("$millrace" router status)"
await 5 gets_fast || fail "nothing is fast after its programs came back: $("$millrace" router status)"

# Another one, by the same name and by another.
code=0
"$millrace" router start --interfaces left,right >"$scratch/second.out" 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "a second router: $code"
grep -q "process $router " "$scratch/second.out" || fail "it is not said who runs: $(cat "$scratch/second.out")"
background other "$millrace" router start --interfaces left --socket other-$$ --json
other=$started
await 15 grep -q routing "$scratch/other.out" || fail "the other router does not start"
status=$("$millrace" router status --socket other-$$)
grep -q "other-router.*process $router " <<<"$status" || fail "two routers on one interface: $status"
"$millrace" router stop --socket other-$$
ended "$other" 5
[ "$code" -eq 0 ] || fail "the other router ends with $code"
await 5 gets_fast || fail "the other router has taken the programs of the first with it"
[ "$(status "dict(s['changes'])['programs']")" = 1 ] || fail "its programs were put back once, and not: $(status "s['changes']")"

# Killed, and started again, under a connection.
listen 5201
background client nsenter -t "$left_end" -n iperf3 -c 10.0.2.2 -t 10 --json
client=$started
sleep 1
# Programs of XDP that are kept in the file system of BPF stay when their router is killed, for one of the same place and for one of another, and for one that
# has another such file system, as `ip netns exec` makes it, and so sees nothing of them there.
kept=/sys/fs/bpf/millrace-router-$(stat -Lc %i /proc/self/ns/net)
# By what the router was that is killed: at tc its filters stay, and see that nobody looks after them.
before=tc
gone() { ! attached; }
for options in "" "hidden --mode xdp" "--mode tc --on-death keep" "--mode xdp --on-death keep"; do
    launcher=()
    [[ $options != hidden* ]] || launcher=(unshare -m sh -c 'mount -t bpf bpf /sys/fs/bpf && exec "$@"' sh)
    slay "$router"
    # Linux takes links away when it gets to it.
    [ "$before" = tc ] || await 5 gone || fail "the programs of a router that was killed stay: $(ip -details link show dev left)"
    at_left ping -q -c 3 -i 0.2 -W 1 10.0.2.2 >/dev/null || fail "nothing passes after the router was killed ($before)"
    # shellcheck disable=SC2086
    start_router ${options#hidden}
    # Linux takes the links of a process that was killed away when it gets to it, and it is looked at again after ten seconds.
    await 12 on_everywhere || fail "the next router ($options) is not on everywhere: $("$millrace" router status)"
    await 5 gets_fast || fail "the next router ($options) does not take over: $("$millrace" router status)"
    case $options in *xdp*) before=xdp ;; *) before=tc ;; esac
done
ended "$client" 14
[ "$code" -eq 0 ] || fail "the connection broke: $(tail -3 "$scratch/client.out")"
python3 - "$scratch/client.out" <<'END' || fail "the connection stood still"
import json, sys
parts = [part["sum"]["bytes"] for part in json.load(open(sys.argv[1]))["intervals"]]
# Some seconds without anything can be this machine's, and the sender's timer doubles; what does not come back for half of the time would not at all.
sys.exit(sum(parts) == 0 or any(not any(parts[at:at + 5]) for at in range(len(parts) - 4)))
END

# Killed, it has kept its programs; by another name, on one interface, and where nothing of that is seen, the next one takes the place of them.
slay "$router"
attached || fail "what was to be kept is gone"
[ -e "$kept/xdp-$(ip -o link show left | cut -d: -f1)" ] || fail "nothing was kept in $kept"
background hidden unshare -m sh -c 'mount -t bpf bpf /sys/fs/bpf && exec "$@"' sh "$millrace" router start --interfaces left --mode xdp --socket hidden-$$ --json
router=$started
status_of() { "$millrace" router status --json --socket "$1"; }
has_left() { status_of "$1" | python3 -c 'import json, sys; sys.exit([i["off"] for i in json.load(sys.stdin)["interfaces"]] != [None])'; }
await 15 grep -q '"event":"routing"' "$scratch/hidden.out" || fail "no router after one of another name was killed"
await 12 has_left hidden-$$ || fail "one of another name is in the way: $(status_of hidden-$$)"
! ip -details link show dev right | grep -q prog/xdp || fail "what was left on an interface that nobody asks for is still there"
[ ! -e "$kept" ] || [ ! -d /proc/1/root/sys/fs/bpf ] || fail "what a router of another name has kept stays for good"
rm -rf "$kept"
# One that waits takes the place of one that ends, of which nobody tells.
background waits "$millrace" router start --interfaces left --mode xdp --json
waits=$started
await 15 grep -q '"event":"routing"' "$scratch/waits.out" || fail "the router that waits does not start"
! has_left millrace-router || fail "two routers have one interface: $(status_of millrace-router)"
"$millrace" router stop --socket hidden-$$
ended "$router" 5
[ "$code" -eq 0 ] || fail "stopped, it ends with $code"
await 10 has_left millrace-router || fail "the router that waited takes nothing: $(status_of millrace-router)"
"$millrace" router stop
ended "$waits" 5
[ "$code" -eq 0 ] || fail "the one that waited ends with $code"
! attached || fail "a program is left behind"
! ip -details link show dev right | grep -q prog/xdp || fail "a program of a router that was killed is left behind"
for command in status rules "why 10.0.2.2" off stop; do
    # shellcheck disable=SC2086
    ! "$millrace" router $command >"$scratch/nobody.out" 2>&1 || fail "$command without a router"
    grep -q "no router runs" "$scratch/nobody.out" || fail "$command does not say that there is no router"
done

# Somebody without rights has the name of a claim.
background squatter setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 -c '
import socket, sys, time
held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
held.bind("\0millrace-router-interface-" + sys.argv[1])
held.listen()
print("held", flush=True)
time.sleep(600)' "$(ip -o link show left | cut -d: -f1)"
squatter=$started
await 5 grep -q held "$scratch/squatter.out" || fail "the claim is not held: $(cat "$scratch/squatter.log")"

# With what the unit for systemd leaves it, and no more; its interfaces come later, by a name and by a pattern.
unit=$root/systemd/millrace-router.service
left=$(sed -n 's/^CapabilityBoundingSet=//p' "$unit" | tr 'A-Z' 'a-z' | sed 's/cap_//g; s/ /,+/g')
printf 'interfaces = ["left", "late*"]\n' >"$scratch/router.toml"
read -ra words <<<"$(sed -n 's,^ExecStart=[^ ]*/millrace,,p' "$unit" | sed "s,/etc/millrace/router.toml,$scratch/router.toml,")"
background unit setpriv --bounding-set="-all,+$left" --no-new-privs "$millrace" "${words[@]}" --json
router=$started
await 15 grep -q '"event":"routing"' "$scratch/unit.out" || fail "with the capabilities of the unit, and interfaces that are not all there, it does not start"
is_so "s['awaited'] == ['late*']" || fail "it is not said what is awaited"
is_so "all(i['off'] is None for i in s['interfaces'])" || fail "who has no rights keeps the router off: $("$millrace" router status)"
kill "$squatter"
ip link add late7 type veth peer name other7
ip link set late7 up
ip link set other7 up
await 5 is_so "any(i['name'] == 'late7' and i['off'] is None for i in s['interfaces'])" || fail "late7 is not taken: $("$millrace" router status)"
ip link del late7
await 5 is_so "s['awaited'] == ['late*']" || fail "late7 is not forgotten"
"$millrace" router add right
is_so "any(i['name'] == 'right' and i['place'] for i in s['interfaces'])" || fail "right is not added"
await 5 gets_fast || fail "with the capabilities of the unit nothing is fast: $("$millrace" router status)"
"$millrace" router remove right
is_so "not any(i['name'] == 'right' for i in s['interfaces'])" || fail "right is not removed"
kill "$router"
ended "$router" 5
[ "$code" -eq 0 ] || fail "after SIGTERM it ends with $code"

# Without what it takes: as somebody, and as root with less.
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
# Whose program may be where nobody may look.
if as_nobody test -x "$millrace"; then
    code=0
    as_nobody "$millrace" router start --interfaces left >"$scratch/nobody.out" 2>&1 || code=$?
    { [ "$code" -eq 2 ] && grep -q CAP_BPF "$scratch/nobody.out"; } || fail "as nobody: $code, $(cat "$scratch/nobody.out")"
fi
code=0
setpriv --bounding-set=-net_admin,-bpf,-perfmon,-sys_admin "$millrace" router start --interfaces left >"$scratch/poor.out" 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "without capabilities: $code"
for name in CAP_NET_ADMIN CAP_BPF CAP_PERFMON; do
    grep -q "$name" "$scratch/poor.out" || fail "$name is missing, and it is not said: $(cat "$scratch/poor.out")"
done
