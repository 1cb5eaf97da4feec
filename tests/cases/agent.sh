#!/usr/bin/env bash
# The card as an OpenFlow switch: every sub-command of ovs-ofctl that applies; the rules that come of it carry pings between two hosts; groups,
# meters, bundles; what cannot be is refused; entries outlive the agent, and with --state the card; hostile controllers; and a learning switch of
# os-ken, where that is installed.
# waits: for timers, of entries and of connections
. "$(dirname "$0")/../lib.sh"
needs ovs-ofctl ping python3
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"
. "$tests/network.sh"
ip link set lo up
second_network
start_card --port tap:of-a --port tap:of-b --queues 4

# A file that was named by mistake stays as it is.
echo precious >"$scratch/precious"
background mistaken "$millrace" agent --listen ptcp:6699:127.0.0.1 --control "$scratch/precious" --state "$scratch/mistaken.state"
await 10 grep -q "will find nobody" "$scratch/mistaken.log" || fail "it is not said that the name is taken: $(cat "$scratch/mistaken.log")"
[ "$(cat "$scratch/precious")" = precious ] || fail "a file was deleted"
kill -INT "$started"
ended "$started" 10
ip link set of-b netns "$second"
be_host 1 of-a
there "ip link set lo up; ip address add 192.0.2.2/24 dev of-b; ip link set of-b up"

agents=0
start_agent() {
    agents=$((agents + 1))
    background "agent$agents" "$millrace" agent --control "$scratch/agent.sock" --state "$scratch/agent.state" "$@"
    agent=$started
    await 10 "$millrace" agent status --control "$scratch/agent.sock" >"$scratch/status" 2>&1 ||
        fail "the agent does not answer: $(cat "$scratch/agent$agents.log")"
}
switch=tcp:127.0.0.1:6653
ofctl() {
    timeout 20 ovs-ofctl -O OpenFlow13 "$1" "${@:2}"
}
# holds FILE TEXT...
holds() {
    local text
    for text in "${@:2}"; do
        grep -qF -- "$text" "$1" || fail "no '$text' in: $(head -c 3000 "$1")"
    done
}
# says TEXT COMMAND...: its output has the text.
says() {
    # What is refused ends with a code of its own.
    ofctl "${@:2}" >"$scratch/said" 2>&1 || true
    holds "$scratch/said" "$1"
}
must() {
    ofctl "$@" >"$scratch/said" 2>&1 || fail "ovs-ofctl $*: $(head -c 2000 "$scratch/said")"
    ! grep -q "OFPT_ERROR\|_FAILED" "$scratch/said" || fail "ovs-ofctl $*: $(head -c 2000 "$scratch/said")"
}
start_agent --listen ptcp:6653:127.0.0.1

# Who it is.
says "n_tables:64" show $switch
holds "$scratch/said" "1(of-a)" "2(of-b)" "LOCAL(host)"
says "Manufacturer: Millrace" dump-desc $switch
says "OFPST_PORT reply" dump-ports $switch
says "2(of-b)" dump-ports-desc $switch
says "table 0" dump-tables $switch
says "max_entries=1048576" dump-table-features $switch
says "max_groups" dump-group-features $switch
says "band_types: drop dscp_remark" meter-features $switch
says "port LOCAL queue 3" queue-stats $switch
says "queue 3" queue-get-config $switch LOCAL
says "xid=" ping $switch
must set-frags $switch normal
says "normal" get-frags $switch

# Entries carry pings, one way and back.
must add-flow $switch "cookie=0x11,priority=5,in_port=1,actions=output:2"
must add-flow $switch "cookie=0x12,priority=5,in_port=2,actions=output:1"
ping -c 3 -i 0.05 -W 5 -w 20 192.0.2.2 >"$scratch/ping.log" || fail "no way through the entries: $(ofctl dump-flows $switch)"
says "cookie=0x11" dump-flows $switch
# Workers bring counters up to date some time later.
counted() {
    ofctl dump-flows $switch >"$scratch/said" 2>&1 || return 1
    grep -q "cookie=0x11.*n_packets=[1-9]" "$scratch/said"
}
await 5 counted || fail "no packets: $(cat "$scratch/said")"
says "packet_count=" dump-aggregate $switch

