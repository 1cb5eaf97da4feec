#!/usr/bin/env bash
# What no program of Debian calls, in a program of ours that is compiled for the system's own libibverbs: completion queues with functions,
# memory windows of both types, regions that change, and what is refused. And pyverbs, which calls much of it from Python.
. "$(dirname "$0")/../lib.sh"
needs cc
needs readelf
[ -e /usr/include/infiniband/verbs.h ] || skip "libibverbs-dev is not installed"
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
# Each name in its node, or programs of that distribution do not start.
readelf -W --dyn-syms "$library/libibverbs.so.1" | awk '$7 != "UND" { print $8 }' | sed -n 's/^\([^@]*\)@@*\(.*\)$/\2 \1/p' | LC_ALL=C sort >"$scratch/names"
grep -v '^#' "$tests/data/ibverbs-names.txt" | cut -d' ' -f1,2 | LC_ALL=C sort >"$scratch/wanted"
missing=$(LC_ALL=C comm -23 "$scratch/wanted" "$scratch/names")
[ -z "$missing" ] || fail "libibverbs.so.1 lacks names that those of rdma-core 44 to 56 have: $missing"
echo "$(wc -l <"$scratch/wanted") names of rdma-core 44, 50 and 56 (Debian 12, Ubuntu 24.04, Debian 13)"
cc -std=c11 -D_DEFAULT_SOURCE -O2 -Wall -Wextra -Werror -o "$scratch/verbs" "$tests/c/verbs.c" -libverbs
start_card --queues 2 --rdma-cpu any
for options in "" local=off adopt=heap place=card; do
    for part in cq-ex windows rereg refusals; do
        MILLRACE_VERBS="$device $options" LD_LIBRARY_PATH=$library timeout 60 "$scratch/verbs" "$part" >"$scratch/part.out" 2>&1 ||
            fail "$part${options:+ with $options}: $(cat "$scratch/part.out")"
    done
done
# What goes wrong, and what both ends are told.
cc -std=c11 -D_DEFAULT_SOURCE -O2 -Wall -Wextra -Werror -o "$scratch/errors" "$tests/c/verbs-errors.c" -libverbs
for options in "" local=off adopt=heap place=card; do
    for part in queries errors lengths rnr silence shared overrun busy many; do
        # A program may have 1,024 queue pairs in the card.
        [ "$options $part" != "place=card many" ] || continue
        MILLRACE_VERBS="$device $options" LD_LIBRARY_PATH=$library timeout 60 "$scratch/errors" "$part" >"$scratch/part.out" 2>&1 ||
            fail "$part${options:+ with $options}: $(cat "$scratch/part.out")"
        cat "$scratch/part.out"
    done
done
# The same by an engine of the split driver.
background backend "$millrace" split backend --socket "$scratch/split.sock"
await 10 test -S "$scratch/split.sock" || fail "the backend does not listen"
for part in cq-ex windows rereg refusals; do
    MILLRACE_VERBS="split=$scratch/split.sock" LD_LIBRARY_PATH=$library timeout 60 "$scratch/verbs" "$part" >"$scratch/part.out" 2>&1 ||
        fail "$part with split=: $(cat "$scratch/part.out")"
done
for part in queries errors lengths rnr silence shared overrun busy; do
    MILLRACE_VERBS="split=$scratch/split.sock" LD_LIBRARY_PATH=$library timeout 60 "$scratch/errors" "$part" >"$scratch/part.out" 2>&1 ||
        fail "$part with split=: $(cat "$scratch/part.out")"
done
# That of the distribution, for which pyverbs is made.
python=/usr/bin/python3
if "$python" -c 'import pyverbs.device' 2>/dev/null; then
    for options in "" local=off place=card; do
        MILLRACE_VERBS="$device $options" LD_LIBRARY_PATH=$library timeout 60 "$python" "$tests/pyverbs_check.py" >"$scratch/part.out" 2>&1 ||
            fail "pyverbs${options:+ with $options}: $(cat "$scratch/part.out")"
    done
    cat "$scratch/part.out"
else
    echo "without pyverbs: python3-pyverbs is not installed"
fi
echo "queues with functions, windows, changed regions, refusals"
