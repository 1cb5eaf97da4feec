#!/usr/bin/env bash
# Verbs programs of Debian in two virtual machines of stock QEMU and on the host, over memory that they share (split=ivshmem:): no driver, and nothing of the
# machine's kernel takes part. A program that is killed, and a machine that is killed, are noticed by those that are left, who go on.
. "$(dirname "$0")/../lib.sh"
. "$tests/guest.sh"
. "$tests/verbs.sh"
needs rping stdbuf strip cc
guest_memory=384M
pings=10

for library in libibverbs.so.1 librdmacm.so.1 libmillrace-memory.so; do
    [ -e "$verbs_library/$library" ] || skip "$verbs_library/$library has not been built; \`make build\` does that"
    strip -o "$scratch/$library" "$verbs_library/$library"
done
[ -e /usr/include/infiniband/verbs.h ] || skip "there is no infiniband/verbs.h (Debian's package libibverbs-dev)"
cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o "$scratch/own-memory" "$tests/c/own-memory.c" -L"$verbs_library" -l:libibverbs.so.1 -lpthread
# A server says that it listens, at once and not when it ends.
guest_has=("$(command -v rping)" "$(command -v ibv_rc_pingpong)" "$(command -v ib_write_bw)" "$scratch"/{libibverbs.so.1,librdmacm.so.1,libmillrace-memory.so,own-memory}
    "$(command -v stdbuf)" /usr/libexec/coreutils/libstdbuf.so)
socket=$scratch/iv.sock
background server "$millrace" ivshmem "$socket" --peers 6 --vectors 1 --memory 64 --json
await 10 "$millrace" ivshmem status "$socket" --json >/dev/null 2>&1 || fail "there is no server"
background backend "$millrace" split backend --ivshmem "$socket" --json

# Programs that tell each other numbers by TCP do so by QEMU's own network: the host is 10.0.2.2 there, and leads to the first machine by that port.
port=$((26000 + $$ % 1000))
starts() {
    launch_guest "$1" -chardev "socket,path=$socket,id=iv" -device ivshmem-doorbell,chardev=iv,vectors=1 \
        -netdev "user,id=net$2" -device "virtio-net-pci,netdev=net,romfile="
}
starts one ",hostfwd=tcp:127.0.0.1:$port-:18515"
starts two ""
for name in one two; do
    await_guest "$name"
    guest "$name" 'ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0' || fail "the machine $name has no network"
done

words="LD_LIBRARY_PATH=$scratch LD_PRELOAD=libmillrace-memory.so MILLRACE_VERBS=split=ivshmem:pci"
# at NAME COMMAND...: in the machine; what it says is in /tmp/client there.
at() {
    guest "$1" "$words timeout 120 ${*:2} >/tmp/client 2>&1" || fail "machine $1: ${*:2}: $(guest "$1" 'tail -n 5 /tmp/client'), and the server: $(guest one 'tail -n 5 /tmp/server')"
}
# on_host COMMAND...: on the host, as a peer of the machines.
on_host() {
    MILLRACE_VERBS="split=ivshmem:$socket" LD_PRELOAD=$verbs_library/libmillrace-memory.so ours timeout 120 "$@" >"$scratch/client.out" 2>"$scratch/client.log" ||
        fail "the host: $*: $(tail -n 5 "$scratch"/client.*), and the server: $(guest one 'tail -n 5 /tmp/server')"
}
# pings COMMAND...: a server of the first machine, which is called by TCP.
pongs() {
    guest one "$words timeout 200 $* >/tmp/server 2>&1 & echo \$! >/tmp/serving"
    await "$guest_seconds" guest one "netstat -ltn | grep -q :18515 || ! kill -0 \$(cat /tmp/serving)" || fail "the machine does not listen: $(guest one 'cat /tmp/server')"
}
# served: that server has ended well.
served() {
    guest one "for i in \$(seq 600); do kill -0 \$(cat /tmp/serving) 2>/dev/null || break; sleep 0.1; done; ! kill -0 \$(cat /tmp/serving) 2>/dev/null" ||
        fail "the server has not ended: $(guest one 'tail -n 5 /tmp/server')"
}
# answers: rping of the first machine waits for somebody to connect.
answers() {
    guest one "$words timeout 200 stdbuf -oL rping -d -s -a 198.19.255.253 -C $pings -V >/tmp/server 2>&1 & echo \$! >/tmp/serving"
    await "$guest_seconds" guest one "grep -q rdma_listen /tmp/server || ! kill -0 \$(cat /tmp/serving)" || fail "rping does not listen: $(guest one 'tail -n 5 /tmp/server')"
}
answered() {
    served
    [ "$(guest one 'grep -c "server rdma write complete" /tmp/server')" = "$pings" ] || fail "rping: $(guest one 'tail -n 5 /tmp/server')"
}

