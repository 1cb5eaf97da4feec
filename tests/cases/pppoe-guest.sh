#!/usr/bin/env bash
# A session of PPPoE with the server that Linux has: pppoe-server and pppd, in a guest, whose kernel has PPP. PAP, CHAP and MS-CHAPv2; packets of both protocols, as
# large as they may be, and TCP; the same without Linux, by the router, for a host behind it; a server that dies, one that ends the session, a wire that is cut, a client that is killed; a wrong password; an MTU of 1500. In the end a
# capture of all of it goes to tshark, which finds nothing malformed.
# alone: the guest is an emulated machine, and both ends have timers
guest_kind=ppp
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
needs ping tcpdump tshark pppd pppoe pppoe-server unshare nsenter
[ -c /dev/net/tun ] || skip "there is no /dev/net/tun"
private_network "$@"

for program in pppd pppoe pppoe-server; do
    guest_has+=("$(command -v $program)")
done

ip link set lo up
# Our interface is one end of a pair, as the router takes those; from its other end a bridge leads to the guest.
ip link add isp0 type veth peer name far
ip link add wire type bridge
ip tuntap add tap0 mode tap
for interface in tap0 far; do ip link set "$interface" master wire; done
for interface in isp0 far tap0 wire; do ip link set "$interface" mtu 1508 up; done
ethtool -K far gro on txvlan off >/dev/null
ethtool -K isp0 rxvlan off >/dev/null
background capture tcpdump -i isp0 -U -w "$scratch/session.pcap" --immediate-mode
start_guest isp -netdev tap,id=wire,ifname=tap0,script=no,downscript=no -device virtio-net-pci,netdev=wire,romfile=
guest isp 'mkdir -p /etc/ppp /var/run /var/log /dev/pts; mount -t devpts devpts /dev/pts; ln -sf /proc/mounts /etc/mtab; mknod /dev/ppp c 108 0 2>/dev/null;
    echo "me * secret *" >/etc/ppp/pap-secrets; echo "me * secret *" >/etc/ppp/chap-secrets; chmod 600 /etc/ppp/*-secrets; touch /etc/ppp/options;
    head -c 300000 /dev/urandom >/tmp/data; ip link set eth0 mtu 1508 up'
echo secret >"$scratch/password"
echo other >"$scratch/wrong"

# serve_with OPTION...: the server asks for that (options of pppd, and --mtu N for it).
serve_with() {
    local options
    options=$(printf '%s\n' "$@" nobsdcomp nodeflate "ms-dns 192.0.2.53" "ipv6 ::1,::2" "lcp-echo-interval 5" "lcp-echo-failure 3" nodetach \
        "logfile /var/log/pppd" debug | sed 's/.*/echo "&";/')
    guest isp "{ $options } >/etc/ppp/serve;
        (exec /usr/sbin/pppoe-server -F -I eth0 -C bras -S internet -L 192.0.2.1 -R 192.0.2.10 -N 4 -O /etc/ppp/serve >/var/log/serve 2>&1) &"
}

# stop_serving SIGNAL
stop_serving() {
    guest isp "killall -$1 pppoe-server pppd; while pidof pppd pppoe-server >/dev/null; do killall -9 pppoe-server; usleep 50000; done; true" >/dev/null
}

# connect OPTION...: our end; its process is $client.
connect() {
    rm -f "$scratch/client.out"
    background client "$millrace" pppoe connect --interface isp0 --user me --password-file "$scratch/password" --json \
        --state "$scratch/pppoe.json" --echo-interval 1 "$@"
    client=$started
}

# happened EVENT N: whether it has, so many times.
happened() {
    [ "$(grep -c "\"event\":\"$1\"" "$scratch/client.out")" -ge "$2" ]
}

# is_up N: waits for the Nth session, and looks whether packets get through.
is_up() {
    await 12 happened up "$1" || { guest isp 'tail -n 30 /var/log/pppd /var/log/serve' || true; fail "no session: $(tail -n 3 "$scratch/client.out")"; }
    ping -c 2 -i 0.1 -W 5 192.0.2.1 >"$scratch/ping.log" || fail "no answer to ping 192.0.2.1"
}

# of_session FIELD: of the state file.
of_session() {
    field "$1" <"$scratch/pppoe.json"
}

# disconnect: Ctrl-C, and what is left then.
disconnect() {
    kill -INT "$client"
    ended "$client" 10
    [ "$code" -eq 0 ] || fail "connect ended with $code"
    happened closed 1 || fail "it does not say that it is closed"
    [ ! -e "$scratch/pppoe.json" ] || fail "the state file is still there"
    [ ! -e /proc/sys/net/ipv4/conf/ppp0 ] || fail "ppp0 is still there"
}

