#!/usr/bin/env bash
# The socket library beside the kernel: random programs of socket calls do the same with it at both ends, at one, and at none.
#
# MILLRACE_PROGRAMS: how many (100).
. "$(dirname "$0")/../lib.sh"
. "$tests/socket.sh"
needs python3
programs=${MILLRACE_PROGRAMS:-100}

timeout 500 python3 "$tests/socket/differential.py" "$library" "$programs" || fail "the differential test"
[ "$(counted python3 met)" -gt "$programs" ] || fail "connections did not meet: $(cat "$scratch/stats")"
[ "$(counted python3 malformed)" = 0 ] || fail "nonsense in a ring"
