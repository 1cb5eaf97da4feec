//! A network namespace of the benchmark's own, with pairs of interfaces in it. Everything goes with the namespace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::{find, run};

/// A namespace; removed when this is dropped, with the interfaces in it.
pub struct Namespace {
    name: String,
    ip: PathBuf,
}

/// What names of namespaces begin with; then comes the number of the process that has made them.
const PREFIX: &str = "mrpeers";

/// Removes, once, what benchmarks that were killed have left.
fn remove_leftovers(ip: &Path) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let Ok(folder) = std::fs::read_dir("/run/netns") else { return };
        for name in folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if owner(&name).is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
                // Somebody else may be at it, too.
                let _ = Command::new(ip).args(["netns", "del", &name]).stderr(Stdio::null()).status();
            }
        }
    });
}

/// The process that has made a namespace, if it was a benchmark.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// What an interface has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Frames that came, dropped ones included.
    pub frames: u64,
    /// Those for which whoever reads the interface had no room.
    pub dropped: u64,
}

impl Namespace {
    /// Makes one. The error is a sentence.
    pub fn new() -> Result<Self, String> {
        Self::named("")
    }

    /// One of several, which have different endings.
    pub fn named(ending: &str) -> Result<Self, String> {
        let ip = find("ip", "iproute2")?;
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces and AF_XDP need root; run this as root".to_owned());
        }
        remove_leftovers(&ip);
        // A benchmark may have several of one kind at once.
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{serial}{ending}", std::process::id());
        run(&ip, |command| {
            command.args(["netns", "add", &name]);
        })?;
        let namespace = Self { name, ip };
        // What Linux says by itself on a new interface would be counted.
        let silence = "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true";
        namespace.run(&["sh", "-c", silence])?;
        Ok(namespace)
    }

    /// Makes two interfaces that are joined, and brings them up.
    pub fn add_pair(&self, one: &str, other: &str) -> Result<(), String> {
        self.ip(&["link", "add", one, "type", "veth", "peer", "name", other])?;
        self.ip(&["link", "set", one, "up"])?;
        self.ip(&["link", "set", other, "up"])
    }

    /// Makes two interfaces that are joined, one here and one there, which are down.
    pub fn add_pair_to(&self, one: &str, there: &Self, other: &str) -> Result<(), String> {
        self.ip(&["link", "add", one, "type", "veth", "peer", "name", other, "netns", &there.name])
    }

    /// Makes two interfaces of so many queues that are joined, one here and one there, which are down.
    pub fn add_pair_with(&self, one: &str, there: &Self, other: &str, queues: usize) -> Result<(), String> {
        let queues = queues.to_string();
        let shape = ["numrxqueues", &queues, "numtxqueues", &queues];
        let mut words = vec!["link", "add", one];
        words.extend(shape);
        words.extend(["type", "veth", "peer", "name", other, "netns", &there.name]);
        words.extend(shape);
        self.ip(&words)
    }

    /// Moves an interface of the benchmark's own namespace into it, where it is down.
    pub fn take(&self, interface: &str) -> Result<(), String> {
        run(&self.ip, |command| {
            command.args(["link", "set", interface, "netns", &self.name]);
        })
    }

    /// The file by which a thread enters it.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// The program `ip`, which starts others in the namespace with [`Namespace::prefix`].
    pub fn starter(&self) -> &PathBuf {
        &self.ip
    }

    /// What comes before a program and its arguments.
    pub fn prefix(&self) -> [&str; 3] {
        ["netns", "exec", &self.name]
    }

    /// What an interface has received so far.
    pub fn received(&self, interface: &str) -> Result<Received, String> {
        let mut command = Command::new(&self.ip);
        command.args(["-n", &self.name, "-s", "-j", "link", "show", "dev", interface]).stdin(Stdio::null());
        let output = command.output().map_err(|why| format!("cannot start {}: {why}", self.ip.display()))?;
        read_counters(&output.stdout).ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("ip -s -j link show dev {interface} has no counters: {}", said.trim())
        })
    }

    /// Runs `ip` for it. The error is a sentence.
    pub fn ip(&self, arguments: &[&str]) -> Result<(), String> {
        run(&self.ip, |command| {
            command.args(["-n", &self.name]).args(arguments);
        })
    }

    /// Runs a program in it, to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<(), String> {
        run(&self.ip, |command| {
            command.args(self.prefix()).args(arguments);
        })
    }
}

fn read_counters(text: &[u8]) -> Option<Received> {
    let value: serde_json::Value = serde_json::from_slice(text).ok()?;
    let counters = &value[0]["stats64"]["rx"];
    Some(Received { frames: counters["packets"].as_u64()?, dropped: counters["dropped"].as_u64()? })
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It was made by us; if it cannot be removed, `ip` has said why.
        let _ = run(&self.ip, |command| {
            command.args(["netns", "delete", &self.name]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_processes() {
        assert_eq!(owner("mrpeers4711-0a"), Some(4711));
        for name in ["mrpeers", "mrpeers-1", "other4711-0", "mrpeersx-0"] {
            assert_eq!(owner(name), None);
        }
    }

    #[test]
    fn counters_are_read_or_missed() {
        let text = br#"[{"ifname":"a","stats64":{"rx":{"bytes":640,"packets":10,"errors":0,"dropped":3},"tx":{}}}]"#;
        assert_eq!(read_counters(text), Some(Received { frames: 10, dropped: 3 }));
        for text in [&b""[..], b"[{}]", b"[]", br#"[{"stats64":{"rx":{"packets":10}}}]"#] {
            assert_eq!(read_counters(text), None);
        }
    }
}