# carries BYTES: packets as large as that, and no larger ones, go through.
carries() {
    local bytes=$1
    [ "$(of_session mtu)" -eq "$bytes" ] || fail "the MTU is $(of_session mtu) and not $bytes"
    ping -c 2 -i 0.1 -W 5 -M do -s $((bytes - 28)) 192.0.2.1 >"$scratch/ping.log" || fail "no answer to a packet of $bytes bytes"
    ! ping -c 1 -W 1 -M do -s $((bytes - 27)) 192.0.2.1 >"$scratch/ping.log" 2>&1 || fail "a packet of $((bytes + 1)) bytes got through"
}

serve_with require-pap "mtu 1492" "mru 1492"
connect --service internet --ac bras --default-route
is_up 1
[ "$(of_session method)" = pap ] && [ "$(of_session ac_name)" = bras ] || fail "not PAP with bras: $(cat "$scratch/pppoe.json")"
[ "$(of_session dns)" = "['192.0.2.53']" ] || fail "no DNS: $(cat "$scratch/pppoe.json")"
ping -c 2 -i 0.1 -W 5 fe80::1%ppp0 >"$scratch/ping.log" || fail "no answer to ping of fe80::1"
carries 1492
[[ $(ip route show default) == *"dev ppp0"* ]] || fail "there is no default route"
# TCP with an MSS that is too large: Linux would not say more than the interface can, unless told to.
ip route replace 192.0.2.1/32 dev ppp0 advmss 1460
guest isp 'httpd -h /tmp'
wanted=$(guest isp 'md5sum </tmp/data')
got=$(timeout 60 python3 "$tests/fetch.py" http://192.0.2.1/data | md5sum)
[ "$wanted" = "$got" ] || fail "what came by TCP is not what was sent"
echo "PAP, IPv4, IPv6, TCP; packets of 1492 bytes"

# A host behind us: its packets go by the session without Linux, in both directions, and are what Linux makes of them, byte for byte.
background lan unshare -n sleep 1000
lan=$started
await 5 test ! "/proc/$lan/ns/net" -ef /proc/self/ns/net || fail "there is no namespace"
in_lan() { nsenter -t "$lan" -n "$@"; }
ip link add lan0 type veth peer name eth0 netns "$lan"
ip address add 10.9.0.1/24 dev lan0
ip link set lan0 up
in_lan ip address add 10.9.0.2/24 dev eth0
in_lan ip link set eth0 up
in_lan ip route add default via 10.9.0.1
in_lan ethtool -K eth0 tx off txvlan off gro on >/dev/null
ethtool -K lan0 rxvlan off >/dev/null
sysctl -qw net.ipv4.ip_forward=1
guest isp 'ip route add 10.9.0.0/24 dev ppp0'
background router "$millrace" router start --interfaces isp0,lan0 --mode xdp --shadow all
router=$started
# sees EXPRESSION: it is so of the router's status, which is s; r are its reasons.
sees() {
    "$millrace" router status --json 2>/dev/null | python3 -c '
import json, sys
s = json.loads(sys.stdin.read() or "{}")
if not s: sys.exit(1)
r = {c["reason"]: c["packets"] for c in s["counters"]}
sys.exit(not eval(sys.argv[1]))' "$1"
}
show() { "$millrace" router status; "$millrace" router rules; "$millrace" router shadow; }
await 15 sees "len(s['sessions']) == 1 and all(i['place'] == 'xdp' for i in s['interfaces'])" || fail "the router has no session: $(show)"
in_lan ping -c 1 -W 5 192.0.2.1 >"$scratch/ping.log" || fail "the host has no answer from the server"
fetched() {
    local got
    got=$(in_lan timeout 60 python3 "$tests/fetch.py" http://192.0.2.1/data | md5sum)
    [ "$wanted" = "$got" ] || fail "the host gets other bytes than were sent: $1"
}
fetched "compared"
await 5 sees "r['shadow'] > 50 and s['rules']['active'] >= 2" || fail "nothing was compared: $(show)"
"$millrace" router shadow --json | python3 -c '
import json, sys
s = json.loads(sys.stdin.readline())
assert s["compared"] > 50 and s["different"] == 0, s' || fail "Linux makes something else of the packets: $(show)"
"$millrace" router shadow --compare off >/dev/null
sees "s['fast'] == 0" || fail "packets were sent that were to be compared: $(show)"
fetched "fast"
sees "s['fast'] > 200" || fail "the host's packets took Linux's way: $(show)"
in_lan ping -c 20 -i 0.05 -W 5 -s 1000 192.0.2.1 >"$scratch/ping.log" || fail "pings are lost: $(show)"
"$millrace" router why 192.0.2.1 10.9.0.2 >"$scratch/why" && grep -q ": fast for" "$scratch/why" || fail "no flow is fast: $(cat "$scratch/why")"
echo "a host behind the router: $("$millrace" router status --json | field fast) packets without Linux"

stop_serving TERM
await 20 happened down 1 || fail "the session is not down: $(tail -n 2 "$scratch/client.out")"
[ ! -e "$scratch/pppoe.json" ] || fail "the state file of a session that is over"
await 5 sees "not s['sessions']" || fail "the router has a session that is over: $(show)"
in_lan ping -c 2 -i 0.2 -W 1 192.0.2.1 >"$scratch/ping.log" && fail "who answers, without a session?"
"$millrace" router rules --json | python3 -c '
import json, sys
for line in sys.stdin:
    rule = json.loads(line)
    assert not (rule["state"] == "active" and rule["output"] == "ppp0" and rule["idle_s"] < 0.5), rule' || fail "a rule leads into a session that is over"
serve_with require-chap "mtu 1492" "mru 1492"
is_up 2
[ "$(of_session method)" = chap ] || fail "not CHAP"
guest isp 'ip route add 10.9.0.0/24 dev ppp0'
await 5 sees "len(s['sessions']) == 1" || fail "the router has no second session: $(show)"
before=$("$millrace" router status --json | field fast)
fetched "by the next session"
sees "s['fast'] > $before + 200" || fail "the next session is not fast: $(show)"
"$millrace" router stop >/dev/null
ended "$router" 10
grep -q panicked "$scratch/router.log" && fail "a panic"
echo "a server that ends is noticed ($(grep '"down"' "$scratch/client.out" | field reason)); CHAP with the next one"

# Nobody says anything.
guest isp 'ip link set eth0 down'
await 20 happened down 2 || fail "a wire that is cut is not noticed"
reason=$(grep '"down"' "$scratch/client.out" | field reason)
[ "$reason" = gone ] || fail "a wire that is cut is $reason"
[[ $(ip route show default) != *"dev ppp0"* ]] || fail "without a session there is still a default route by it"
guest isp 'ip link set eth0 up'
is_up 3
[[ $(ip route show default) == *"dev ppp0"* ]] || fail "the default route does not come back"
disconnect
echo "a wire that is cut, and comes back"

# What a killed client leaves is ended by the next one. A default route of others stays; and a host that wants no IPv6 has IPv4.
ip route add unreachable default
sysctl -qw net.ipv6.conf.default.disable_ipv6=1
connect --default-route
is_up 1
[[ $(ip route show default) == "unreachable default"* ]] || fail "the default route of others is gone: $(ip route show default)"
grep -q "which stays: choose another metric" "$scratch/client.log" || fail "it is not said that there is a default route: $(cat "$scratch/client.log")"
grep -q "ppp0 goes on without fe80::" "$scratch/client.log" || fail "it is not said that IPv6 is off: $(cat "$scratch/client.log")"
ip route del unreachable default
sysctl -qw net.ipv6.conf.default.disable_ipv6=0
slay "$client"
[ -e "$scratch/pppoe.json" ] || fail "there is no state file"
before=$(of_session session)
connect
is_up 1
grep -q "ends session $(printf 0x%04x "$before")" "$scratch/client.log" || fail "the session that was left is not ended"
await 10 guest isp '[ "$(pidof pppd | wc -w)" -eq 1 ]' || fail "the server has still the session that was left"
disconnect
echo "a client that is killed"

code=0
timeout 60 "$millrace" pppoe connect --interface isp0 --user me --password-file "$scratch/wrong" >"$scratch/wrong.out" 2>"$scratch/wrong.log" || code=$?
[ "$code" -eq 1 ] && grep -q "wrong user name or password (CHAP)" "$scratch/wrong.log" || fail "a wrong password is: $(cat "$scratch/wrong.out" "$scratch/wrong.log")"
stop_serving KILL
echo "a wrong password"

serve_with require-mschap-v2 "mtu 1500" "mru 1500"
connect --mru 1500
is_up 1
[ "$(of_session method)" = mschapv2 ] || fail "not MS-CHAPv2"
carries 1500
grep -q small-only "$scratch/client.out" && fail "large packets do not get through"
disconnect
stop_serving TERM
echo "MS-CHAPv2; packets of 1500 bytes"
stop_guest isp
sleep 0.2 # until the last frame is in the file

tshark -r "$scratch/session.pcap" -Y '_ws.malformed || _ws.expert.severity == error' >"$scratch/malformed" 2>"$scratch/tshark.log"
[ ! -s "$scratch/malformed" ] || fail "tshark finds: $(head -n 5 "$scratch/malformed")"
count() { tshark -r "$scratch/session.pcap" -Y "$1" 2>>"$scratch/tshark.log" | wc -l; }
for what in "pppoe.code == 0x65" "pppoe.code == 0xa7" lcp pap chap ipcp ipv6cp "pppoe.code == 0x65 && pppoed.tags.max_payload" "tcp.flags.syn == 1"; do
    [ "$(count "$what")" -gt 0 ] || fail "the capture has no $what"
done
[ "$(count 'tcp.options.mss_val > 1452')" -eq 0 ] || fail "an MSS that is too large was not lowered"
echo "$(count frame) frames, none malformed"
