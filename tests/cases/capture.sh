#!/usr/bin/env bash
# Frames of a card that runs, as rules decide on them: explained, and those of one rule as lines and as a capture, before and after its
# actions; what is not shown is said; others' frames take a right of their own. Rules get other actions and keep their counters.
. "$(dirname "$0")/../lib.sh"
needs python3

python3 - "$scratch/in.pcap" <<'END'
import struct, sys
ethernet = bytes.fromhex("020000000001" "020000000002")
def ip(protocol, rest):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(rest), 0, 0x4000, 64, protocol, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xffff) + (total >> 16)
    return ethernet + b"\x08\x00" + head[:10] + struct.pack(">H", ~((total & 0xffff) + (total >> 16)) & 0xffff) + head[12:] + rest
tcp = ip(6, struct.pack(">HHIIBBHHH", 9, 80, 1, 0, 0x50, 2, 8192, 0, 0))
udp = ip(17, struct.pack(">HHHH", 7, 53, 12, 0) + b"ping")
arp = ethernet + bytes.fromhex("0806" "0001" "0800" "06" "04" "0001" "020000000002" "0a000001" "000000000000" "0a000002")
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
    for frame in (tcp, udp, arp):
        frame = frame.ljust(60, b"\0")
        file.write(struct.pack("<IIII", 1, 0, len(frame), len(frame)) + frame)
END
start_card --queues 2
refused_or() {
    local words=$1
    shift
    "$@" >"$scratch/said" 2>&1 && fail "$* works"
    grep -qF -- "$words" "$scratch/said" || fail "$* does not say '$words': $(cat "$scratch/said")"
}
"$millrace" flow add 'cookie=0x10,tcp,tcp_dst=80,actions=queue:1' 'udp,actions=set_field:10.9.9.9->nw_dst,goto_table:1' \
    'table=1,cookie=7,actions=queue:0' 'arp,actions=drop' >/dev/null
number() {
    "$millrace" flow stats "$1" --json | field number
}
tcp=$(number tcp) udp=$(number udp) last=$(number table=1)

# listens NAME COMMAND...: it runs, and has begun to listen.
listens() {
    local name=$1
    background "$@"
    await 10 grep -qs listening "$scratch/$name.log" || fail "$name does not listen: $(cat "$scratch/$name.log")"
}
# said WORDS NAME: that is in what it has printed.
said() {
    grep -qF -- "$1" "$scratch/$2.out" || fail "$2 does not say '$1': $(cat "$scratch/$2.out" "$scratch/$2.log")"
}
# ends_well: what was started last ends, and has all that it wanted.
ends_well() {
    ended "$1" 20
    [ "$code" -eq 0 ] || fail "process $1 ended with $code"
}
send() {
    "$millrace" transmit "$scratch/in.pcap" >/dev/null || fail "nothing can be sent"
}

# One rule as lines, and all frames explained. Four may listen at a time.
listens lines "$millrace" flow capture "$tcp" --count 1
lines=$started
listens live "$millrace" explain --live --count 3
live=$started
listens queue "$millrace" explain --live --queue 0 --count 1 --json
queue=$started
listens cookie "$millrace" flow capture cookie=7/0xf --count 1
cookie=$started
refused_or "listen to frames of this card already" timeout 20 "$millrace" flow capture all --count 1
send
for one in "$lines" "$live" "$queue" "$cookie"; do
    ends_well "$one"
done
said "port 0 IP 10.0.0.1.9 > 10.0.0.2.80: tcp [S] seq 1 ack 0, 60 bytes => queue 1" lines
[ "$(wc -l <"$scratch/lines.out")" -eq 1 ] || fail "more than one line: $(cat "$scratch/lines.out")"
said "table 0: table=0,priority=32768,cookie=0x10,tcp,tcp_dst=80,actions=queue:1" live
said "in the card: to queue 1" live
said "in the card: nobody got it" live
said "udp, 60 bytes => queue 0" cookie
python3 - "$scratch/queue.out" <<'END' || fail "explain --live --queue: $(cat "$scratch/queue.out")"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
packets = [row for row in rows if row["kind"] == "packet"]
sys.exit([row["card"] for row in packets] != [[{"queue": 0}]] or packets[0]["passes"][0]["frame"]["nw_dst"] != "10.0.0.2")
END

