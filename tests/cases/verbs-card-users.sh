#!/usr/bin/env bash
# The engine in the card moves bytes between programs of different users, if the second one has the right for it; he needs no other, because
# the card hands him /dev/userfaultfd.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../verbs.sh"
is_root || skip "takes root, to be two users"
needs setpriv
[ -e /dev/userfaultfd ] || skip "this kernel has no /dev/userfaultfd"
as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups --)
"${as_nobody[@]}" true 2>/dev/null || skip "setpriv may not change the user here"
# Where the library was built may be closed to others.
chmod 755 "$scratch"
cp -rL "$verbs_library" "$scratch/verbs"
chmod -R a+rX "$scratch/verbs"
port=$((26000 + $$ % 1000))

# of_two COMMAND...: root serves, nobody calls.
of_two() {
    port=$((port + 1))
    background server env MILLRACE_VERBS="$device place=card" LD_LIBRARY_PATH="$scratch/verbs" timeout 60 "$@" -p "$port"
    server=$started
    await 30 listens "$port" "$server" || fail "$*: the server does not listen: $(cat "$scratch/server.log")"
    code=0
    "${as_nobody[@]}" env MILLRACE_VERBS="$device place=card" LD_LIBRARY_PATH="$scratch/verbs" timeout 60 "$@" -p "$port" localhost \
        >"$scratch/client.out" 2>&1 || code=$?
}

start_card --queues 2 --rdma-cpu --grant user:65534=use:rx1,tx1
of_two ibv_rc_pingpong -g 0 -n 100
[ "$code" -ne 0 ] && grep -q "user:NAME=rdma" "$scratch/client.out" || fail "nobody is not told which right is missing: $code $(cat "$scratch/client.out")"
# By its timeout, which takes it along.
kill "$server"
ended "$server" 10
slay "$card"

start_card --queues 2 --rdma-cpu --grant user:65534=rdma
for program in "ibv_rc_pingpong -g 0 -c -n 300" "ibv_ud_pingpong -g 0 -c -n 300" "ib_write_bw -n 300" "ib_read_bw -n 300"; do
    # shellcheck disable=SC2086
    of_two $program
    [ "$code" -eq 0 ] || fail "$program of nobody: $code $(cat "$scratch/client.out")"
    ended "$server" 30
    [ "$code" -eq 0 ] || fail "$program of root: $code $(cat "$scratch/server.log")"
done
echo "programs of two users, over one engine"
