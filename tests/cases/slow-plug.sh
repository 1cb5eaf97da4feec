#!/usr/bin/env bash
# A port that is slow to open keeps nobody from the card, and does not keep the card from ending. Here it asks at a socket
# whether somebody listens there, and somebody does, but has no room for those who want to connect.
. "$(dirname "$0")/../lib.sh"
needs python3

# busy PATH: a socket that lets whoever connects wait.
busy() {
    background listener python3 -c '
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(0)
waiting = []
try:
    while True:
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        waiting[-1].connect(sys.argv[1])
except BlockingIOError:
    print("full", flush=True)
time.sleep(1000)' "$1"
    listener=$started
    await 30 grep -q full "$scratch/listener.out" || fail "there is no such socket"
}

busy "$scratch/one.sock"
start_card --port null
background plug "$millrace" ports plug 0 "vhost-user:$scratch/one.sock"
plug=$started
unplugged() {
    "$millrace" ports | grep -q none
}
await 30 unplugged || fail "the port is not being plugged"
for _ in 1 2 3; do
    "$millrace" stats >/dev/null || fail "the card is held up"
done
"$millrace" read --count 1 --queue 0 >"$scratch/read.out" 2>&1 &
reader=$!
pids+=("$reader")
held() {
    "$millrace" info | grep -qE "^ *rx0 .* $reader\b"
}
await 30 held || fail "no queue can be opened: $("$millrace" info)"
kill -INT "$reader"
is_gone "$plug" && fail "the port was not slow to open"
# The other one dies: it goes on.
slay "$listener"
ended "$plug" 30
[ "$code" -eq 0 ] || fail "the port was not plugged"
"$millrace" ports | grep -q vhost-user || fail "the port is not there"

# Nobody dies: Ctrl-C ends the one who asked, and then the card.
"$millrace" ports plug 0 null
busy "$scratch/other.sock"
background plug "$millrace" ports plug 0 "vhost-user:$scratch/other.sock"
plug=$started
await 30 unplugged || fail "the port is not being plugged"
kill -INT "$plug"
ended "$plug" 30
[ "$code" -eq 130 ] || fail "the command ended with $code"
kill -INT "$card"
ended "$card" 30
[ "$code" -eq 0 ] || fail "the card ended with $code"

# A pipe is not waited for at all.
start_card --port null
mkfifo "$scratch/fifo"
code=0
timeout 30 "$millrace" ports plug 0 "trace:$scratch/fifo,port=(null)" 2>"$scratch/said" || code=$?
[ "$code" -eq 1 ] || [ "$code" -eq 2 ] || fail "a pipe that nobody reads: ended with $code"
grep -q "nobody reads this pipe" "$scratch/said" || fail "a pipe that nobody reads: $(cat "$scratch/said")"
