#!/usr/bin/env bash
# Messages from C, as it is installed: two processes meet by name, here and as two hosts, by each way, with doorbells and a descriptor, and one sees the other die.
. "$(dirname "$0")/../lib.sh"
needs cc pkg-config
install_library
# shellcheck disable=SC2046
cc -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags millrace) -o "$scratch/message" "$tests/c/message.c" \
    $(pkg-config --libs millrace) -Wl,-rpath,"$scratch/usr/lib"
# Here, and between two hosts.
for rail in "" wire; do
    # shellcheck disable=SC2086
    background server "$scratch/message" serve "case-c-$$" ${rail:+vhost-user:$scratch/wire}
    server=$started
    # shellcheck disable=SC2086
    timeout 120 "$scratch/message" drive "case-c-$$" ${rail:+virtio-user:$scratch/wire} >"$scratch/drive.out" 2>"$scratch/drive.log" ||
        fail "drive: $(cat "$scratch/drive.out" "$scratch/drive.log")"
    await 10 is_gone "$server" || fail "the server has not died"
    diff "$scratch/drive.out" - <<'SAID' || fail "drive has said something else"
messages of all sizes and ways
10000 short messages
doorbells
a descriptor
a function that is called
memory that is handed over
memory that the other one writes
what cannot be is refused
death: lost
SAID
done
