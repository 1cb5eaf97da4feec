#!/usr/bin/env bash
# What the verbs library says where programs say little: an address that nobody has, one that two have, options that mean nothing, limits,
# and queues that are in use.
. "$(dirname "$0")/../lib.sh"
needs ibv_devinfo ib_write_bw python3
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
said "nobody answers for the address 198.18.0.99 (ARP)" "" /usr/bin/python3 "$scratch/way.py"
said "no way leads to the address 198.18.0.99" place=card /usr/bin/python3 "$scratch/way.py"
for option in tx=0 rx=1 local=off helper=off extended=off; do
    said "tx=, rx=, local=off" "place=card $option" ibv_devinfo
done
# More queue pairs than there may be, and more requests than a queue may have.
cat >"$scratch/pair.py" <<'END'
import pyverbs.device, pyverbs.pd, pyverbs.cq, pyverbs.qp
context = pyverbs.device.Context(name="millrace0")
domain, queue = pyverbs.pd.PD(context), pyverbs.cq.CQ(context, 10)
cap = pyverbs.qp.QPCap(max_send_wr=1 << 20)
pyverbs.qp.QP(domain, pyverbs.qp.QPInitAttr(qp_type=2, scq=queue, rcq=queue, cap=cap))
END
said "no queue pair was made: requests is out of its range" "" /usr/bin/python3 "$scratch/pair.py"

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
