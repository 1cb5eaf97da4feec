#!/usr/bin/env bash
# A card removes nothing at the path where it is to listen but the socket of a card that has died.
. "$(dirname "$0")/../lib.sh"
needs python3

# refused WORDS PATH: no card listens there, the error says why, and what was there is as it was.
refused() {
    local before
    before=$(stat -c '%i %F %s' "$2" 2>&1 || true)
    timeout 60 "$millrace" card --listen "$2" </dev/null >/dev/null 2>"$scratch/refused.txt" && fail "a card at $2"
    grep -q "$1" "$scratch/refused.txt" || fail "$2: $(cat "$scratch/refused.txt")"
    [ "$(stat -c '%i %F %s' "$2" 2>&1 || true)" = "$before" ] || fail "$2 was touched"
}

echo precious >"$scratch/file"
refused "a regular file" "$scratch/file"
[ "$(cat "$scratch/file")" = precious ] || fail "the file has lost its content"
ln -s "$scratch/file" "$scratch/link"
refused "a symbolic link" "$scratch/link"
mkfifo "$scratch/fifo"
refused "a FIFO" "$scratch/fifo"
background daemon python3 -c '
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
time.sleep(1000)' "$scratch/stream"
await 10 test -S "$scratch/stream" || fail "no other daemon"
sleep 0.2
refused "a socket of another kind" "$scratch/stream"
refused "folder does not exist" "$scratch/mistyped/card.sock"
[ ! -e "$scratch/mistyped" ] || fail "a folder was made"

# The socket of a card that was killed is replaced, that of one that lives is not.
start_card
path=${device#unix:}
refused "another card listens" "$path"
slay "$card"
[ -S "$path" ] || fail "the killed card has left no socket"
background second "$millrace" card --listen "$path"
second=$started
await 10 "$millrace" info --device "unix:$path" >/dev/null 2>&1 || fail "no card in the place of the killed one"

# A card whose place another has taken leaves it alone when it ends.
rm "$path"
background third "$millrace" card --listen "$path"
third=$started
await 10 "$millrace" info --device "unix:$path" >/dev/null 2>&1 || fail "no third card"
kill -INT "$second"
ended "$second" 20
"$millrace" info --device "unix:$path" >/dev/null || fail "the second card has removed the socket of the third"
kill -INT "$third"
ended "$third" 20
[ ! -e "$path" ] || fail "the third card has left its socket behind"

# A mistyped device: no advice to start a card right there.
"$millrace" info --device "unix:$scratch/file" 2>"$scratch/advice.txt" && fail "a file is a card"
"$millrace" info --device "unix:$scratch/nothing" 2>>"$scratch/advice.txt" && fail "nothing is a card"
! grep -q -- --listen "$scratch/advice.txt" || fail "$(cat "$scratch/advice.txt")"
