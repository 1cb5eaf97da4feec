#!/usr/bin/env bash
# Every capture through a card and back, in both modes (DD has direct mode only): byte for byte the same. The variant says
# which engine, and whether the card is in the program or a process of its own. Variant `explain`: every packet of every capture,
# whatever its link, is explained by rules, without a card.
# variants: sze-embedded sze-daemon medusa-embedded medusa-daemon calypte-embedded calypte-daemon dd-embedded dd-daemon explain
. "$(dirname "$0")/../lib.sh"
needs python3
[ -d "$captures" ] || skip "there are no captures in $captures; MILLRACE_CAPTURES says where"
[ "$1" != explain ] || exec python3 "$tests/explain.py" "$millrace" "$captures" "$scratch"
engine=${1%-*} place=${1##*-} modes=(direct mediated)
[ "$engine" = dd ] && modes=(direct)
for mode in "${modes[@]}"; do
    python3 "$tests/captures.py" "$millrace" "$captures" "$place" "$engine" "$mode" "$scratch" || exit
done
