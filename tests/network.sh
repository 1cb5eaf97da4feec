# shellcheck shell=bash
# Hosts on a wire: addresses, pings and transfers. After lib.sh, and in a namespace of its own (`private_network`).
#
# Host N has 192.0.2.N and 2001:db8::N. PLACE is the words that run a command there: `here` for this namespace, `there` for a
# second one, or `guest NAME` (guest.sh).

here() {
    (cd "$scratch" && bash -c "$*")
}

# second_network: one more namespace, whose first process is in $second. `there` is the place.
second_network() {
    needs nsenter
    background second unshare -n sleep 1000
    second=$started
    await 5 is_elsewhere "$second" || fail "there is no second namespace"
    mkdir "$scratch/there"
}

is_elsewhere() {
    [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}

there() {
    (cd "$scratch/there" && nsenter -t "$second" -n bash -c "$*")
}

# be_host N INTERFACE: this namespace is host N.
be_host() {
    ip link set lo up
    ip address add "192.0.2.$1/24" dev "$2"
    ip link set "$2" up
    # Usable at once, not after having asked for a second whether somebody else has it.
    ip -6 address add "2001:db8::$1/64" dev "$2" nodad
}

# pings PLACE N [OPTION...]: from there to host N, by both protocols.
pings() {
    local place=$1 host=$2 address
    shift 2
    for address in "192.0.2.$host" "2001:db8::$host"; do
        $place "ping -c 3 -i 0.05 -W 5 -w 20 $* $address" >"$scratch/ping.log" 2>&1 ||
            fail "from '$place' no answers to ping $* $address"
    done
}

# serve PLACE BYTES: offers as many random bytes by HTTP.
serve() {
    $1 "mkdir served; head -c $2 /dev/urandom >served/data"
    if [ "$1" = here ]; then
        background web python3 -m http.server --bind :: --directory "$scratch/served" 80
        await 10 bash -c '(: </dev/tcp/::1/80) 2>/dev/null' || fail "there is no web server"
    else
        $1 "httpd -h served"
    fi
}

# fetch PLACE SERVER N: what SERVER offers, by way of both addresses of host N, which it is.
fetch() {
    local address wanted got get="wget -q -O -"
    [ "$1" = here ] && get="python3 '$tests/fetch.py'"
    wanted=$($2 "md5sum <served/data")
    for address in "192.0.2.$3" "[2001:db8::$3]"; do
        got=$($1 "$get http://$address/data | md5sum")
        [ "$wanted" = "$got" ] || fail "'$1' got ${got:-nothing} from $address, '$2' has $wanted"
    done
}

# note_early PORT PLACE INTERFACE: what the interface sent before its port stood (Linux announces itself as soon as a link is
# up) stayed with Linux, and the port has not lost it.
declare -A early=()
note_early() {
    local numbers
    read -r -a numbers < <(counts "$@" | tr '\n' ' ') || true # no line ends it
    early[$1]=$((numbers[0] > numbers[2] ? numbers[0] - numbers[2] : 0))
    [ "${early[$1]}" -le 8 ] || fail "port $1 has not seen ${early[$1]} frames that $3 of '$2' sent"
}

# check_neighbour PORT PLACE INTERFACE: what the interface there sent is what came in at the card's port or was dropped
# there, and what it received is what the port sent: two counts of the same, by others and by us. A large frame of Linux may
# be several to the card, and so there may be more of the former.
check_neighbour() {
    await 10 counts_agree "$@" && return
    counts "$@"
    fail "port $1 and $3 of '$2' do not agree: sent and received by it are, and came in and were sent by the port"
}

counts_agree() {
    local numbers
    read -r -a numbers < <(counts "$@" | tr '\n' ' ')
    [ ${#numbers[@]} -eq 4 ] && [ "${numbers[2]}" -ge $((numbers[0] - ${early[$1]:-0})) ] && [ "${numbers[3]}" -eq "${numbers[1]}" ]
}

counts() {
    # Not in /sys, which shows the namespace that mounted it.
    $2 "sed 's/:/ /' /proc/net/dev | awk '\$1 == \"$3\" { print \$11, \$3 }'"
    "$millrace" stats --json | python3 -c '
import json, sys
port = json.load(sys.stdin)["ports"][int(sys.argv[1])]
print(port["rx_frames"] + sum(drop["count"] for drop in port["rx_drops"]), port["tx_frames"])' "$1"
}
