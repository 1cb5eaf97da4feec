#!/usr/bin/env bash
# Linux's own connection manager (rdma_cm, ib_cm) over its RDMA device in software at the other end of the wire, in a guest with the stock
# libraries: programs that connect by addresses, in both roles. What it makes of our messages, and we of its, is judged by nobody else here.
# variants: library
# alone: the guest is an emulated machine, and both ends poll
guest_kind=rxe
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/verbs.sh"
needs rdma rping tshark

provider=$(find /usr/lib -name 'librxe-rdmav*.so' -print -quit 2>/dev/null)
[ -n "$provider" ] || skip "there is no librxe-rdmav*.so (Debian's package ibverbs-providers)"
for program in rdma rping ib_{write,read,send,atomic}_{bw,lat}; do
    guest_has+=("$(command -v $program)")
done
# rping ends its threads by it.
guest_has+=("$provider" /etc/libibverbs.d/rxe.driver "$(find /lib/ /usr/lib/ -name libgcc_s.so.1 -print -quit)")
here=192.0.2.9 there=192.0.2.2
port="trace:$scratch/wire.pcap,port=(vhost-user:$scratch/one.sock)"
case ${1:-library} in
library)
    start_card --port "$port" --frame-max 9000 --buffer 16384
    verbs="$device ip=$here"
    ;;
card)
    # The engine in the card, with the wire for itself.
    start_card --rdma-cpu --rdma-wire "$port" --rdma-ip $here
    verbs="$device place=card"
    ;;
esac
# shellcheck disable=SC2046
start_guest one $(vhost_user client "$scratch/one.sock")
guest one 'ip link set lo up && ip link set eth0 mtu 4400 up && ip address add 192.0.2.2/24 dev eth0 &&
    rdma link add rxe0 type rxe netdev eth0' | tr '\n' ' ' || fail "no rxe0 in the guest"
export MILLRACE_VERBS=$verbs

# guest_serves SERVER... -- CLIENT...: the server runs in the guest, the client here.
guest_serves() {
    local server=() said code=0
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    guest one "rm -f /tmp/code; (timeout 60 ${server[*]} >/tmp/out 2>&1; echo \$? >/tmp/code) & sleep 1" || fail "the guest does not answer"
    ours timeout 60 "$@" >"$scratch/client.out" 2>"$scratch/client.log" || code=$?
    said=$(guest one 'until [ -e /tmp/code ]; do usleep 20000; done; cat /tmp/out; exit $(cat /tmp/code)') ||
        fail "${server[*]} in the guest failed (our client: $code): $(tail -n 5 <<<"$said"; tail -n 3 "$scratch"/client.*)"
    [ "$code" -eq 0 ] || fail "$*: our client ended with $code: $(tail -n 3 "$scratch"/client.*)"
}

# we_serve SERVER... -- CLIENT...
we_serve() {
    local server=() said
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    background server ours timeout 60 "${server[@]}"
    local process=$started
    sleep 1
    said=$(guest one "timeout 60 $* 2>&1") || fail "$* in the guest failed: $(tail -n 5 <<<"$said"; tail -n 3 "$scratch"/server.*)"
    ended "$process" 30
    [ "$code" -eq 0 ] || fail "${server[*]}: our server ended with $code: $(tail -n 3 "$scratch"/server.*)"
}

guest_serves rping -s -a $there -C 20 -V -- rping -c -a $there -C 20 -V
we_serve rping -s -a $here -C 20 -V -- rping -c -a $here -C 20 -V
echo "rping"
# perftest connects twice, and its server offers nothing between: Linux refuses whoever is quicker than the guest, and our library
# calls again. Of reads and atomic operations it asks for as many at once as the other device can have.
for work in write_bw send_bw "read_lat -o 16" "atomic_bw -o 16" "send_lat -c UD"; do
    # shellcheck disable=SC2086
    set -- ib_$work -R -n 50
    guest_serves "$@" -- "$@" $there
    we_serve "$@" -- "$@" $here
done
echo "perftest -R"
# Nobody offers that: Linux says so, and so do we, after a while.
! ours timeout 30 rping -c -a $there -p 4711 -C 1 >"$scratch/none.out" 2>&1 || fail "nobody listens, and rping has connected"
grep -q "REJECTED, error 8" "$scratch/none.out" || fail "a refusal of Linux is not understood: $(cat "$scratch/none.out")"
background other env LD_LIBRARY_PATH="$verbs_library" timeout 60 rping -s -a $here
other=$started
sleep 1
said=$(guest one "timeout 30 rping -c -a $here -p 4711 -C 1 2>&1") || true
grep -q "REJECTED, error 8" <<<"$said" || fail "our refusal is not understood: $said"
kill "$other"
ended "$other" 10
echo "refusals"
stop_guest one
check_counting
# All messages of connections, of both ends.
tshark -n -r "$scratch/wire.pcap" -Y infiniband.mad >"$scratch/messages" 2>/dev/null
for message in ConnectRequest ConnectReply ReadyToUse ConnectReject DisconnectRequest DisconnectReply; do
    for from in $here $there; do
        # In the first of them tshark does not know yet which addresses have which queue pairs.
        grep -E "($from|LID: 65535) → .*CM: $message" "$scratch/messages" >/dev/null || fail "no $message of $from in: $(cat "$scratch/messages")"
    done
done
# What perftest sends is four bytes at times, of Linux too; tshark takes each SEND for more.
! tshark -n -r "$scratch/wire.pcap" -Y "_ws.malformed && infiniband.mad" 2>/dev/null | grep . || fail "tshark finds what is malformed"
/usr/bin/python3 "$tests/roce.py" icrc "$scratch/wire.pcap"
echo "tshark has read $(wc -l <"$scratch/messages") messages about connections, of both ends, and finds no fault"