# As they came in, and as they went out; what is written is a capture.
listens before "$millrace" flow capture "$udp" --count 1 --pcap "$scratch/before.pcap"
before=$started
listens after "$millrace" flow capture "$last" --count 1 --pcap "$scratch/after.pcap" --after
after=$started
send
ends_well "$before"
ends_well "$after"
for capture in before:10.0.0.2 after:10.9.9.9; do
    python3 - "$scratch/${capture%:*}.pcap" "${capture#*:}" <<'END' || fail "the capture $capture"
import socket, sys
data = open(sys.argv[1], "rb").read()[24:]
sys.exit(len(data) != 16 + 60 or data[16 + 30:16 + 34] != socket.inet_aton(sys.argv[2]))
END
    if command -v tshark >/dev/null; then
        seen=$(tshark -r "$scratch/${capture%:*}.pcap" -o ip.check_checksum:TRUE -T fields -e ip.dst -e ip.checksum.status 2>/dev/null)
        [ "$seen" = "$(printf '%s\t1' "${capture#*:}")" ] || fail "tshark reads $seen"
    fi
done

# What is beyond the rate is counted.
listens few "$millrace" flow capture all --rate 1 --json
few=$started
# Nobody reads them, which it says.
"$millrace" generate --count 20000 >/dev/null 2>&1 || true
unheard() {
    grep -q '"limited":[1-9]' "$scratch/few.out"
}
await 10 unheard || fail "what is not shown is not said: $(head -3 "$scratch/few.out")"
kill -INT "$few"
ends_well "$few"
python3 - "$scratch/few.out" <<'END' || fail "frames and what was not shown are not all: $(tail -2 "$scratch/few.out")"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
limited = sum(row.get("limited", 0) + row.get("lost", 0) for row in rows)
shown = sum("bytes" in row for row in rows)
sys.exit(not (shown <= 200 and limited + shown == 20000))
END

# Other actions for what is there: counters and number stay.
packets=$("$millrace" flow stats tcp --json | field packets)
[ "$packets" -gt 0 ] || fail "the rule has had nothing"
"$millrace" flow modify 'tcp,actions=queue:0' | grep -q "rules added 0, modified 1, removed 0" || fail "flow modify"
[ "$(number tcp)" -eq "$tcp" ] && [ "$("$millrace" flow stats tcp --json | field packets)" -ge "$packets" ] || fail "its counters are gone"
"$millrace" flow modify 'tcp,actions=drop' --strict | grep -q "modified 0" || fail "flow modify --strict means another rule"
"$millrace" flow modify 'cookie=0x99,tcp,tcp_dst=80,actions=queue:1' --strict | grep -q "modified 1" || fail "flow modify --strict"
"$millrace" flow list cookie=0x99 | grep -q "queue:1" || fail "the cookie was not changed"
refused_or "actions=" "$millrace" flow modify tcp

refused_or "there is no rule 4711" "$millrace" flow capture 4711
is_root || { echo "other users: becoming one takes root"; exit 0; }
as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups --)
"${as_nobody[@]}" true 2>/dev/null || { echo "other users: setpriv may not change the user here"; exit 0; }
chmod 755 "$scratch"
cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch/millrace"
kill "$card"
ended "$card" 10
start_card --queues 2 --grant user:nobody=configure:rules+use:rx0
"$millrace" flow add 'tcp,actions=drop' >/dev/null
refused_or "--grant user:nobody=capture" "${as_nobody[@]}" "$scratch/millrace" flow capture all --count 1
kill "$card"
ended "$card" 10
start_card --queues 2 --grant user:nobody=capture
"$millrace" flow add 'tcp,actions=drop' >/dev/null
listens nobody "${as_nobody[@]}" "$scratch/millrace" flow capture all --count 1
nobody=$started
send
ends_well "$nobody"
said "=> nobody" nobody
