#!/usr/bin/env bash
# The device tree is one to the tools of others too, and they print what `millrace tree` prints.
. "$(dirname "$0")/../lib.sh"
needs dtc

# The card of which both were asked was not made at the same second.
tree() {
    dtc -q -s -I dtb -O dts "$1" | sed 's/build-time = <.*>/build-time/'
}
for device in embedded embedded:queues=16,engine=sze@0-7,engine=calypte@8-11,engine=dd@12-13; do
    "$millrace" tree --device $device --dtb "$scratch/card.dtb"
    dtc -q -I dtb -O dtb -o "$scratch/again.dtb" "$scratch/card.dtb" || fail "dtc refuses the tree of $device"
    "$millrace" tree --device $device >"$scratch/card.dts"
    dtc -q -I dts -O dtb -o "$scratch/text.dtb" "$scratch/card.dts" || fail "dtc refuses the text of $device"
    diff <(tree "$scratch/card.dtb") <(tree "$scratch/text.dtb") || fail "the text of $device is another tree"
done
