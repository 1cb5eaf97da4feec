# shellcheck shell=bash
# Xen with a domain 0 and domains of Debian's kernel in an emulated machine, for the cases. After lib.sh.
#
#   domain_has COMMAND...   programs of this machine that domains have; first of all
#   launch_xen && start_zero
#   configure one COMMAND   a domain that does that, and ends: "$scratch/one.cfg"

guest_kind=xen
. "$tests/guest.sh"
needs strip base64
tools=$guest_files/tools
# Without what is for debuggers, which all domains would load.
strip -o "$scratch/millrace" "$millrace"

# domain_has FILE...: what each domain begins with: busybox, the drivers that grant, and these.
domain_has() {
    mkdir "$scratch/domain"
    for file in busybox xen-evtchn.ko xen-gntalloc.ko; do ln -s "$guest_files/$file" "$scratch/domain"; done
    printf '%s\n' xen-evtchn xen-gntalloc >"$scratch/domain/modules"
    python3 "$tests/guest/image.py" "$scratch/domain" "$tests/guest/domain" "$scratch/domain.cpio" "$@"
}

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

# start_zero: domain 0 takes commands, and has XenStore.
start_zero() {
    await_guest zero
    zero "mount -t xenfs xenfs /proc/xen && grep -q control_d /proc/xen/capabilities" || fail "this is no domain 0"
    zero "mount -t tmpfs tmpfs /var; mkdir -p /var/lib/xen /var/log/xen /run/xen /run/lock /dev/pts; ln -s /run /var/run; ln -s /run/lock /var/lock;
        mount -t devpts devpts /dev/pts; xenstored && xen-init-dom0 && xenconsoled --log=guest --log-dir=/var/log/xen" || fail "XenStore does not run"
}
