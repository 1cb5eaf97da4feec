#!/usr/bin/env bash
# NFB programs in several processes: ownership and locks across them, programs that are killed, a card that is killed,
# and a libnfb that only one user in the process can see, as in Python.
. "$(dirname "$0")/../lib.sh"
. "$tests/nfb.sh"

check() {
    "$scratch/checks" "$library" "$name" "$@"
}

# Killed while it holds an exclusive queue pair and a lock.
killed_holders() {
    for i in $(seq 10); do
        background "holder$i" "$scratch/checks" "$library" "$name" hold
        await 10 grep -q holding "$scratch/holder$i.out" || fail "no holder"
        check is-held || fail "somebody took what is held"
        slay "$started"
        check is-free || fail "a killed program still holds something"
    done
}

# The card is killed.
killed_card() {
    background user "$scratch/checks" "$library" "$name" card-dies
    user=$started
    await 10 grep -q running "$scratch/user.out" || fail "it does not run"
    slay "$card"
    ended "$user" 20
    [ "$code" -eq 0 ] || fail "a card that dies takes its programs with it ($code)"
}

# DD queues are had with this name only, by programs that open theirs as by default.
start_card --queues 2 --engine dd
name=direct:$device
killed_holders
killed_card

start_card --queues 2
name=$device
killed_holders

# A host program that cannot see the libnfb in it, because a plugin of its own brought that along.
compile libloader.so -shared -fPIC "$loader/loader.c"
compile checks.so -shared -fPIC "$loader/checks.c" -L"$scratch" -l:libloader.so -Wl,-rpath,"$scratch"
compile stranger "$loader/stranger.c"
"$scratch/stranger" "$scratch/checks.so" "$library" "$name" registers locks loopback one-card ||
    fail "with a libnfb that is not global"

killed_card
