#!/usr/bin/env bash
# Verbs programs of Debian over two queues of a card: every name that they ask for is there, the device is described, and both ends of
# each program agree that everything arrived.
. "$(dirname "$0")/../lib.sh"
needs ibv_devices ibv_rc_pingpong ib_write_bw
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
export LD_LIBRARY_PATH=$library

for program in ibv_devinfo ibv_rc_pingpong ib_write_bw ib_send_lat; do
    said=$(ldd -r "$(command -v $program)" 2>&1)
    grep -q "libibverbs.so.1 => $library" <<<"$said" || fail "$program does not find our library: $said"
    ! grep -E "undefined symbol|no version information" <<<"$said" || fail "$program misses names"
done

# Without a card: no device, and why.
ibv_devices >"$scratch/none.out" 2>"$scratch/none.log" || fail "ibv_devices without a card"
grep -q "no card runs" "$scratch/none.log" || fail "it is not said that no card runs: $(cat "$scratch/none.log")"

start_card --queues 2
export MILLRACE_VERBS=$device
ibv_devices | grep -q millrace0 || fail "ibv_devices does not list the device"
ibv_devinfo -v >"$scratch/devinfo" || fail "ibv_devinfo"
for words in "PORT_ACTIVE" "link_layer:.*Ethernet" "ATOMIC_HCA" "::ffff:198.18.0.1, RoCE v2"; do
    grep -q "$words" "$scratch/devinfo" || fail "ibv_devinfo does not say $words: $(cat "$scratch/devinfo")"
done

# both COMMAND...: a server and a client of it.
both() {
    local server code=0
    background server timeout 120 "$@"
    server=$started
    for _ in $(seq 200); do
        grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6 && break
        ended=$(kill -0 "$server" 2>/dev/null && echo no || echo yes)
        [ "$ended" = no ] || break
        sleep 0.05
    done
    sleep 0.3
    timeout 120 "$@" localhost >"$scratch/client.out" 2>"$scratch/client.log" || code=$?
    [ "$code" -eq 0 ] || fail "$*: the client ended with $code: $(tail -n 3 "$scratch/client.out" "$scratch/client.log")"
    wait "$server" || fail "$*: the server failed: $(tail -n 3 "$scratch/server.log")"
}

# All of it without frames, by system calls instead of mappings, and with frames.
for ways in adopt=heap "" local=off; do
    export MILLRACE_VERBS="$device report=on $ways"
    both ibv_rc_pingpong -g 0 -n 200 -c
    both ibv_rc_pingpong -g 0 -n 100 -e -c
    both ibv_rc_pingpong -g 1 -n 100 -c -s 100000 -m 256
    both ibv_uc_pingpong -g 0 -n 50
    both ibv_ud_pingpong -g 0 -n 50 -s 512
    both ibv_srq_pingpong -g 0 -n 100
    for work in write read send; do
        both ib_${work}_bw -n 200 -s 16384
        both ib_${work}_lat -n 100
    done
    both ib_atomic_bw -n 100
    both ib_atomic_lat -n 100
    said=$(grep -h "requests without packets" "$scratch/client.out" "$scratch/client.log")
    case $ways in
        adopt=heap) pattern="packets: 100 by mappings, 0 by system calls; 0 that went as packets.* packets: 0 sent" ;;
        # Atomic operations are none of system calls: they go as packets.
        "") pattern="packets: 0 by mappings, 0 by system calls.* rings: [1-9]" ;;
        local=off) pattern="packets: 0 by mappings, 0 by system calls; 0 that went as packets.* rings: 0 sent, 0 received.* packets: [1-9]" ;;
    esac
    grep -qE "$pattern" <<<"$said" || fail "with ${ways:-no option} other ends are not reached as they should be: $said"
done
# Without the heap, large buffers only: small ones come from malloc, which hands them out again.
export MILLRACE_VERBS="$device report=on adopt=on"
both ib_write_bw -n 200 -s 1048576
grep -hqE "packets: [1-9][0-9]* by mappings, 0 by system calls" "$scratch/client.out" "$scratch/client.log" ||
    fail "WRITEs into a large buffer are no stores: $(grep -h requests "$scratch"/client.*)"
export MILLRACE_VERBS="$device report=on adopt=off"
both ib_write_lat -n 100
grep -hqE "packets: 0 by mappings, 1[0-9]* by system calls" "$scratch/client.out" "$scratch/client.log" ||
    fail "WRITEs are not done by system calls: $(grep -h requests "$scratch"/client.*)"
echo "pingpongs and perftest, without frames and with them"
