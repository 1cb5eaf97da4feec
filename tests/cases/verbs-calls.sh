#!/usr/bin/env bash
# What no program of Debian calls, in a program of ours that is compiled for the system's own libibverbs: completion queues with functions,
# memory windows of both types, regions that change, and what is refused. And pyverbs, which calls much of it from Python.
. "$(dirname "$0")/../lib.sh"
needs cc
[ -e /usr/include/infiniband/verbs.h ] || skip "libibverbs-dev is not installed"
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
cc -std=c11 -D_DEFAULT_SOURCE -O2 -Wall -Wextra -Werror -o "$scratch/verbs" "$tests/c/verbs.c" -libverbs
start_card --queues 2
for options in "" local=off adopt=heap; do
    for part in cq-ex windows rereg refusals; do
        MILLRACE_VERBS="$device $options" LD_LIBRARY_PATH=$library timeout 60 "$scratch/verbs" "$part" >"$scratch/part.out" 2>&1 ||
            fail "$part${options:+ with $options}: $(cat "$scratch/part.out")"
    done
done
# That of the distribution, for which pyverbs is made.
python=/usr/bin/python3
if "$python" -c 'import pyverbs.device' 2>/dev/null; then
    for options in "" local=off; do
        MILLRACE_VERBS="$device $options" LD_LIBRARY_PATH=$library timeout 60 "$python" "$tests/pyverbs_check.py" >"$scratch/part.out" 2>&1 ||
            fail "pyverbs${options:+ with $options}: $(cat "$scratch/part.out")"
    done
    cat "$scratch/part.out"
else
    echo "without pyverbs: python3-pyverbs is not installed"
fi
echo "queues with functions, windows, changed regions, refusals"
