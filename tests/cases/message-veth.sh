#!/usr/bin/env bash
# Messages between two hosts of Linux, network namespaces joined by two veth cables: files and sizes arrive as they were; both cables are used, and one that is
# pulled in the middle is replaced by the other. How fast it is beside TCP over the same cable is printed.
. "$(dirname "$0")/../lib.sh"
needs python3 nsenter
private_network "$@"
export RUST_BACKTRACE=1
name=veth-$$

background second unshare -n sleep 1000
second=$started
elsewhere() { [ "$(readlink "/proc/$second/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
await 5 elsewhere || fail "there is no second namespace"
there() { nsenter -t "$second" -n "$@"; }
for cable in 0 1; do
    ip link add "a$cable" mtu 9000 type veth peer name "b$cable" mtu 9000 || skip "there is no veth here"
    ip link set "b$cable" netns "$second"
    ip address add "192.0.2.$((cable * 16 + 1))/28" dev "a$cable"
    there ip address add "192.0.2.$((cable * 16 + 2))/28" dev "b$cable"
    ip link set "a$cable" up
    there ip link set "b$cable" up
done
here="--rail af_packet:a0 --rail af_packet:a1 --rail-mtu 4096"

# listen COMMAND...: host b opens $name; its process id is in $started.
listen() {
    background listen nsenter -t "$second" -n "$millrace" message "$1" "$name" --host b --rail af_packet:b0 --rail af_packet:b1 --rail-mtu 4096 --json "${@:2}"
    await 10 grep -q "is open" "$scratch/listen.log" || fail "$name is not open: $(cat "$scratch/listen.log")"
}
packets() { ip -json -statistics link show dev "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["stats64"]["tx"]["packets"])'; }

head -c 20000001 /dev/urandom >"$scratch/file"
listen receive "$scratch/came"
"$millrace" message send "b:$name" "$scratch/file" $here >/dev/null || fail "the file was not sent"
ended "$started" 10
[ "$code" -eq 0 ] && cmp "$scratch/file" "$scratch/came" || fail "the file arrived as something else: $(cat "$scratch/listen.log")"
for cable in a0 a1; do
    [ "$(packets $cable)" -gt 500 ] || fail "of the file only $(packets $cable) frames went by $cable"
done

listen listen
listener=$started
for size in 0 1 1328 1329 65536 65537 5000000; do
    "$millrace" message send "b:$name" --bytes $size --count 20 --check $here >/dev/null || fail "$size bytes"
done
"$millrace" message send "b:$name" --bytes 1MiB --count 300 --json --rail af_packet:a0 --rail-mtu 4096 >"$scratch/fast.out" || fail "one cable"
"$millrace" message latency "b:$name" --count 2000 --json --rail af_packet:a0 --rail-mtu 4096 >"$scratch/latency.out" || fail "latency"

# A cable is pulled in the middle.
background sender "$millrace" message send "b:$name" --count 1500 --bytes 1MiB --check --json $here
sender=$started
sleep 0.5
ip link set a1 down
ended "$sender" 60
[ "$code" -eq 0 ] || fail "a cable was pulled, and the sender ended with $code: $(cat "$scratch/sender.log")"
[ "$(field messages <"$scratch/sender.out")" = 1500 ] || fail "$(cat "$scratch/sender.out")"
slay "$listener"

# TCP beside it: 300 MiB one way, and 8 bytes there and back.
cat >"$scratch/tcp.py" <<'END'
import socket, sys, time
if sys.argv[1] == "take":
    with socket.create_server(("192.0.2.2", 7000)) as server:
        there = server.accept()[0]
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    room, left = bytearray(1 << 20), 300 << 20
    while left:
        left -= there.recv_into(room, min(left, len(room)))
    there.sendall(b"d")
    for _ in range(2000):
        there.sendall(there.recv(8, socket.MSG_WAITALL))
    there.recv(1)
else:
    there = socket.create_connection(("192.0.2.2", 7000))
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begin, part = time.monotonic(), bytes(1 << 20)
    for _ in range(300):
        there.sendall(part)
    there.recv(1)
    print(f"{(300 << 23) / (time.monotonic() - begin) / 1e9:.2f} Gbit/s", end=", ")
    begin = time.monotonic()
    for _ in range(2000):
        there.sendall(b"12345678")
        there.recv(8, socket.MSG_WAITALL)
    print(f"{(time.monotonic() - begin) / 4000 * 1e6:.1f} us")
END
background take nsenter -t "$second" -n python3 "$scratch/tcp.py" take
is_there() { there ss -ltn 2>/dev/null | grep -q ":7000 " || there grep -q ":1B58 " /proc/net/tcp; }
await 10 is_there || fail "nobody takes TCP: $(cat "$scratch/take.log")"
tcp=$(python3 "$scratch/tcp.py" give) || fail "TCP does not work"
echo "1 MiB at $(field gbps <"$scratch/fast.out") Gbit/s, 8 bytes one way in $(field p50_ns <"$scratch/latency.out") ns; TCP over the same cable: $tcp"
