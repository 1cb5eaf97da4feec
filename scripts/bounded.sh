#!/usr/bin/env bash
# scripts/bounded.sh PROGRAM ARGUMENTS...: runs a program of tests. One that has not ended after TEST_SECONDS (default 600) is ended with all
# that it has begun, after a word about what its threads wait for; the exit status is then 124.
# cargo calls it as the runner of programs (CARGO_TARGET_..._RUNNER in scripts/test.sh).
set -uo pipefail
limit=${TEST_SECONDS:-600}

# Groups of processes of their own, which can be ended whole; and Ctrl-C means what it means elsewhere.
set -m
"$@" &
program=$!
trap 'kill -TERM -- "-$program"' INT TERM

# The name of a thread is that of its test (15 characters of it).
say_threads() {
    local thread
    echo "did not end within $limit s: $1"
    for thread in "/proc/$program/task/"*; do
        printf '    thread %s: %s\n' "$(<"$thread/comm")" "$(cat "$thread/wchan" 2>/dev/null)"
    done | sort | uniq -c
    ps -e -o pgid,pid,ppid,stat,wchan:20,etime,args | awk -v group="$program" '$1 == group' | cut -c 1-200
}

{
    sleep "$limit"
    say_threads "$*"
    kill -KILL -- "-$program"
} &
watch=$!
disown "$watch"
wait "$program"
code=$?
# The watch has ended by itself if, and only if, the time was over.
kill -- "-$watch" 2>/dev/null || code=124
exit "$code"
