#!/usr/bin/env bash
# Two gateways of IPsec by `millrace router ipsec start --interfaces`, and a host behind each: packets of both directions take the fast way, from AF_XDP socket to
# AF_XDP socket, and are what was sent; addresses are translated on the way; what the rules say follows Linux when that changes; `router why` says who
# serves a flow. Packets that come twice, changed, or in the clear are refused as on the usual way.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/gateways.sh"
needs ethtool
for host in host1 host2; do in_ $host ethtool -K wire tx off gro on >/dev/null; done

# sees SIDE EXPRESSION: it is so of the router's status there, which is s; r are its reasons, f what the gateway has opened and sealed.
sees() {
    {
        in_ "$1" "$millrace" router status --json 2>/dev/null || echo '{}'
        in_ "$1" "$millrace" router ipsec status --json 2>/dev/null || echo '{}'
    } | python3 -c '
import json, sys
s, g = (json.loads(line) for line in sys.stdin)
if not s or not g: sys.exit(1)
r = {c["reason"]: c["packets"] for c in s["counters"]}
f = g["fast"]
sys.exit(not eval(sys.argv[1]))' "$2"
}
show() {

    for side in here there; do
        in_ $side "$millrace" router status
        in_ $side "$millrace" router rules
        in_ $side "$millrace" router ipsec status
    done
}

# Datagrams to and fro, each compared; the other end says from where it sees them.
cat >"$scratch/echo.py" <<'P'
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as server:
    server.bind((sys.argv[1], int(sys.argv[2])))
    print("listens", flush=True)
    while True:
        data, who = server.recvfrom(9000)
        server.sendto(data, who)
        if data.startswith(b"end"):
            print(who[0], flush=True)
            break
P
cat >"$scratch/talk.py" <<'P'
import os, socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as one:
    one.settimeout(60)
    one.connect((sys.argv[1], int(sys.argv[2])))
    count = int(sys.argv[3])
    for number in range(count):
        data = (b"end" if number + 1 == count else b"%3d" % (number % 1000)) + os.urandom(number * 37 % 1300)
        one.send(data)
        got = one.recv(9000)
        assert got == data, number
        # While rules are on trial.
        if number < 10:
            time.sleep(0.01)
P
port=7100
# talk ADDRESS COUNT: from host1 to host2; $seen is the address that host2 has seen.
talk() {
    port=$((port + 1))
    rm -f "$scratch/echo.out"
    background echo nsenter -t "$host2" -n python3 "$scratch/echo.py" "$1" $port
    local echo=$started
    await 20 grep -q listens "$scratch/echo.out" || fail "nobody listens"
    in_ host1 python3 "$scratch/talk.py" "$1" $port "$2" || fail "a datagram to $1 is lost or another: $(show)"
    ended "$echo" 10
    seen=$(tail -n 1 "$scratch/echo.out")
}

entries 1 4 "$gcm"
for side in here there; do
    start_gateway $side --interfaces wire,inner
    await 40 sees $side "all(i['place'] == 'xdp' for i in s['interfaces'])" || fail "the router is not there: $(show)"
done
talk 10.2.0.2 200
# A gateway that got no processor for a second has left its packets to Linux meanwhile: more of them go fast then.
are_fast() { sees here "f[0] > 150 and f[1] > 150" && sees there "f[0] > 150 and f[1] > 150"; }
for _ in {1..5}; do
    are_fast && break
    talk 10.2.0.2 200
done
are_fast || fail "packets took the slow way: $(show)"
in_ here "$millrace" router why 10.2.0.2:$port >"$scratch/why"
grep -q "engine in user space" "$scratch/why" || fail "why does not say who serves the flow: $(cat "$scratch/why")"
echo "both directions"

# fast SIDE: how many packets have been opened and sealed without Linux.
fast() { status "$1" "sum(s['fast'])"; }
# quick ADDRESS: datagrams to and fro are fast at both ends.
quick() {
    local here_before there_before
    for _ in {1..5}; do
        here_before=$(fast here) there_before=$(fast there)
        talk "$1" 60
        if [ "$(fast here)" -gt $((here_before + 70)) ] && [ "$(fast there)" -gt $((there_before + 70)) ]; then
            return
        fi
    done
    fail "$2: packets took the slow way: $(show)"
}
# fresh NUMBER FAMILY ALGORITHM: other associations at both ends.
fresh() {
    entries "$1" "$2" "$3"
    for side in here there; do
        in_ $side "$millrace" router sa flush
        in_ $side "$millrace" router sa add --file "$scratch/$side.conf"
    done
}
quick 2001:db8:2::2 "IPv6 inside"
fresh 2 6 "$chacha"
quick 10.2.0.2 "IPv6 outside"
fresh 3 udp "$cbc"
echo "IPv6, in UDP, other ciphers"

