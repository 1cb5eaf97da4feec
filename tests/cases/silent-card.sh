#!/usr/bin/env bash
# Ctrl-C ends every command while the card does not answer, and while a FIFO has no other end; exit code 130.
. "$(dirname "$0")/../lib.sh"

# interrupt NAME COMMAND...: one Ctrl-C ends it.
interrupt() {
    local name=$1
    shift
    background "$name" "$@"
    sleep 0.7
    is_gone "$started" && fail "$name ended by itself: $(cat "$scratch/$name.log")"
    kill -INT "$started"
    ended "$started" 30
    [ "$code" -eq 130 ] || fail "$name ended with $code: $(cat "$scratch/$name.log")"
    echo "$name: $(tail -n 1 "$scratch/$name.log")"
}

mkfifo "$scratch/fifo"
start_card
"$millrace" info >/dev/null
# One that waits already, and is told what to think of it.
kill -STOP "$card"
for command in info stats tree ports workers read receive\ "$scratch/out.pcap" generate loopback-hw; do
    # shellcheck disable=SC2086
    interrupt "${command%% *}" "$millrace" $command
done
"$millrace" info 2>"$scratch/silence.txt" && fail "a stopped card answers"
grep -q "process $card) has not answered for 10 s; it may be stopped" "$scratch/silence.txt" ||
    fail "$(cat "$scratch/silence.txt")"
kill -CONT "$card"
"$millrace" info >/dev/null || fail "the card does not answer any more"
interrupt transmit-fifo "$millrace" transmit "$scratch/fifo"
interrupt receive-fifo "$millrace" receive "$scratch/fifo"
# A port waits for no pipe.
timeout 30 "$millrace" card --listen "$scratch/fifo-card.sock" --port "trace:$scratch/fifo,port=(null)" \
    2>"$scratch/fifo.txt" && fail "a card writes to a pipe that nobody reads"
grep -q "nobody reads this pipe" "$scratch/fifo.txt" || fail "$(cat "$scratch/fifo.txt")"
