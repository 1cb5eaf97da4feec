#!/usr/bin/env bash
# `millrace rdma capture` writes the packets of verbs programs: those in frames, and those by the rings of one host, each once; tshark and
# scapy find no fault with any. Who reads slowly or not at all slows no program, and what is dropped is counted.
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs python3 tshark
# Programs of other cases are to be seen by nobody here: each network has sockets of its own.
private_network "$@"
ip link set lo up

start_card --queues 4
ends=("$device tx=0 rx=1" "$device tx=1 rx=0")

# capture FILE OPTION...: begins one.
capture() {
    background capture "$millrace" rdma capture "$@" --json
    capture=$started
    # Whoever sees the file knows that programs are asked from now on.
    await 10 test -s "$1" || fail "no capture: $(cat "$scratch/capture.log")"
}

# finish: ends it, and fails unless it has ended well. What it says is in capture.out.
finish() {
    kill -INT "$capture"
    ended "$capture" 10
    [ "$code" -eq 0 ] || fail "the capture ended with $code: $(cat "$scratch/capture.log")"
}

# said CONDITION: whether that holds of what the capture says, `rows`.
said() {
    python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[2])]
sys.exit(not eval(sys.argv[1]))' "$1" "$scratch/capture.out" || fail "not so: $1: $(cat "$scratch/capture.out")"
}

# frames FILE FILTER: how many of its frames are such.
frames() {
    tshark -n -r "$1" -Y "$2" 2>>"$scratch/tshark.log" | wc -l
}

# is_flawless FILE: what tshark says of it. It guesses what a payload is, and then finds fault with what is not that.
is_flawless() {
    local guesses=(smc smb_direct rpcordma nvme-rdma lnet iser infiniband_sdp infiniband.eoib fcoib)
    tshark -n -o ip.check_checksum:TRUE -o udp.ignore_ipv6_zero_checksum:TRUE "${guesses[@]/#/--disable-protocol=}" -r "$1" \
        -Y '_ws.malformed || (_ws.expert && !ip.ttl.too_small) || ip.checksum.status == 0' >"$scratch/faults" 2>"$scratch/tshark.log" ||
        fail "tshark cannot read $1: $(cat "$scratch/tshark.log")"
    [ ! -s "$scratch/faults" ] || fail "tshark finds fault: $(head -n 5 "$scratch/faults")"
    [ "$(frames "$1" infiniband.bth)" -gt 0 ] || fail "no frame of RoCE in $1"
    if /usr/bin/python3 -c "import scapy.contrib.roce" 2>/dev/null; then
        (cd "$tests" && /usr/bin/python3 roce.py icrc "$1") || fail "check sums in $1"
    fi
}

# in_order FILE OPCODES: each packet with one of these opcodes is there, from the first that was seen on. Some may have been sent
# again, where both ends had to wait for a core.
in_order() {
    tshark -n -r "$1" -Y "infiniband.bth.opcode in {$2}" -T fields -e ip.src -e infiniband.bth.destqp -e infiniband.bth.psn 2>>"$scratch/tshark.log" |
        python3 -c '
import collections, sys
flows = collections.defaultdict(list)
for line in sys.stdin:
    source, pair, number = line.split()
    flows[source, pair].append(int(number, 0))
if len(flows) != 2:
    sys.exit(f"{len(flows)} directions: {list(flows)}")
for flow, numbers in flows.items():
    counted = collections.Counter((number - numbers[0]) % 2**24 for number in numbers)
    if len(numbers) < 50 or max(counted) != len(counted) - 1 or len(numbers) > 2 * len(counted):
        sys.exit(f"{flow}: {len(numbers)} packets, {len(counted)} different, up to number {max(counted)}")' || fail "packets in $1"
}

