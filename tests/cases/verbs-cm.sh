#!/usr/bin/env bash
# Programs that connect by addresses and ports (librdmacm), unmodified, over two queues of a card: both ends of each agree that everything
# arrived; what nobody offers is refused.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs rping ucmatose udaddy rdma_server rdma_client rdma_xclient cmtime
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"

for program in ib_write_bw rping ucmatose udaddy rdma_server rdma_client rstream; do
    said=$(ours ldd -r "$(command -v $program)" 2>&1)
    grep -q "librdmacm.so.1 => $verbs_library" <<<"$said" || fail "$program does not find our library: $said"
    ! grep -E "undefined symbol|no version information" <<<"$said" || fail "$program misses names"
done

start_card --queues 2
export MILLRACE_VERBS=$device
# The server is the first to open queues.
server_address=198.18.0.1

# running: how many queues programs have.
running() {
    "$millrace" stats --json | python3 -c '
import json, sys
print(sum(queue["state"] == "running" for queue in json.load(sys.stdin)["queues"]))'
}

# No program has queues: those of the one before are closed.
all_free() {
    [ "$(running)" = 0 ]
}

# has_queues: whether a program has opened queues, or the server has ended.
has_queues() {
    is_gone "$server" || [ "$(running)" != 0 ]
}

# connects SERVER... -- CLIENT...: both end well.
connects() {
    local server code_of_client=0 command=()
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    shift
    await 30 all_free || fail "queues of the programs before are not closed"
    background server env LD_LIBRARY_PATH="$verbs_library" timeout 100 "${command[@]}"
    server=$started
    await 30 has_queues || fail "${command[*]}: the server opens no queues"
    ours timeout 100 "$@" >"$scratch/client.out" 2>"$scratch/client.log" || code_of_client=$?
    ended "$server" 60
    [ "$code_of_client" -eq 0 ] || fail "$*: ended with $code_of_client: $(tail -n 3 "$scratch/client.out" "$scratch/client.log")"
    [ "$code" -eq 0 ] || fail "${command[*]}: ended with $code: $(tail -n 3 "$scratch/server.out" "$scratch/server.log")"
}

for work in write read send atomic; do
    connects ib_${work}_bw -R -n 100 -- ib_${work}_bw -R -n 100 $server_address
    connects ib_${work}_lat -R -n 50 -- ib_${work}_lat -R -n 50 $server_address
done
echo "perftest -R"
connects rping -s -C 10 -v -- rping -c -a $server_address -C 10 -v
connects ucmatose -- ucmatose -s $server_address
connects udaddy -- udaddy -s $server_address
connects rdma_server -- rdma_client -s $server_address
# They ask for no bytes inline, and send some.
connects rdma_xserver -- rdma_xclient -s $server_address

# Many calls at once of one whom the server does not know yet: none is refused, and few have to be said again.
await 30 all_free || fail "queues of the programs before are not closed"
background server env LD_LIBRARY_PATH="$verbs_library" cmtime -c 300
server=$started
await 30 has_queues || fail "cmtime: the server opens no queues"
MILLRACE_VERBS="$device stats=$scratch/calls" ours timeout 100 cmtime -c 300 -s $server_address >"$scratch/client.out" 2>&1 || fail "cmtime: $(tail -n 3 "$scratch/client.out")"
! grep -q REJECTED "$scratch/client.out" || fail "$(grep -c REJECTED "$scratch/client.out") of 300 calls are refused"
python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["connections"]["sent_again"] > 100)' "$scratch/calls.cm" ||
    fail "many calls are lost: $(cat "$scratch/calls.cm")"
kill "$server"
ended "$server" 10
echo "rping, ucmatose, udaddy, rdma_server and rdma_client"

# Sockets over RDMA are refused with a word.
! ours timeout 20 rstream -s $server_address >"$scratch/rstream" 2>&1 || fail "rstream works?"
grep -q "not supported" "$scratch/rstream" || fail "rstream is not told why: $(cat "$scratch/rstream")"
# The own host is no address of a card.
! ours timeout 20 rping -c -a 127.0.0.1 -C 1 >"$scratch/local" 2>&1 || fail "127.0.0.1 works?"
grep -q "no address of a card" "$scratch/local" || fail "127.0.0.1 is refused without a word: $(cat "$scratch/local")"
# Nobody listens at the own address.
await 30 all_free || fail "queues of the programs before are not closed"
! ours timeout 20 rping -c -a $server_address -C 1 >"$scratch/nobody" 2>&1 || fail "nobody listens, and it works?"
grep -q "REJECTED" "$scratch/nobody" || fail "it is not refused: $(cat "$scratch/nobody")"
echo "refusals"

# rping has a thread that asks for events when another one has destroyed the channel.
ours python3 - <<'END' || fail "a channel that was destroyed"
import ctypes, errno
cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
channel, event = ctypes.c_void_p(cm.rdma_create_event_channel()), ctypes.c_void_p()
assert channel.value
for _ in range(2):
    cm.rdma_destroy_event_channel(channel)
    assert cm.rdma_get_cm_event(channel, ctypes.byref(event)) == -1
    assert ctypes.get_errno() == errno.EBADF
END
