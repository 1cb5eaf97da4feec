#!/usr/bin/env bash
# What CESNET's programs read and write, replayed: every trace on a fresh card gets the answers that it should.
. "$(dirname "$0")/../lib.sh"
. "$tests/nfb.sh"
compile replay -rdynamic "$loader/loader.c" "$loader/replay.c"
traces=("$loader"/../traces/*.trace)
[ "${#traces[@]}" -ge 20 ] || fail "only ${#traces[@]} traces"

# A trace that is wrong has to be seen.
printf 'R 00000000 4: 00 .. 00 00\nR 00000000 4: 01 .. 00 00\nR 3fffffe 4: 00 00 00 00\n' >"$scratch/wrong"
"$scratch/replay" "$library" embedded:queues=2 "$scratch/wrong" 2>"$scratch/wrong.out" >/dev/null && fail "wrong answers pass"
[ "$(grep -c '/wrong:[23]: ' "$scratch/wrong.out")" = 2 ] || fail "wrong answers are not told: $(cat "$scratch/wrong.out")"

for trace in "${traces[@]}"; do
    engine=$(basename "$trace" | sed -nE 's/^(sze|calypte)-.*/\1/p')
    engine=${engine:-medusa}
    "$scratch/replay" "$library" "embedded:queues=2,engine=$engine" "$trace" || fail "a card inside the process"
    start_card --queues 2 --engine "$engine"
    "$scratch/replay" "$library" "$device" "$trace" >/dev/null || fail "a card in a daemon"
    kill "$card"
done
