#!/usr/bin/env bash
# Makes the C header: scripts/header.sh FILE. Exit code 77 means that it could not be done here.
set -euo pipefail
cd "$(dirname "$0")/.."

# The one of Debian 12: others lay the same declarations out differently.
wanted=0.24
version=$(cbindgen --version 2>/dev/null) || { echo "skipped: cbindgen is not installed"; exit 77; }
case $version in
*" $wanted".*) ;;
*) echo "skipped: this is $version, the header is made with $wanted"; exit 77 ;;
esac
# It reads one file: all without what says which file it is, the types behind the functions.
both=$(mktemp --suffix=.rs)
trap 'rm -f "$both"' EXIT
for name in boundary/{mod,device,flow,registers,clock,rx,tx,memory,slurpoe,message,block,window} types; do
    grep -v '^//!\|^#!\|^mod ' "crates/c/src/$name.rs"
done >"$both"
cbindgen --quiet --config crates/c/cbindgen.toml --output "$1" "$both"
