#!/usr/bin/env bash
# Where ends of the socket library leave word for each other: when somebody else was first with the folder in /dev/shm, the folder of the
# session is used, or the one that XDG_RUNTIME_DIR names; a folder that others can look into is not; and with none, the kernel does it all.
. "$(dirname "$0")/../lib.sh"
if [ "${1:-}" != inside ]; then
    needs unshare mount /usr/bin/python3
    is_root || skip "folders of somebody else take root"
    unshare -m true 2>/dev/null || skip "a mount namespace cannot be made here"
    export MILLRACE=$millrace
    code=0
    unshare -m bash "$0" inside || code=$?
    exit "$code"
fi
. "$tests/socket.sh"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
first=/dev/shm/millrace-streams-0

# talk MET REASON: a connection that carries bytes both ways; how many of its two ends have met, and why the others have not.
talk() {
    rm -f "$scratch/stats"
    LD_PRELOAD=$library timeout 20 /usr/bin/python3 - <<'END' || fail "the connection does not work ($*)"
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    end = socket.create_connection(listener.getsockname())
    for turn in range(5):
        end.sendall(b"word")
        assert end.recv(4, socket.MSG_WAITALL) == b"answ"
    os._exit(0)
end = listener.accept()[0]
for turn in range(5):
    assert end.recv(4, socket.MSG_WAITALL) == b"word"
    end.sendall(b"answ")
assert os.wait()[1] == 0
END
    [ "$(counted python3 met)" = "$1" ] || fail "$(counted python3 met) ends have met instead of $1: $(cat "$scratch/stats")"
    [ "$(python3 -c 'import json, sys
print(sum(json.loads(line)["kernel"]["folder"] for line in open(sys.argv[1])))' "$scratch/stats")" = "${2:-0}" ] || fail "reasons: $(cat "$scratch/stats")"
}

talk 2
[ "$(stat -c %a:%u $first)" = 700:0 ] || fail "the folder: $(stat -c %a:%u $first)"

# Somebody else was first: with a folder, a link to a folder of ours, a file, a folder of ours that all may write to.
as_another() {
    rm -rf $first
    "$@"
    chown -h 65534 $first
}
ours() {
    rm -rf $first
    mkdir -m 777 $first
}
mkdir -m 700 "$scratch/mine"
for way in "as_another mkdir -m 700 $first" "as_another mkdir -m 777 $first" "as_another ln -s $scratch/mine $first" "as_another touch $first" ours; do
    $way
    rm -rf /run/user
    talk 0 2
    XDG_RUNTIME_DIR=$scratch/mine talk 2
    XDG_RUNTIME_DIR=mine talk 0 2
    mkdir -p /run/user
    mkdir -m 700 /run/user/0
    talk 2
    [ "$(ls /run/user/0)" = millrace-streams ] || fail "the folder of the session was not used"
    chmod 755 /run/user/0
    talk 0 2
    chmod 700 /run/user/0
    chown 65534 /run/user/0
    talk 0 2
done
[ -z "$(find $first -type l)" ] || fail "a link was left in a folder that others can write to"

# In a folder where anybody can rename what others have, nothing is kept.
rm -rf $first /run/user
chmod 777 /dev/shm
talk 0 2
