#!/usr/bin/env bash
# Verbs programs of Debian over the split driver (split=): their memory is granted where it lies, and an engine outside of them moves the bytes. Between two of
# one backend, between one and a program that has an engine of its own, at the other end of a wire; and whoever dies leaves nothing.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs rping python3 cc stdbuf
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"
[ -e /usr/include/infiniband/verbs.h ] || skip "there is no infiniband/verbs.h (Debian's package libibverbs-dev)"
socket=$scratch/split.sock
background backend "$millrace" split backend --socket "$socket" --json
backend=$started
await 10 test -S "$socket" || fail "the backend does not listen"
ends=("split=$socket" "split=$socket")

# 1. Between two programs of one backend.
both ibv_rc_pingpong -g 0 -c -n 1000
both ibv_rc_pingpong -g 0 -c -n 200 -e
both ibv_rc_pingpong -g 0 -c -n 100 -s 100000
both ibv_uc_pingpong -g 0 -c -n 100
both ibv_srq_pingpong -g 0 -c -n 200
both ibv_ud_pingpong -g 0 -c -n 200
for test in ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat ib_atomic_lat; do
    both "$test" -n 200
done
both ib_write_bw -n 50 -s 1048576
both ib_send_bw -n 200 -s 4096 -e
echo "two programs: pingpongs and perftest"

# serves WHERE COMMAND...: in the background, over ${ends[WHERE]}. Its process is $server.
serves() {
    local where=${ends[$1]}
    shift
    background server env MILLRACE_VERBS="$where" LD_LIBRARY_PATH="$verbs_library" timeout 120 "$@"
    server=$started
}

# calls WHERE COMMAND...: again until somebody listens there; then its server ends well, too.
calls() {
    local code_of_client=1 where=${ends[$1]} until=$((SECONDS + 30))
    shift
    until MILLRACE_VERBS=$where ours timeout 60 "$@" >"$scratch/client.out" 2>"$scratch/client.log"; do
        grep -qi "rejected\|unreachable" "$scratch/client.out" "$scratch/client.log" && [ "$SECONDS" -lt "$until" ] && ! is_gone "$server" ||
            fail "$*: $(tail -n 3 "$scratch"/{client,server}.{out,log})"
    done
    ended "$server" 60
    [ "$code" -eq 0 ] || fail "the server of $* ended with $code: $(tail -n 3 "$scratch"/server.{out,log})"
}
serves 0 rping -s -C 20 -V
calls 1 rping -c -a 198.19.255.253 -C 20 -V
serves 0 ib_write_bw -R -n 50
calls 1 ib_write_bw -R -n 50 198.19.255.253
echo "two programs: connections by addresses"

# 2. What one of the two may reach of the other is what it was given the key of, and nothing with other keys, other addresses, or without a connection. Written
# where it lies: no bytes but those of the regions are shown to the engine, and what is given back is the program's again.
cc -std=c11 -D_DEFAULT_SOURCE -O1 -Wall -Wextra -Werror -o "$scratch/split-memory" "$tests/c/split-memory.c" -L"$verbs_library" -l:libibverbs.so.1
MILLRACE_VERBS=${ends[0]} ours timeout 100 "$scratch/split-memory" || fail "memory of programs"

# 3. One that is killed frees what it had, and the other end has errors.
port=$((24000 + $$ % 1000))
background target env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" ib_write_bw -D 50 -p "$port"
target=$started
await 30 listens "$port" "$target" || fail "the target does not listen"
background writer env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" timeout 60 stdbuf -oL ib_write_bw -D 50 -p "$port" localhost
writer=$started
# It says where the other is when they are connected, and writes for 50 s then.
await 30 grep -qs "remote address" "$scratch/writer.out" || fail "the writer is not connected: $(tail -n 3 "$scratch/writer.log")"
slay "$target"
ended "$writer" 20
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "the writer does not see that its target was killed: $code"
await 10 grep -q "\"left\".*process $target\"" "$scratch/backend.out" || fail "its place is not free"
# A hundred of them one after the other find room.
for _ in $(seq 100); do
    code=0
    { MILLRACE_VERBS=${ends[0]} ours timeout 20 "$scratch/split-memory" killed; } 2>"$scratch/killed.err" || code=$?
    [ "$code" -eq 137 ] || fail "one that comes after others is not served: $code $(cat "$scratch/killed.err")"
done
both ibv_rc_pingpong -g 0 -c -n 100
# Its children, who have its socket, do not keep what it had.
code=0
{ MILLRACE_VERBS=${ends[0]} ours "$scratch/split-memory" leaves; } >"$scratch/leaves.out" 2>"$scratch/leaves.err" || code=$?
[ "$code" -eq 137 ] || fail "it has not died: $code $(cat "$scratch/leaves.err")"
read -r parent orphan <"$scratch/leaves.out"
pids+=("$orphan")
kill -0 "$orphan" || fail "its child has ended, too"
await 10 grep -q "\"left\".*process $parent\"" "$scratch/backend.out" || fail "a child keeps what its parent had"

# 4. The backend is killed: programs end with errors.
serves 0 ibv_rc_pingpong -g 0 -n 100000000 -p "$port"
await 30 listens "$port" "$server" || fail "the server does not listen"
background client env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" timeout 60 stdbuf -oL ibv_rc_pingpong -g 0 -n 100000000 -e -p "$port" localhost
client=$started
# Each says where the other is when they are connected.
await 30 grep -qs "remote address" "$scratch/client.out" || fail "the client is not connected: $(tail -n 3 "$scratch/client.log")"
slay "$backend"
for program in "$server" "$client"; do
    ended "$program" 15
    [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a program does not see that the backend was killed: $code"
done
code=0
MILLRACE_VERBS="split=$socket" ours ibv_devinfo >"$scratch/nobody.out" 2>&1 || code=$?
grep -q "no backend listens" "$scratch/nobody.out" || fail "nobody listens: $(cat "$scratch/nobody.out")"
code=0
MILLRACE_VERBS="split=$socket ip=10.0.0.1" ours ibv_devinfo >"$scratch/ip.out" 2>&1 || code=$?
grep -q "split=: it has neither" "$scratch/ip.out" || fail "an address of its own is not refused: $(cat "$scratch/ip.out")"
echo "whoever dies"

# 5. At the other end of a wire, a card without programs of its own: a verbs program with two of its queues, and a backend with the next two.
start_card --port loopback --queues 4
background wired "$millrace" split backend --socket "$scratch/wired.sock" --rdma-wire "$device" --rdma-ip 192.0.2.1 --json
wired=$started
await 10 test -S "$scratch/wired.sock" || fail "the backend does not listen: $(cat "$scratch/wired.log")"
ends=("split=$scratch/wired.sock" "$device ip=192.0.2.2")
both ibv_rc_pingpong -g 0 -c -n 200
both ib_write_bw -n 50
both ib_read_bw -n 50
serves 0 rping -s -C 20 -V
calls 1 rping -c -a 192.0.2.1 -C 20 -V
ends=("${ends[1]}" "${ends[0]}")
both ibv_rc_pingpong -g 0 -c -n 200 -e
both ib_send_bw -n 50
kill -INT "$wired"
ended "$wired" 10
[ "$code" -eq 0 ] || fail "a backend with a wire ends with $code"
grep -q '"rdma wire"' "$scratch/wired.out" || fail "what the wire took is not told: $(cat "$scratch/wired.out")"
echo "a program with an engine of its own, over a card"
