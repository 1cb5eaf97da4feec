#!/usr/bin/env bash
# What is wrong is said with what to do about it.
. "$(dirname "$0")/../lib.sh"
needs python3

# says WORDS COMMAND...: fails, and says so.
says() {
    local words=$1
    shift
    if timeout 20 "$@" >"$scratch/out" 2>"$scratch/said.log"; then
        fail "$* succeeded"
    fi
    grep -qF -- "$words" "$scratch/said.log" || fail "$* does not say: $words; but: $(cat "$scratch/said.log")"
}

says 'af_packet:lo' "$millrace" card --port lo --listen "$scratch/never.sock"
says 'this card has ports 0 to 1' "$millrace" card --port null --port null --connect 0-5 --listen "$scratch/never.sock"
says 'port=(pcap:x,speed...)' "$millrace" info --device embedded:port=pcap:x,speed=full

"$millrace" receive "$scratch/in.pcap" --count 10 --device embedded:port=generator >/dev/null
start_card --port none
says 'dropped all of them' "$millrace" transmit "$scratch/in.pcap"
"$millrace" ports plug 0 loopback >/dev/null
says 'dropped all of them' "$millrace" transmit "$scratch/in.pcap"
"$millrace" ports plug 0 null >/dev/null
"$millrace" transmit "$scratch/in.pcap" >/dev/null || fail "transmit where frames go out"

background reader "$millrace" read --queue 1 --share drop
reader=$started
held() {
    "$millrace" info --json | grep '"rx1"' | grep -q "\"holders\":\[$reader\]"
}
await 20 held || fail "nobody reads"
says '`--share`' "$millrace" read --queue 1 --count 1

# How long the first frame is waited for is no part of the rate.
background receive "$millrace" receive "$scratch/late.pcap" --count 10 --json
receiver=$started
await 20 test -e "$scratch/late.pcap" || fail "nobody receives"
began=$(date +%s%N)
sleep 2
"$millrace" ports plug 0 generator >/dev/null
ended "$receiver" 20
python3 -c 'import sys; sys.exit(float(sys.argv[1]) > (int(sys.argv[3]) - int(sys.argv[2])) / 1e9 - 1)' \
    "$(field seconds <"$scratch/receive.out")" "$began" "$(date +%s%N)" ||
    fail "the wait counts: $(cat "$scratch/receive.out")"

if is_root && setpriv --reuid=nobody --regid=nogroup --clear-groups true 2>/dev/null; then
    # Where the program was built may be closed to others.
    cp "$millrace" "$scratch/millrace"
    chmod 755 "$scratch" "$scratch/millrace"
    chmod 700 "${device#unix:}"
    says '--grant' setpriv --reuid=nobody --regid=nogroup --clear-groups "$scratch/millrace" info
    grep -q 'permission denied' "$scratch/said.log" || fail "$(cat "$scratch/said.log")"
fi