# Files of entries: added, replaced, compared; in bundles and without.
printf 'table=1,priority=%d,tcp,tcp_dst=%d,actions=drop\n' 1 80 2 81 3 82 >"$scratch/flows"
must --bundle add-flows $switch "$scratch/flows"
says "flow_count=5" dump-aggregate $switch
must mod-flows $switch "table=1,tcp,actions=output:1"
says "actions=output" dump-flows $switch table=1
must --strict del-flows $switch "table=1,priority=1,tcp,tcp_dst=80"
says "flow_count=4" dump-aggregate $switch
must --bundle replace-flows $switch "$scratch/flows"
says "flow_count=3" dump-aggregate $switch
ofctl diff-flows $switch "$scratch/flows" >"$scratch/said" 2>&1 || fail "they differ: $(cat "$scratch/said")"
# One of a bundle cannot be, and so is none.
printf 'table=2,priority=1,actions=drop\ntable=2,priority=2,actions=output:77\n' >"$scratch/wrong"
! ofctl --bundle add-flows $switch "$scratch/wrong" >"$scratch/said" 2>&1 || fail "a bundle with a wrong port is taken"
holds "$scratch/said" OFPBAC_BAD_OUT_PORT
says "flow_count=0" dump-aggregate $switch table=2
must del-flows $switch

# What cannot be has the right name.
says OFPBAC_BAD_OUT_PORT add-flow $switch "actions=output:77"
says OFPBAC_BAD_OUT_PORT add-flow $switch "actions=NORMAL"
says OFPBAC_BAD_OUT_GROUP add-flow $switch "actions=group:9"
says OFPBAC_BAD_TYPE add-flow $switch "mpls,actions=pop_mpls:0x800"
says OFPMMFC_BAD_BAND_VALUE add-meter $switch "meter=9,kbps,band=type=dscp_remark,rate=10,prec_level=3"
says OFPGMFC_BAD_BUCKET add-group $switch "group_id=9,type=select,bucket=dec_ttl,output:1,bucket=output:2"
says OFPFMFC_BAD_TABLE_ID add-flow $switch "table=100,actions=drop"

# Groups and meters.
must add-group $switch "group_id=1,type=all,bucket=output:1,bucket=output:2"
must add-group $switch "group_id=2,type=select,bucket=set_queue:0,LOCAL,bucket=set_queue:1,LOCAL"
must add-group $switch "group_id=3,type=ff,bucket=watch_port:1,output:1,bucket=watch_port:2,output:2"
must add-meter $switch "meter=1,pktps,burst,band=type=drop,rate=5,burst_size=5"
must add-flow $switch "priority=5,in_port=1,actions=group:1"
must add-flow $switch "priority=5,in_port=2,actions=group:3"
must add-flow $switch "priority=9,icmp,nw_dst=192.0.2.2,icmp_type=8,actions=meter:1,output:2"
must add-flow $switch "priority=7,udp,actions=group:2"
"$millrace" flow list >"$scratch/list"
holds "$scratch/list" "rss:2" "meter:1,output:1" "group=2,rss,queues=0-1"
ping -c 30 -i 0.01 -W 1 -w 2 192.0.2.2 >"$scratch/ping.log" || true
! grep -q " 0% packet loss" "$scratch/ping.log" || fail "the meter admits all: $(tail -3 "$scratch/ping.log")"
says "ref_count=1,packet_count=" dump-group-stats $switch
says "group_id=3,type=ff" dump-groups $switch
says "rate=5 burst_size=5" dump-meters $switch
says "meter:1 flow_count:1" meter-stats $switch
grep -q "packet_count:[1-9]" "$scratch/said" || fail "the meter counts nothing: $(cat "$scratch/said")"
must mod-group $switch "group_id=1,type=indirect,bucket=output:2"
"$millrace" flow list >"$scratch/list"
holds "$scratch/list" "in_port=0,actions=output:1"
must del-meters $switch
must del-groups $switch
says "flow_count=0" dump-aggregate $switch

