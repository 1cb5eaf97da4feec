#!/usr/bin/env bash
# Messages between processes by name: files and sizes arrive as they were, by each way; whoever is killed, or stopped, or another user is told of
# by name, and others go on.
. "$(dirname "$0")/../lib.sh"
needs python3
export RUST_BACKTRACE=1
name=case-$$
state=$XDG_STATE_HOME

# told CODE TEXT COMMAND...: it ends with that code, and says that.
told() {
    local wanted=$1 text=$2 code=0
    shift 2
    timeout 60 "$@" >"$scratch/told.out" 2>"$scratch/told.log" || code=$?
    [ "$code" -eq "$wanted" ] || fail "$* ended with $code instead of $wanted: $(cat "$scratch/told.log")"
    grep -q -- "$text" "$scratch/told.log" || fail "$* does not say '$text': $(cat "$scratch/told.log")"
}

is_open() {
    grep -q "@millrace-message/$(id -u)/$1\$" /proc/net/unix
}

# listen NAME OPTION...: its process id is in $started.
listen() {
    background "listen-$1" "$millrace" message listen "$@" --json
    await 10 is_open "$1" || fail "$1 is not open"
}

# The table: measured once, and again when it does not fit.
told 0 "measured now" "$millrace" message table
told 0 "from $state/millrace/message-table" "$millrace" message table
sed -i '2s/.*/another machine/' "$state/millrace/message-table"
told 0 "measured again" "$millrace" message table --json
"$millrace" message explain 100 --json >"$scratch/explain.out" && python3 - "$scratch/explain.out" <<'END' || fail "$(cat "$scratch/explain.out")"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(not (len(rows) == 3 and all(row["size"] == 100 and isinstance(row["ns"], (int, float)) for row in rows)))
END
"$millrace" message explain 100 | grep -q "eager *yes" || fail "100 bytes do not go eager"
"$millrace" message explain 16MiB | grep -q "eager *no *- *- *has 1328 bytes" || fail "16 MiB go eager"

# Files, by name and through pipes; the receiver may come first or last.
head -c 20000001 /dev/urandom >"$scratch/file"
: >"$scratch/empty"
for file in file empty; do
    background receive "$millrace" message receive "$name" "$scratch/came" --json
    "$millrace" message send "$name" "$scratch/$file" >/dev/null || fail "$file was not sent"
    ended "$started" 10
    [ "$code" -eq 0 ] || fail "receive ended with $code: $(cat "$scratch/receive.log")"
    cmp "$scratch/$file" "$scratch/came" || fail "$file arrived as something else"
    [ "$(field complete <"$scratch/receive.out")" = yes ] || fail "$(cat "$scratch/receive.out")"
done
("$millrace" message send "$name" - <"$scratch/file" >/dev/null) &
"$millrace" message receive "$name" 2>"$scratch/receive.log" | cmp - "$scratch/file" || fail "another file came out of the pipe"
wait $!

# What was there stays until all has come: nobody calls.
echo before >"$scratch/stays"
background receive "$millrace" message receive "$name" "$scratch/stays"
await 10 is_open "$name" || fail "$name is not open"
[ "$(cat "$scratch/stays")" = before ] || fail "the file is empty before anybody has called"
kill -INT "$started"
ended "$started" 10
[ "$(cat "$scratch/stays")" = before ] && [ -z "$(ls -A "$scratch" | grep '^\.stays')" ] || fail "Ctrl-C leaves $(ls -A "$scratch")"

# A file that is cut short by Ctrl-C is not complete.
truncate -s 100G "$scratch/large"
background receive "$millrace" message receive "$name" /dev/null --json
receiver=$started
background send "$millrace" message send "$name" "$scratch/large"
sleep 1
kill -INT "$started"
ended "$started" 10
[ "$code" -eq 130 ] || fail "send was interrupted, and ended with $code: $(cat "$scratch/send.log")"
ended "$receiver" 10
[ "$code" -eq 1 ] && [ "$(field complete <"$scratch/receive.out")" = no ] ||
    fail "receive got a part of a file, and ended with $code: $(cat "$scratch/receive.out" "$scratch/receive.log")"

