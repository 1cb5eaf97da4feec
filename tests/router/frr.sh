# shellcheck shell=bash
# Routing daemons of FRR in network namespaces, each of which is a folder with a configuration: what Debian's package would start as services is run
# as programs of the case, and ends with it.
frr=/usr/lib/frr
[ -x $frr/zebra ] || skip "FRR is not installed"
needs vtysh
id frr >/dev/null 2>&1 || skip "FRR is not installed: there is no user frr"
# They become the user that Debian has made for them, who may not look into what is root's.
chmod 711 "$scratch"

# as_place NAME COMMAND...: in the network namespace of the process whose id is in NAME_end; `router` is this one.
as_place() {
    local pid=${1}_end
    shift
    nsenter -t "${!pid}" -n "$@"
}
# shellcheck disable=SC2034
router_end=$$

# run_daemons NAME DAEMON...: zebra and these, with $scratch/NAME/DAEMON.conf.
run_daemons() {
    local name=$1 daemon folder=$scratch/$1 pid=${1}_end
    shift
    chown -R frr:frr "$folder"
    for daemon in zebra "$@"; do
        # Not in the background by itself (`-d`), and not by `as_place`, whose shell alone would be ended, so that it ends with the case.
        background "$name-$daemon" nsenter -t "${!pid}" -n $frr/"$daemon" -f "$folder/$daemon.conf" -z "$folder/zebra.api" -i "$folder/$daemon.pid" \
            --vty_socket "$folder" -P 0 --log "file:$folder/$daemon.said"
        await 5 test -S "$folder/$daemon.vty" || fail "$daemon of $name does not start: $(cat "$scratch/$name-$daemon".* "$folder/$daemon.said")"
    done
}

# tell NAME COMMAND...: commands of vtysh, one in a word.
tell() {
    local name=$1 words=() word
    shift
    for word; do words+=(-c "$word"); done
    vtysh --vty_socket "$scratch/$name" "${words[@]}"
}