# It is told what has gone, and packets come and go.
export OVS_RUNDIR=$scratch
background monitor timeout 60 ovs-ofctl -O OpenFlow13 monitor $switch 65534
await 3 bash -c "'$millrace' agent status --control '$scratch/agent.sock' | grep -q equal" || fail "nobody watches"
must add-flow $switch "cookie=0x77,send_flow_rem,hard_timeout=1,in_port=1,actions=drop"
must add-flow $switch "priority=0,cookie=0x99,actions=CONTROLLER"
await 10 grep -q "FLOW_REMOVED.*" "$scratch/monitor.log" "$scratch/monitor.out" || fail "no word: $(cat "$scratch"/monitor.*)"
ping -c 1 -W 1 192.0.2.2 >/dev/null || true
await 10 grep -q "PACKET_IN.*cookie=0x99.*" "$scratch/monitor.log" "$scratch/monitor.out" || fail "no packet: $(cat "$scratch"/monitor.*)"
# One that is deleted and added again at once, in one transaction, is told of all the same, with what it has had.
printf 'add table=3,cookie=0x55,send_flow_rem,actions=drop\ndelete table=3\nadd table=3,cookie=0x56,actions=drop\n' >"$scratch/again"
must add-flow $switch "table=3,cookie=0x54,send_flow_rem,actions=drop"
must --bundle add-flows $switch "$scratch/again"
await 10 grep -q "FLOW_REMOVED.*cookie:0x55.*" "$scratch/monitor.log" "$scratch/monitor.out" ||
    fail "no word of one with a successor: $(tail -n 20 "$scratch"/monitor.*)"
must del-flows $switch table=3
kill "$started"

# Added over itself, an entry has a time of its own: it is younger than it was.
duration() { ofctl dump-flows $switch table=4 | sed -n 's/.*duration=\([0-9]*\).*/\1/p'; }
must add-flow $switch "table=4,hard_timeout=600,actions=drop"
is_old() { [ "$(duration)" -ge 2 ]; }
await 10 is_old || fail "no duration"
younger() {
    old=$(duration)
    must add-flow $switch "table=4,hard_timeout=600,actions=drop"
    [ "$(duration)" -lt "$old" ]
}
await 20 younger || fail "an entry that is added again is as old as it was"
must del-flows $switch table=4

# A second agent would take the rules away from this one.
! timeout 20 "$millrace" agent --listen ptcp:6698:127.0.0.1 --control "$scratch/second.sock" --state "$scratch/second.state" 2>"$scratch/second.log" ||
    fail "a second agent begins"
holds "$scratch/second.log" "an agent runs already"
there "timeout 20 python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5)); s.bind((\"of-b\", 0x88b5)); print(s.recv(100).hex(), flush=True)
'" >"$scratch/got" &
got=$!
until [ -s "$scratch/got" ] || ! kill -0 $got 2>/dev/null; do
    must packet-out $switch "in_port=controller packet=ffffffffffff02000000000188b5$(printf '41%.0s' {1..46}) actions=output:2"
    sleep 0.1
done
holds "$scratch/got" 88b54141

# Through the tables: the entry says where the packet goes, and controllers are told what it says.
must del-flows $switch
must add-flow $switch "priority=5,in_port=1,dl_type=0x88b6,actions=set_field:02:00:00:00:00:77->eth_src,output:2,CONTROLLER"
there "timeout 60 python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b6)); s.bind((\"of-b\", 0x88b6)); print(s.recv(100).hex(), flush=True)
'" >"$scratch/through" &
got=$!
background monitor2 timeout 60 ovs-ofctl -O OpenFlow13 monitor $switch 65534
until [ -s "$scratch/through" ] || ! kill -0 $got 2>/dev/null; do
    must packet-out $switch "in_port=1 packet=ffffffffffff02000000000188b6$(printf '42%.0s' {1..46}) actions=TABLE"
    sleep 0.1
done
holds "$scratch/through" 02000000007788b64242
told() {
    must packet-out $switch "in_port=1 packet=ffffffffffff02000000000188b6$(printf '42%.0s' {1..46}) actions=TABLE"
    grep -q "PACKET_IN.*in_port=1 (via action)" "$scratch/monitor2.log" "$scratch/monitor2.out"
}
await 10 told || fail "no packet: $(cat "$scratch"/monitor2.*)"
kill "$started"

