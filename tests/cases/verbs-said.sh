#!/usr/bin/env bash
# What the verbs library says where programs say little: an address that nobody has, one that two have, options that mean nothing, limits,
# and queues that are in use.
. "$(dirname "$0")/../lib.sh"
needs ibv_devinfo ib_write_bw ibv_rc_pingpong python3
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
/usr/bin/python3 -c "import pyverbs.device" 2>/dev/null || skip "python3-pyverbs is not installed"
export LD_LIBRARY_PATH=$library

start_card --queues 3 --rdma-cpu
"$millrace" rdma stats >/dev/null
grep -q '"rdma":"198.19.255.254"' "$scratch"/card*.out || fail "the card does not say that it has an engine: $(cat "$scratch"/card*.out)"

# said WORDS OPTIONS COMMAND...: the command, which may fail, and these words on its standard error.
said() {
    local words=$1 options=$2
    shift 2
    MILLRACE_VERBS="$device $options" timeout 60 "$@" >"$scratch/said.out" 2>"$scratch/said.err" || true
    grep -q "$words" "$scratch/said.err" || fail "$* with $options does not say $words: $(cat "$scratch/said.err")"
}

# A way to an address that nobody has.
cat >"$scratch/way.py" <<'END'
import pyverbs.device, pyverbs.pd, pyverbs.addr
context = pyverbs.device.Context(name="millrace0")
domain = pyverbs.pd.PD(context)
way = pyverbs.addr.GlobalRoute(dgid=pyverbs.addr.GID("0000:0000:0000:0000:0000:ffff:c612:0063"), sgid_index=0)
pyverbs.addr.AH(domain, attr=pyverbs.addr.AHAttr(gr=way, is_global=1, port_num=1))
END
said "nobody answers for the address 198.18.0.99 (ARP).*This end has TX queue 0, and reaches the one that has 1" "" /usr/bin/python3 "$scratch/way.py"
said "no way leads to the address 198.18.0.99" place=card /usr/bin/python3 "$scratch/way.py"
for option in tx=0 rx=1 local=off helper=off extended=off; do
    said "tx=, rx=, local=off" "place=card $option" ibv_devinfo
done
said "adopt=off: the card reaches" "place=card adopt=off" ibv_devinfo
said "ibv_devinfo\[[0-9]*\]: the engine in the card .*what it counts: .millrace rdma stats., for all" "place=card report=on stats=$scratch/card.json" ibv_devinfo
grep -q '"place":"card","card":{"pid":[0-9]*,"stats":{"transport"' "$scratch/card.json" || fail "no counters of the card: $(cat "$scratch/card.json")"
# More queue pairs than there may be, and more requests than a queue may have.
cat >"$scratch/pair.py" <<'END'
import pyverbs.device, pyverbs.pd, pyverbs.cq, pyverbs.qp
context = pyverbs.device.Context(name="millrace0")
domain, queue = pyverbs.pd.PD(context), pyverbs.cq.CQ(context, 10)
cap = pyverbs.qp.QPCap(max_send_wr=1 << 20)
pyverbs.qp.QP(domain, pyverbs.qp.QPInitAttr(qp_type=2, scq=queue, rcq=queue, cap=cap))
END
said "no queue pair was made: requests is out of its range" "" /usr/bin/python3 "$scratch/pair.py"
# Who has its engine in a card is not captured, and that is said.
MILLRACE_VERBS="$device place=card" background beside ibv_rc_pingpong -g 0 -p $((31000 + RANDOM % 1000))
beside=$started
in_card() {
    "$millrace" rdma qps --json --pid "$beside" >/dev/null 2>&1
}
await 10 in_card || fail "the program is not there: $(cat "$scratch/beside.log")"
! "$millrace" rdma capture "$scratch/none.pcap" --pid "$beside" 2>"$scratch/capture.err" || fail "a program of a card is captured"
grep -q "process $beside has its engine in the card at .*rdma-wire" "$scratch/capture.err" || fail "it is not said: $(cat "$scratch/capture.err")"
kill "$beside"
ended "$beside" 10
# Bytes inline: some that nobody has asked for, and no word where a program tries how many there may be.
cat >"$scratch/inline.py" <<'END'
import pyverbs.device, pyverbs.pd, pyverbs.cq, pyverbs.qp, pyverbs.pyverbs_error
context = pyverbs.device.Context(name="millrace0")
domain, queue = pyverbs.pd.PD(context), pyverbs.cq.CQ(context, 10)
def made(inline):
    cap = pyverbs.qp.QPCap(max_send_wr=8, max_inline_data=inline)
    return pyverbs.qp.QP(domain, pyverbs.qp.QPInitAttr(qp_type=2, scq=queue, rcq=queue, cap=cap))
print(*(made(wanted).query(1 << 20)[0].cap.max_inline_data for wanted in (0, 100)))
try:
    made(1 << 20)
except pyverbs.pyverbs_error.PyverbsRDMAError:
    print("refused")
END
for place in library card; do
    MILLRACE_VERBS="$device place=$place" /usr/bin/python3 "$scratch/inline.py" >"$scratch/inline.out" 2>"$scratch/inline.err" ||
        fail "place=$place: $(cat "$scratch/inline.err")"
    [ "$(cat "$scratch/inline.out")" = "64 100
refused" ] || fail "place=$place: bytes inline: $(cat "$scratch/inline.out")"
    ! grep -q millrace "$scratch/inline.err" || fail "it complains: $(cat "$scratch/inline.err")"
done

# Both have 198.18.0.7.
port=$((21000 + RANDOM % 9000))
MILLRACE_VERBS="$device ip=198.18.0.7" background first ib_write_bw -p $port
first=$started
await 10 grep -q "$(printf ':%04X ' $port)" /proc/net/tcp /proc/net/tcp6 || fail "the first program does not listen"
sleep 1.2
MILLRACE_VERBS="$device ip=198.18.0.7" background second ib_write_bw -p $((port + 1))
await 10 grep -q "somebody else has the address of this end, too: 198.18.0.7" "$scratch/first.log" || fail "the first does not notice the second"
await 10 grep -q "somebody else has the address of this end, too: 198.18.0.7" "$scratch/second.log" || fail "the second does not notice the first"
"$millrace" rdma stats --json --pid "$first" | grep neighbours_conflicts | grep -vq '"value":0' || fail "it is not counted"

# Queues 0 and 1 are in use, and 2 has no other.
said "all queues of the card .* are in use: .*is held exclusively by process" "" ibv_devinfo
start_card --queues 1
said "of which no two belong together" "" ibv_devinfo
