#!/usr/bin/env bash
# `millrace socket`: finds the library, preloads it behind others, says how many connections went through memory, and ends as the
# program does.
. "$(dirname "$0")/../lib.sh"
. "$tests/socket.sh"
needs /usr/bin/python3 curl
unset MILLRACE_STREAMS
head -c 3000000 /dev/urandom >"$scratch/file"

background server with - "$millrace" socket --set "stats=$scratch/stats" --set ring=65536 \
    /usr/bin/python3 -m http.server 18760 --bind 127.0.0.1 --directory "$scratch"
server=$started
await 10 listens 18760 || fail "the server does not listen"
"$millrace" socket --stats curl -sS http://127.0.0.1:18760/file 2>"$scratch/said" | cmp - "$scratch/file" || fail "curl"
grep -q "curl: 1 of 1 connections through memory, .* bytes sent, 3,000,[0-9]* received$" "$scratch/said" || fail "curl: $(cat "$scratch/said")"
# The process is the program.
[ "$(cat "/proc/$server/comm")" = python3 ] || fail "the server is $(cat "/proc/$server/comm")"
kill -INT "$server"
ended "$server" 10
[ "$(counted python3 met)" = 1 ] || fail "the server has not met curl: $(cat "$scratch/stats")"

# Who has nobody to meet is told why.
background server /usr/bin/python3 -m http.server 18761 --bind 127.0.0.1 --directory "$scratch"
await 10 listens 18761 || fail "the server does not listen"
"$millrace" socket --stats curl -sS http://127.0.0.1:18761/file 2>"$scratch/said" | cmp - "$scratch/file" || fail "curl"
grep -q "curl: 0 of 1 connections .* by the kernel: 1 alone" "$scratch/said" || fail "curl: $(cat "$scratch/said")"
"$millrace" socket --stats true 2>&1 | grep -q "no process" || fail "true has had connections"

# What is there stays.
preloaded=$(LD_PRELOAD=libc.so.6 MILLRACE_STREAMS=spin=0 "$millrace" socket --set ring=4096 sh -c 'echo "$LD_PRELOAD $MILLRACE_STREAMS"')
[[ $preloaded == "libc.so.6:"*"libmillrace"?"socket.so spin=0 ring=4096" ]] || fail "preloaded: $preloaded"

# It ends as the program does, and hands on what it is told.
ends() {
    local wanted=$1 code=0
    shift
    timeout 20 "$millrace" socket "$@" >"$scratch/out" 2>"$scratch/error" || code=$?
    [ "$code" = "$wanted" ] || fail "millrace socket $*: $code instead of $wanted: $(cat "$scratch/error")"
}
ends 7 --stats sh -c 'exit 7'
ends 7 sh -c 'exit 7'
ends 137 --stats sh -c 'kill -KILL $$'
ends 127 "$scratch/nothing"
ends 127 --stats "$scratch/nothing"
ends 2
ends 2 --set rings=1 true
background told "$millrace" socket --stats sh -c 'trap "exit 9" TERM; echo ready; while :; do sleep 0.05; done'
await 10 grep -q ready "$scratch/told.out" || fail "the program does not run"
kill -TERM "$started"
ended "$started" 10
[ "$code" = 9 ] || fail "SIGTERM was not handed on: $code"

# A program that knows nothing of signals ends by them.
background told "$millrace" socket --stats sleep 20
sleep 0.3
kill -TERM "$started"
ended "$started" 5
[ "$code" = 143 ] || fail "sleep has not ended by SIGTERM: $code"

# A command without its library says where it has looked.
mkdir "$scratch/bin"
cp "$millrace" "$scratch/bin/millrace"
millrace=$scratch/bin/millrace
ends 1 true
grep -q "$scratch/bin/libmillrace-socket.so .*$scratch/lib/libmillrace-socket.so .*make install" "$scratch/error" || fail "$(cat "$scratch/error")"
