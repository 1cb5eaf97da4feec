#!/usr/bin/env bash
# Rules of a card that runs: added, listed, replaced, watched, explained; they end with their time and with their program; a
# transaction is done whole or not at all, also one of 100,000 rules.
. "$(dirname "$0")/../lib.sh"
needs python3

printf 'miss=drop\ngroup=1,rss,queues=0-3\nmeter=1,rate=10kpps,burst=100\npriority=9,ip,actions=meter:1,rss:1\n' >"$scratch/first"
start_card --queues 4 --rules "$scratch/first"
first_card=$card first_device=$device
listed() {
    "$millrace" flow list "$@"
}
# holds WORDS COMMAND...: what it prints has the words.
holds() {
    local words=$1
    shift
    "$@" >"$scratch/said" 2>&1 || fail "$*: $(cat "$scratch/said")"
    grep -qF -- "$words" "$scratch/said" || fail "$* does not say '$words': $(cat "$scratch/said")"
}
# refused WORDS COMMAND...: it ends with 1 or 2, and says the words.
refused() {
    local words=$1
    shift
    "$@" >"$scratch/said" 2>&1 && fail "$* works"
    grep -qF -- "$words" "$scratch/said" || fail "$* does not say '$words': $(cat "$scratch/said")"
}

# The rules of the start are there, and what is listed is a file of rules.
"$millrace" flow check "$scratch/first" | diff - <(listed) || fail "the rules of --rules"
listed | "$millrace" flow replace - | grep -q "^version 2: rules added 0, modified 0, removed 0" || fail "replacing with the same"

background watch "$millrace" flow watch
watch=$started
await 10 grep -qs watching "$scratch/watch.log" || fail "watch does not begin"
events() {
    grep -qF -- "$1" "$scratch/watch.out"
}

# Rules of words, of a file, of standard input; in_port=local.
holds "rules added 2, modified 0, removed 0" "$millrace" flow add 'tcp,tcp_dst=80,actions=queue:1' 'in_port=local,actions=queue:2'
echo 'arp,actions=queue:0' | "$millrace" flow add - >/dev/null
echo '{"rule":{"priority":3,"match":{"in_port":"local"},"actions":["drop"]}}' | "$millrace" flow add -f - >/dev/null
holds "in_port=local,actions=drop" listed priority=3
holds "rules added 0, modified 1, removed 0" "$millrace" flow add 'tcp,tcp_dst=80,actions=queue:3'
await 10 events "~ table=0,priority=32768,tcp,tcp_dst=80,actions=queue:3 (card)" || fail "the change was not told"

# All or nothing, and the rule that is wrong.
refused "there is no RSS group 7" "$millrace" flow add 'udp,actions=drop' 'udp6,actions=rss:7'
grep -q "udp6,actions=rss:7" "$scratch/said" || fail "not said which: $(cat "$scratch/said")"
refused "there is no field" "$millrace" flow add 'upd,actions=drop'
refused "used by rules" "$millrace" flow delete --group 1
[ -z "$(listed udp)" ] || fail "a part of a refused transaction was done"
holds "would be version" "$millrace" flow add 'udp,actions=drop' --dry-run
[ -z "$(listed udp)" ] || fail "--dry-run has added a rule"

# Groups of two kinds are told apart, and keys are for those that take them.
"$millrace" flow add 'group=8,quic,queues=0,connections=9,handshakes=9,per_source=9' >/dev/null
refused "group 8 is a QUIC group: write quic:8" "$millrace" flow add 'udp,actions=rss:8'
refused "group 1 is an RSS group: write rss:1" "$millrace" flow add 'udp,actions=quic:1'
refused "QUIC group 8 takes no keys" "$millrace" flow keys --group 8 "$scratch/keys"
refused "there is no QUIC group 9" "$millrace" flow keys --group 9 "$scratch/keys"
"$millrace" flow delete --group 8 >/dev/null