# go NAME COMMAND...: a server and a client, which go on until `stop`.
go() {
    background server env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" "$@" -p "$port"
    server=$started
    await 30 listens "$port" "$server" || fail "$*: the server does not listen"
    background client env MILLRACE_VERBS="${ends[1]}" LD_LIBRARY_PATH="$verbs_library" "$@" -p "$port" localhost
    client=$started
    await 30 asked || fail "$*: they do not run"
}
asked() {
    [ "$("$millrace" rdma qps --json | grep -c '"state":"ReadyTo')" -eq 2 ]
}
stop() {
    is_gone "$server" && fail "the server has ended: $(cat "$scratch/server.log")"
    is_gone "$client" && fail "the client has ended: $(cat "$scratch/client.log")"
    kill "$client" "$server"
    ended "$client" 10
    ended "$server" 10
}
port=$((25000 + $$ % 5000))

# Messages of ten packets each, by the rings, there and back.
go ib_send_lat -D 60 -s 10000 -m 1024
"$millrace" rdma capture "$scratch/ring.pcap" --count 1500 --json >"$scratch/capture.out" || fail "no capture"
is_flawless "$scratch/ring.pcap"
in_order "$scratch/ring.pcap" "0, 1, 2"
[ "$(frames "$scratch/ring.pcap" "infiniband.bth.opcode == 17")" -gt 0 ] || fail "no acknowledgement"
said "sum(row['packets'] for row in rows) == 1500 == $(frames "$scratch/ring.pcap" frame) and len(rows) == 2"
# Into a pipe.
"$millrace" rdma capture - --count 500 2>"$scratch/capture.log" | tshark -n -r - -T fields -e frame.number 2>>"$scratch/tshark.log" >"$scratch/piped" || fail "no pipe"
[ "$(wc -l <"$scratch/piped")" -eq 500 ] || fail "$(wc -l <"$scratch/piped") packets come by a pipe"
# Of one of both: what it sends and what it gets.
"$millrace" rdma capture "$scratch/one.pcap" --pid "$server" --count 1000 --json >"$scratch/capture.out" || fail "no capture of one"
is_flawless "$scratch/one.pcap"
in_order "$scratch/one.pcap" "0, 1, 2"
said "[(row['pid'], row['packets']) for row in rows] == [($server, 1000)]"
stop

# Short SENDs, which no packet answers, are written as packets, too.
go ib_send_lat -D 60 -s 32
"$millrace" rdma capture "$scratch/short.pcap" --count 1000 --json >"$scratch/capture.out" || fail "no capture"
is_flawless "$scratch/short.pcap"
in_order "$scratch/short.pcap" "4"
stop

# WRITEs into memory of the other end are only counted.
go ib_write_lat -D 60 -s 8
"$millrace" rdma capture "$scratch/direct.pcap" --seconds 4 --json >"$scratch/capture.out" 2>"$scratch/capture.log" || fail "no capture"
said 'len(rows) == 2 and all(row["without_packets"] > 0 for row in rows)'
grep -q "needed no packet" "$scratch/capture.log" || fail "it is not said: $(cat "$scratch/capture.log")"
[ "$(frames "$scratch/direct.pcap" "infiniband.bth.opcode == 10")" -eq 0 ] || fail "WRITEs that were no packets"
stop

# Datagrams are frames. This capture is there before the programs, and goes on until Ctrl-C.
capture "$scratch/frames.pcap"
both ibv_ud_pingpong -g 0 -n 2000 -s 301
finish
grep -q "waiting for one" "$scratch/capture.log" || fail "it says: $(cat "$scratch/capture.log")"
is_flawless "$scratch/frames.pcap"
in_order "$scratch/frames.pcap" "100"
said 'len(rows) == 2 and sum(row["dropped"] for row in rows) == 0'

# Programs that meet nobody are asked, too: with frames by a card, and on a port of their own.
for words in "$device tx=0 rx=1 local=off|$device tx=1 rx=0 local=off" \
    "port=vhost-user:$scratch/wire.sock ip=198.18.0.1|port=virtio-user:$scratch/wire.sock ip=198.18.0.2"; do
    ends=("${words%|*}" "${words#*|}")
    go ib_write_lat -D 60 -s 5000 -m 1024
    "$millrace" rdma capture "$scratch/alone.pcap" --count 1000 --json >"$scratch/capture.out" || fail "no capture"
    is_flawless "$scratch/alone.pcap"
    in_order "$scratch/alone.pcap" "6, 7, 8"
    said 'len(rows) == 2 and all(row["packets"] > 0 for row in rows)'
    stop
done
ends=("$device tx=0 rx=1" "$device tx=1 rx=0")

# Who reads nothing: packets are dropped and counted, the programs go on, and nobody else captures meanwhile.
cat >"$scratch/lazy.py" <<'END'
import os, socket, struct, sys, time
pid, told = int(sys.argv[1]), sys.argv[2]
names = {line.split()[-1][1:] for line in open("/proc/net/unix") if f"@millrace-verbs/{os.geteuid()}/" in line}
for name in names:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect("\0" + name)
    if struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] == pid:
        break
link.send(b"mrverb02" + bytes([6]) + bytes(47))
def dropped():
    magic, dropped, _ = struct.unpack_from("<8sQQ", link.recv(1 << 20))
    assert magic == b"mrtap001"
    return dropped
assert dropped() == 0
open(told, "w").write("begun")
while not os.path.exists(told + ".go"):
    time.sleep(0.01)
while not dropped():
    pass
END
go ib_send_lat -D 60 -s 10000 -m 1024
background lazy python3 "$scratch/lazy.py" "$client" "$scratch/told"
lazy=$started
await 10 test -s "$scratch/told" || fail "nothing was told: $(cat "$scratch/lazy.log")"
"$millrace" rdma capture "$scratch/second.pcap" --pid "$client" --seconds 1 >"$scratch/second" 2>&1 || fail "a second capture: $(cat "$scratch/second")"
grep -q "captured already" "$scratch/second" || fail "two captures of one program: $(cat "$scratch/second")"
has_sent() {
    [ "$("$millrace" rdma stats --pid "$client" --json | python3 -c '
import json, sys
print(next(row["value"] for row in map(json.loads, sys.stdin) if (row["part"], row["counter"]) == ("transport", "sent")))')" -gt "$1" ]
}
# Far more than a program keeps for the reader.
await 60 has_sent 20000 || fail "the program does not go on while nobody reads"
touch "$scratch/told.go"
ended "$lazy" 30
[ "$code" -eq 0 ] || fail "nothing was counted as dropped: $(cat "$scratch/lazy.log")"
# Whoever has gone is forgotten, and the next one may capture.
can_capture() {
    timeout 5 "$millrace" rdma capture "$scratch/after.pcap" --pid "$client" --count 100 >"$scratch/after" 2>&1
}
await 30 can_capture || fail "no capture after that: $(cat "$scratch/after")"
stop

"$millrace" rdma capture "$scratch/nobody.pcap" --pid $$ 2>"$scratch/nobody" && fail "a process that uses no verbs is captured"
grep -q "no verbs program" "$scratch/nobody" || fail "it says: $(cat "$scratch/nobody")"
