#!/bin/bash
# A router that is a gateway of strongSwan with the fast path on, and another one at the far end, which renew their keys all the time:
# strongswan.sh MILLRACE. For a guest (tests/cases/router-guest.sh), for it uses its network as it likes.
set -euo pipefail
millrace=$1
folder=$(mktemp -d "${TMPDIR:-/tmp}/strongswan.XXXXXX")
cd "$folder"
fail() {
    echo "failed: $*"
    tail -n 6 "$folder"/*.log
    in_place gate "$millrace" router status || true
    exit 1
}

# comes COMMAND...: until it succeeds. This machine is emulated, and may get no processor for seconds: so nothing is taken for so because some time has passed.
comes() {
    local round
    for round in {1..60}; do
        ! "$@" || return 0
        sleep 0.3
    done
    return 1
}
# in_place NAME COMMAND...
in_place() {
    ip netns exec "$@"
}
for place in left gate far; do
    ip netns add $place
    ip -n $place link set lo up
done
ip link add left netns gate type veth peer name wire netns left
ip link add right netns gate type veth peer name wire netns far
ip -n left address add 10.1.0.2/24 dev wire
ip -n gate address add 10.1.0.1/24 dev left
ip -n gate address add 192.0.2.1/24 dev right
ip -n far address add 192.0.2.2/24 dev wire
ip -n far address add 10.2.0.1/24 dev lo
for link in "left wire" "gate left" "gate right" "far wire"; do
    ip -n "${link% *}" link set "${link#* }" up
done
in_place left ethtool -K wire gro on tx off txvlan off >/dev/null
in_place far ethtool -K wire gro on tx off txvlan off >/dev/null
in_place gate sh -c "ethtool -K left rxvlan off; ethtool -K right rxvlan off" >/dev/null
ip -n left route add default via 10.1.0.1
ip -n gate route add 10.2.0.0/24 via 192.0.2.2
ip -n far route add 10.1.0.0/24 via 192.0.2.1
in_place gate sysctl -qw net.ipv4.ip_forward=1
# What comes from the hosts of the other end and was not decrypted.
in_place far nft -f - <<'END'
table inet clear {
    chain seen {
        type filter hook prerouting priority -300
        iifname "wire" ip saddr 10.1.0.0/24 ip daddr 10.2.0.0/24 meta ipsec missing counter
    }
}
END
in_clear() {
    in_place far nft list table inet clear | sed -n 's/.*counter packets \([0-9]*\) .*/\1/p'
}

# router COMMAND...: what the router says, asked again if it had no time to answer.
asked() {
    in_place gate "$millrace" router "$@" >router.said.log 2>router.err.log
}
router() {
    comes asked "$@" || fail "the router does not answer: router $*"
    cat router.said.log
}
# fast: how many packets went without Linux.
fast() {
    router status --json | head -n 1 | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["fast"])'
}
renewals() {
    grep -c 'CHILD_SA nets{.*established' gate.log
}

