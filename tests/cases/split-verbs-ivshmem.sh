#!/usr/bin/env bash
# Verbs programs of Debian over memory that machines share (split=ivshmem:), here as programs of the host, which are peers as machines are: what they allocate
# is the transport's from the first (libmillrace-memory.so), so that nothing is exchanged under them. Whoever dies leaves nothing.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs rping python3 cc stdbuf
for library in librdmacm.so.1 libmillrace-memory.so; do
    [ -e "$verbs_library/$library" ] || skip "$verbs_library/$library has not been built; \`make build\` does that"
done
[ -e /usr/include/infiniband/verbs.h ] || skip "there is no infiniband/verbs.h (Debian's package libibverbs-dev)"
shared=$scratch/iv.sock socket=$scratch/split.sock
background server "$millrace" ivshmem "$shared" --peers 8 --vectors 1 --memory 64 --json
server_of_memory=$started
await 10 "$millrace" ivshmem status "$shared" --json >/dev/null 2>&1 || fail "there is no server"
background backend "$millrace" split backend --ivshmem "$shared" --socket "$socket" --json
backend=$started
await 10 test -S "$socket" || fail "the backend does not listen: $(cat "$scratch/backend.log")"
guest="split=ivshmem:$shared"
# All programs of this case, shells and `timeout` among them, which have nothing to ask for.
export LD_PRELOAD=$verbs_library/libmillrace-memory.so

ends=("$guest" "$guest")
both ibv_rc_pingpong -g 0 -c -n 1000
both ibv_rc_pingpong -g 0 -c -n 200 -e
both ibv_rc_pingpong -g 0 -c -n 100 -s 100000
both ibv_srq_pingpong -g 0 -c -n 200
both ibv_ud_pingpong -g 0 -c -n 200
both ib_write_bw -n 200
both ib_read_lat -n 200
both ib_send_bw -n 200 -s 4096 -e
both ib_write_bw -n 50 -s 1048576
# Only what is long enough lies there: the buffer does.
ends=("$guest from=4096" "$guest from=4096")
both ibv_rc_pingpong -g 0 -c -n 100
# A program at the socket of the same backend, whose memory is adopted, if that can be.
ends=("$guest" "split=$socket")
if MILLRACE_VERBS="split=$socket" ours ibv_devinfo >/dev/null 2>&1; then
    both ibv_rc_pingpong -g 0 -c -n 200
fi
echo "pingpongs and perftest"

# serves COMMAND...: in the background. Its process is $server.
serves() {
    background server env MILLRACE_VERBS="$guest" LD_LIBRARY_PATH="$verbs_library" timeout 120 "$@"
    server=$started
}
# calls COMMAND...: again until somebody listens there; then its server ends well, too.
calls() {
    local until=$((SECONDS + 30))
    until MILLRACE_VERBS=$guest ours timeout 60 "$@" >"$scratch/client.out" 2>"$scratch/client.log"; do
        grep -qi "rejected\|unreachable" "$scratch/client.out" "$scratch/client.log" && [ "$SECONDS" -lt "$until" ] && ! is_gone "$server" ||
            fail "$*: $(tail -n 3 "$scratch"/{client,server}.{out,log})"
    done
    ended "$server" 60
    [ "$code" -eq 0 ] || fail "the server of $* ended with $code: $(tail -n 3 "$scratch"/server.{out,log})"
    ! grep -h -A 1 panicked "$scratch"/{client,server}.log || fail "a panic in $*"
}
serves rping -s -C 20 -V
calls rping -c -a 198.19.255.253 -C 20 -V
serves rping -s -S 60000 -C 20 -V
calls rping -c -a 198.19.255.253 -S 60000 -C 20 -V
echo "connections by addresses"

# What a program has there: its own memory, with all that C lets it do with it, and children that do not reach into it.
cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o "$scratch/own-memory" "$tests/c/own-memory.c" -L"$verbs_library" -l:libibverbs.so.1 -lpthread
MILLRACE_VERBS=$guest ours timeout 100 "$scratch/own-memory" >"$scratch/own.out" 2>"$scratch/own.log" || fail "own memory: $(tail -n 5 "$scratch"/own.*)"
MILLRACE_VERBS=$guest ours timeout 200 "$scratch/own-memory" again 300 >"$scratch/again.out" 2>&1 || fail "opened again: $(tail -n 5 "$scratch/again.out")"
grep -q "have no room in the memory that can be registered" "$scratch/own.log" || fail "it is not said that there is no room"
[ "$(grep -c "have no room" "$scratch/own.log")" = 1 ] || fail "it is said more than once"
grep -q "cannot be registered: they were not allocated" "$scratch/own.log" || fail "why a variable cannot be registered is not said"
code=0
LD_PRELOAD='' MILLRACE_VERBS=$guest ours ibv_devinfo >"$scratch/without.out" 2>&1 || code=$?
grep -q "LD_PRELOAD=libmillrace-memory.so" "$scratch/without.out" || fail "without it is not said what is missing: $(cat "$scratch/without.out")"
MILLRACE_VERBS="$guest report=on" ours ibv_devinfo >"$scratch/report.out" 2>&1 || fail "ibv_devinfo: $(cat "$scratch/report.out")"
grep -q "0 blocks had no room" "$scratch/report.out" || fail "it is not counted what had no room: $(cat "$scratch/report.out")"
echo "memory of programs"

# One that is killed frees what it had, and the other end has errors; then others find room.
port=$((24000 + $$ % 1000))
background target env MILLRACE_VERBS="$guest" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 50 -p "$port"
target=$started
await 30 listens "$port" "$target" || fail "the target does not listen"
background writer env MILLRACE_VERBS="$guest" LD_LIBRARY_PATH="$verbs_library" timeout 60 stdbuf -oL ib_write_bw -D 50 -p "$port" localhost
writer=$started
await 30 grep -qs "remote address" "$scratch/writer.out" || fail "the writer is not connected: $(tail -n 3 "$scratch/writer.log")"
slay "$target"
ended "$writer" 20
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "the writer does not see that its target was killed: $code"
for _ in $(seq 12); do
    code=0
    { MILLRACE_VERBS=$guest ours timeout 20 "$scratch/own-memory" killed; } 2>"$scratch/killed.err" || code=$?
    [ "$code" -eq 137 ] || fail "one that comes after others is not served: $code $(cat "$scratch/killed.err")"
done
ends=("$guest" "$guest")
both ibv_rc_pingpong -g 0 -c -n 100

# The backend is killed: programs end with errors, also one that sleeps.
serves ibv_rc_pingpong -g 0 -n 100000000 -p "$port"
await 30 listens "$port" "$server" || fail "the server does not listen"
background client env MILLRACE_VERBS="$guest" LD_LIBRARY_PATH="$verbs_library" timeout 60 stdbuf -oL ibv_rc_pingpong -g 0 -n 100000000 -e -p "$port" localhost
client=$started
await 30 grep -qs "remote address" "$scratch/client.out" || fail "the client is not connected: $(tail -n 3 "$scratch/client.log")"
slay "$backend"
for program in "$server" "$client"; do
    ended "$program" 15
    [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a program does not see that the backend was killed: $code"
done
kill -INT "$server_of_memory"
ended "$server_of_memory" 10
[ "$code" -eq 0 ] || fail "the server of ivshmem ends with $code"
echo "whoever dies"