pongs ibv_rc_pingpong -g 0 -c -n 50
at two ibv_rc_pingpong -g 0 -c -n 50 -p "$port" 10.0.2.2
served
pongs ibv_rc_pingpong -g 0 -c -n 50 -s 65536 -e
at two ibv_rc_pingpong -g 0 -c -n 50 -s 65536 -e -p "$port" 10.0.2.2
served
answers
at two rping -c -a 198.19.255.253 -C $pings -V
answered
echo "one machine reaches another"

# What a program has there, and its children, in pages of a device.
at two "$scratch/own-memory"
guest two 'grep -q "have no room in the memory that can be registered" /tmp/client' || fail "it is not said that there is no room: $(guest two cat /tmp/client)"
echo "memory of a program in a machine"

pongs ibv_rc_pingpong -g 0 -c -n 50
on_host ibv_rc_pingpong -g 0 -c -n 50 -p "$port" localhost
served
answers
on_host rping -c -a 198.19.255.253 -C $pings -V
answered
echo "the host reaches a machine"

# A program of a machine is killed while the host writes into its memory: an error there, and the next program of the machine has the same memory at once.
pongs ib_write_bw -D 100 -p 18515
background writer env MILLRACE_VERBS="split=ivshmem:$socket" LD_PRELOAD="$verbs_library/libmillrace-memory.so" LD_LIBRARY_PATH="$verbs_library" \
    timeout 120 stdbuf -oL ib_write_bw -D 100 -p "$port" localhost
writer=$started
await 30 grep -qs "remote address" "$scratch/writer.out" || fail "the writer is not connected: $(tail -n 3 "$scratch"/writer.*)"
guest one 'kill -9 $(pidof ib_write_bw)' || fail "there is nothing to be killed"
served
pongs ibv_rc_pingpong -g 0 -c -n 50
at two ibv_rc_pingpong -g 0 -c -n 50 -p "$port" 10.0.2.2
served
ended "$writer" 30
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "the writer does not see that its target was killed: $code"
echo "a program is killed"

answers
slay "${guests[two]}"
on_host rping -c -a 198.19.255.253 -C $pings -V
answered
slay "${guests[one]}"
background server2 env MILLRACE_VERBS="split=ivshmem:$socket" LD_PRELOAD="$verbs_library/libmillrace-memory.so" LD_LIBRARY_PATH="$verbs_library" \
    timeout 120 stdbuf -oL rping -d -s -a 198.19.255.253 -C $pings -V
last=$started
await 30 grep -qs rdma_listen "$scratch/server2.out" || fail "rping does not listen: $(tail -n 5 "$scratch"/server2.*)"
MILLRACE_VERBS="split=ivshmem:$socket" LD_PRELOAD=$verbs_library/libmillrace-memory.so ours timeout 120 rping -c -a 198.19.255.253 -C $pings -V >"$scratch/client.out" 2>&1 ||
    fail "the host reaches itself no more: $(tail -n 5 "$scratch/client.out" "$scratch"/server2.*)"
ended "$last" 60
[ "$code" -eq 0 ] || fail "the last server ends with $code"
echo "machines are killed"
