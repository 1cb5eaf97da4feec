#!/usr/bin/env bash
# libfabric's own ping-pong over its provider `verbs`, unmodified: messages, reliable datagrams above them (ofi_rxm), and datagrams. The provider finds a
# device by the addresses of interfaces, so both ends' addresses are on one here.
. "$(dirname "$0")/../lib.sh"
private_network "$@"
. "$tests/verbs.sh"
needs fi_pingpong ibv_devinfo
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"

ip link set lo up
ip link add near type veth peer name far
ip link set near up && ip link set far up
ip addr add 198.18.0.1/24 dev near && ip addr add 198.18.0.2/24 dev near
start_card --queues 2
# end NUMBER ARGUMENT...: fi_pingpong on that pair of queues, with contents checked.
end() {
    local number=$1
    shift
    MILLRACE_VERBS="$device tx=$number rx=$((1 - number))" ours timeout 60 fi_pingpong -c -I 200 "$@"
}
for way in "verbs -e msg" "verbs;ofi_rxm -e rdm" "verbs -e dgram"; do
    for size in 64 4096; do
        # A datagram is one packet: 1,024 bytes over a card with usual frames.
        case $way in *dgram) [ "$size" = 64 ] || continue ;; esac
        read -r -a words <<<"$way"
        background server env MILLRACE_VERBS="$device tx=0 rx=1" LD_LIBRARY_PATH="$verbs_library" timeout 60 fi_pingpong -c -I 200 -S "$size" -p "${words[@]}"
        server=$started
        await 20 listens 47592 "$server" || fail "$way: nobody listens"
        ended_with=0
        end 1 -S "$size" -p "${words[@]}" 198.18.0.1 >"$scratch/client.out" 2>"$scratch/client.log" || ended_with=$?
        # With ofi_rxm the client may hear that the server has gone before it has asked for its last completion: all has gone and come by then.
        case $way in *ofi_rxm*) ! grep -q "=200 " "$scratch/client.out" || ended_with=0 ;; esac
        [ "$ended_with" = 0 ] || fail "$way, $size bytes: the client ended with $ended_with: $(tail -n 3 "$scratch/client.log")"
        ended "$server" 30
        [ "$code" = 0 ] || fail "$way, $size bytes: the server ended with $code: $(tail -n 3 "$scratch/server.log")"
        echo "fi_pingpong -p $way: $(tail -n 1 "$scratch/client.out" | awk '{ print $1, "bytes", $2, "times" }')"
    done
done

# Where a wire leads out, an address of Linux's own is warned of: both would answer for it.
for words in "port=af_packet:far ip=198.18.0.1|an interface of this host has the address 198.18.0.1" "port=af_packet:far ip=198.18.0.9|" "$device|"; do
    MILLRACE_VERBS="${words%|*}" ours ibv_devinfo >"$scratch/own.out" 2>"$scratch/own.err" || fail "${words%|*}: $(cat "$scratch/own.err")"
    [ -z "${words#*|}" ] || grep -q "${words#*|}" "$scratch/own.err" || fail "${words%|*}: it does not say: ${words#*|}"
    [ -n "${words#*|}" ] || ! grep -q "an interface of this host" "$scratch/own.err" || fail "${words%|*}: $(cat "$scratch/own.err")"
done
start_card --queues 2 --rdma-cpu --rdma-wire af_packet:far --rdma-ip 198.18.0.1
grep -q "an interface of this host has the address 198.18.0.1" "$scratch"/card*.log || fail "the card does not say it: $(cat "$scratch"/card*.log)"
