#!/usr/bin/env bash
# Two gateways of IPsec by `millrace router ipsec`, and a host behind each: pings and a file by TCP through tunnels of each kind of cipher, over both versions of IP and
# in UDP, packets that are too long told or cut; what comes twice, in the clear, or in floods is refused and counted; associations come, go, and end; a
# gateway that is killed lets nothing through in the clear.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/router/gateways.sh"
head -c 4000000 /dev/urandom >"$scratch/file"

cat >"$scratch/take.py" <<'P'
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 7000), family=family) as server:
    print("listens", flush=True)
    connection, _ = server.accept()
    with open(sys.argv[2], "wb") as file:
        while data := connection.recv(1 << 16):
            file.write(data)
    connection.sendall(b"all")
P
cat >"$scratch/give.py" <<'P'
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=20) as connection:
    connection.sendall(open(sys.argv[2], "rb").read())
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(3) == b"all"
P

# carry ADDRESS: the file from host1 to host2 by TCP, compared.
carry() {
    rm -f "$scratch/came"
    background take nsenter -t "$host2" -n python3 "$scratch/take.py" "$1" "$scratch/came"
    local taker=$started
    await 10 grep -q listens "$scratch/take.out" || fail "nobody listens"
    in_ host1 python3 "$scratch/give.py" "$1" "$scratch/file" || fail "the file does not come to $1"
    ended "$taker" 10
    cmp "$scratch/file" "$scratch/came" || fail "another file has come to $1"
}

ping_both() {
    in_ host1 ping -qc 3 -i 0.1 -W 5 10.2.0.2 >/dev/null || fail "$1: no ping"
    in_ host1 ping -qc 3 -i 0.1 -W 5 2001:db8:2::2 >/dev/null || fail "$1: no ping by IPv6"
}

entries 1 4 "$gcm"
start_gateway here
start_gateway there
number=1
for kind in "4 $gcm" "6 $chacha" "4 $cbc" "udp $gcm" "6 $cbc"; do
    number=$((number + 1))
    entries $number "${kind%% *}" "${kind#* }"
    for side in here there; do
        in_ $side "$millrace" router sa flush
        in_ $side "$millrace" router sa add --file "$scratch/$side.conf"
    done
    ping_both "$kind"
    carry 10.2.0.2
done
carry 2001:db8:2::2
is_so here "s['sealed'][0] > 1000 and s['opened'][0] > 1000" || fail "it was not the gateway that carried it: $(status here s)"
# What Linux says by itself when an interface comes up, and what comes while associations are exchanged, has no policy.
is_so here "all(reason == 'unprotected' for _, reason, _ in s['drops'])" || fail "packets were dropped: $(status here s)"

# fresh ALGORITHM FAMILY: other associations at both ends.
fresh() {
    number=$((number + 1))
    entries $number "$2" "$1"
    for side in here there; do
        in_ $side "$millrace" router sa flush
        in_ $side "$millrace" router sa add --file "$scratch/$side.conf"
    done
}

# IKE's program has its messages, whenever it comes, and ESP in UDP goes on beside it.
fresh "$gcm" udp
background ike nsenter -t "$there" -n python3 -c '
import socket
ike = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ike.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
ike.bind(("0.0.0.0", 4500))
print("listens", flush=True)
while True:
    print(ike.recv(100), flush=True)'
await 10 grep -q listens "$scratch/ike.out" || fail "IKE has no port: $(cat "$scratch/ike.log")"
in_ here python3 -c '
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(4) + b"message of IKE", ("192.0.2.2", 4500))'
await 5 grep -q "message of IKE" "$scratch/ike.out" || fail "IKE does not get its messages"
ping_both "beside IKE"

kill "$started"

# A translator changes the port of the other end: packets follow, and those for its neighbours, which have another number, do not.
fresh "$gcm" udp
neighbour="src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1fff"
in_ here "$millrace" router sa add "state add $neighbour reqid 2 mode tunnel $gcm encap espinudp 4500 4500 0.0.0.0"
in_ there nft -f - <<'END'
table ip translator {
    chain post {
        type nat hook postrouting priority 100;
        oifname "wire" udp sport 4500 snat to 192.0.2.2:40001
    }
}
END
in_ host2 ping -qc 2 -i 0.2 -W 2 10.1.0.2 >/dev/null || true
await 5 grep -q '"event":"moved".*"port":40001.*"followed":"*true' "$scratch/gateway-here.out" || fail "the port is not followed: $(tail -n 3 "$scratch/gateway-here.out")"
ping_both "behind a translator"
in_ here "$millrace" router sa list >"$scratch/sa"
[ "$(grep -c "encap.*dport 40001" "$scratch/sa")" -eq 1 ] || fail "what goes to the other end does not: $(cat "$scratch/sa")"
[ "$(grep -A9 00001fff "$scratch/sa" | grep -c "dport 4500")" -eq 1 ] || fail "what goes to its neighbour follows, too: $(cat "$scratch/sa")"
in_ there nft delete table ip translator

# What came once does not come twice.
fresh "$gcm" 4
cat >"$scratch/replay.py" <<'P'
import select, socket, subprocess, sys, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)
wire.bind(("wire", 3))
ping = subprocess.Popen(["nsenter", "-t", sys.argv[1], "-n", "ping", "-qc", "3", "-i", "0.1", "10.2.0.2"], stdout=subprocess.DEVNULL)
frames = []
end = time.time() + 5
while time.time() < end and len(frames) < 3:
    if select.select([wire], [], [], 0.1)[0]:
        frame, (_, _, kind, _, _) = wire.recvfrom(4096)
        if kind == socket.PACKET_OUTGOING and frame[12:14] == b"\x08\0" and frame[23] == 50:
            frames.append(frame)