# Sizes around all limits, by each way, with a sum at both sides.
listen "$name"
listener=$started
for way in eager one-copy zero-copy; do
    for size in 0 1 1328 1329 32768 32769 1MiB 5000000; do
        if [ $way = eager ] && [ "$size" != 0 ] && [ "$size" != 1 ] && [ "$size" != 1328 ]; then
            told 2 "1328 bytes at most" "$millrace" message send "$name" --bytes $size --by eager
            continue
        fi
        "$millrace" message send "$name" --bytes $size --count 20 --check --by $way --json >"$scratch/send.out" ||
            fail "$size bytes by $way: $(cat "$scratch/send.out")"
    done
done
"$millrace" message send "$name" --count 50000 --bytes 8 --check >/dev/null || fail "50000 short messages"
"$millrace" message latency "$name" --count 1000 --json >"$scratch/latency.out" || fail "latency"
"$millrace" message latency "$name" --count 100 --bytes 100000 >/dev/null || fail "latency of 100,000 bytes"
files=$(ls "/proc/$listener/fd" | wc -l)

# Senders are killed at any moment; the listener has their buffers again, and takes others, one of which sends all the time.
background steady "$millrace" message send "$name" --count 1G --bytes 10000 --check --json
steady=$started
for round in $(seq 40); do
    background victim "$millrace" message send "$name" --count 1G --bytes 300000 --by $([ $((round % 2)) = 0 ] && echo one-copy || echo zero-copy)
    victim=$started
    sleep 0.$(printf %03d $((round * 37 % 200 + 50)))
    slay "$victim"
done
kill -INT "$steady"
ended "$steady" 10
[ "$code" -eq 130 ] || fail "the steady sender ended with $code: $(cat "$scratch/steady.log")"
[ "$(field messages <"$scratch/steady.out")" -gt 0 ] || fail "the steady sender has sent nothing"
"$millrace" message send "$name" --bytes 1MiB --count 100 --check >/dev/null || fail "nobody is listened to after the kills"
has_few() { [ "$(ls "/proc/$listener/fd" | wc -l)" -le "$files" ]; }
await 10 has_few || fail "descriptors are left: $(ls -l "/proc/$listener/fd")"
kill -INT "$listener"
ended "$listener" 5
[ "$code" -eq 0 ] || fail "the listener ended with $code: $(cat "$scratch/listen-$name.log")"
python3 - "$scratch/listen-$name.out" <<'END' || fail "the listener has told something else"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
wrong = [row for row in rows if row["complete"] != "yes"]
print(f"{len(rows)} senders, {len(wrong)} of them cut short, {sum(row['bytes'] for row in rows)} bytes")
sys.exit(not (len(rows) - len(wrong) >= 22 and len(wrong) > 0))
END

# A listener that is killed, or stopped; a name that nobody has, or that somebody has.
listen "$name"
listener=$started
told 1 "is open already" "$millrace" message listen "$name"
background sender "$millrace" message send "$name" --count 1G --bytes 100000
# Until it has called, on a busy machine, too.
sleep 1
slay "$listener"
ended "$started" 5
[ "$code" -eq 1 ] && grep -q "ended before it had everything" "$scratch/sender.log" || fail "$code $(cat "$scratch/sender.log")"
listen "$name"
kill -STOP "$started"
told 1 "does not answer" "$millrace" message send "$name"
kill -CONT "$started"
told 1 "nobody has opened" "$millrace" message send "$name-other"

# Other users, if they are let in.
if is_root && command -v setpriv >/dev/null && setpriv --reuid=65534 --regid=65534 --clear-groups -- true 2>/dev/null; then
    chmod 755 "$scratch"
    cp "$millrace" "$scratch/millrace"
    as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups -- env -u XDG_STATE_HOME HOME=/nonexistent)
    told 1 "if another user runs it, say who: 1000/$name" "${as_nobody[@]}" "$scratch/millrace" message send "$name"
    told 0 "cannot be written" "${as_nobody[@]}" XDG_STATE_HOME="$state" "$scratch/millrace" message table --measure
    told 1 "takes no endpoints of user 65534: whoever opens it has to let that user in" "${as_nobody[@]}" "$scratch/millrace" message send "root/$name"
    listen "$name-open" --user 65534
    "${as_nobody[@]}" "$scratch/millrace" message send "root/$name-open" --bytes 1MiB --count 20 --check --by zero-copy >/dev/null ||
        fail "nobody may not send"
fi
