#!/usr/bin/env bash
# Every capture through a card and back: byte for byte the same. The variant says
# which engine, and whether the card is in the program or a process of its own. Variant `explain`: every packet of every capture,
# whatever its link, is explained by rules, without a card.
# variants: sze-embedded sze-daemon medusa-embedded medusa-daemon calypte-embedded calypte-daemon dd-embedded dd-daemon explain
. "$(dirname "$0")/../lib.sh"
needs python3
[ -d "$captures" ] || skip "there are no captures in $captures; MILLRACE_CAPTURES says where"
[ "$1" != explain ] || exec python3 "$tests/explain.py" "$millrace" "$captures" "$scratch"
engine=${1%-*} place=${1##*-}
# A synchronisation through the card is the same code wherever the card is and whatever the engine: both modes with Medusa only.
case $engine-$place in
medusa-*) modes=(direct mediated) ;;
dd-* | *-daemon) modes=(direct) ;;
*) modes=(mediated) ;;
esac
for mode in "${modes[@]}"; do
    python3 "$tests/captures.py" "$millrace" "$captures" "$place" "$engine" "$mode" "$scratch" || exit
done
