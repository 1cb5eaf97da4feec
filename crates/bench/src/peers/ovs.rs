//! OVS-DPDK: a database and a switch of our own, with everything they write in one folder. One poll-mode thread.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::forwarder::{Forwarder, TwoCores, Wiring};
use super::namespace::Namespace;
use super::process::{Process, RuntimeFolder, find, run};
use super::rules::{self, Numbers, OUR_MAC, OURS, THEIR_MAC, THEIRS, VNI};

const PACKAGE: &str = "openvswitch-switch-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Megabytes of huge pages.
const MEMORY: usize = 128;

/// Starts it. Errors are sentences.
pub fn start(wiring: Wiring, cores: TwoCores) -> Result<Forwarder, String> {
    // With an address for a tunnel, in a place where nobody else has it.
    let namespace = if wiring == Wiring::Vxlan { Some(Namespace::new()?) } else { None };
    let switch = find("ovs-vswitchd-dpdk", PACKAGE)?;
    let mut forwarder = Forwarder::new(wiring, Some(RuntimeFolder::new("ovs")))?;
    let tools = Tools::find(forwarder.folder())?;
    let (folder, database) = (tools.folder.clone(), tools.folder.join("conf.db"));
    tools.run(&tools.tool, &["create", &database.display().to_string(), SCHEMA])?;
    let process = Process::start("ovsdb-server", &tools.server, &folder, |command| {
        tools.at_home(command);
        command.arg(&database).arg(format!("--remote=punix:{}", tools.socket().display()));
        command.args(["--no-chdir", "--pidfile=ovsdb.pid", "--unixctl=ovsdb.ctl"].map(|word| in_folder(word, &folder)));
    })?;
    forwarder.add(process).wait_until("its socket", || tools.socket().exists())?;
    let prefix = forwarder.runtime_prefix();
    tools.configure(&[
        "--no-wait",
        "set",
        "Open_vSwitch",
        ".",
        "other_config:dpdk-init=true",
        &format!("other_config:dpdk-socket-mem={MEMORY}"),
        &format!("other_config:dpdk-lcore-mask={:#x}", mask(cores.app)?),
        &format!("other_config:pmd-cpu-mask={:#x}", mask(cores.card)?),
        "other_config:vhost-sock-dir=.",
        &format!("other_config:dpdk-extra=\"--no-pci --in-memory --no-telemetry --file-prefix {prefix}\""),
    ])?;
    let program = namespace.as_ref().map_or(&switch, |namespace| namespace.starter());
    let process = Process::start("ovs-vswitchd", program, &folder, |command| {
        tools.at_home(command);
        if let Some(namespace) = &namespace {
            command.args(namespace.prefix()).arg(&switch);
        }
        command.arg(format!("unix:{}", tools.socket().display()));
        command
            .args(["--no-chdir", "--pidfile=switch.pid", "--unixctl=switch.ctl"].map(|word| in_folder(word, &folder)));
    })?;
    forwarder.add(process).wait_until("its control socket", || tools.control().exists())?;
    match namespace {
        Some(namespace) => {
            tunnel(&tools, &namespace)?;
            forwarder.keep(namespace);
        }
        None => bridge(&tools, wiring)?,
    }
    forwarder.await_sockets()
}

/// One bridge with all sockets, and the rules.
fn bridge(tools: &Tools, wiring: Wiring) -> Result<(), String> {
    tools.add_bridge("br0")?;
    for index in 0..wiring.sockets() {
        tools.add_socket("br0", index, index + 1)?;
    }
    let rules = match wiring {
        Wiring::Back => vec!["in_port=1,actions=in_port".to_owned()],
        Wiring::Classified => {
            // Its cache of exact matches has room for 8,192 flows. For more there is this one.
            tools.configure(&["set", "Open_vSwitch", ".", "other_config:smc-enable=true"])?;
            rules::classified(Numbers::From1)
        }
        _ => rules::through(Numbers::From1),
    };
    tools.flows("br0", &rules)
}

