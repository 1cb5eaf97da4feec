#!/usr/bin/env bash
# SLURPoE's own API from C, as it is installed: two processes on the ends of one wire write, read and chain, are refused what is not
# allowed, and one sees the other die. What is on the wire is as docs/spec/slurpoe.md says.
. "$(dirname "$0")/../lib.sh"
needs cc pkg-config python3
install_library
# shellcheck disable=SC2046
cc -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags millrace) -o "$scratch/slurpoe" "$tests/c/slurpoe.c" \
    $(pkg-config --libs millrace) -Wl,-rpath,"$scratch/usr/lib"
background server "$scratch/slurpoe" serve "vhost-user:$scratch/wire"
server=$started
timeout 120 "$scratch/slurpoe" drive "trace:$scratch/wire.pcap,port=(virtio-user:$scratch/wire)" \
    >"$scratch/drive.out" 2>"$scratch/drive.log" || fail "drive: $(cat "$scratch/drive.out" "$scratch/drive.log")"
await 10 is_gone "$server" || fail "the server has not died"
sed 's/^write and read: .*/write and read/' "$scratch/drive.out" | diff - <(
    cat <<'SAID'
write and read
100 transfers, one end: called 1 time
100 transfers, an end for each: by the descriptor
wrong key: remote-access
out of bounds: remote-access
no permission: remote-access
the other end has counted: key, bounds, permission
death: unreachable
SAID
) || fail "drive has said something else"
cat "$scratch/drive.log"
python3 "$tests/slurpoe.py" "$scratch/wire.pcap" || exit 1
