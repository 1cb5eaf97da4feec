#!/usr/bin/env bash
# The extension library as a library: its symbols, its ABI version, every trap of docs/spec/nfb-card.md section 0 that a
# single process can spring, with a card in a daemon and with one inside the process.
. "$(dirname "$0")/../lib.sh"
. "$tests/nfb.sh"
needs nm readelf python3

nm -D --defined-only "$library" | awk '{ print $2, $3 }' | sort -k 2 >"$scratch/symbols"
diff -u "$root/crates/nfb/symbols.txt" "$scratch/symbols" || fail "the exported symbols are not those of the ABI"
readelf -d "$library" | grep -q 'SONAME.*libnfb-ext-millrace.so' || fail "no name of its own"

start_card --queues 2
for name in "$device" embedded:queues=2; do
    "$scratch/checks" "$library" "$name" all || fail "$name"
done
"$scratch/checks" "$library" "embedded:queues=2;engine=sze;port=loopback" loopback || fail "semicolons"
for options in engine=sze engine=calypte; do
    "$scratch/checks" "$library" "embedded:queues=2,$options" whole-bursts long-frames several-gets || fail "$options"
done
"$scratch/checks" "$library" "" registers || fail "the default device"
MILLRACE_DEVICE=$device "$scratch/checks" "$library" "" loopback || fail "the default device from MILLRACE_DEVICE"

# A copy with another version of the ABI: a foreign major number is refused, a foreign minor number is not.
with_version() {
    "$tests/abi_version.py" "$library" "$scratch/other.so" "$1" "$2"
}
with_version 2 0
"$scratch/checks" "$scratch/other.so" "$device" registers 2>"$scratch/major.out" && fail "ABI 2.0 was loaded"
grep -q 'major version' "$scratch/major.out" || fail "no word about the major version"
with_version 1 1
"$scratch/checks" "$scratch/other.so" "$device" registers 2>"$scratch/minor.out" || fail "ABI 1.1 was not loaded"
grep -q 'minor version' "$scratch/minor.out" || fail "no word about the minor version"

# DD queues belong to one program each. One that says so, or is called so, gets them; others are told what to do.
kill "$card"
start_card --queues 2 --engine dd
alone="loopback direct-bursts close-pointers states threads one-card thousand"
for name in "$device" "embedded:queues=2,engine=dd"; do
    said=$scratch/own.out
    "$scratch/checks" "$library" "$name" registers own-only 2>"$said" || fail "$name: $(cat "$said")"
    grep -q 'libnfb-ext-millrace: rx0: rx0 is a DD queue' "$said" && grep -q -- '-U.*direct:' "$said" ||
        fail "it does not say how a DD queue is had: $(cat "$said")"
    # shellcheck disable=SC2086
    "$scratch/checks" "$library" "direct:$name" $alone || fail "direct:$name"
done

# What it costs is measured on every engine, shared and alone as far as the engine has that.
needs make
unset MILLRACE_DEVICE
rows=$scratch/bench.json
"$millrace" bench nfb --library "$library" --rounds 1 --seconds 0.02 --json >"$rows" || fail "bench nfb"
[ "$(grep -c '"ratio":[0-9]' "$rows")" = 4 ] || fail "bench nfb: $(cat "$rows")"
[ "$(grep -c '"nfb_shared":[0-9]' "$rows")" = 3 ] || fail "bench nfb, shared: $(cat "$rows")"