# A port that is down, by which nothing goes out or comes in; and one of which controllers hear nothing.
must del-flows $switch
must add-flow $switch "priority=5,in_port=1,actions=output:2"
must add-flow $switch "priority=5,in_port=2,actions=output:1"
for words in "down PORT_DOWN up" "no-forward NO_FWD forward" "no-receive NO_RECV receive"; do
    read -r off name on <<<"$words"
    must mod-port $switch of-b "$off"
    says "$name" dump-ports-desc $switch 2
    ! ping -c 2 -i 0.05 -W 1 192.0.2.2 >"$scratch/ping.log" || fail "packets go in spite of $off"
    must mod-port $switch of-b "$on"
    ping -c 1 -W 5 -w 20 192.0.2.2 >"$scratch/ping.log" || fail "packets go no more behind $on: $("$millrace" flow list)"
done

# Entries outlive the agent, with what they have had, and the card.
must del-flows $switch
must add-flow $switch "cookie=0x11,priority=5,in_port=1,actions=output:2"
must add-flow $switch "cookie=0x12,priority=5,in_port=2,actions=output:1"
ping -c 3 -i 0.05 -W 5 -w 20 192.0.2.2 >"$scratch/ping.log" || fail "no way through the entries"
slay "$agent" || true
ping -c 1 -W 5 192.0.2.2 >"$scratch/ping.log" || fail "packets go no more without the agent"
start_agent --listen ptcp:6653:127.0.0.1
says "cookie=0x11" dump-flows $switch
await 5 counted || fail "it has forgotten: $(cat "$scratch/said")"
grep -q "took up 2 entries" "$scratch/agent$agents.log" || fail "$(cat "$scratch/agent$agents.log")"

# So they do when tables of the card become others, since there are tunnels now, and back.
packets() {
    sed -n 's/.*cookie=0x11.*n_packets=\([0-9]*\).*/\1/p' "$scratch/said"
}
had=$(packets)
for tunnels in "--vxlan vx0,ofport=10,uplink=1,local_ip=192.0.2.77,remote_ip=192.0.2.78" ""; do
    kill "$agent"
    await 10 is_gone "$agent" || fail "the agent does not end"
    # shellcheck disable=SC2086
    start_agent --listen ptcp:6653:127.0.0.1 $tunnels
    grep -q "took up 2 entries" "$scratch/agent$agents.log" || fail "$(cat "$scratch/agent$agents.log")"
    grep -q "in other tables of the card" "$scratch/agent$agents.log" || fail "it is not said: $(cat "$scratch/agent$agents.log")"
    says "cookie=0x11" dump-flows $switch
    [ "$(packets)" -ge "$had" ] || fail "counters begin anew: $had, then $(cat "$scratch/said")"
    ping -c 1 -W 5 -w 20 192.0.2.2 >"$scratch/ping.log" || fail "packets go no more: $("$millrace" flow list)"
done
# The second start finds what the first has written.
slay "$agent" || true
start_agent --listen ptcp:6653:127.0.0.1
says "cookie=0x11" dump-flows $switch
[ "$(packets)" -ge "$had" ] || fail "counters are forgotten: $had, then $(cat "$scratch/said")"

# What is no state is not taken for an empty one, and stays.
kill "$agent"
await 10 is_gone "$agent" || fail "the agent does not end"
printf 'precious, and long enough' >"$scratch/strange.state"
! timeout 20 "$millrace" agent --listen ptcp:6698:127.0.0.1 --control "$scratch/agent.sock" --state "$scratch/strange.state" 2>"$scratch/second.log" ||
    fail "a file of something else is taken"
holds "$scratch/second.log" "is not what an agent has left"
[ "$(cat "$scratch/strange.state")" = 'precious, and long enough' ] || fail "it has been overwritten"
start_agent --listen ptcp:6653:127.0.0.1
says "flow_count=2" dump-aggregate $switch

