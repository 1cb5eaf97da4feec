#!/usr/bin/env bash
# An Ethernet cable of messages: TCP over it brings a file as it was, with frames of 1500 and of 9000 bytes; it is unplugged when an end is killed,
# and the next one can be plugged in. And the benchmarks beside it, as short as can be.
. "$(dirname "$0")/../lib.sh"
needs python3 nsenter
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
name=cable-$$

# Two hosts: this network namespace, and that of a process.
background there unshare -n sleep 1000
there=$started
is_apart() { [ "$(readlink "/proc/$there/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
await 10 is_apart || fail "no second namespace"
on_there() { nsenter -t "$there" -n "$@"; }

background listen "$millrace" message ethernet "$name" --interface mill0 --json
listener=$started
is_open() { grep -q "@millrace-message/$(id -u)/$name\$" /proc/net/unix; }
await 10 is_open || fail "the cable has no end"

# plug: calls, with an interface that is moved to the other host.
plug() {
    background call "$millrace" message ethernet "$name" --interface mill1 --call --json
    caller=$started
    await 10 ip link show dev mill1 >"$scratch/link" 2>&1 || fail "there is no interface: $(cat "$scratch/call.log")"
    ip link set mill1 netns "$there"
    on_there ip address add 10.9.9.2/24 dev mill1
    on_there ip link set mill1 up
}
ip address add 10.9.9.1/24 dev mill0
ip link set mill0 up
plug

head -c 10000001 /dev/urandom >"$scratch/file"
cat >"$scratch/tcp.py" <<'END'
import socket, sys
what, path = sys.argv[1:]
if what == "take":
    server = socket.create_server(("10.9.9.2", 7000))
    connection, _ = server.accept()
    with open(path, "wb") as file:
        while part := connection.recv(1 << 20):
            file.write(part)
    connection.sendall(b"all")
else:
    for turn in range(500):
        try:
            connection = socket.create_connection(("10.9.9.2", 7000), timeout=20)
            break
        except OSError:
            __import__("time").sleep(0.02)
    connection.sendall(open(path, "rb").read())
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(3) == b"all"
END

# pass_file MTU: by TCP to the other host.
pass_file() {
    ip link set mill0 mtu "$1"
    on_there ip link set mill1 mtu "$1"
    background take nsenter -t "$there" -n python3 "$scratch/tcp.py" take "$scratch/came"
    local taker=$started
    timeout 60 python3 "$scratch/tcp.py" send "$scratch/file" || fail "a file does not pass with MTU $1"
    ended "$taker" 10
    cmp "$scratch/file" "$scratch/came" || fail "another file has come with MTU $1"
}
pass_file 1500
pass_file 9000

# The one is killed, the other one says what it has carried, and takes the next one.
slay "$caller"
was_told() { [ "$(wc -l <"$scratch/listen.out")" -eq "$1" ]; }
await 5 was_told 1 || fail "nobody noticed that the other end is gone"
plug
# The new interface has another address.
ip neighbour flush dev mill0
pass_file 1500
kill -INT "$listener"
ended "$listener" 5
[ "$code" -eq 0 ] || fail "the listener ended with $code: $(cat "$scratch/listen.log")"
ended "$caller" 5
[ "$code" -eq 1 ] && grep -q "is gone" "$scratch/call.log" || fail "the caller ended with $code: $(cat "$scratch/call.log")"
python3 - "$scratch/listen.out" <<'END' || fail "the listener has told something else"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print([(row["sent"], row["received"], row["dropped"]) for row in rows])
sys.exit(not (len(rows) == 2 and rows[0]["sent_bytes"] > 20_000_000 and rows[1]["sent_bytes"] > 10_000_000 and all(row["received"] for row in rows)))
END

# What is compared with it, and the sweep of buffers with its drawing.
cat >"$scratch/rows.py" <<'END'
import json, sys
rows = {row["metric"]: row for row in map(json.loads, sys.stdin)}
print({metric: (row["count"], row["millrace"], row["peer"], row["ratio"]) for metric, row in rows.items()})
assert list(rows) == ["large_to_emulation", "large_to_message_mode", "overlap"], rows
# On a busy machine a sample is left out. Peers are so slow there that three decimals can be 0.000.
measured = {metric: row for metric, row in rows.items() if row["count"] and None not in (row["millrace"], row["peer"])}
overlap = measured.pop("overlap", {"millrace": 0, "peer": 100})
assert all(row["millrace"] > 0 and row["peer"] >= 0 and (row["peer"] == 0 or row["ratio"] > 0) for row in measured.values()), measured
assert overlap["millrace"] <= 110 and overlap["peer"] == 100, overlap
# Most of a transfer passes beside what is computed, unless others have the cores: then once more.
sys.exit(0 if len(measured) == 2 and overlap["millrace"] >= 50 else 3)
END
# is_as_said: the benchmark, once.
is_as_said() {
    "$millrace" bench message --rounds 1 --seconds 0.05 --metric large_to_emulation,large_to_message_mode,overlap --json \
        >"$scratch/rows" 2>"$scratch/bench.log" || fail "bench message: $(cat "$scratch/bench.log")"
    code=0
    python3 "$scratch/rows.py" <"$scratch/rows" || code=$?
    [ "$code" -eq 0 ] || [ "$code" -eq 3 ] || fail "the benchmark says something else"
    [ "$code" -eq 0 ]
}
for turn in $(seq 12); do
    ! is_as_said || break
    [ "$turn" -lt 12 ] || fail "less than half of a transfer passes beside what is computed, or something was never measured"
done
"$millrace" bench message --sweep=mtu --from 524288 --seconds 0.01 --svg "$scratch/mtu.svg" --json \
    >"$scratch/mtus" 2>>"$scratch/bench.log" || fail "bench message --sweep=mtu"
python3 - "$scratch/mtus" "$scratch/mtu.svg" <<'END' || fail "the benchmarks say something else"
import json, sys
mtus = [json.loads(line) for line in open(sys.argv[1])]
for row in mtus:
    print({key: row.get(key) for key in ("metric", "count", "millrace", "peer", "ratio", "size", "mtu", "optimisations", "gbps", "latency_p50_ns", "copies")})
assert {(row["size"], row["mtu"], row["optimisations"]) for row in mtus} == {
    (size, mtu, which) for size in (16 << 20, 1 << 20) for mtu in (1 << 19, 1 << 20) for which in ("none", "1", "12", "123")
}, mtus
# What is very slow is not measured one by one.
assert all(row["gbps"] > 0 and row["latency_p50_ns"] != 0 and row["copies"] == 2 and row["scheme"] == "one-copy" for row in mtus), mtus
assert all((row["source_model_gbps"] is not None) == (row["optimisations"] in ("none", "123")) for row in mtus), mtus
assert "optimisations 123" in open(sys.argv[2]).read()
END
