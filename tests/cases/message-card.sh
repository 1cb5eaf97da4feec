#!/usr/bin/env bash
# Messages whose work a card does: files and sizes arrive as they were; whoever is killed is told of by name, also in the middle of a transfer, and
# others go on; a card that is killed is an error at once; another user needs the right.
. "$(dirname "$0")/../lib.sh"
needs python3
export RUST_BACKTRACE=1
start_card --message-cpu --grant user:65534=rdma
socket=${device#unix:}
by="--card=$socket"
await 10 test -S "$socket.messages" || fail "the card does no messages"
# Without a path it is the usual card.
MILLRACE_SOCKET=$scratch/none.sock "$millrace" message send nobody --card 2>"$scratch/usual.log" && fail "there is no usual card, and it works"
grep -q "none.sock.*message-cpu" "$scratch/usual.log" || fail "another card than the usual one: $(cat "$scratch/usual.log")"

# listen NAME OPTION...: its process id is in $started.
listen() {
    background "listen-$1" "$millrace" message listen "$@" "$by" --json
    local log=$scratch/listen-$1.log
    await 10 grep -q "is open" "$log" || fail "$1 is not open: $(cat "$log")"
}

# A file, and sizes around all limits, with a sum at both sides.
head -c 20000001 /dev/urandom >"$scratch/file"
background receive "$millrace" message receive solver "$scratch/came" "$by" --json
"$millrace" message send solver "$scratch/file" "$by" >/dev/null || fail "the file was not sent"
ended "$started" 10
[ "$code" -eq 0 ] || fail "receive ended with $code: $(cat "$scratch/receive.log")"
cmp "$scratch/file" "$scratch/came" || fail "another file has come"
listen echo
listener=$started
for size in 0 1 40 1320 1321 65536 1MiB 5000000; do
    "$millrace" message send echo "$by" --bytes $size --count 20 --check --json >"$scratch/send.out" ||
        fail "$size bytes: $(cat "$scratch/send.out")"
done
for size in 8 64KiB; do
    "$millrace" message latency echo "$by" --bytes $size --count 200 --json >"$scratch/latency.out" || fail "latency of $size bytes"
done

# The program has no thread for it, only those of the command: an endpoint of its own has one more.
threads() { ls "/proc/$1/task" | wc -l; }
background own "$millrace" message listen "own-$$"
await 10 grep -q "is open" "$scratch/own.log" || fail "no endpoint: $(cat "$scratch/own.log")"
[ "$(threads "$listener")" -eq "$(($(threads "$started") - 1))" ] || fail "the listener has $(threads "$listener") threads"

# Somebody is killed in the middle of what he sends, twenty times; the listener hears of each, and others go on.
for turn in $(seq 20); do
    background victim "$millrace" message send echo "$by" --bytes 1MiB --count 100000
    victim=$started
    sleep "0.0$((turn % 9 + 1))"
    slay "$victim"
done
"$millrace" message send echo "$by" --bytes 100000 --count 20 --check >/dev/null || fail "nobody is served any more"
kill -0 "$listener" || fail "the listener has ended: $(cat "$scratch/listen-echo.log")"

# Another user needs the right of the card, and has to be let in by the endpoint.
if is_root; then
    chmod 755 "$scratch"
    cp "$millrace" "$scratch/millrace"
    as() {
        local user=$1
        shift
        timeout 60 setpriv --reuid "$user" --regid "$user" --clear-groups "$scratch/millrace" message send "$@" "$by" 2>"$scratch/told.log"
    }
    listen all --anybody
    as 65534 0/all --bytes 100000 --count 3 --check >/dev/null || fail "who has the right is not let in: $(cat "$scratch/told.log")"
    ! as 65534 0/echo || fail "an endpoint of its user only takes another one"
    grep -q "takes no endpoints of user 65534" "$scratch/told.log" || fail "it is not said why: $(cat "$scratch/told.log")"
    ! as 65533 0/all || fail "another user was let in without the right"
    grep -q -- "--grant user:65533=rdma" "$scratch/told.log" || fail "it is not said what he needs: $(cat "$scratch/told.log")"
fi

# The card is killed while much is on its way: both ends say so, and neither hangs.
background sender "$millrace" message send echo "$by" --bytes 4MiB --count 1000000
sender=$started
sleep 1
kill -0 "$sender" || fail "the sender has ended: $(cat "$scratch/sender.log")"
slay "$card"
ended "$sender" 5
[ "$code" -ne 0 ] && grep -q "card has gone" "$scratch/sender.log" || fail "the sender ended with $code: $(cat "$scratch/sender.log")"
ended "$listener" 5
[ "$code" -ne 0 ] && grep -q "card has gone" "$scratch/listen-echo.log" || fail "the listener ended with $code: $(cat "$scratch/listen-echo.log")"
code=0
"$millrace" message send echo "$by" 2>"$scratch/told.log" || code=$?
[ "$code" -ne 0 ] && grep -q "message-cpu" "$scratch/told.log" || fail "without a card: $code $(cat "$scratch/told.log")"
