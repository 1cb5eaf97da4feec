#!/usr/bin/env bash
# The card is killed under programs that use librdmacm: whoever sleeps is woken, every identifier is told (RDMA_CM_EVENT_DEVICE_REMOVAL), calls
# fail, and new identifiers use the next card. With the engine in the card and in the library.
# alone: its programs poll, and kills are about how soon
. "$(dirname "$0")/../lib.sh"
. "$tests/verbs.sh"
needs rping python3
[ -e "$verbs_library/librdmacm.so.1" ] || skip "$verbs_library/librdmacm.so.1 has not been built; \`make build\` does that"
peer="python3 $tests/cm_peer.py"

# begins OPTION...: a card at a place of this case's own; the one before is gone.
cards=0
begins() {
    cards=$((cards + 1))
    background "begun$cards" "$millrace" card --listen "$scratch/one.sock" "$@"
    card=$started
    await 10 "$millrace" info --device "unix:$scratch/one.sock" >/dev/null 2>&1 || fail "no card: $(cat "$scratch/begun$cards.log")"
}

# told_and_ended PROCESS NAME: it has ended with an error, because it was told so.
told_and_ended() {
    ended "$1" 10
    [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "$2 has ended with $code: $(tail -n 3 "$scratch/$2".{out,log})"
    grep -q "device removal" "$scratch/$2".{out,log} || fail "$2 was not told: $(tail -n 3 "$scratch/$2".{out,log})"
}

# killed ADDRESS SERVER CLIENT [CARD-OPTION...]: with those words for MILLRACE_VERBS.
killed() {
    local address=$1 server=$2 client=$3 names
    shift 3
    begins "$@"
    background loser env MILLRACE_VERBS="$server" LD_LIBRARY_PATH="$verbs_library" timeout 200 $peer lose "$address" 7400 "$scratch/next"
    loser=$started
    await 20 grep -qs connected "$scratch/loser.out" || fail "no connection: $(tail -n 3 "$scratch"/loser.*)"
    slay "$card"
    lost() {
        grep -qs lost "$scratch/loser.out" || is_gone "$loser"
    }
    await 20 lost || fail "it hangs without a card: $(tail -n 3 "$scratch"/loser.*)"
    ! is_gone "$loser" || fail "$(tail -n 3 "$scratch"/loser.*)"
    begins "$@"
    touch "$scratch/next"
    ended "$loser" 30
    [ "$code" -eq 0 ] || fail "with the next card: $code $(tail -n 3 "$scratch"/loser.*)"
    rm "$scratch/next"

    # One that waits for calls; two that are at work.
    background waits env MILLRACE_VERBS="$server" LD_LIBRARY_PATH="$verbs_library" timeout 100 rping -s -a "$address" -p 7500
    waits=$started
    sleep 1
    ! is_gone "$waits" || fail "rping has ended: $(tail -n 3 "$scratch"/waits.*)"
    slay "$card"
    told_and_ended "$waits" waits
    begins "$@"
    background busy env MILLRACE_VERBS="$server" LD_LIBRARY_PATH="$verbs_library" timeout 100 rping -s -a "$address" -V
    busy=$started
    sleep 1
    background calls env MILLRACE_VERBS="$client" LD_LIBRARY_PATH="$verbs_library" timeout 100 rping -c -a "$address" -V
    calls=$started
    sleep 1
    ! is_gone "$calls" || fail "rping has ended: $(tail -n 3 "$scratch"/{busy,calls}.*)"
    slay "$card"
    told_and_ended "$busy" busy
    told_and_ended "$calls" calls
}

usual="unix:$scratch/one.sock"
killed 198.19.255.254 "$usual place=card" "$usual place=card" --queues 2 --rdma-cpu
echo "the engine in the card"
killed 198.18.0.1 "$usual ip=198.18.0.1 tx=0 rx=1" "$usual ip=198.18.0.2 tx=1 rx=0" --queues 2
echo "the engine in the library"
