# shellcheck shell=bash
# QEMU guests for the cases: a Linux of its own that reaches the world by a vhost-user interface. After lib.sh.
#
#   start_guest one $(vhost_user client "$scratch/one.sock")
#   guest one ping -c 1 192.0.2.1
#
# What a case sets before it reads this: `guest_kind`, the kernel other than the usual one (scripts/guest-files.sh); `guest_qemu`, another QEMU.

guest_qemu=${guest_qemu:-qemu-system-x86_64}
needs "$guest_qemu"
guest_files=${MILLRACE_GUEST:-${CARGO_TARGET_DIR:-$root/target}/guest}${guest_kind:+-$guest_kind}
[ -e "$guest_files/vmlinuz" ] || skip "there is no kernel for a guest in $guest_files (scripts/setup.sh downloads it)"
declare -A guests=()
# Files of this machine, programs among them, that guests have too.
guest_has=()
# Of this kind are guests that see the files of this machine, and use its programs.
guest_memory=256M guest_sees=() guest_words= guest_machine=pc
if [ "${guest_kind:-}" = router ]; then
    guest_memory=768M guest_words="files=$guest_files"
    guest_sees=(-virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
fi
# How QEMU makes a processor.
guest_processor=(-accel "tcg,thread=multi")
# All waits are for as long as an emulated machine on a busy one may take.
guest_seconds=120

# vhost_user ROLE SOCKET [OPTION...]: QEMU's options for an interface. ROLE is QEMU's: a `client` comes back a second after
# it was cut off, a `server` waits for the card. `queues=N` is for both parts, other options are the device's, such as
# `mac=52:54:00:00:00:01` or `csum=off`.
vhost_user() {
    local role=$1 socket=$2 option queues=1 device='' name
    shift 2
    name=$(basename "$socket" .sock)
    for option; do
        case $option in
        queues=*) queues=${option#*=} ;;
        *) device+=,$option ;;
        esac
    done
    [ "$queues" -eq 1 ] || device+=,mq=on
    case $role in
    client) role=reconnect=1 ;;
    server) role=server=on ;;
    esac
    echo "-chardev socket,id=$name,path=$socket,$role"
    echo "-netdev vhost-user,id=net-$name,chardev=$name,queues=$queues"
    # Without vectors, because QEMU 7.2 dereferences a null pointer when an emulated processor masks one of an interface
    # that has a vhost.
    echo "-device virtio-net-pci,netdev=net-$name,romfile=,vectors=0$device"
}

# What an interface leaves to the card, or takes from it, unless told not to: checksums and segmentation.
no_offloads="csum=off gso=off host_tso4=off host_tso6=off host_ecn=off host_ufo=off"
no_offloads+=" guest_csum=off guest_tso4=off guest_tso6=off guest_ecn=off guest_ufo=off"

# start_guest NAME OPTION...: boots a guest with these options of QEMU, and waits until it takes commands. Its process is
# ${guests[NAME]}, its kernel's console NAME-console.log.
start_guest() {
    launch_guest "$@"
    await_guest "$1"
}

# stop_guest NAME: and waits for its end.
stop_guest() {
    echo "end poweroff -f" 1<>"$scratch/$1-serial.in"
    ended "${guests[$1]}" "$guest_seconds"
}

# guest_is_host NAME N: the interface of the guest is that of host N (network.sh).
guest_is_host() {
    guest "$1" "ip link set eth0 up && ip address add 192.0.2.$2/24 dev eth0 && ip address add 2001:db8::$2/64 dev eth0"
}

# launch_guest NAME OPTION...: as `start_guest`, without waiting for it.
launch_guest() {
    local name=$1
    shift
    [ -e "$scratch/guest.cpio" ] ||
        python3 "$tests/guest/image.py" "$guest_files" "$tests/guest/init" "$scratch/guest.cpio" "${guest_has[@]}"
    # QEMU reads commands from the one and writes answers to the other.
    rm -f "$scratch/$name-serial".*
    mkfifo "$scratch/$name-serial.in"
    : >"$scratch/$name-serial.out"
    # The memory has to be a file that the card can map as well. The kernel's check of its timer fails on a busy machine.
    background "$name-qemu" "$guest_qemu" "${guest_processor[@]}" -nodefaults -no-user-config -nographic -no-reboot \
        -machine "$guest_machine",memory-backend=memory -object memory-backend-memfd,id=memory,size=$guest_memory,share=on -m "$guest_memory" \
        -kernel "$guest_files/vmlinuz" -initrd "$scratch/guest.cpio" -append "console=ttyS0 quiet panic=-1 no_timer_check $guest_words" \
        -serial "file:$scratch/$name-console.log" -serial "pipe:$scratch/$name-serial" "${guest_sees[@]}" "$@"
    guests[$name]=$started
}

# await_guest NAME: until it takes commands.
await_guest() {
    await "$guest_seconds" guest_answered "$1" ready || fail "guest $1 has not booted"
    guest_answered "$1" ready || fail "QEMU has ended"
}

# Also true when there is nothing more to wait for.
guest_answered() {
    grep -q "^=$2= " "$scratch/$1-serial.out" || is_gone "${guests[$1]}"
}

# guest NAME COMMAND...: a line for the guest's shell, of which lines of ours become one; prints what it says, and returns its exit code.
guest() {
    local name=$1 tag answer
    shift
    # In a subshell, where a counter would not come back from.
    tag=$(date +%s%N)
    # Opened for both, so that this does not wait for a QEMU that has ended.
    echo "$tag ${*//$'\n'/ }" 1<>"$scratch/$name-serial.in"
    await "$guest_seconds" guest_answered "$name" "$tag" || fail "guest $name does not answer: $*"
    is_gone "${guests[$name]}" && fail "guest $name has ended at: $*"
    answer=$(sed -n "/^=$tag= /{s///p;q}" "$scratch/$name-serial.out")
    # From the end of the answer before to our own tag, without the empty line between.
    awk -v tag="=$tag=" '$1 == tag { exit } /^=[0-9a-z]+= [0-9]+$/ { text = ""; next } { text = text $0 "\n" }
        END { sub(/\n$/, "", text); printf "%s", text }' "$scratch/$name-serial.out"
    return "$answer"
}

# passed: frames that TX queue 0 of the card has sent, whatever card it was in.
passed() {
    "$millrace" stats --json | python3 -c 'import json, sys
for queue in json.load(sys.stdin)["queues"]:
    if queue["queue"] == "tx0": print(queue["passed"])'
}

# has_passed COUNT: as many at least.
has_passed() {
    local now
    now=$(passed 2>/dev/null) && [ "$now" -ge "$1" ]
}
