#!/usr/bin/env bash
# Two virtual machines of stock QEMU and programs of the host share memory: doorbells and messages in every direction, in order,
# none lost; the split driver between machines and host; a machine that is killed, a server that is killed, clients that speak and clients of other users.
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
needs python3 strip
# Without what debuggers want, which is most of it: machines keep it in memory.
strip -o "$scratch/millrace" "$millrace"
inside=$scratch/millrace guest_has=("$scratch/millrace")
socket=$scratch/iv.sock

# serve NAME: a server at the socket.
serve_at() {
    background "$1" "$millrace" ivshmem "$socket" --peers 8 --vectors 2 --memory 16 --json
    server=$started
    await 10 "$millrace" ivshmem status "$socket" --json >/dev/null || fail "there is no server"
}

status() {
    "$millrace" ivshmem status "$socket" --json
}

# has_peers COUNT
has_peers() {
    status | python3 -c 'import json, sys; sys.exit(len(json.load(sys.stdin)["peers"]) != int(sys.argv[1]))' "$1"
}

device=(-device ivshmem-doorbell,chardev=iv,vectors=2)
serve_at server
launch_guest one -chardev "socket,path=$socket,id=iv" "${device[@]}"
await 20 has_peers 1 || fail "the first machine is no peer"
launch_guest two -chardev "socket,path=$socket,id=iv" "${device[@]}"
await 20 has_peers 2 || fail "the second machine is no peer"
background host "$millrace" ivshmem listen "$socket" --count 2002 --json
host=$started
await 20 has_peers 3 || fail "the host is no peer"
await_guest one
await_guest two

# has_got NAME COUNT: whether the program that listens there has printed so many.
has_got() {
    [ "$(guest "$1" 'sort -u /tmp/got | wc -l')" = "$2" ]
}

# The ids are in the order in which they have come: 0 and 1 the machines, 2 the host.
[ "$(guest two "$inside ivshmem peers pci --json" | tr -d '\n')" = \
    '{"id":0,"who":"other"}{"id":1,"who":"this"}{"id":2,"who":"other"}' ] || fail "peers, as a machine sees them"

# expect FILE FROM: that in the file are doorbells 0 to 999 and a message from that peer, in order.
expect() {
    python3 - "$1" "$2" <<'END' || fail "what has come from peer $2 is not what was sent"
import json, sys
rows = [row for row in map(json.loads, open(sys.argv[1])) if row["from"] == int(sys.argv[2])]
bells = [row["doorbell"] for row in rows if "doorbell" in row]
texts = [row["message"] for row in rows if "message" in row]
sys.exit((bells, texts) != (list(range(1000)), ["from " + sys.argv[2]]))
END
}

# Both machines to the host at once, which sleeps: the doorbell register wakes it.
for name in one two; do
    id=$([ $name = one ] && echo 0 || echo 1)
    guest $name "($inside ivshmem ring pci 2 0-999 && $inside ivshmem send pci 2 'from $id'; echo \$? >/tmp/sent) >/tmp/log 2>&1 &"
done
ended "$host" 60
[ "$code" -eq 0 ] || fail "the host has not received all"
expect "$scratch/host.out" 0
expect "$scratch/host.out" 1
await 20 guest one '[ "$(cat /tmp/sent)" = 0 ]' || fail "the machine has not sent all: $(guest one cat /tmp/log)"

# Host to machine, machine to machine, both to the first at once. The host is another peer now.
guest one "$inside ivshmem listen pci --count 2002 --json >/tmp/got 2>/tmp/log & sleep 0.1"
guest two "($inside ivshmem ring pci 0 0-999 && $inside ivshmem send pci 0 'from 1') >/tmp/log 2>&1 & sleep 0"
"$millrace" ivshmem ring "$socket" 0 0-999 --wait 20 || fail "the host cannot ring the machine"
"$millrace" ivshmem send "$socket" 0 "from 4" --wait 20 || fail "the host cannot send to the machine"
await 20 has_got one 2002 || fail "the machine has received $(guest one 'wc -l </tmp/got')"
guest one cat /tmp/got >"$scratch/got"
expect "$scratch/got" 1
# It was peer 3 for the doorbells, and 4 for the message.
[ "$(grep -c '"from":3,"doorbell"' "$scratch/got")" = 1000 ] || fail "doorbells of the host"
grep -q '"from":4,"message":"from 4"' "$scratch/got" || fail "the message of the host"

# The split driver: a backend on the host, memory of the first machine, and the second machine and the host work on it. Each byte is copied once.
background backend "$millrace" split backend --ivshmem "$socket" --json
backend=$started
await 20 has_peers 3 || fail "the backend is no peer: $(cat "$scratch/backend.log")"

