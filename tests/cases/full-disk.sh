#!/usr/bin/env bash
# A disk that is full while receiving: `receive` says so and fails, what was written before is a sound capture, and the
# card and its queues go on.
. "$(dirname "$0")/../lib.sh"
needs python3
start_card --port generator:size=1000

if code=0; ! "$millrace" receive /dev/full --count 1000 --json >"$scratch/full.out" 2>"$scratch/full.log"; then code=1; fi
[ "$code" -ne 0 ] || fail "receiving to a full disk succeeded"
grep -q /dev/full "$scratch/full.log" || fail "the message does not name the file"
grep -qi 'space' "$scratch/full.log" || fail "the message does not say that there is no space"
cat "$scratch/full.log"

disk=$scratch/disk
mkdir "$disk"
if is_root && mount -t tmpfs -o size=1m tmpfs "$disk" 2>/dev/null; then
    trap 'umount "$disk"; cleanup' EXIT
    if "$millrace" receive "$disk/out.pcap" --count 100000 >"$scratch/small.out" 2>"$scratch/small.log"; then
        fail "a megabyte held 100000 frames of 1000 bytes"
    fi
    (cd "$tests" && python3 -c '
import sys
import frames
count = len(frames.read(sys.argv[1]))
print(count, "frames are in the file")
sys.exit(0 if count > 500 else "failed: too few")' "$disk/out.pcap")
else
    echo "no small disk could be mounted: only /dev/full was tried"
fi

kill -0 "$card" || fail "the card has died"
"$millrace" read --count 1000 --json >"$scratch/after.out" || fail "the queue cannot be used any more"
check_counting
