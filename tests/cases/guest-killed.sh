#!/usr/bin/env bash
# A card with a keeper is killed ten times, with SIGKILL, while a virtual machine that has its PCI function sends frames round: its queues go on where they were in the next
# card, the machine is told nothing, and programs of the host find the next card at the same socket. What cannot be kept is refused.
. "$(dirname "$0")/../lib.sh"
guest_qemu=${CARGO_TARGET_DIR:-$root/target}/qemu-vfio-user/qemu
[ -x "$guest_qemu" ] || skip "there is no $guest_qemu (scripts/setup.sh downloads it)"
. "$tests/guest.sh"
needs cc xz python3
guest_machine=q35
kills=10

"$millrace" card --help | grep -q -- --keep || fail "the help does not say --keep"
cc -O2 -Wall -Werror -static -o "$scratch/pci" "$tests/guest/pci.c"
guest_has=("$scratch/pci")
socket=$scratch/card.sock
# refused TEXT COMMAND...: with that in what it says.
refused() {
    local text=$1 said
    shift
    said=$(timeout 60 "$@" 2>&1) && fail "not refused: $*"
    [[ $said == *"$text"* ]] || fail "$*: $said"
}
refused "it takes --vfio-user" "$millrace" card --listen "$socket" --keep
refused "leave --take-over out" "$millrace" card --listen "$socket" --vfio-user "$scratch/pci.sock" --keep --take-over
refused "queues of Medusa only" "$millrace" card --listen "$socket" --engine dd --vfio-user "$scratch/pci.sock" --keep
refused "only a card with --keep" "$millrace" card --listen "$socket" --vfio-user "$scratch/pci.sock" --kept </dev/null
# The first card says what is wrong, and there is no second one.
refused "no/such/folder" "$millrace" card --listen "$scratch/no/such/folder/card.sock" --vfio-user "$scratch/pci.sock" --keep
[ ! -e "$scratch/pci.sock" ] || fail "a socket is left behind"

background keeper "$millrace" card --json --listen "$socket" --queues 2 --vfio-user "$scratch/pci.sock,functions=2" --keep
keeper=$started
# cards: how many have said that they listen.
cards() {
    grep -c listening "$scratch/keeper.out"
}
has_cards() {
    [ "$(cards)" -ge "$1" ]
}
await 10 has_cards 1 || fail "the card does not listen"
# pid: of the card that has said so last.
pid() {
    tail -n 1 "$scratch/keeper.out" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'
}
export MILLRACE_DEVICE=unix:$socket
start_guest one -device pcie-root-port,id=express,slot=1 \
    -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"express\",\"socket\":{\"type\":\"unix\",\"path\":\"$scratch/pci.sock.0\"}}"
guest one "ln -s $scratch/pci /bin/pci"
function=$(guest one 'echo 8 >/proc/sys/vm/nr_hugepages; f=$(pci find); pci tree $f >/tmp/tree.xz && xz -dc /tmp/tree.xz >/tmp/tree && echo $f') ||
    fail "no tree: $function"
guest one "(while [ ! -e /tmp/enough ] && pci loopback $function /tmp/tree 20000 >>/tmp/log 2>&1; do :; done; echo >/tmp/over) & true"

# refusals: messages of machines that this card has refused.
refusals() {
    "$millrace" stats --json | python3 -c 'import json, sys
events = [event for function in json.load(sys.stdin)["functions"] for event in function["events"]]
print(sum(event["count"] for event in events if event["reason"] == "refused-messages"))'
}
# moves: some frames more.
moves() {
    local before
    before=$(passed) || return 1
    await 30 has_passed $((before + 200)) || fail "the guest sends nothing: $(guest one 'cat /tmp/log')"
}
moves
# Programs of the host that would have the machine's queue, and call again and again: none is to have it between two cards.
for thief in 1 2 3; do
    while [ ! -e "$scratch/enough" ]; do "$millrace" generate -i 0 -n 1 >/dev/null 2>&1 || true; done &
    pids+=("$!")
done
for number in $(seq "$kills"); do
    kill -KILL "$(pid)"
    await 30 has_cards $((number + 1)) || fail "there is no card $((number + 1)): $(tail -n 3 "$scratch"/keeper.log)"
    await 30 moves || fail "nothing goes on after kill $number"
    # What was done again was done as before.
    [ "$(refusals)" -eq 0 ] || fail "card $((number + 1)) has refused $(refusals) messages"
done
touch "$scratch/enough"
over() {
    [ "$(guest one 'ls /tmp/over 2>/dev/null')" = /tmp/over ]
}
guest one "touch /tmp/enough"
await 60 over || fail "the guest does not come to an end: $(passed) frames"
said=$(guest one "grep -v '^frames 20000 ' /tmp/log") && fail "the guest: $said"
echo "$(guest one 'wc -l </tmp/log') times 20000 frames in $((kills + 1)) cards"
said=$(guest one "pci loopback $function /tmp/tree 2000") || fail "started anew in the last card: $said"
stop_guest one
# Not by its log, of which lines are left out when there are so many as those of the programs.
left() {
    "$millrace" stats --json | python3 -c 'import json, sys
sys.exit(any(queue["holders"] for queue in json.load(sys.stdin)["queues"]))'
}
await 30 left || fail "the last card does not notice that the machine has gone"
last=$(pid)
kill "$keeper"
ended "$keeper" 20
[ "$code" -eq 0 ] || fail "the keeper ends with $code"
is_gone "$last" || fail "the card outlives its keeper"
[ ! -e "$socket" ] && [ ! -e "$scratch/pci.sock.0" ] && [ ! -e "$scratch/pci.sock.1" ] || fail "sockets are left behind"

# A card whose keeper is killed does not stay.
background keeper2 "$millrace" card --json --listen "$socket" --vfio-user "$scratch/pci.sock" --keep
keeper=$started
listens2() {
    grep -q listening "$scratch/keeper2.out"
}
await 10 listens2 || fail "the card does not listen"
last=$(python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["pid"])' "$scratch/keeper2.out")
slay "$keeper"
ends() {
    is_gone "$last"
}
await 20 ends || fail "the card outlives its keeper, which was killed"
