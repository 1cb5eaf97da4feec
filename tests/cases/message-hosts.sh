#!/usr/bin/env bash
# Messages between hosts: pairs of cards, each joined by a wire, stand for the rails of two hosts. Files and sums arrive as they were, by one rail and by two, over
# a bad wire; a rail that dies in the middle is replaced, and used again when its card is back; whoever is killed is told of by name.
. "$(dirname "$0")/../lib.sh"
needs python3
export RUST_BACKTRACE=1
name=hosts-$$

# start_rail NUMBER END OPTION: the card of a host (a, b) at one end of a wire; its process id is in $started.
start_rail() {
    local kind=vhost-user
    [ "$2" = a ] || kind=virtio-user
    rm -f "$scratch/$2$1.sock"*
    background "card-$2$1" "$millrace" card --queues 1 --listen "$scratch/$2$1.sock" --port "${3:-}$kind:$scratch/wire$1${3:+)}"
    await 10 test -S "$scratch/$2$1.sock" || fail "the card $2$1 is not there: $(cat "$scratch/card-$2$1.log")"
}
rails() { for number in "${@:2}"; do printf ' --rail unix:%s' "$scratch/$1$number.sock"; done; }

# listen COMMAND RAILS OPTION...: host b opens $name; its process id is in $started.
listen() {
    background listen "$millrace" message "$1" "$name" --host b $2 "${@:3}"
    await 10 grep -q "is open" "$scratch/listen.log" || fail "$name is not open: $(cat "$scratch/listen.log")"
}
# told CODE TEXT COMMAND...: it ends with that code, and says that.
told() {
    local wanted=$1 text=$2 code=0
    shift 2
    timeout 60 "$@" >"$scratch/told.out" 2>"$scratch/told.log" || code=$?
    [ "$code" -eq "$wanted" ] || fail "$* ended with $code instead of $wanted: $(cat "$scratch/told.log")"
    grep -q -- "$text" "$scratch/told.log" || fail "$* does not say '$text': $(cat "$scratch/told.log")"
}

start_rail 0 a; start_rail 0 b
start_rail 1 a; victim=$started; start_rail 1 b
one_a=$(rails a 0) one_b=$(rails b 0) two_a=$(rails a 0 1) two_b=$(rails b 0 1)

# One rail: files and sizes; names.
head -c 20000001 /dev/urandom >"$scratch/file"
listen receive "$one_b" "$scratch/came" --json
"$millrace" message send "b:$name" "$scratch/file" $one_a >/dev/null || fail "the file was not sent"
ended "$started" 10
[ "$code" -eq 0 ] && cmp "$scratch/file" "$scratch/came" || fail "the file arrived as something else: $(cat "$scratch/listen.log")"
listen listen "$one_b" --json
listener=$started
for size in 0 1 1328 1329 65536 65537 5000000; do
    "$millrace" message send "b:$name" --bytes $size --count 20 --check $one_a >/dev/null || fail "$size bytes"
done
"$millrace" message send "b:$name" --count 20000 --bytes 8 --check $one_a >/dev/null || fail "20000 short messages"
"$millrace" message latency "b:$name" --count 1000 $one_a >/dev/null || fail "latency"
"$millrace" message latency "b:$name" --count 100 --bytes 100000 $one_a >/dev/null || fail "latency of 100,000 bytes"
told 1 "nobody has opened c:$name" "$millrace" message send "c:$name" $one_a
told 1 "no rail that leads there" "$millrace" message send "b:$name"
told 1 "all queues of the card" "$millrace" message listen "$name-2" $one_b

# Who is killed: the listener goes on, and so does the next sender.
background sender "$millrace" message send "b:$name" --count 1G --bytes 300000 $one_a
sleep 1
slay "$started"
"$millrace" message send "b:$name" --bytes 1MiB --count 50 --check $one_a >/dev/null || fail "nobody is listened to after the sender was killed"
background sender "$millrace" message send "b:$name" --count 1G --bytes 300000 $one_a
sender=$started
sleep 1
slay "$listener"
ended "$sender" 10
[ "$code" -eq 1 ] && grep -q "ended before it had everything" "$scratch/sender.log" || fail "$code $(cat "$scratch/sender.log")"

# Two rails, of which one dies in the middle, and is there again later.
listen listen "$two_b" --json
listener=$started
background sender "$millrace" message send "b:$name" --count 2500 --bytes 1MiB --check --json $two_a
sender=$started
sleep 2
slay "$victim"
sleep 3
start_rail 1 a
victim=$started
ended "$sender" 60
[ "$code" -eq 0 ] || fail "a rail has died, and the sender ended with $code: $(cat "$scratch/sender.log")"
[ "$(field messages <"$scratch/sender.out")" = 2500 ] || fail "$(cat "$scratch/sender.out")"
frames() { "$millrace" stats --device "unix:$scratch/a1.sock" --json | python3 -c '
import json, sys
print(sum(queue["passed"] for queue in json.load(sys.stdin)["queues"]))'; }
[ "$(field complete <"$scratch/listen.out")" = yes ] || fail "the listener has seen something else: $(cat "$scratch/listen.out")"
echo "by the card that came back: $(frames) frames"
[ "$(frames)" -gt 1000 ] || fail "the rail that is back is not used"

# The other host dies: who sends is told, as soon as the transport has given up.
background sender "$millrace" message send "b:$name" --count 1G --bytes 300000 $two_a
sender=$started
sleep 2
slay "$listener"
ended "$sender" 10
[ "$code" -eq 1 ] && grep -q "ended before it had everything" "$scratch/sender.log" || fail "$code $(cat "$scratch/sender.log")"

# Wires that lose, double and reorder frames.
slay "$victim"
start_rail 1 a "fault:loss=0.2%,duplicate=1%,reorder=1%,seed=3,port=("
listen receive "$two_b" "$scratch/came" --json
listener=$started
"$millrace" message send "b:$name" "$scratch/file" $two_a >/dev/null || fail "the file was not sent over a bad wire"
ended "$listener" 20
[ "$code" -eq 0 ] && cmp "$scratch/file" "$scratch/came" || fail "over a bad wire the file arrived as something else: $(cat "$scratch/listen.log")"