assert ping.wait() == 0 and len(frames) == 3
for frame in frames:
    wire.send(frame)
    wire.send(frame[:-1] + bytes([frame[-1] ^ 1]))
    # Another number, with which the check value is wrong.
    wire.send(frame[:38] + bytes([0, 0, 0, 60]) + frame[42:])
P
in_ here python3 "$scratch/replay.py" "$host1" || fail "nothing to send twice"
await 5 is_so there "dropped('replayed') == 6 and dropped('integrity') == 3" || fail "what came twice or changed: $(status there s)"

# Longer than the path takes: told, or cut.
in_ here ip link set ipsec0 mtu 1500
in_ there ip link set ipsec0 mtu 1500
# What the host has heard so far is forgotten.
in_ host1 ip route flush cache
in_ host1 ip -6 route flush cache
in_ host1 ping -c 2 -i 0.2 -W 2 -M do -s 1472 10.2.0.2 >"$scratch/long" 2>&1 && fail "1500 bytes have come through 1500"
grep -q 'mtu *= *1446' "$scratch/long" || fail "nobody says how long it may be: $(cat "$scratch/long")"
in_ host1 ping -qc 2 -i 0.2 -W 5 -M do -s 1418 10.2.0.2 >/dev/null || fail "1446 bytes do not come through"
in_ host1 ip route flush cache
in_ host1 ping -qc 2 -i 0.2 -W 5 -M dont -s 1472 10.2.0.2 >/dev/null || fail "what may be cut does not come through"
in_ host1 ping -c 2 -i 0.2 -W 2 -M do -s 1452 2001:db8:2::2 >"$scratch/long" 2>&1 && fail "1500 bytes of IPv6 have come through 1500"
grep -q 'mtu *= *1446' "$scratch/long" || fail "nobody says how long it may be by IPv6: $(cat "$scratch/long")"

# In the clear: refused on the way out, and by the other end.
bypass() { in_ here ip route $1 10.2.0.2/32 via 192.0.2.2 dev wire; }
reaches() { in_ host1 ping -qc 1 -W 1 10.2.0.2 >/dev/null; }
bypass add
reaches && fail "it leaves in the clear"
in_ here nft delete table inet millrace_ipsec0
reaches && fail "it comes in the clear"
in_ there nft delete table inet millrace_ipsec0
reaches || fail "without rules it should, or nothing was shown"
bypass del

# Floods of what is none of ours: counted, and others are served.
fresh "$chacha" 4
cat >"$scratch/flood.py" <<'P'
import os, socket, sys, time
esp = socket.socket(socket.AF_INET, socket.SOCK_RAW, 50)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.time() + 4
while time.time() < end:
    for _ in range(50):
        esp.sendto(os.urandom(1400), ("192.0.2.2", 0))
        esp.sendto(os.urandom(5), ("192.0.2.2", 0))
        udp.sendto(os.urandom(1000), ("192.0.2.2", 4500))
P
background flood nsenter -t "$here" -n python3 "$scratch/flood.py"
flood=$started
sleep 0.5
in_ host1 ping -qc 10 -i 0.2 -W 5 10.2.0.2 >"$scratch/flooded" || fail "no ping beside a flood: $(cat "$scratch/flooded")"
begin=$(date +%s%N)
in_ there "$millrace" router ipsec status >/dev/null || fail "no answer beside a flood"
[ $(($(date +%s%N) - begin)) -lt 2000000000 ] || fail "no answer beside a flood in time"
ended "$flood" 10
is_so there "dropped('no_association') > 1000 and dropped('truncated') > 1000" || fail "nothing was flooded: $(status there s)"

# A life ends, and is told.
fresh "$gcm limit packet-soft 3 limit packet-hard 6" 4
in_ host1 ping -qc 10 -i 0.1 -W 1 10.2.0.2 >"$scratch/life" || true
grep -q ' 6 received' "$scratch/life" || fail "not as long as its life: $(cat "$scratch/life")"
await 5 grep -q '"life":"hard"' "$scratch/gateway-here.out" || fail "nobody says that it is over"
grep -q '"life":"soft"' "$scratch/gateway-here.out" || fail "nobody says that it should be renewed"

# Killed: nothing leaves in the clear, and the next one takes over.
fresh "$gcm" 4
slay "$here_gateway"
bypass add
reaches && fail "it leaves in the clear when the gateway is gone"
bypass del
entries $((number + 1)) 4 "$gcm"
in_ there "$millrace" router sa add --file "$scratch/there.conf"
start_gateway here
ping_both "after a death"
# The interface is taken away: the gateway ends, and nothing leaves in the clear.
in_ here ip link del ipsec0
ended "$here_gateway" 10
[ "$code" -eq 1 ] && grep -q "still refused in the clear" "$scratch/gateway-here.log" || fail "without its interface: $code $(cat "$scratch/gateway-here.log")"
bypass add
reaches && fail "it leaves in the clear when the gateway has ended by an error"
bypass del
entries $((number + 2)) 4 "$gcm"
in_ there "$millrace" router sa flush
in_ there "$millrace" router sa add --file "$scratch/there.conf"
start_gateway here
ping_both "after an error"
in_ here "$millrace" router ipsec stop
ended "$here_gateway" 10
[ "$code" -eq 0 ] || fail "the gateway has ended with $code"
in_ here nft list tables | grep -q millrace && fail "its rules are left behind"
in_ here ip link show ipsec0 2>/dev/null && fail "its interface is left behind"
grep -q panicked "$scratch"/gateway-*.log && fail "a panic"
echo "carried, refused, told"
