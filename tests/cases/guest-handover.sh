#!/usr/bin/env bash
# A card takes over from another, several times, while a virtual machine that has its PCI function sends frames round: each comes back whole and in order, the machine
# is told nothing, and programs of the host find the next card where the one before was. A card that may not take over changes nothing.
. "$(dirname "$0")/../lib.sh"
guest_qemu=${CARGO_TARGET_DIR:-$root/target}/qemu-vfio-user/qemu
[ -x "$guest_qemu" ] || skip "there is no $guest_qemu (scripts/setup.sh downloads it)"
. "$tests/guest.sh"
needs cc xz python3
guest_machine=q35
# Of a round, after which the guest's program starts its queues anew.
frames=100000

"$millrace" card --help | grep -q -- --take-over || fail "the help does not say --take-over"
cc -O2 -Wall -Werror -static -o "$scratch/pci" "$tests/guest/pci.c"
guest_has=("$scratch/pci")
socket=$scratch/card.sock
# card_of NAME [OPTION...]: a card in the background, always with the same options and these.
card_of() {
    local name=$1
    shift
    background "$name" "$millrace" card --json --listen "$socket" --queues 2 --vfio-user "$scratch/pci.sock,functions=2" "$@"
}
# listens NAME: the card has said so.
listens() {
    grep -q listening "$scratch/$1.out"
}
# refused TEXT COMMAND...: with that in what it says.
refused() {
    local text=$1 said
    shift
    said=$(timeout 60 "$@" 2>&1) && fail "not refused: $*"
    [[ $said == *"$text"* ]] || fail "$*: $said"
}

refused "no card with functions is there" "$millrace" card --listen "$socket" --vfio-user "$scratch/pci.sock" --take-over
refused "it takes --vfio-user" "$millrace" card --listen "$socket" --take-over
card_of card0
card=$started
await 10 listens card0 || fail "the card does not listen"
export MILLRACE_DEVICE=unix:$socket
start_guest one -device pcie-root-port,id=express,slot=1 \
    -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"express\",\"socket\":{\"type\":\"unix\",\"path\":\"$scratch/pci.sock.0\"}}"
guest one "ln -s $scratch/pci /bin/pci"
function=$(guest one 'echo 8 >/proc/sys/vm/nr_hugepages; f=$(pci find); pci tree $f >/tmp/tree.xz && xz -dc /tmp/tree.xz >/tmp/tree && echo $f') ||
    fail "no tree: $function"
guest one "(while [ ! -e /tmp/enough ] && pci loopback $function /tmp/tree $frames >>/tmp/log 2>&1; do :; done; echo >/tmp/over) & true"

# moves: some frames more.
moves() {
    local before
    before=$(passed)
    await 30 has_passed $((before + 200)) || fail "the guest sends nothing: $(guest one 'cat /tmp/log')"
}
moves
for number in 1 2 3 4 5; do
    before=$(passed)
    card_of "card$number" --take-over
    next=$started
    await 30 listens "card$number" || fail "the card does not take over: $(tail -n 3 "$scratch/card$number"*)"
    ended "$card" 20
    [ "$code" -eq 0 ] || fail "the card that was taken over from has ended with $code"
    card=$next
    [ "$(passed)" -ge "$before" ] || fail "the queue counts anew"
    moves
    if [ "$number" = 3 ]; then
        # Others that would: one with other queues, and one that programs would find elsewhere.
        refused "start it with the options of this card" "$millrace" card --listen "$socket" --queues 4 --vfio-user "$scratch/pci.sock,functions=2" --take-over
        refused "start it with --listen" "$millrace" card --listen "$socket.other" --queues 2 --vfio-user "$scratch/pci.sock,functions=2" --take-over
        is_gone "$card" && fail "the card has ended, and nobody has taken over"
        moves
    fi
done
over() {
    [ "$(guest one 'ls /tmp/over 2>/dev/null')" = /tmp/over ]
}
guest one "touch /tmp/enough"
await 60 over || fail "the guest does not come to an end: $(passed) frames"
said=$(guest one "grep -v '^frames $frames ' /tmp/log") && fail "the guest: $said"
echo "$(guest one 'wc -l </tmp/log') times $frames frames in six cards"
# What the machine does afterwards the last card does.
said=$(guest one "pci loopback $function /tmp/tree 2000") || fail "started anew in the last card: $said"
stop_guest one
left() {
    grep -q "has left the PCI function" "$scratch"/card5.log
}
await 30 left || fail "the last card does not notice that the machine has gone"
kill "$card"
ended "$card" 20
[ ! -e "$socket" ] && [ ! -e "$scratch/pci.sock.0" ] && [ ! -e "$scratch/pci.sock.handover" ] || fail "sockets are left behind"