/// Two bridges as in Open vSwitch's own documentation: the inner one has the first socket and the tunnel, the outer one has the
/// address of the tunnel and the second socket.
fn tunnel(tools: &Tools, namespace: &Namespace) -> Result<(), String> {
    tools.add_bridge("outer")?;
    tools.configure(&["set", "bridge", "outer", &format!("other-config:hwaddr=\"{OUR_MAC}\"")])?;
    tools.add_bridge("br0")?;
    tools.add_socket("br0", 0, 1)?;
    tools.add_socket("outer", 1, 1)?;
    tools.configure(&["set", "Interface", "port1", "mtu_request=2000"])?;
    let (remote, key) = (format!("options:remote_ip={THEIRS}"), format!("options:key={VNI}"));
    tools.configure(&[
        "add-port",
        "br0",
        "vx",
        "--",
        "set",
        "Interface",
        "vx",
        "type=vxlan",
        &remote,
        &key,
        "ofport_request=2",
    ])?;
    namespace.ip(&["address", "add", &format!("{OURS}/24"), "dev", "outer"])?;
    namespace.ip(&["link", "set", "outer", "up"])?;
    tools.flows("br0", &rules::through(Numbers::From1))?;
    tools.flows("outer", &["in_port=1,actions=LOCAL".to_owned(), "in_port=LOCAL,actions=output:1".to_owned()])?;
    tools.control_it(&["ovs/route/add", &format!("{OURS}/24"), "outer"])?;
    tools.control_it(&["tnl/neigh/set", "outer", THEIRS, THEIR_MAC])
}

/// The programs that set it up, and where everything of it lies.
struct Tools {
    folder: PathBuf,
    server: PathBuf,
    tool: PathBuf,
    vsctl: PathBuf,
    ofctl: PathBuf,
    appctl: PathBuf,
}

impl Tools {
    fn find(folder: &Path) -> Result<Self, String> {
        let of = |name| find(name, PACKAGE);
        Ok(Self {
            folder: folder.to_owned(),
            server: of("ovsdb-server")?,
            tool: of("ovsdb-tool")?,
            vsctl: of("ovs-vsctl")?,
            ofctl: of("ovs-ofctl")?,
            appctl: of("ovs-appctl")?,
        })
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("db.sock")
    }

    fn control(&self) -> PathBuf {
        self.folder.join("switch.ctl")
    }

    fn at_home(&self, command: &mut Command) {
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &self.folder);
        }
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Result<(), String> {
        run(program, |command| {
            self.at_home(command);
            command.args(arguments);
        })
    }

    fn configure(&self, arguments: &[&str]) -> Result<(), String> {
        let database = format!("--db=unix:{}", self.socket().display());
        self.run(&self.vsctl, &[&[database.as_str(), "--timeout=10"], arguments].concat())
    }

    fn control_it(&self, arguments: &[&str]) -> Result<(), String> {
        let target = self.control().display().to_string();
        self.run(&self.appctl, &[&["-t", target.as_str()], arguments].concat())
    }

    fn add_bridge(&self, name: &str) -> Result<(), String> {
        self.configure(&["add-br", name, "--", "set", "bridge", name, "datapath_type=netdev"])
    }

    fn add_socket(&self, bridge: &str, index: usize, number: usize) -> Result<(), String> {
        let (port, number) = (format!("port{index}"), format!("ofport_request={number}"));
        self.configure(&["add-port", bridge, &port, "--", "set", "Interface", &port, "type=dpdkvhostuser", &number])
    }

    /// These rules and no others.
    fn flows(&self, bridge: &str, rules: &[String]) -> Result<(), String> {
        let (file, name) = (self.folder.join(format!("{bridge}.rules")), format!("{bridge}.mgmt"));
        rules::write(&file, rules)?;
        let target = format!("unix:{}", self.folder.join(name).display());
        self.run(&self.ofctl, &["replace-flows", &target, &file.display().to_string()])
    }
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