# Filters are those of ovs-ofctl.
holds "removed 0" "$millrace" flow delete tcp --strict
holds "removed 1" "$millrace" flow delete 'tcp,tcp_dst=80' --strict
holds "removed 2" "$millrace" flow delete in_port=local
"$millrace" flow add 'table=1,cookie=0x11,udp,actions=drop' 'table=1,cookie=0x21,tcp,actions=drop' >/dev/null
[ "$(listed --table 1 | wc -l)" -eq 2 ] && [ "$(listed cookie=0x10/0xf0 | wc -l)" -eq 1 ] || fail "filters"
holds "removed 2" "$millrace" flow delete table=1

# Rules that end with their time, and say why; and those of a program that is killed.
"$millrace" flow add 'hard_timeout=1,udp,actions=drop' 'idle_timeout=1,udp6,actions=drop' >/dev/null
await 20 events "udp,actions=drop (card) hard after 0 packets" || fail "no hard timeout: $(cat "$scratch/watch.out")"
await 20 events "udp6,actions=drop (card) idle" || fail "no idle timeout: $(cat "$scratch/watch.out")"
[ -z "$(listed udp)" ] || fail "a rule is there after its time"
printf 'group=2,rss,queues=0-1\nsctp,actions=rss:2\n' >"$scratch/program"
background program "$millrace" flow add -f "$scratch/program" --while-running
program=$started
has_rules() {
    [ "$(listed sctp | wc -l)" -eq 1 ]
}
await 10 has_rules || fail "the rules of a program that runs are not there"
holds "process $program" "$millrace" flow stats sctp
holds "removed 0" "$millrace" flow delete sctp
refused "somebody else's; --everyone" "$millrace" flow add 'sctp,actions=drop'
slay "$program"
has_no_rules() {
    [ -z "$(listed sctp)" ] && ! listed | grep -q ^group=2
}
await 10 has_no_rules || fail "rules outlive their program"
await 10 events "sctp,actions=rss:2 (process $program) owner-gone" || fail "not told that the owner has gone"
listed | grep -q ^group=1 || fail "what others have has gone as well"

# One whose card goes ends with it.
start_card --queues 1
background orphan "$millrace" flow add 'sctp,actions=drop' --while-running
orphan=$started
await 10 grep -qs "until Ctrl-C" "$scratch/orphan.log" || fail "rules of a program"
kill "$card"
ended "$orphan" 10
[ "$code" -ne 0 ] || fail "--while-running does not say that its card has gone"
card=$first_card device=$first_device
export MILLRACE_DEVICE=$device

# The packets of a capture under the newest and under an older version.
python3 - "$scratch/in.pcap" <<'END'
import struct, sys
ethernet = bytes.fromhex("020000000001" "020000000002" "0800")
ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40, 0, 0x4000, 64, 6, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
tcp = struct.pack(">HHIIBBHHH", 9, 80, 0, 0, 0x50, 2, 8192, 0, 0)
frame = (ethernet + ip + tcp).ljust(60, b"\0")
open(sys.argv[1], "wb").write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1) + struct.pack("<IIII", 1, 0, len(frame), len(frame)) + frame)
END
version=$("$millrace" flow add 'priority=50,tcp,tcp_dst=80,actions=queue:2' --json | field version)
holds "version $version:" "$millrace" explain "$scratch/in.pcap" --card
grep -q "process: queue:2" "$scratch/said" || fail "explain --card: $(cat "$scratch/said")"
holds "version $((version - 1)):" "$millrace" explain "$scratch/in.pcap" --card --table $((version - 1))
grep -q "process: meter:1,rss:1" "$scratch/said" || fail "explain --card --table: $(cat "$scratch/said")"
refused "is not kept" "$millrace" explain "$scratch/in.pcap" --card --table 9999
listed --at 1 | diff - <("$millrace" flow check "$scratch/first") || fail "flow list --at"

# A hundred thousand rules, in one transaction; then a quarter of them otherwise.
python3 - "$scratch" <<'END'
import sys
for name, last in ("many", "queue:3"), ("others", "drop"):
    with open(f"{sys.argv[1]}/{name}", "w") as file:
        for i in range(100_000):
            print(f"table={i % 4},priority={i % 60000},ip,nw_src=10.{i >> 16}.{i >> 8 & 255}.{i & 255},actions={['queue:0', 'queue:1', 'queue:2', last][i % 4]}", file=file)
