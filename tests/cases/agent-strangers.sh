#!/usr/bin/env bash
# The card's socket is in a folder for all: what another user has put beside it is not the agent's. A state file of his is refused, a FIFO keeps nobody
# waiting, a lock of his nobody out, and a socket of his is not asked. What an older version has left is taken up, if it is this user's.
. "$(dirname "$0")/../lib.sh"
needs setpriv python3 mkfifo ip
[ "$(id -u)" -eq 0 ] || skip "only root can be two users"
private_network "$@"
ip link set lo up

cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch" "$scratch/millrace"
folder=$scratch/for-all
mkdir "$folder"
chmod 1777 "$folder"
control=$folder/millrace-7777-agent-7777.sock
victim=(setpriv --reuid 7777 --regid 7777 --clear-groups env -i TMPDIR="$folder" PATH=/usr/bin:/bin "$scratch/millrace")
background card "${victim[@]}" card --port null --queues 2
card=$started
await 20 test -S "$folder/millrace-7777.sock" || fail "no card: $(cat "$scratch/card.log")"
state=$folder/millrace-agent-$card-7777.state

# refused WORDS: an agent ends soon, and says so.
refused() {
    local code=0
    timeout 20 "${victim[@]}" agent --listen ptcp:6699:127.0.0.1 >"$scratch/said" 2>&1 || code=$?
    [ "$code" -eq 1 ] || fail "an agent ended with $code: $(cat "$scratch/said")"
    grep -qF -- "$1" "$scratch/said" || fail "it does not say: $1; but: $(cat "$scratch/said")"
}
# An echo request, which names the card, is what a state file begins with.
printf '\004\002\000\010\000\000\000\000' >"$state"
chown 7778 "$state"
refused "user 7778 has put it there"
rm "$state"
mkfifo -m 666 "$state"
chown 7778 "$state"
refused "no regular file"
rm "$state"

python3 - "$folder/millrace-agent-$card-7777.lock" "$control" >"$scratch/stranger" <<'P' &
import fcntl, os, socket, sys, time
os.umask(0)
lock = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o666)
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen()
for path in sys.argv[1:]:
    os.chown(path, 7778, 7778)
print("there", flush=True)
listener.accept()
print("asked", flush=True)
time.sleep(1000)
P
stranger=$!
pids+=("$stranger")
await 20 grep -q there "$scratch/stranger" || fail "the stranger does not hold the lock"
background agent "${victim[@]}" agent --listen ptcp:6698:127.0.0.1
agent=$started
await 20 grep -q "controllers may connect" "$scratch/agent.log" || fail "a stranger keeps the agent out: $(cat "$scratch/agent.log")"
grep -q "a second agent would not be noticed" "$scratch/agent.log" || fail "that it has no lock is not said: $(cat "$scratch/agent.log")"
! "${victim[@]}" agent status >"$scratch/said" 2>&1 || fail "the status is a stranger's"
grep -q "user 7778 has put it there" "$scratch/said" || fail "it says: $(cat "$scratch/said")"
! grep -q asked "$scratch/stranger" || fail "a stranger was asked"
kill -INT "$agent"
ended "$agent" 20
kill "$stranger"

# Without strangers all of it is there.
rm -f "$control" "$folder/millrace-agent-$card-7777.lock"
background alone "${victim[@]}" agent --listen ptcp:6698:127.0.0.1
agent=$started
await 20 "${victim[@]}" agent status >"$scratch/said" 2>&1 || fail "the agent does not answer: $(cat "$scratch/said" "$scratch/alone.log")"
[ "$(stat -c %u "$state")" -eq 7777 ] || fail "there is no state"
refused "an agent runs already"

# Another card has an agent of its own, and who names a card finds its agent.
mkdir "$folder/own"
chown 7777 "$folder/own"
background other-card "${victim[@]}" card --port null --queues 2 --listen "$folder/own/other.sock"
other_card=$started
await 20 test -S "$folder/own/other.sock" || fail "no other card: $(cat "$scratch/other-card.log")"
background other "${victim[@]}" agent --device "unix:$folder/own/other.sock" --listen ptcp:6697:127.0.0.1
other=$started
of_other=("${victim[@]}" agent status --device "unix:$folder/own/other.sock")
await 20 "${of_other[@]}" >"$scratch/said" 2>&1 || fail "the other agent does not answer: $(cat "$scratch/said" "$scratch/other.log")"
[ -S "$folder/own/other-agent-7777.sock" ] || fail "it is not asked beside its card: $(ls "$folder/own")"
[ -f "$folder/own/millrace-agent-$other_card-7777.state" ] || fail "its state is not beside its card: $(ls "$folder/own")"
kill -INT "$other"
ended "$other" 20
! "${of_other[@]}" >"$scratch/said" 2>&1 || fail "another agent answers for this card"
"${victim[@]}" agent status >"$scratch/said" 2>&1 || fail "the first agent does not answer: $(cat "$scratch/said")"
kill -INT "$other_card"
ended "$other_card" 20
kill -INT "$agent"
ended "$agent" 20

# An older version had no user in the name of its state: whose it is says whether it is taken up. With one entry, which matches everything.
old=$folder/millrace-agent-$card.state
mv "$state" "$old"
printf '\4\16\0\70\0\0\0\0' >>"$old"
printf '\0%.0s' {1..24} >>"$old"
printf '\377%.0s' {1..12} >>"$old"
printf '\0\0\0\0\0\1\0\4\0\0\0\0' >>"$old"
for owner in 7778 7777; do
    chown "$owner" "$old"
    background "upgraded-$owner" "${victim[@]}" agent --listen ptcp:6698:127.0.0.1
    agent=$started
    await 20 grep -q "controllers may connect" "$scratch/upgraded-$owner.log" || fail "the agent does not begin: $(cat "$scratch/upgraded-$owner.log")"
    kill -INT "$agent"
    ended "$agent" 20
    rm "$state"
done
! grep -q "took up" "$scratch/upgraded-7778.log" || fail "a state of somebody else is taken up: $(cat "$scratch/upgraded-7778.log")"
grep -q "took up 1 entries" "$scratch/upgraded-7777.log" || fail "the state of an older version is not taken up: $(cat "$scratch/upgraded-7777.log")"
kill -INT "$card"
ended "$card" 20
