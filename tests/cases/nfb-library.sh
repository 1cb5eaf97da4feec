#!/usr/bin/env bash
# The extension library as a library: its symbols, its ABI version, every trap of specs/nfb-card.md section 0 that a
# single process can spring, with a card in a daemon and with one inside the process.
. "$(dirname "$0")/../lib.sh"
. "$tests/nfb.sh"
needs nm readelf python3

nm -D --defined-only "$library" | awk '{ print $2, $3 }' | sort -k 2 >"$scratch/symbols"
diff -u "$root/crates/nfb/symbols.txt" "$scratch/symbols" || fail "the exported symbols are not those of the ABI"
readelf -d "$library" | grep -q 'SONAME.*libnfb-ext-millrace.so' || fail "no name of its own"

start_card --queues 2
for name in "$device" embedded:queues=2; do
    "$scratch/checks" "$library" "$name" all || fail "$name"
done
"$scratch/checks" "$library" "embedded:queues=2;engine=sze;port=loopback" loopback || fail "semicolons"
"$scratch/checks" "$library" "" registers || fail "the default device"
MILLRACE_DEVICE=$device "$scratch/checks" "$library" "" loopback || fail "the default device from MILLRACE_DEVICE"

# A copy with another version of the ABI: a foreign major number is refused, a foreign minor number is not.
with_version() {
    python3 - "$library" "$scratch/other.so" "$1" "$2" <<'P'
import re, struct, subprocess, sys
source, copy, major, minor = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
symbols = subprocess.run(["nm", "-D", source], capture_output=True, text=True, check=True).stdout
address = int(re.search(r"^([0-9a-f]+) \w libnfb_ext_abi_version$", symbols, re.M)[1], 16)
segments = subprocess.run(["readelf", "-lW", source], capture_output=True, text=True, check=True).stdout
for offset, start, size in re.findall(r"LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", segments):
    offset, start, size = int(offset, 16), int(start, 16), int(size, 16)
    if start <= address < start + size:
        place = offset + address - start
data = bytearray(open(source, "rb").read())
assert struct.unpack_from("<II", data, place) == (1, 0)
struct.pack_into("<II", data, place, major, minor)
open(copy, "wb").write(data)
P
}
with_version 2 0
"$scratch/checks" "$scratch/other.so" "$device" registers 2>"$scratch/major.out" && fail "ABI 2.0 was loaded"
grep -q 'major version' "$scratch/major.out" || fail "no word about the major version"
with_version 1 1
"$scratch/checks" "$scratch/other.so" "$device" registers 2>"$scratch/minor.out" || fail "ABI 1.1 was not loaded"
grep -q 'minor version' "$scratch/minor.out" || fail "no word about the minor version"
