#!/usr/bin/env bash
# libmillrace, as it is installed: what it exports, its header in C and C++, and tests/c/abi.c against a card inside the
# program and one outside: a million packets, threads, every kind of mistake, a card that is killed.
# alone: its threads poll, and wait long for one that has no core
. "$(dirname "$0")/../lib.sh"
needs cc c++ make pkg-config nm python3
install_library
library=$scratch/usr/lib/libmillrace.so

# What the header declares, and nothing else.
nm -D --defined-only "$library" | awk '{ print $3 }' | sort >"$scratch/exported"
grep -oE '^[a-z][^(]*\bmillrace_[a-z0-9_]+\(' "$scratch/usr/include/millrace.h" | grep -oE 'millrace_[a-z0-9_]+' | sort |
    grep -vxE 'millrace_(device|component_lock|flow_watch|memory|rx|tx|supplied_rx|supplied_tx)' >"$scratch/declared"
diff -u "$scratch/declared" "$scratch/exported" || fail "the library does not export what the header declares"
readelf -d "$library" | grep -q 'SONAME.*\[libmillrace\.so\.0\]' || fail "the library is not called libmillrace.so.0"
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
[ "$(pkg-config --modversion millrace)" = "$version" ] || fail "millrace.pc is not of version $version"

strict="-O2 -Wall -Wextra -Wpedantic -Werror"
echo '#include <millrace.h>' >"$scratch/header.c"
sed -n '/^```c$/,/^```$/{ /^```/d; p; }' "$root/docs/c.md" >"$scratch/page.c"
# shellcheck disable=SC2046,SC2086
{
    cc -std=c11 $strict $(pkg-config --cflags millrace) -c -o "$scratch/header.o" "$scratch/header.c"
    cc -std=c11 $strict -D_POSIX_C_SOURCE=200809L $(pkg-config --cflags millrace) -c -o "$scratch/loopback.o" \
        "$root/examples/c/loopback.c"
    cc -std=c11 $strict $(pkg-config --cflags millrace) -o "$scratch/page" "$scratch/page.c" \
        $(pkg-config --libs millrace) -Wl,-rpath,"$scratch/usr/lib"
    cc -std=c11 $strict $(pkg-config --cflags millrace) -o "$scratch/abi" "$tests/c/abi.c" -pthread \
        $(pkg-config --libs millrace) -Wl,-rpath,"$scratch/usr/lib"
    c++ -std=c++17 $strict $(pkg-config --cflags millrace) -o "$scratch/plus" "$tests/c/plus.cpp" \
        $(pkg-config --libs millrace) -Wl,-rpath,"$scratch/usr/lib"
}
"$scratch/plus" || fail "the program in C++"
[ "$("$scratch/page")" = "64 bytes, all 1
64 bytes, all 2" ] || fail "the program in docs/c.md"

# part DEVICE FLAGS PART...
parts() {
    local device=$1 flags=$2 part
    shift 2
    for part in "$@"; do
        "$scratch/abi" "$part" "$device" "$flags" >"$scratch/part.out" ||
            fail "$part on $device with flags $flags: $(cat "$scratch/part.out")"
    done
}

for engine in medusa sze; do
    parts embedded:engine=$engine 0 million cycles
    # Direct; mediated; shared; shared and mediated.
    for flags in 0 1 2 3; do
        parts embedded:engine=$engine $flags threads
    done
done
parts embedded 0 control refusals nulls supplied
parts embedded:queues=2 0 rules taps
# DD: direct and exclusive, or not at all.
parts embedded:engine=dd 0 million cycles refusals own

start_card --queues 2
parts "$device" 0 million cycles threads control refusals nulls rules taps
parts "$device" 3 threads
check_counting
kill "$card"
ended "$card" 5
# Its last check is a queue that the card has stopped, so the card is not asked again.
start_card --queues 2
parts "$device" 0 supplied

# until_gone: a program whose card, the one that was started last, is killed.
until_gone() {
    background gone "$scratch/abi" until-gone "$device"
    await 10 grep -qs ready "$scratch/gone.out" || fail "until-gone does not get ready"
    slay "$card"
    ended "$started" 5
    [ "$code" -eq 0 ] || fail "a killed card: $(cat "$scratch/gone.out")"
}
until_gone
start_card --queues 2 --engine dd
parts "$device" 0 threads own
check_counting
until_gone

if command -v valgrind >/dev/null; then
    # Only what is certainly lost: Rust keeps the handle of the main thread by a pointer into its middle.
    lost="--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
    for part in nulls refusals control supplied; do
        # shellcheck disable=SC2086
        valgrind -q $lost --error-exitcode=9 "$scratch/abi" $part embedded >"$scratch/valgrind.log" 2>&1 ||
            fail "$part under Valgrind"
    done
fi
echo "$(wc -l <"$scratch/exported") functions; all parts of tests/c/abi.c"
