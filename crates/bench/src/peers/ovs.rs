//! OVS-DPDK: a database and a switch of our own, with everything they write in one folder. One poll-mode thread, one flow
//! rule per direction.

use std::path::Path;
use std::process::Command;

use super::forwarder::{Forwarder, TwoCores, Wiring};
use super::process::{Process, RuntimeFolder, find, run};

const PACKAGE: &str = "openvswitch-switch-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Megabytes of huge pages.
const MEMORY: usize = 128;

/// Starts it. Errors are sentences.
pub fn start(wiring: Wiring, cores: TwoCores) -> Result<Forwarder, String> {
    let switch = find("ovs-vswitchd-dpdk", PACKAGE)?;
    let [server, tool, vsctl, ofctl] =
        ["ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"].map(|name| find(name, PACKAGE));
    let (server, tool, vsctl, ofctl) = (server?, tool?, vsctl?, ofctl?);
    let runtime = RuntimeFolder::new("ovs");
    let extra = format!("--no-pci --in-memory --no-telemetry --file-prefix {}", runtime.prefix());
    let mut forwarder = Forwarder::new(wiring, Some(runtime))?;
    let folder = forwarder.folder().to_owned();
    let (database, socket) = (folder.join("conf.db"), folder.join("db.sock"));
    let at_home = |command: &mut Command| {
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &folder);
        }
    };
    run(&tool, |command| {
        command.arg("create").arg(&database).arg(SCHEMA);
    })?;
    let process = Process::start("ovsdb-server", &server, &folder, |command| {
        at_home(command);
        command.arg(&database).arg(format!("--remote=punix:{}", socket.display()));
        command.args(["--no-chdir", "--pidfile=ovsdb.pid", "--unixctl=ovsdb.ctl"].map(|word| in_folder(word, &folder)));
    })?;
    forwarder.add(process).wait_until("its socket", || socket.exists())?;
    let configure = |arguments: &[&str]| {
        run(&vsctl, |command| {
            at_home(command);
            command.arg(format!("--db=unix:{}", socket.display())).arg("--timeout=10").args(arguments);
        })
    };
    configure(&[
        "--no-wait",
        "set",
        "Open_vSwitch",
        ".",
        "other_config:dpdk-init=true",
        &format!("other_config:dpdk-socket-mem={MEMORY}"),
        &format!("other_config:dpdk-lcore-mask={:#x}", mask(cores.app)?),
        &format!("other_config:pmd-cpu-mask={:#x}", mask(cores.card)?),
        "other_config:vhost-sock-dir=.",
        &format!("other_config:dpdk-extra=\"{extra}\""),
    ])?;
    let control = folder.join("switch.ctl");
    let process = Process::start("ovs-vswitchd", &switch, &folder, |command| {
        at_home(command);
        command.arg(format!("unix:{}", socket.display()));
        command
            .args(["--no-chdir", "--pidfile=switch.pid", "--unixctl=switch.ctl"].map(|word| in_folder(word, &folder)));
    })?;
    forwarder.add(process).wait_until("its control socket", || control.exists())?;
    configure(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
    for index in 0..wiring.sockets() {
        let (port, number) = (format!("port{index}"), format!("ofport_request={}", index + 1));
        configure(&["add-port", "br0", &port, "--", "set", "Interface", &port, "type=dpdkvhostuser", &number])?;
    }
    let bridge = format!("unix:{}", folder.join("br0.mgmt").display());
    let flow = |arguments: &[&str]| {
        run(&ofctl, |command| {
            at_home(command);
            command.arg(arguments[0]).arg(&bridge).args(&arguments[1..]);
        })
    };
    flow(&["del-flows"])?;
    match wiring {
        Wiring::Through => {
            flow(&["add-flow", "in_port=1,actions=output:2"])?;
            flow(&["add-flow", "in_port=2,actions=output:1"])?;
        }
        Wiring::Back => flow(&["add-flow", "in_port=1,actions=in_port"])?,
    }
    forwarder.await_sockets()
}

/// An option whose value is a file in `folder`.
fn in_folder(word: &str, folder: &Path) -> String {
    word.replacen('=', &format!("={}/", folder.display()), 1)
}

/// The core as OVS wants it: a bit of a 64-bit mask.
fn mask(core: usize) -> Result<u64, String> {
    u32::try_from(core).ok().and_then(|core| 1u64.checked_shl(core)).ok_or_else(|| format!("core {core} is above 63"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_into_the_folder_and_cores_into_masks() {
        assert_eq!(in_folder("--pidfile=a.pid", Path::new("/tmp/x")), "--pidfile=/tmp/x/a.pid");
        assert_eq!(in_folder("--no-chdir", Path::new("/tmp/x")), "--no-chdir");
        assert_eq!((mask(0), mask(5)), (Ok(1), Ok(32)));
        assert!(mask(64).is_err());
    }
}
