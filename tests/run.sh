#!/usr/bin/env bash
# Runs the cases: tests/run.sh [--results FILE] [CASE...], all of tests/cases by default. Fails if one does.
# In FILE it leaves how many passed, failed and were skipped.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=/dev/null
if [ "${1:-}" = --results ]; then
    results=$2
    shift 2
fi
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=("$here"/cases/*.sh)
passed=0 failed=0 skipped=0
for case in "${cases[@]}"; do
    [ -e "$case" ] || case=$here/cases/$case.sh
    start=$(date +%s%N)
    output=$(timeout -k 10 "${CASE_SECONDS:-300}" bash "$case" 2>&1 </dev/null)
    code=$?
    took=$(awk "BEGIN { printf \"%.1f\", ($(date +%s%N) - $start) / 1e9 }")
    case $code in
    0) passed=$((passed + 1)) word=passed ;;
    77 | 125) skipped=$((skipped + 1)) word=skipped ;;
    124 | 137) failed=$((failed + 1)) word="FAILED (took too long)" ;;
    *) failed=$((failed + 1)) word="FAILED ($code)" ;;
    esac
    printf '%-24s %5s s  %s\n' "$(basename "$case" .sh)" "$took" "$word"
    [ -z "$output" ] || printf '%s\n' "$output" | sed '/^skipped: /! s/^/    /'
done
echo "$passed $failed $skipped" >"$results"
[ "$failed" -eq 0 ]
