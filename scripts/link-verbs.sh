#!/usr/bin/env bash
# Makes libibverbs.so.1 of the archive of crates/verbs: the versions of its symbols take a linker script of their own, which
# cargo would give to the linker beside its own (decision 56).
#
#   scripts/link-verbs.sh FOLDER    the folder with libmillrace_verbs.a; the library goes to FOLDER/verbs
set -euo pipefail
folder=${1:?which folder}
crate=$(cd "$(dirname "$0")/.." && pwd)/crates/verbs
mkdir -p "$folder/verbs"
# Programs that unload the library leave the helper thread behind, whose text must stay: nodelete.
cc -shared -o "$folder/verbs/libibverbs.so.1.new" \
    -Wl,--whole-archive "$folder/libmillrace_verbs.a" -Wl,--no-whole-archive \
    -Wl,--version-script="$crate/ibverbs.map" -Wl,--no-undefined-version -Wl,-soname,libibverbs.so.1 \
    -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--gc-sections \
    -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
mv "$folder/verbs/libibverbs.so.1.new" "$folder/verbs/libibverbs.so.1"
