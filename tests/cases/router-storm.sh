#!/usr/bin/env bash
# Linux changes faster than anybody should: routes 1,000 times a second, more events than the router's buffers hold, connections that end by the hundred. No rule that is stale
# stays, and the router says what it lost.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/ends.sh"
needs conntrack

start_router
await 3 gets_fast || fail "nothing is fast"

# 1,000 changes a second for three seconds, of a route that matters: packets go on.
background pings nsenter -t "$left_end" -n ping -q -i 0.005 -c 800 -W 1 10.0.2.2
pings=$started
python3 - <<'END'
import subprocess, time
ip = subprocess.Popen(["ip", "-batch", "-"], stdin=subprocess.PIPE, text=True)
begin = time.monotonic()
for number in range(3000):
    ip.stdin.write(f"route replace 10.0.2.2/32 dev right mtu {1400 + number % 2}\n")
    ip.stdin.flush()
    time.sleep(max(0, begin + number / 1000 - time.monotonic()))
ip.stdin.close()
ip.wait()
END
changed=$(status "dict(s['changes'])['routes']")
[ "$changed" -ge 3000 ] || fail "of 3000 changes of routes it has seen $changed"
echo "from event to epoch: $(status "s['delay']")"
ended "$pings" 10
lost=$(grep -oE '[0-9.]+% packet loss' "$scratch/pings.out")
[ "${lost%\%*}" = 0 ] || fail "routes that change lose packets: $lost"
ip route flush 10.0.2.2/32
await 3 gets_fast || fail "when routes rest nothing is fast"

# A route that goes takes its rules with it, at once.
ip route add blackhole 10.0.2.2/32
before=$(fast)
! at_left ping -q -i 0.01 -c 30 -W 1 10.0.2.2 >/dev/null || fail "a stale rule sends where there is no route"
[ $(($(fast) - before)) -le 2 ] || fail "$(($(fast) - before)) packets went by a stale rule"
ip route del blackhole 10.0.2.2/32
await 3 gets_fast || fail "the route is back, and nothing is fast"

# A neighbour that moves.
at_right ip link set wire address 02:00:00:00:07:07
ip neighbour replace 10.0.2.2 lladdr 02:00:00:00:07:07 dev right nud permanent
await 3 gets_fast || fail "a neighbour that has moved is not reached"

# More events than there is room for, while the router sleeps; among them one that matters.
kill -STOP "$router"
python3 - <<'END' | ip -batch -
for number in range(60000):
    print(f"neighbour replace 10.0.1.{10 + number % 200} lladdr 02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x} dev left nud permanent")
print("route add blackhole 10.0.2.2/32")
END
kill -CONT "$router"
await 5 is_so "dict(s['overruns']).get('route', 0) >= 1" || fail "an overrun is not noticed: $(status "s['overruns']")"
before=$(fast)
! at_left ping -q -i 0.01 -c 30 -W 1 10.0.2.2 >/dev/null || fail "a stale rule is left after an overrun"
[ $(($(fast) - before)) -le 2 ] || fail "$(($(fast) - before)) packets went by a stale rule after an overrun"
ip route del blackhole 10.0.2.2/32
await 3 gets_fast || fail "after an overrun nothing is fast"

# Connections that conntrack forgets, and with them their rules.
nft -f - <<'END'
table ip t {
    chain forward {
        type filter hook forward priority 0
        ct state new accept
    }
}
END
await 3 is_so "s['mode'] == 'conntrack, IPv6 route'" || fail "conntrack is not asked"
listen 5202
background client nsenter -t "$left_end" -n iperf3 -c 10.0.2.2 -p 5202 -P 20 -t 9
client=$started
in_force() { [ "$("$millrace" router rules 10.0.2.2:5202 --limit 1000 --json | grep -c '"state":"active"')" -ge 40 ]; }
await 3 in_force || fail "there are $(status "s['rules']")"
conntrack -D -p tcp >/dev/null 2>&1
await 2 is_so "s['ended'] >= 40" || fail "connections are gone, and of their rules $(status "s['ended']") are"
ended "$client" 15
[ "$code" -eq 0 ] || fail "connections that conntrack picks up again are broken: $(tail -3 "$scratch/client.out")"
