#!/usr/bin/env bash
# Linux's own RDMA device in software (rdma_rxe) at the other end of the wire: in a guest, with the stock libraries. Verbs programs over
# our library speak with the same ones there, in both roles: every transport service and operation, several MTUs, IPv4 and IPv6.
# Selective repeat and credits (decision 54) stay off without having been told to be. `lossy`: the wire loses one frame in a hundred in each
# direction; what arrives is whole, and what we say to such a stranger is seen on the wire.
# variants: whole lossy
# alone: the guest is an emulated machine, and both ends poll
guest_kind=rxe
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/verbs.sh"
needs rdma

provider=$(find /usr/lib -name 'librxe-rdmav*.so' -print -quit 2>/dev/null)
[ -n "$provider" ] || skip "there is no librxe-rdmav*.so (Debian's package ibverbs-providers)"
for program in rdma ibv_{rc,uc,ud,srq}_pingpong ib_{write,read,send,atomic}_{bw,lat}; do
    guest_has+=("$(command -v $program)")
done
guest_has+=("$provider" /etc/libibverbs.d/rxe.driver)

# What programs say to one another before, which is not verbs, goes by QEMU's own network: the guest reaches our port as one of
# 10.0.2.2, and the next one here leads to that of the guest.
tcp_port=$((20000 + $$ % 5000 * 2))
wire=vhost-user:$scratch/one.sock
[ "${1:-whole}" = whole ] || wire="trace:$scratch/wire.pcap,port=(fault:seed=3,loss=1%,port=($wire))"
start_card --port "$wire" --frame-max 9000 --buffer 16384
# shellcheck disable=SC2046
start_guest one $(vhost_user client "$scratch/one.sock") \
    -netdev "user,id=world,hostfwd=tcp:127.0.0.1:$((tcp_port + 1))-:$tcp_port" -device virtio-net-pci,netdev=world,romfile=
guest one 'ip link set eth0 mtu 4400 up && ip address add 192.0.2.2/24 dev eth0 && ip link set eth1 up &&
    ip address add 10.0.2.15/24 dev eth1 && rdma link add rxe0 type rxe netdev eth0' | tr '\n' ' ' || fail "no rxe0 in the guest"
# Numbers of its GIDs: that of the link, and that of the IPv4 address.
link=$(guest one 'cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l ^fe80 *' | head -n 1)
ipv4=$(guest one 'cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l :c000:0202 *' | head -n 1)
[ -n "$link" ] && [ -n "$ipv4" ] || fail "rxe0 has not both GIDs"
export MILLRACE_VERBS="$device ip=192.0.2.9"

# roles COMMAND...: the guest serves and we are its client, and the other way round. $gids are the options that choose GIDs there and here.
gids=("$ipv4" 0)
roles() {
    local option=-x
    case $1 in ibv_*) option=-g ;; esac
    guest_serves "$@" $option
    we_serve "$@" $option
}

# last_is_lost TEXT: over a wire that loses frames, whether a program was never told that its last message has come: the other one had all it
# wanted, and had gone when it was asked again.
last_is_lost() {
    grep -q "transport retry counter exceeded" <<<"$1" && attempts_left=$((${attempts_left:-0} - 1)) && [ "$attempts_left" -gt 0 ]
}

# roles_over_losses COMMAND...: as `roles`, three times if that was so, which a program cannot help.
roles_over_losses() {
    attempts_left=3
    local before=0
    until [ "$before" -eq "$attempts_left" ]; do
        before=$attempts_left
        roles "$@"
    done
    attempts_left=0
}

guest_serves() {
    local said code=0
    guest one "rm -f /tmp/code; (timeout 200 $* ${gids[0]} -p $tcp_port >/tmp/out 2>&1; echo \$? >/tmp/code) &
        until grep -q ':$(printf %04X "$tcp_port") .* 0A ' /proc/net/tcp* || [ -e /tmp/code ]; do usleep 20000; done"
    ours timeout 100 "$@" "${gids[1]}" -p $((tcp_port + 1)) 127.0.0.1 >"$scratch/client.out" 2>"$scratch/client.log" || code=$?
    said=$(guest one 'until [ -e /tmp/code ]; do usleep 20000; done; cat /tmp/out; exit $(cat /tmp/code)') ||
        last_is_lost "$said" || fail "$*: the server in the guest failed (we: $code): $(tail -n 5 <<<"$said"; tail -n 3 "$scratch/client.out")"
    [ "$code" -eq 0 ] || last_is_lost "$(cat "$scratch"/client.*)" || fail "$*: our client ended with $code: $(tail -n 3 "$scratch/client.out" "$scratch/client.log")"
}

