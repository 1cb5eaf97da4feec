#!/usr/bin/env bash
# The split driver under Xen itself: hypervisor, domain 0 and two domains of Debian's kernel in an emulated machine. Backend in domain 0; bytes between domain 0 and a
# domain, and between two domains, each copied once, with no page granted and no call of the hypervisor for a transfer of a busy pair; and from a domain over a port to a guest
# of another backend; a program that is killed, a domain that is destroyed and a backend that is killed are noticed by those that are left, who go on.
# long: it boots three machines in an emulated one
guest_kind=xen
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
needs strip base64
tools=$guest_files/tools
# Without what is for debuggers, which all domains would load.
strip -o "$scratch/millrace" "$millrace"

# What each domain begins with: busybox, the drivers that grant, and this command.
mkdir "$scratch/domain"
for file in busybox xen-evtchn.ko xen-gntalloc.ko; do ln -s "$guest_files/$file" "$scratch/domain"; done
printf '%s\n' xen-evtchn xen-gntalloc >"$scratch/domain/modules"
python3 "$tests/guest/image.py" "$scratch/domain" "$tests/guest/domain" "$scratch/domain.cpio" "$scratch/millrace"

# launch_xen: an emulated machine that boots Xen and domain 0, which sees the files of this machine.
launch_xen() {
    python3 "$tests/guest/image.py" "$guest_files" "$tests/guest/init" "$scratch/guest.cpio"
    mkfifo "$scratch/zero-serial.in"
    : >"$scratch/zero-serial.out"
    # Domain 0 dies of what the largest model of a processor has (SMAP).
    background zero-qemu qemu-system-x86_64 -accel tcg,thread=multi -cpu qemu64 -nodefaults -no-user-config -nographic -no-reboot -m 1200M \
        -kernel "$guest_files/xen" -append "console=com1 com1=115200,8n1 dom0_mem=448M loglvl=warning" \
        -initrd "$guest_files/vmlinuz console=hvc0 quiet panic=-1 files=$guest_files,$scratch/guest.cpio" \
        -serial "file:$scratch/zero-console.log" -serial "pipe:$scratch/zero-serial" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap
    guests[zero]=$started
}

# configure NAME COMMAND: a domain that does that, and ends.
configure() {
    printf '%s\n' "name='$1'" "memory=192" "vcpus=1" "type='pv'" "kernel='$guest_files/vmlinuz'" "ramdisk='$scratch/domain.cpio'" \
        "on_crash='destroy'" "extra='console=hvc0 quiet panic=-1 run=$(base64 -w0 <<<"$2")'" >"$scratch/$1.cfg"
}

# zero COMMAND...: in domain 0.
zero() {
    guest zero "export LD_LIBRARY_PATH=$tools PATH=\$PATH:$tools:$scratch; $*"
}

# awaits FILE PATTERN [COUNT]: until a file of domain 0 has so many such lines; in it, because each question takes its time.
awaits() {
    zero "n=0; until [ \$(cat $1 2>/dev/null | grep -c '$2') -ge ${3:-1} ]; do n=\$((n + 1)); [ \$n -lt 600 ] || exit 1; sleep 0.2; done" ||
        fail "no $2 in $1: $(zero "cat $1 /run/backend.log; xl list")"
}

# field NAME FILE: of the last JSON object of a file of domain 0 that has it.
field() {
    zero "cat $2" | sed -n "s/.*\"$1\":\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" | tail -n 1
}

launch_xen
await_guest zero
zero "mount -t xenfs xenfs /proc/xen && grep -q control_d /proc/xen/capabilities" || fail "this is no domain 0"
zero "mount -t tmpfs tmpfs /var; mkdir -p /var/lib/xen /var/log/xen /run/xen /run/lock /dev/pts; ln -s /run /var/run; ln -s /run/lock /var/lock;
    mount -t devpts devpts /dev/pts; xenstored && xen-init-dom0 && xenconsoled --log=guest --log-dir=/var/log/xen" || fail "XenStore does not run"
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