# serves OPTION...: a program of the first machine serves memory; its address is in $server_address.
serves() {
    guest one "rm -f /tmp/served; $inside split serve ivshmem:pci --json --bytes 65536 $* >/tmp/served 2>/tmp/log & echo \$! >/tmp/serving; sleep 0"
    await "$guest_seconds" guest one "grep -q address /tmp/served" || fail "the machine does not serve: $(guest one cat /tmp/log)"
    server_address=$(guest one cat /tmp/served | sed -n 's/.*"address":"\([^"]*\)".*/\1/p' | head -n 1)
}

serves
guest two "$inside split drive $server_address --at ivshmem:pci --json --count 20 --sizes 64,4096,65536" >"$scratch/two.json" ||
    fail "a machine on the memory of the other: $(cat "$scratch/two.json")"
"$millrace" split drive "$server_address" --at "ivshmem:$socket" --json --count 20 --sizes 64,4096,65536 >"$scratch/host.json" || fail "the host on the memory of a machine"
python3 - "$scratch/two.json" "$scratch/host.json" <<'END' || fail "what operations of the split driver took"
import json, sys
for name in sys.argv[1:]:
    rows = [row for row in map(json.loads, open(name)) if "operation" in row]
    assert len(rows) == 6, rows
    for row in rows:
        print(name.rsplit("/", 1)[1], {key: row[key] for key in row if key != "command"})
        assert row["copies"] == 1 and row["packets"] == 0 and row["pages"] == 0, row
END
# A program of a machine that is killed, of whose end nobody tells: the next one is told apart, and who has worked with it is told.
background drive "$millrace" split drive "$server_address" --at "ivshmem:$socket" --count 100000000 --sizes 4096
drive=$started
await 20 has_peers 4 || fail "nobody drives"
guest one "kill -9 \$(cat /tmp/serving)"
serves
ended "$drive" 30
[ "$code" -ne 0 ] || fail "it drives memory of a program that is gone"
"$millrace" split drive "$server_address" --at "ivshmem:$socket" --json --count 5 --sizes 64 >/dev/null || fail "the next program of the machine"
# The backend is killed: the machine notices.
slay "$backend"
await "$guest_seconds" guest one "grep -q 'backend has ended' /tmp/log" || fail "a machine does not notice that the backend has ended: $(guest one cat /tmp/log)"

# A machine is killed, and the host and the other one hear of it; it comes again, as another peer, to whom the other one rings.
slay "${guests[two]}"
await 10 has_peers 1 || fail "the machine that was killed is still a peer"
if "$millrace" ivshmem ring "$socket" 1 7 --wait 0 2>"$scratch/gone.log"; then fail "a doorbell for a machine that is gone"; fi
grep -q "peer 1 is not there" "$scratch/gone.log" || fail "what is said of a machine that is gone"
start_guest two -chardev "socket,path=$socket,id=iv" "${device[@]}"
id=$(status | python3 -c 'import json, sys; print(max(json.load(sys.stdin)["peers"], key=lambda peer: -peer["seconds"])["id"])')
guest two "$inside ivshmem listen pci --count 100 --json >/tmp/got 2>/tmp/log & sleep 0.1"
guest one "$inside ivshmem ring pci $id 65436-65535 --wait 20" || fail "the machine that came again cannot be rung"
await 20 has_got two 100 || fail "the machine that came again has not received all"

# Clients that say something, and clients that may not connect.
python3 - "$socket" <<'END'
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(b"hello")
client.settimeout(30)
try:
    while client.recv(4096):
        pass
except ConnectionResetError:
    pass  # it was cut off with what it had said unread
END
if is_root && command -v setpriv >/dev/null; then
    chmod 711 "$scratch"
    chmod 666 "$socket"
    setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 -c '
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.settimeout(30)
sys.exit(client.recv(1) != b"")' "$socket" || fail "another user was let in"
    status | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["counters"]["refused"] != 1)' || fail "who was refused is not counted"
fi
status | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["counters"]["spoke"] != 1)' || fail "who spoke is not counted"

# The server is killed: the machines go on. A program of the host that listens comes to the next server.
background again "$millrace" ivshmem listen "$socket" --count 1 --json
await 10 has_peers 3 || fail "the host is no peer"
slay "$server"
guest one "$inside ivshmem listen pci --count 100 --json >/tmp/got 2>/tmp/log & sleep 0.1"
guest two "$inside ivshmem ring pci 0 100-199 --wait 20" || fail "without a server machines cannot ring"
await 20 has_got one 100 || fail "without a server doorbells are lost"
serve_at server2
await 10 has_peers 1 || fail "the program of the host has not come to the new server"
"$millrace" ivshmem ring "$socket" 0 9 --wait 20 || fail "the program of the host cannot be rung again"
await 10 grep -q '"doorbell":9' "$scratch/again.out" || fail "the program of the host has not heard"
kill -INT "$server"
ended "$server" 10
[ "$code" -eq 0 ] || fail "the server ends with $code"
[ ! -e "$socket" ] || fail "the socket is still there"
