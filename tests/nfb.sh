# shellcheck shell=bash
# What the cases about the extension library for libnfb share. To be sourced after lib.sh.

library=$(dirname "$millrace")/libnfb-ext-millrace.so
loader=$root/crates/nfb/tests/loader
[ -e "$library" ] || fail "$library is not there; make build"

# compile OUTPUT SOURCE...: with the loader's folder searched for headers.
compile() {
    local output=$1
    shift
    "${CC:-cc}" -std=gnu11 -Wall -Wextra -Werror -O2 -g -I"$loader" -o "$scratch/$output" "$@" -ldl -lpthread
}

# The programs, with the loader inside: as tools do that are linked to libnfb.
needs "${CC:-cc}"
compile checks -rdynamic "$loader/loader.c" "$loader/checks.c"
