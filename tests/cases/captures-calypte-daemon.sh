#!/usr/bin/env bash
# Every capture through a card process on Calypte, in both modes, and back: byte for byte the same.
. "$(dirname "$0")/../lib.sh"
needs python3
[ -d "$captures" ] || skip "there are no captures in $captures; MILLRACE_CAPTURES says where"
for mode in direct mediated; do
    python3 "$tests/captures.py" "$millrace" "$captures" daemon calypte $mode "$scratch" || exit
done