# gateway PLACE OWN OTHER NETWORK ITS SECONDS: one end of the tunnel, which renews the keys after so many seconds; 0: never.
gateway() {
    cat >"$1.swanctl" <<END
connections {
    tunnel {
        local_addrs = $2
        remote_addrs = $3
        version = 2
        proposals = aes128-sha256-modp2048
        local { auth = psk }
        remote { auth = psk }
        children {
            nets {
                local_ts = $4
                remote_ts = $5
                esp_proposals = aes128-sha256
                rekey_time = ${6}s
                rand_time = 0s
                life_time = 600s
            }
        }
    }
}
secrets {
    ike { secret = "not much of a secret" }
}
END
    cat >"$1.conf" <<END
charon-systemd {
    plugins {
        vici { socket = unix://$folder/$1.vici }
    }
    filelog {
        $1 {
            path = $folder/$1.log
            flush_line = yes
        }
    }
    load = random nonce aes sha1 sha2 hmac kdf gmp xcbc drbg kernel-netlink socket-default vici updown
}
END
    STRONGSWAN_CONF=$folder/$1.conf in_place "$1" charon-systemd >"$1.out.log" 2>&1 &
    until [ -S "$1.vici" ]; do sleep 0.1; done
    in_place "$1" swanctl --load-all --file "$folder/$1.swanctl" --uri "unix://$folder/$1.vici" >"$1.load.log" 2>&1 || fail "swanctl"
}
gateway far 192.0.2.2 192.0.2.1 10.2.0.0/24 10.1.0.0/24 0
gateway gate 192.0.2.1 192.0.2.2 10.1.0.0/24 10.2.0.0/24 3

in_place gate "$millrace" router start --interfaces left,right --mode xdp >router.log 2>&1 &
comes in_place gate "$millrace" router status >status.log 2>&1 || fail "the router does not start"
# In the clear while nobody has said otherwise: fast, and seen.
is_fast_in_clear() {
    in_place left ping -q -c 20 -i 0.05 10.2.0.1 >before.log || fail "no ping before there is a tunnel"
    router why 10.2.0.1 >why.log
    grep -q fast why.log
}
comes is_fast_in_clear || fail "the flow in the clear is not fast"
[ "$(in_clear)" -ge 20 ] || fail "only $(in_clear) packets were seen in the clear before there was a tunnel"

# This one goes on while the tunnel comes: its packets were fast, and are protected from then on.
ip netns exec left ping -q -i 0.03 10.2.0.1 >across.log &
across=$!
is_in_force() {
    router rules 10.2.0.1 | grep -q active
}
comes is_in_force || fail "no rule for what goes on while the tunnel comes"
in_place gate swanctl --initiate --child nets --uri "unix://$folder/gate.vici" >initiate.log 2>&1 || fail "no tunnel"
# While one end had it and the other had not yet, packets were in the clear, and refused. When the router has heard of it, and those on the way have come, no more are.
is_protected() {
    local before
    before=$(in_clear)
    in_place left ping -q -c 10 -i 0.05 10.2.0.1 >protected.log || fail "no ping in the tunnel"
    router why 10.2.0.1 >why.log
    ! grep -q fast why.log && [ "$(in_clear)" -eq "$before" ]
}
comes is_protected || fail "packets are in the clear, or fast, after there is a tunnel"
kill -INT $across
wait $across || fail "no pings across"
before=$(in_clear)
for place in gate far; do
    in_place $place cat /proc/net/xfrm_stat >$place.before.log
done
# For three renewals at least.
first=$(renewals) fast_before=$(fast) pings=0
for round in {1..20}; do
    in_place left ping -q -c 200 -i 0.03 192.0.2.2 >beside.log &
    beside=$!
    in_place left ping -q -c 200 -i 0.03 10.2.0.1 >through.log || fail "pings are lost in the tunnel"
    wait $beside || fail "pings are lost beside the tunnel"
    for log in through beside; do
        grep -q ' 0% packet loss' $log.log || fail "$log the tunnel: $(cat $log.log)"
    done
    pings=$((pings + 200))
    renewed=$(($(renewals) - first)) fast=$(($(fast) - fast_before))
    [ "$renewed" -lt 3 ] || [ "$fast" -lt 300 ] || break
done
[ "$renewed" -ge 3 ] || fail "only $renewed renewals of the associations in $round rounds"
[ "$fast" -ge 300 ] || fail "only $fast packets were fast in $round rounds"
[ "$(in_clear)" -eq "$before" ] || fail "$(($(in_clear) - before)) packets were in the clear"
router why 10.2.0.1 >why.log
! grep -q fast why.log || fail "the flow in the tunnel is not Linux's"
for place in gate far; do
    in_place $place cat /proc/net/xfrm_stat >$place.stat.log
    cmp -s $place.before.log $place.stat.log || fail "Linux complains in $place: $(diff $place.before.log $place.stat.log)"
done

# The tunnel is over, and nobody protects these packets any more: in the clear, and fast again.
in_place gate swanctl --terminate --ike tunnel --uri "unix://$folder/gate.vici" >terminate.log 2>&1 || fail "the tunnel does not end"
comes is_fast_in_clear || fail "the flow is not fast after the tunnel"
[ "$(in_clear)" -ge $((before + 20)) ] || fail "packets after the tunnel are not in the clear"
router stop
echo "$renewed renewals of the associations during $pings pings: nothing lost, nothing in the clear; $fast packets beside them fast"
