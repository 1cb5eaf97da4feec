#!/usr/bin/env bash
# The split driver under Xen itself: hypervisor, domain 0 and two domains of Debian's kernel in an emulated machine. Backend in domain 0; bytes between domain 0 and a
# domain, and between two domains, each copied once, with no page granted and no call of the hypervisor for a transfer of a busy pair; and from a domain over a port to a guest
# of another backend; a program that is killed, a domain that is destroyed and a backend that is killed are noticed by those that are left, who go on.
# alone: it boots three machines in an emulated one, which has too little of the processor beside others
. "$(dirname "$0")/../lib.sh"
. "$tests/xen.sh"
domain_has "$scratch/millrace"

launch_xen
start_zero
zero "(millrace split backend --xen --socket /run/split.sock --port vhost-user:/run/wire --json >/run/backend.out 2>/run/backend.log & echo \$! >/run/backend.pid)"

# A domain whose first program is killed when it is there, and whose second one serves.
one=/var/log/xen/guest-one.log two=/var/log/xen/guest-two.log
configure one "$scratch/millrace split serve xen --json >/tmp/first &
    until grep -q address /tmp/first; do usleep 50000; done; kill -9 \$!; $scratch/millrace split serve xen --json --bytes 65536 --count 9"
zero "xl create $scratch/one.cfg" || fail "xl create: $(zero "tail -n 5 /var/log/xen/*")"
awaits $one '"address"'
awaits /run/backend.out '"event":"left"'
zero "grep -q '\"event\":\"left\".*domain 1.*\"why\":\"ended\"' /run/backend.out" || fail "a program that was killed: $(zero cat /run/backend.out)"
server=$(field address $one)

# Another backend at the other end of the port, as on another host, and memory there.
zero "(millrace split backend --socket /run/far.sock --port virtio-user:/run/wire --number 1 --json >/run/far.out 2>&1 &
    until [ -e /run/far.sock ]; do sleep 0.1; done; millrace split serve /run/far.sock --json >/run/far-serve.out 2>&1 &) >/dev/null 2>&1"
far=06:4d:00:00:00:01

# Domain 0 first: what the engine counts, it counts for all.
zero "millrace split drive $server --at /run/split.sock --json --count 20 --sizes 64,4096,65536" >"$scratch/zero.json" || fail "domain 0: $(cat "$scratch/zero.json")"

# Another domain, which works on the memory of the first, and on that over the port, and then serves in turn.
configure two "$scratch/millrace split drive $server --at xen --json --count 20 --sizes 64,4096,65536;
    $scratch/millrace split drive $far --at xen --json --count 3 --sizes 64,4096;
    $scratch/millrace split serve xen --json --bytes 65536"
zero "xl create $scratch/two.cfg" || fail "xl create: $(zero "tail -n 5 /var/log/xen/*")"

awaits $two '"split serve"'
zero "grep -q '06:4d' /run/far.out" || fail "the other backend: $(zero "cat /run/far.out")"
zero "cat $two" >"$scratch/two.json"
python3 - "$scratch/zero.json" "$scratch/two.json" <<'END' || fail "what operations took"
import json, sys
for name in sys.argv[1:]:
    rows = [json.loads(line) for line in open(name) if line.startswith("{")]
    driven = [row for row in rows if "operation" in row]
    far = [row for row in driven if row["frames"] > 0]
    assert (len(driven) - len(far), len(far)) == (6, 4 if "two" in name else 0), rows
    for row in driven:
        print(name.rsplit("/", 1)[1], {key: row[key] for key in row if key != "command"})
        assert row["pages"] == 0 and row["copies"] >= 1, row
    for row in far:
        # A frame and what acknowledges it, at least.
        assert row["frames"] >= 2, row
    for row in [row for row in driven if row not in far]:
        assert row["copies"] == 1 and row["packets"] == 0 and row["pages"] == 0, row
        # One event for each side at most, and one for the question.
        assert row["guest_rings"] <= 2.1 and row["backend_rings"] <= 2.1, row
    sums = [row["crc32"] for row in rows if "crc32" in row]
    assert len(sums) == (2 if far else 1), rows
END
# The last one that filled it was the second domain, or domain 0: it has what that says.
peer=$(field address $two)
zero "millrace split drive $peer --at /run/split.sock --json --count 5 --sizes 64" >/dev/null || fail "the other domain serves as well"

# It is destroyed while domain 0 works on its memory: an error there, and the first domain serves on.
zero "(millrace split drive $peer --at /run/split.sock --count 100000000 --sizes 4096 >/run/drive.out 2>&1; echo ended \$? >>/run/drive.out) >/dev/null 2>&1 & sleep 2; xl destroy two"
awaits /run/drive.out '^ended [1-9]'
awaits /run/backend.out "\"event\":\"left\".*domain 2.*\"why\":\"ended\"" 3
zero "millrace split drive $server --at /run/split.sock --json --count 5 --sizes 64,65536" >"$scratch/after.json" || fail "the first domain serves no more: $(cat "$scratch/after.json")"

# The backend is killed: the domain's program ends with an error, and so does the domain.
zero "kill -9 \$(cat /run/backend.pid)"
awaits $one '^=ended= [1-9]'
zero "grep 'backend has ended' $one" || fail "what the domain says: $(zero "cat $one")"
zero "cat /run/backend.log" | { grep -i panic && fail "a panic"; } || true
stop_guest zero
