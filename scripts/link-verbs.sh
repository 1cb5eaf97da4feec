#!/usr/bin/env bash
# Makes libibverbs.so.1 and librdmacm.so.1 of the archives of crates/verbs and crates/rdmacm, and puts libmillrace-memory.so beside them: the versions of their symbols take a linker
# script of their own, which cargo would give to the linker beside its own (decision 56).
#
#   scripts/link-verbs.sh FOLDER    the folder with libmillrace_verbs.a and libmillrace_rdmacm.a; the libraries go to FOLDER/verbs
set -euo pipefail
folder=${1:?which folder}
crates=$(cd "$(dirname "$0")/.." && pwd)/crates
mkdir -p "$folder/verbs"

# library NAME ARCHIVE MAP MORE...: programs that unload a library leave its thread behind, whose text must stay: nodelete.
library() {
    cc -shared -o "$folder/verbs/$1.new" \
        -Wl,--whole-archive "$folder/$2" -Wl,--no-whole-archive \
        -Wl,--version-script="$crates/$3" -Wl,--no-undefined-version "-Wl,-soname,$1" \
        -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--gc-sections "${@:4}" \
        -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
    mv "$folder/verbs/$1.new" "$folder/verbs/$1"
}

library libibverbs.so.1 libmillrace_verbs.a verbs/ibverbs.map
library librdmacm.so.1 libmillrace_rdmacm.a rdmacm/rdmacm.map -Wl,-z,defs "$folder/verbs/libibverbs.so.1"
# Before the C library, for programs in guests (decision 126).
cp "$folder/libmillrace_memory.so" "$folder/verbs/libmillrace-memory.so.new"
mv "$folder/verbs/libmillrace-memory.so.new" "$folder/verbs/libmillrace-memory.so"
