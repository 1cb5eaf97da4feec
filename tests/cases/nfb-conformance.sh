#!/usr/bin/env bash
# CESNET's own programs, where they are installed, and its Python binding and DPDK where they are, too.
. "$(dirname "$0")/../lib.sh"
needs nfb-info nfb-eth nfb-dma nfb-bus nfb-mdio nfb-tsu ndp-tool ndp-generate python3
library=$(dirname "$millrace")/libnfb-ext-millrace.so
[ -e "$library" ] || fail "$library is not there; make build"

"$tests/nfb-conformance.py" --millrace "$millrace" --library "$library" --packets 20000 --cycles 200 ||
    fail "see above"
