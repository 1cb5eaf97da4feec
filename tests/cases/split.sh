#!/usr/bin/env bash
# The split driver between processes: a backend, memory that is served, and somebody who writes and reads it: each byte is copied once, by nobody but the engine. A program that is
# killed, and a backend that is, are errors at the other ends, and no hang. The same between guests of two backends, over a card.
. "$(dirname "$0")/../lib.sh"
needs python3
socket=$scratch/split.sock
background backend "$millrace" split backend --socket "$socket" --json
backend=$started
await 10 test -S "$socket" || fail "the backend does not listen"

# address NAME: of the endpoint that serves, once it does.
address() {
    await 10 grep -q address "$scratch/$1.out" || fail "$1 does not serve"
    sed -n 's/.*"address":"\([^"]*\)".*/\1/p' "$scratch/$1.out" | head -n 1
}

background one "$millrace" split serve "$socket" --json --count 1
one=$started
"$millrace" split drive "$(address one)" --at "$socket" --json --count 100 >"$scratch/drive.json" || fail "drive"
ended "$one" 10
[ "$code" -eq 0 ] || fail "who serves ended with $code"
python3 - "$scratch/drive.json" "$scratch/one.out" <<'END' || fail "what operations took"
import json, sys
driven, served = ([json.loads(line) for line in open(name)] for name in sys.argv[1:])
rows = [row for row in driven if "operation" in row]
assert {(row["operation"], row["bytes_each"]) for row in rows} >= {("write", 1), ("read", 1048576)}, rows
for row in rows:
    assert row["copies"] == 1 and row["packets"] == 0 and row["pages"] == 0 and row["guest_hypercalls"] == 0, row
# What one has written last is what the other has.
assert driven[-1]["crc32"] == served[-1]["crc32"], (driven[-1], served[-1])
END

# Two backends on a card without a wire, which sends each what comes from the other: every guest has an address of its own there.
start_card --port loopback --queues 4
background left "$millrace" split backend --socket "$scratch/left.sock" --port "$device" --json
left=$started
await 10 test -S "$scratch/left.sock" || fail "the backend does not listen: $(cat "$scratch/left.log")"
background right "$millrace" split backend --socket "$scratch/right.sock" --port "$device" --number 1 --json
right=$started
await 10 test -S "$scratch/right.sock" || fail "the other backend does not listen: $(cat "$scratch/right.log")"
background near "$millrace" split serve "$scratch/left.sock" --json
near=$started
near_address=$(address near)
"$millrace" split drive "$near_address" --at "$scratch/right.sock" --json --count 20 >"$scratch/far.json" || fail "drive over a card"
# One that is killed is missed at the other end of the wire, too.
background far_drive "$millrace" split drive "$near_address" --at "$scratch/right.sock" --count 100000000 --sizes 4096
drive=$started
await 10 grep -q "\"came\".*process $drive\"" "$scratch/right.out" || fail "nobody drives over the card"
slay "$near"
ended "$drive" 20
[ "$code" -ne 0 ] || fail "it drives memory of a program that is gone, at the other end of a wire"
for name in left right; do
    kill -INT "${!name}"
    ended "${!name}" 10
    [ "$code" -eq 0 ] || fail "a backend with a port ends with $code"
done
python3 - "$scratch/far.json" "$scratch/right.out" <<'END' || fail "what operations over a card took"
import json, sys
driven, told = ([json.loads(line) for line in open(name)] for name in sys.argv[1:])
rows = [row for row in driven if "operation" in row]
assert {(row["operation"], row["bytes_each"]) for row in rows} >= {("write", 1), ("read", 1048576)}, rows
for row in rows:
    # One copy between memory of the guest and the buffers of a queue, and what had to be sent again; the card makes its own.
    assert row["frames"] >= 2 and row["pages"] == 0 and row["copies"] >= 1, row
port = [row for row in told if row["event"] == "port"][-1]
assert port["sent"] > 0 and port["forged"] == 0, port
END

# Killed while somebody works on its memory.
background two "$millrace" split serve "$socket" --json
two=$started
background drive "$millrace" split drive "$(address two)" --at "$socket" --count 100000000 --sizes 4096
drive=$started
await 10 grep -q "\"came\".*process $drive\"" "$scratch/backend.out" || fail "nobody drives"
slay "$two"
ended "$drive" 20
[ "$code" -ne 0 ] && [ -s "$scratch/drive.log" ] || fail "it drives memory of a program that is gone"
await 10 grep -q "\"left\".*process $two\"" "$scratch/backend.out" || fail "its place is not free"

# The backend is killed.
background three "$millrace" split serve "$socket" --json
address three >/dev/null
slay "$backend"
ended "$started" 20
[ "$code" -ne 0 ] || fail "who serves did not notice"
grep -q "backend has ended" "$scratch/three.log" || fail "who serves says: $(cat "$scratch/three.log")"
code=0
"$millrace" split serve "$socket" 2>"$scratch/nobody.log" || code=$?
[ "$code" -ne 0 ] && grep -q "no backend listens" "$scratch/nobody.log" || fail "nobody listens: $(cat "$scratch/nobody.log")"
