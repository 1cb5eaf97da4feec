#!/usr/bin/env bash
# UCX over two queues of a card, by `millrace verbs`: it takes the device, and both ends of its tests end with success.
. "$(dirname "$0")/../lib.sh"
needs ucx_info ucx_perftest
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
"$millrace" verbs true 2>"$scratch/namespace.log" || skip "$(tail -n 1 "$scratch/namespace.log")"

# The program's exit code is that of the command.
code=0
"$millrace" verbs bash -c 'exit 7' || code=$?
[ "$code" -eq 7 ] || fail "the exit code is $code instead of 7"

start_card --queues 2
"$millrace" verbs timeout 60 ucx_info -d >"$scratch/ucx.out" 2>"$scratch/ucx.log" || fail "ucx_info"
for transport in rc_verbs ud_verbs; do
    grep -q "Transport: $transport" "$scratch/ucx.out" || fail "UCX does not list $transport"
done

port=15444
# both OPTION...: ucx_perftest, a server and a client of it.
both() {
    local server code=0
    port=$((port + 1))
    background server "$millrace" verbs timeout 120 ucx_perftest -p "$port" -n 50 -w 5 "$@"
    server=$started
    sleep 1.5
    "$millrace" verbs timeout 120 ucx_perftest -p "$port" -n 50 -w 5 "$@" 127.0.0.1 >"$scratch/client.out" 2>"$scratch/client.log" || code=$?
    [ "$code" -eq 0 ] || fail "$*: the client ended with $code: $(tail -n 3 "$scratch/client.out" "$scratch/client.log")"
    wait "$server" || fail "$*: the server failed: $(tail -n 3 "$scratch/server.log")"
}

export UCX_NET_DEVICES=millrace0:1
for tls in rc_v,ud_v,self ud_v,self; do
    export UCX_TLS=$tls
    for size in 4 8192 65536; do both -t tag_bw -s "$size"; done
done
unset UCX_TLS
for test in am_lat put_lat add_lat fadd cswap; do both -x rc_verbs -d millrace0:1 -t "$test" -s 8; done
both -x rc_verbs -d millrace0:1 -t get -D zcopy -s 4096
both -x ud_verbs -d millrace0:1 -t am_lat -s 8
echo "UCX over RC and UD"