we_serve() {
    local said server
    background server ours timeout 100 "$@" "${gids[1]}" -p "$tcp_port"
    server=$started
    await 30 listens "$tcp_port" "$server"
    local code_of_client=0
    said=$(guest one "timeout 200 $* ${gids[0]} -p $tcp_port 10.0.2.2 2>&1") || code_of_client=$?
    ended "$server" 100
    [ "$code_of_client" -eq 0 ] || last_is_lost "$said" || last_is_lost "$(cat "$scratch"/server.*)" ||
        fail "$*: the client in the guest failed with $code_of_client (we: $code): $(tail -n 5 <<<"$said"; tail -n 5 "$scratch/server.out" "$scratch/server.log")"
    [ "$code" -eq 0 ] || last_is_lost "$(cat "$scratch"/server.*)" || fail "$*: our server ended with $code: $(tail -n 3 "$scratch/server.out" "$scratch/server.log")"
}

# over_losses: RC, which alone makes up for them. ibv_rc_pingpong looks at every byte that comes. (ibv_srq_pingpong goes when it has counted enough
# messages, of which some may still be on the way, again.)
over_losses() {
    roles_over_losses ibv_rc_pingpong -n 300 -c -s 20000 -m 1024
    roles_over_losses ibv_rc_pingpong -n 20 -c -s 300000 -m 4096
    echo "pingpongs"
    local work
    for work in write "read -o 16" send; do
        # shellcheck disable=SC2086
        set -- $work
        roles ib_${1}_bw -F -n 100 -s 65536 -m 1024 "${@:2}"
    done
    roles ib_atomic_bw -F -n 100 -o 16
    echo "perftest"
    stop_guest one
    "$millrace" stats --json | python3 -c '
import json, sys
port = json.load(sys.stdin)["ports"][0]
lost = [sum(drop["count"] for drop in port[f"{way}_drops"] if drop["reason"] == "fault-loss") for way in ("rx", "tx")]
sys.exit(not all(lost) and "failed: the wire has lost %s frames" % lost)'
    check_counting
    kill -INT "$card"
    ended "$card" 10
    python3 "$tests/roce.py" strangers "$scratch/wire.pcap" 192.0.2.9
}
if [ "${1:-whole}" = lossy ]; then
    over_losses
    exit
fi

roles ibv_rc_pingpong -n 100 -c
roles ibv_rc_pingpong -n 20 -c -e -s 100000 -m 256
roles ibv_rc_pingpong -n 20 -c -s 300000 -m 4096
roles ibv_uc_pingpong -n 50
roles ibv_ud_pingpong -n 50 -s 1024
roles ibv_srq_pingpong -n 100 -q 4
echo "pingpongs over IPv4"
gids=("$link" 2)
roles ibv_rc_pingpong -n 50 -c -s 20000
roles ibv_ud_pingpong -n 20 -s 1024
gids=("$ipv4" 0)
echo "pingpongs over IPv6"
# -F: whether the clock of a core can be measured is not what this is about; in an emulated guest on a busy machine it cannot.
# Of reads and atomic operations perftest asks for as many at once as the other device can have, which is more here than ours can.
for work in write "read -o 16" send; do
    # shellcheck disable=SC2086
    set -- $work
    roles ib_${1}_bw -F -n 100 -s 65536 -m 1024 "${@:2}"
    roles ib_${1}_bw -F -n 100 -s 65536 -m 4096 "${@:2}"
    roles ib_${1}_lat -F -n 50 "${@:2}"
done
for work in bw lat; do
    roles ib_atomic_$work -F -n 50 -o 16
    roles ib_send_$work -F -c UD -n 50 -s 512
done
echo "perftest"
stop_guest one
check_counting