# Others who behave badly hold nobody back.
timeout 100 python3 "$tests/openflow.py" 6653 >"$scratch/hostile" 2>&1 || fail "$(cat "$scratch/hostile")"
says "flow_count=2" dump-aggregate $switch
ping -c 1 -W 5 192.0.2.2 >"$scratch/ping.log" || fail "packets go no more"

# TLS: with certificates of one CA on both sides; another CA's, or none, is refused.
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" -keyout "$scratch/$1.key" \
        -out "$scratch/$1.pem" 2>/dev/null
}
# certificate NAME AUTHORITY
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$scratch/$1.key" \
        -out "$scratch/$1.csr" 2>/dev/null
    openssl x509 -req -in "$scratch/$1.csr" -CA "$scratch/$2.pem" -CAkey "$scratch/$2.key" -CAcreateserial -days 2 \
        -extfile <(echo "subjectAltName=DNS:$1") -out "$scratch/$1.pem" 2>/dev/null
}
# secretly NAME AUTHORITY COMMAND...
secretly() {
    timeout 20 ovs-ofctl -O OpenFlow13 --private-key="$scratch/$1.key" --certificate="$scratch/$1.pem" --ca-cert="$scratch/$2.pem" "${@:3}" \
        >"$scratch/said" 2>&1
}
if command -v openssl >/dev/null; then
    authority ca
    authority other
    certificate switch ca
    certificate controller ca
    certificate stranger other
    kill "$agent"
    await 10 is_gone "$agent" || fail "the agent does not end"
    start_agent --listen pssl:6654:127.0.0.1 --listen ptcp:6653:127.0.0.1 --tls-key "$scratch/switch.key" --tls-cert "$scratch/switch.pem" \
        --tls-ca "$scratch/ca.pem"
    secretly controller ca dump-aggregate ssl:127.0.0.1:6654 || fail "no TLS: $(cat "$scratch/said" "$scratch/agent$agents.log")"
    holds "$scratch/said" "flow_count=2"
    ! secretly stranger ca dump-aggregate ssl:127.0.0.1:6654 || fail "another CA's certificate is taken"
    ! secretly controller other dump-aggregate ssl:127.0.0.1:6654 || fail "it takes the agent for somebody else's"
    # Who was refused, and why, is in the log; more of them within a second are counted.
    grep -q "no TLS with 127.0.0.1:[0-9]*: .*\(UnknownIssuer\|certificate\)" "$scratch/agent$agents.log" || fail "who was refused is not said: $(cat "$scratch/agent$agents.log")"
    "$millrace" agent status --control "$scratch/agent.sock" --json | grep -Eq '"untrusted":[ ]*[1-9]' || fail "who was refused is not counted"
    # Nobody has to wait for one who begins TLS and says no more.
    exec 7<>/dev/tcp/127.0.0.1/6654
    printf '\x16\x03\x01' >&7
    secretly controller ca dump-aggregate ssl:127.0.0.1:6654 || fail "half a greeting stops it: $(cat "$scratch/said")"
    exec 7>&-
fi

# A learning switch, to which the agent connects.
must del-flows $switch
python=${OS_KEN_PYTHON:-$root/target/os-ken/bin/python}
if "$python" -c "import os_ken" 2>/dev/null; then
    kill "$agent"
    await 10 is_gone "$agent" || fail "the agent does not end"
    background learning "$python" "$tests/learning.py" 6690
    learning=$started
    start_agent --connect tcp:127.0.0.1:6690
    await 20 grep -q "^switch" "$scratch/learning.out" || fail "no controller: $(cat "$scratch/learning.log" "$scratch/agent$agents.log")"
    ping -c 5 -i 0.2 -W 5 -w 30 192.0.2.2 >"$scratch/ping.log" ||
        fail "the learning switch does not learn: $(cat "$scratch"/learning.* "$scratch/agent$agents.log")"
    await 10 grep -q "^learned" "$scratch/learning.out" || fail "it has learned nothing"
    ! grep -q "^error" "$scratch/learning.out" || fail "$(cat "$scratch/learning.out")"
    # The controller is killed: what it has set up stays.
    slay "$learning" || true
    ping -c 1 -W 5 192.0.2.2 >"$scratch/ping.log" || fail "packets go no more without a controller"
else
    echo "os-ken is not installed: no learning switch"
fi