# Addresses that are translated before they are encrypted.
in_ here nft -f - <<'N'
table ip translate {
    chain post {
        type nat hook postrouting priority 100
        oifname "ipsec0" snat to 10.1.0.9
    }
}
N
quick 10.2.0.2 "translated"
[ "$seen" = 10.1.0.9 ] || fail "the other end sees $seen"
in_ here nft delete table ip translate
echo "translated"

# TCP, a file of it.
head -c 6000000 /dev/urandom >"$scratch/file"
background web nsenter -t "$host2" -n python3 -m http.server --bind 10.2.0.2 --directory "$scratch" 8000
await 10 in_ host1 python3 -c 'import socket; socket.create_connection(("10.2.0.2", 8000), 1)' 2>>"$scratch/web.wait" || fail "no web server"
for _ in {1..3}; do
    before=$(fast here)
    in_ host1 timeout 120 python3 "$tests/fetch.py" http://10.2.0.2:8000/file >"$scratch/came" || fail "the file does not come"
    cmp "$scratch/file" "$scratch/came" || fail "another file has come"
    [ "$(fast here)" -le $((before + 3000)) ] || break
done
[ "$(fast here)" -gt $((before + 3000)) ] || fail "the file took the slow way: $(show)"
echo "a file by TCP"

# A filter that comes is heard at once, and so is a route.
in_ here nft -f - <<'N'
table ip shut {
    chain out {
        type filter hook output priority 0
        udp dport 4500 drop
    }
}
N
before=$(fast here)
in_ host1 python3 -c '
import socket
for number in range(20):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"shut", ("10.2.0.2", 7999))'
await 10 is_so here "dropped('not_permitted') > 10" || fail "nobody says that the filter forbids it: $(status here s)"
[ "$(fast here)" -eq "$before" ] || fail "it leaves though a filter forbids it"
in_ here nft delete table ip shut
quick 10.2.0.2 "after a filter"
in_ there ip link set wire address 02:00:00:00:00:77
in_ here ip neigh flush dev wire
quick 10.2.0.2 "with another neighbour"
echo "filters and neighbours are followed"

# What comes twice or changed, by the fast way.
fresh 4 4 "$gcm"
before=$(status there "dropped('replayed')")
cat >"$scratch/replay.py" <<'P'
import select, socket, sys, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)
wire.bind(("wire", 3))
frames = []
end = time.time() + 60
print("listens", flush=True)
# Those that go by Linux are seen here, and pings into the tunnel do.
while time.time() < end and not frames:
    if select.select([wire], [], [], 0.1)[0]:
        frame, (_, _, kind, _, _) = wire.recvfrom(4096)
        if kind == socket.PACKET_OUTGOING and frame[12:14] == b"\x08\0" and frame[23] == 50:
            frames.append(frame)
for _ in range(10):
    wire.send(frames[0])
    wire.send(frames[0][:38] + bytes([0, 0, 255, 60]) + frames[0][42:])
P
background replay nsenter -t "$here" -n python3 "$scratch/replay.py"
replay=$started
await 20 grep -q listens "$scratch/replay.out" || fail "nobody listens"
in_ host1 ping -qc 5 -i 0.1 -W 5 10.2.0.2 >/dev/null || fail "no ping"
quick 10.2.0.2 "with replays"
ended "$replay" 10
[ "$code" -eq 0 ] || fail "nothing to send twice"
await 5 is_so there "dropped('replayed') >= $before + 10 and dropped('integrity') >= 10" || fail "what came twice or changed: $(status there s)"
echo "replays are refused"

# Off: Linux does it, and everything still comes.
before=$(fast here)
in_ here "$millrace" router off
talk 10.2.0.2 50
[ "$(fast here)" -le $((before + 2)) ] || fail "packets were fast though the router is off"
in_ here "$millrace" router on
quick 10.2.0.2 "on again"
for side in here there; do
    gateway=${side}_gateway
    in_ $side "$millrace" router ipsec stop
    ended "${!gateway}" 10
    [ "$code" -eq 0 ] || fail "the gateway has ended with $code"
done
in_ here ip -d link show wire | grep -q 'prog/xdp' && fail "the program is left behind"
grep -q panicked "$scratch"/gateway-*.log && fail "a panic"
echo "off, on, and over"
