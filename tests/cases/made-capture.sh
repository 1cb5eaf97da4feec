#!/usr/bin/env bash
# A capture with a frame of every size from 14 to 2000 bytes: what was too short comes back padded, all else unchanged.
# Needs no collection of captures.
. "$(dirname "$0")/../lib.sh"
needs python3
mkdir "$scratch/made"
(cd "$tests" && python3 -c '
import random, sys
from pathlib import Path
import frames
random.seed(1)
frames.write(Path(sys.argv[1]), [random.randbytes(size) for size in range(14, 2001)])' "$scratch/made/sizes.pcap")
for engine in sze medusa calypte dd; do
    for mode in direct mediated; do
        # DD has direct mode only.
        [ $engine-$mode = dd-mediated ] && continue
        for placement in embedded daemon; do
            python3 "$tests/captures.py" "$millrace" "$scratch/made" $placement $engine $mode "$scratch" || exit
        done
    done
done
