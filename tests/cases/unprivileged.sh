#!/usr/bin/env bash
# The demo, a card process and a program beside it need no root.
. "$(dirname "$0")/../lib.sh"
as_nobody=()
if is_root; then
    needs setpriv
    as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups --)
    "${as_nobody[@]}" true 2>/dev/null || skip "setpriv may not change the user here"
fi
# Where the program was built may be closed to others.
chmod 755 "$scratch"
cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch/millrace"
mkdir -m 777 "$scratch/home"
cd "$scratch/home"
export HOME=$scratch/home TMPDIR=$scratch/home
"${as_nobody[@]}" "$scratch/millrace" demo >"$scratch/demo.log" 2>&1 || fail "the demo failed"
grep -q 'Round trips' "$scratch/demo.log" || fail "the demo shows no round trips"
background card "${as_nobody[@]}" "$scratch/millrace" card --listen "$scratch/home/card.sock"
await 10 test -S "$scratch/home/card.sock" || fail "the card does not listen"
"${as_nobody[@]}" "$scratch/millrace" loopback-hw --device "unix:$scratch/home/card.sock" --count 100k --json
