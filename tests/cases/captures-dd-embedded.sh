#!/usr/bin/env bash
# Every capture through a card inside the program on DD, in direct mode, which is all it has, and back: byte for byte the same.
. "$(dirname "$0")/../lib.sh"
needs python3
[ -d "$captures" ] || skip "there are no captures in $captures; MILLRACE_CAPTURES says where"
python3 "$tests/captures.py" "$millrace" "$captures" embedded dd direct "$scratch" || exit
