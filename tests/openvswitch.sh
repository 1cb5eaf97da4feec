# What cases share that have an Open vSwitch of their own, with its switching in user space, in $scratch/ovs; read after lib.sh.
# shellcheck shell=bash

# configure WORD...: ovs-vsctl of that one.
configure() {
    ovs-vsctl --db="unix:$OVS_RUNDIR/db.sock" --timeout=20 "$@" || fail "ovs-vsctl $*"
}

start_open_vswitch() {
    needs ovs-ofctl ovsdb-server ovsdb-tool ovs-vsctl ovs-vswitchd
    mkdir "$scratch/ovs"
    export OVS_RUNDIR=$scratch/ovs OVS_LOGDIR=$scratch/ovs OVS_DBDIR=$scratch/ovs OVS_SYSCONFDIR=$scratch/ovs
    ovsdb-tool create "$OVS_DBDIR/conf.db" /usr/share/openvswitch/vswitch.ovsschema
    background database ovsdb-server "$OVS_DBDIR/conf.db" --remote="punix:$OVS_RUNDIR/db.sock" --no-chdir \
        --pidfile="$OVS_RUNDIR/ovsdb.pid" --unixctl="$OVS_RUNDIR/ovsdb.ctl"
    await 10 test -S "$OVS_RUNDIR/db.sock" || fail "there is no database"
    configure --no-wait init
    background switch ovs-vswitchd "unix:$OVS_RUNDIR/db.sock" --no-chdir --pidfile="$OVS_RUNDIR/switch.pid" \
        --unixctl="$OVS_RUNDIR/switch.ctl"
}
