#!/usr/bin/env bash
# Verbs programs of Debian in domains of Xen (split=xen): what they allocate are pages of gntalloc from the first, granted to domain 0, whose backend moves the bytes
# between two domains, and between a domain and domain 0 itself (over memory that a server of ivshmem shares there). A program that is killed frees what it had.
# alone: it boots three machines in an emulated one, which has too little of the processor beside others
. "$(dirname "$0")/../lib.sh"
. "$tests/xen.sh"
. "$tests/verbs.sh"
needs rping stdbuf cc
for library in libibverbs.so.1 librdmacm.so.1 libmillrace-memory.so; do
    [ -e "$verbs_library/$library" ] || skip "$verbs_library/$library has not been built; \`make build\` does that"
    strip -o "$scratch/$library" "$verbs_library/$library"
done
[ -e /usr/include/infiniband/verbs.h ] || skip "there is no infiniband/verbs.h (Debian's package libibverbs-dev)"
cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o "$scratch/own-memory" "$tests/c/own-memory.c" -L"$verbs_library" -l:libibverbs.so.1 -lpthread
pings=10
words="export LD_LIBRARY_PATH=$scratch; ip link set lo up"
with="LD_PRELOAD=libmillrace-memory.so MILLRACE_VERBS=split=xen"
serves="$with stdbuf -oL rping -d -s -a 198.19.255.253 -C $pings -V"
calls="rping -c -a 198.19.255.253 -C $pings -V"

# What domains do is in files: the command line of a kernel has room for less. In the first one two programs reach each other, after one that is killed; then it serves
# the other domain, and then domain 0.
cat >"$scratch/one.sh" <<END
$words
$with ibv_rc_pingpong -g 0 -c -n 1000000000 >/tmp/killed 2>&1 &
until netstat -ltn | grep -q :18515; do usleep 50000; done
kill -9 \$!
$with ibv_rc_pingpong -g 0 -c -n 50 -e >/tmp/pong 2>&1 &
until netstat -ltn | grep -q :18515; do usleep 50000; done
$with ibv_rc_pingpong -g 0 -c -n 50 127.0.0.1 && wait \$!
echo both \$?
tail -n 3 /tmp/pong
echo 4096 >/sys/module/xen_gntalloc/parameters/limit
$with $scratch/own-memory
echo own \$?
$serves
echo served \$?
$serves
echo served \$?
END
cat >"$scratch/two.sh" <<END
$words
$with $calls
echo called \$?
END
domain_has "$(command -v rping)" "$(command -v ibv_rc_pingpong)" "$scratch"/{libibverbs.so.1,librdmacm.so.1,libmillrace-memory.so,own-memory,one.sh,two.sh} \
    "$(command -v stdbuf)" /usr/libexec/coreutils/libstdbuf.so

launch_xen
start_zero
zero "(millrace ivshmem /run/iv.sock --peers 4 --vectors 1 --memory 32 >/run/iv.out 2>&1 & until [ -e /run/iv.sock ]; do sleep 0.1; done;
    millrace split backend --xen --ivshmem /run/iv.sock --json >/run/backend.out 2>/run/backend.log & echo \$! >/run/backend.pid)"

one=/var/log/xen/guest-one.log two=/var/log/xen/guest-two.log
configure one "sh $scratch/one.sh"
configure two "sh $scratch/two.sh"
zero "xl create $scratch/one.cfg" || fail "xl create: $(zero "tail -n 5 /var/log/xen/*")"
awaits $one '^both'
awaits $one '^both 0'
zero "grep -q '\"event\":\"left\".*domain 1.*\"why\":\"ended\"' /run/backend.out" || fail "a program that was killed: $(zero cat /run/backend.out)"
echo "two programs of a domain"
awaits $one '^own'
awaits $one '^own 0'
zero "grep -q 'have no room in the memory that can be registered' $one" || fail "it is not said that there is no room: $(zero cat $one)"
echo "memory of a program in a domain"

awaits $one rdma_listen
zero "xl create $scratch/two.cfg" || fail "xl create: $(zero "tail -n 5 /var/log/xen/*")"
awaits $two '^called'
awaits $two '^called 0'
awaits $one '^served 0'
[ "$(zero "grep -c 'server rdma write complete' $one")" = $pings ] || fail "the server has not written: $(zero "tail -n 5 $one")"
echo "two domains"

awaits $one rdma_listen 2
zero "LD_LIBRARY_PATH=$scratch:$tools LD_PRELOAD=libmillrace-memory.so MILLRACE_VERBS=split=ivshmem:/run/iv.sock timeout 100 $calls >/run/client.out 2>&1" ||
    fail "domain 0: $(zero 'tail -n 5 /run/client.out /run/backend.log')"
awaits $one '^served 0' 2
awaits $one '^=ended= 0'
zero "cat /run/backend.log" | { grep -i panic && fail "a panic"; } || true
echo "domain 0 and a domain"
stop_guest zero