END
version=$("$millrace" flow replace "$scratch/many" --json | field version)
[ "$(listed | wc -l)" -eq 100001 ] || fail "$(listed | wc -l) of 100,001 lines"
holds "rules added 0, modified 25000, removed 0" "$millrace" flow replace "$scratch/others" --dry-run
holds "version $((version + 1)): rules added 0, modified 25000, removed 0" "$millrace" flow replace "$scratch/others"
[ "$(listed table=3,out_port=1 | wc -l)" -eq 0 ] || fail "filter of ports"
holds "rules added 0, modified 0, removed 100000" "$millrace" flow delete
[ "$(listed)" = "miss=normal" ] || fail "something is left: $(listed | head -3)"
await 30 events "version $((version + 2)) - table=3" || fail "watch is behind: $(tail -1 "$scratch/watch.out")"
# Nothing was lost that was not told: what came, and what was lost, are all events.
kill -INT "$watch"
ended "$watch" 10
[ "$code" -eq 0 ] || fail "watch ended with $code: $(cat "$scratch/watch.log")"

# What cannot be is said before there is a card.
echo 'ip,actions=queue:9' >"$scratch/wrong"
refused "there is no queue 9" timeout 60 "$millrace" card --listen "$scratch/none.sock" --queues 4 --rules "$scratch/wrong"
refused "line 1, column" timeout 60 "$millrace" card --listen "$scratch/none.sock" --rules <(echo 'upd,actions=drop')

# Other users: refused without the right; with it, what is theirs, as much as their quota, and nothing of others.
is_root || { echo "other users: becoming one takes root"; exit 0; }
as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups --)
"${as_nobody[@]}" true 2>/dev/null || { echo "other users: setpriv may not change the user here"; exit 0; }
chmod 755 "$scratch"
cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch/millrace"
millrace=$scratch/millrace
kill "$card"
ended "$card" 10
start_card --queues 2 --grant user:nobody=use:rx0
"$millrace" flow add 'tcp,actions=drop' >/dev/null
refused "--grant user:nobody=configure:rules" "${as_nobody[@]}" "$millrace" flow add 'udp,actions=drop'
refused "--grant user:nobody=configure:rules" "${as_nobody[@]}" "$millrace" flow delete
holds "tcp,actions=drop" "${as_nobody[@]}" "$millrace" flow list
kill "$card"
ended "$card" 10
start_card --queues 2 --grant user:nobody=configure:rules --quota rules=20
"$millrace" flow add 'tcp,actions=drop' 'group=1,rss,queues=0' >/dev/null
holds "rules added 1" "${as_nobody[@]}" "$millrace" flow add 'udp,actions=rss:1'
refused "somebody else's" "${as_nobody[@]}" "$millrace" flow add 'tcp,actions=queue:1'
refused "somebody else's" "${as_nobody[@]}" "$millrace" flow add 'group=1,rss,queues=1'
refused "somebody else's" "${as_nobody[@]}" "$millrace" flow delete 'table=0,tcp' --strict
refused "--grant user:nobody=admin" "${as_nobody[@]}" "$millrace" flow delete --everyone
for port in $(seq 30); do echo "in_port=$port,actions=drop"; done >"$scratch/too-many"
chmod 644 "$scratch/too-many"
refused 'quota `rules`' "${as_nobody[@]}" "$millrace" flow add -f "$scratch/too-many"
holds "removed 1" "${as_nobody[@]}" "$millrace" flow delete
[ "$(listed | grep -c actions=)" -eq 1 ] || fail "what others have: $(listed)"
# What the card keeps for another user an administrator changes only when he says so.
"${as_nobody[@]}" "$millrace" flow add 'udp,actions=drop' >/dev/null
holds "removed 1" "$millrace" flow delete
holds "user " "$millrace" flow stats udp
holds "removed 1" "$millrace" flow delete --everyone
