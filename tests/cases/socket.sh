#!/usr/bin/env bash
# The socket library beside the kernel: random programs of socket calls do the same with it at both ends, at one, and at none; and what
# is not everyday: full buffers, time limits, killed ends, children and threads that share a connection, thousands of connections.
#
# MILLRACE_PROGRAMS: how many (100).
. "$(dirname "$0")/../lib.sh"
. "$tests/socket.sh"
needs /usr/bin/python3
programs=${MILLRACE_PROGRAMS:-100}

timeout 100 /usr/bin/python3 "$tests/socket/nasty.py" || fail "the test itself, by the kernel"
LD_PRELOAD=$library timeout 100 /usr/bin/python3 "$tests/socket/nasty.py" || fail "what is not everyday"
MILLRACE_STREAMS="$MILLRACE_STREAMS spin=0 ring=4096" LD_PRELOAD=$library timeout 100 /usr/bin/python3 "$tests/socket/nasty.py" ||
    fail "what is not everyday, without looking, through small rings"
[ "$(counted python3 met)" -gt 6000 ] || fail "connections did not meet: $(cat "$scratch/stats")"
rm "$scratch/stats"

timeout 500 /usr/bin/python3 "$tests/socket/differential.py" "$library" "$programs" || fail "the differential test"
[ "$(counted python3 met)" -gt "$programs" ] || fail "connections did not meet: $(cat "$scratch/stats")"
[ "$(counted python3 malformed)" = 0 ] || fail "nonsense in a ring"

timeout 60 /usr/bin/python3 "$tests/socket/signals.py" || fail "the test of signals itself, by the kernel"
LD_PRELOAD=$library timeout 60 /usr/bin/python3 "$tests/socket/signals.py" || fail "a signal, or a program that was started"

timeout 60 /usr/bin/python3 "$tests/socket/early.py" || fail "the test of sockets that are watched early itself, by the kernel"
LD_PRELOAD=$library timeout 60 /usr/bin/python3 "$tests/socket/early.py" || fail "a socket that was watched before it was connected"

if command -v cc >/dev/null; then
    cc -Wall -o "$scratch/cancel" "$tests/socket/cancel.c" -lpthread
    "$scratch/cancel" >/dev/null || fail "the test of cancelled threads itself, by the kernel"
    LD_PRELOAD=$library "$scratch/cancel" >/dev/null || fail "a thread that sleeps in an epoll of eventfds cannot be cancelled"
fi

timeout 60 /usr/bin/python3 "$tests/socket/wakes.py" || fail "the test of wake-ups itself, by the kernel"
LD_PRELOAD=$library timeout 60 /usr/bin/python3 "$tests/socket/wakes.py" || fail "a wake-up was lost"
MILLRACE_STREAMS=spin=100000 LD_PRELOAD=$library timeout 60 /usr/bin/python3 "$tests/socket/wakes.py" signal_at_a_look ||
    fail "a signal was swallowed"
