//! What a card that root starts keeps of root's privileges.
//!
//! Before any thread is made, all is given up that the kinds of ports it has do not need; with `--user` the whole process
//! becomes that user as soon as ports and socket are open. No program that it might start could get anything back. What
//! is plugged in later has to live with that, or the card is started with `--keep-privileges`.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use millrace_driver::SocketIdentity;
use millrace_tool::failure::Failure;
use nix::unistd;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What a card keeps, and to whom its socket goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// User and group that the process becomes when everything is open.
    pub user: Option<(u32, u32)>,
    /// Group of the socket.
    pub group: Option<u32>,
    /// Whether others than the owner and the group may connect.
    pub everyone: bool,
    /// Whether all privileges stay.
    pub keep: bool,
}

/// Privileges that a kind of port needs, also while it works.
const NEEDS: [(&str, CapabilitySet); 3] = [
    ("tap:", CapabilitySet::NET_ADMIN),
    ("af_packet:", CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW)),
    (
        "af_xdp:",
        CapabilitySet::NET_ADMIN
            .union(CapabilitySet::NET_RAW)
            .union(CapabilitySet::BPF)
            .union(CapabilitySet::SYS_ADMIN)
            .union(CapabilitySet::IPC_LOCK),
    ),
];

/// What these ports need; a port can stand within another, as in `trace:FILE,tap:mill0`.
fn needed(ports: &[String]) -> CapabilitySet {
    let kinds = NEEDS.iter().filter(|(kind, _)| ports.iter().any(|port| port.contains(kind)));
    kinds.fold(CapabilitySet::empty(), |all, &(_, needs)| all | needs)
}

/// Gives up what is not needed. To be called before any thread is made: privileges belong to threads.
pub fn narrow(plan: &Plan, ports: &[String]) -> Result<(), Failure> {
    let failed = |error| Failure::Usage(format!("cannot give privileges up: {error}; see --keep-privileges"));
    if plan.keep || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    if plan.user.is_some() {
        return Ok(());
    }
    let has = rustix::thread::capabilities(None).map_err(failed)?.permitted;
    let kept = has & needed(ports);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed)
}

/// Becomes the user that was asked for, with all threads. Ports and socket are open.
pub fn become_user(plan: &Plan) -> Result<(), Failure> {
    let Some((uid, gid)) = plan.user else { return Ok(()) };
    let failed = |error| Failure::Usage(format!("--user: cannot become user {uid}: {error}"));
    unistd::setgroups(&[]).map_err(failed)?;
    unistd::setgid(gid.into()).map_err(failed)?;
    unistd::setuid(uid.into()).map_err(failed)
}

/// What is left, for people: `all of root`, `none`, or names.
pub fn kept() -> String {
    let Ok(sets) = rustix::thread::capabilities(None) else { return "not known".to_owned() };
    if sets.permitted.contains(CapabilitySet::SETPCAP) {
        return "all of root".to_owned();
    }
    let names: Vec<String> = sets.permitted.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

/// Who gives the socket to its user and group when the card itself may not do so any more: a thread that has still all privileges,
/// and ends with this.
pub struct SocketAccess {
    ask: Sender<(PathBuf, SocketIdentity, Who)>,
    said: Receiver<std::io::Result<()>>,
}

/// Who is to connect to a socket of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Everybody who may use the card.
    Users,
    /// The user as whom it runs, and root.
    Owner,
}

impl SocketAccess {
    /// To be called before [`narrow`]. `None`: the socket stays as the system makes it.
    pub fn new(plan: &Plan) -> Option<Self> {
        if plan.group.is_none() && !plan.everyone && plan.user.is_none() {
            return None;
        }
        let ((ask, asked), (say, said)) = (channel::<(PathBuf, SocketIdentity, Who)>(), channel());
        let Plan { group, everyone, user, .. } = *plan;
        thread::spawn(move || {
            // Nobody to be told: then the card has ended.
            for (path, own, who) in asked {
                let (group, everyone) = if who == Who::Owner { (None, false) } else { (group, everyone) };
                let _ = say.send(let_connect(&path, own, user.map(|(uid, _)| uid), group, everyone));
            }
        });
        Some(Self { ask, said })
    }

    /// Lets those connect who are meant to, if the socket at the path is still the card's `own`.
    pub fn open(&self, path: &Path, own: SocketIdentity, who: Who) -> Result<(), Failure> {
        let asked = self.ask.send((path.to_owned(), own, who)).map_err(std::io::Error::other);
        let done = asked.and_then(|()| self.said.recv().unwrap_or_else(|error| Err(std::io::Error::other(error))));
        done.map_err(|source| Failure::File { doing: "cannot let others connect to", path: path.to_owned(), source })
    }
}

fn let_connect(
    path: &Path,
    own: SocketIdentity,
    user: Option<u32>,
    group: Option<u32>,
    everyone: bool,
) -> std::io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chownat, fstat, openat};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    // Whoever may write to the folder may have put something else there meanwhile: only the socket itself is changed.
    let socket = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&socket)?;
    if (SocketIdentity { device: found.st_dev, inode: found.st_ino }) != own {
        return Err(std::io::Error::other("somebody has put something else there"));
    }
    if user.is_some() || group.is_some() {
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        chownat(&socket, "", user, group, AtFlags::EMPTY_PATH)?;
    }
    let mode = match group {
        _ if everyone => 0o666,
        Some(_) => 0o660,
        None => 0o600,
    };
    // A descriptor of this kind is changed by this name only.
    let socket = format!("/proc/self/fd/{}", socket.as_raw_fd());
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_our_socket_is_opened_to_others() {
        use std::os::unix::fs::{MetadataExt, symlink};
        use std::os::unix::net::UnixListener;
        let folder = tempfile::tempdir().unwrap();
        let (file, link, socket) =
            (folder.path().join("file"), folder.path().join("link"), folder.path().join("socket"));
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let of = |path: &Path| {
            let found = std::fs::metadata(path).unwrap();
            (SocketIdentity { device: found.dev(), inode: found.ino() }, found.mode() & 0o777)
        };
        let own = of(&socket).0;
        assert!(let_connect(&link, own, None, None, true).is_err());
        assert!(let_connect(&file, own, None, None, true).is_err());
        assert_eq!(of(&file).1, 0o600);
        let_connect(&socket, own, None, None, true).unwrap();
        assert_eq!(of(&socket).1, 0o666);
        // Another socket of the same user, such as that of a second card, is not ours either.
        let moved = folder.path().join("moved");
        std::fs::rename(&socket, &moved).unwrap();
        let _other = UnixListener::bind(&socket).unwrap();
        let before = of(&socket);
        assert!(let_connect(&socket, own, None, None, false).is_err());
        assert_eq!((of(&socket), of(&moved).1), (before, 0o666));
    }

    #[test]
    fn privileges_follow_the_kinds_of_ports() {
        let of = |ports: &[&str]| needed(&ports.iter().map(|port| port.to_string()).collect::<Vec<_>>());
        assert_eq!(of(&["loopback", "pcap:a", "virtio-user:/x"]), CapabilitySet::empty());
        assert_eq!(of(&["null", "trace:a.pcap,tap:mill0"]), CapabilitySet::NET_ADMIN);
        assert!(of(&["tap:a", "af_xdp:b"]).contains(CapabilitySet::BPF | CapabilitySet::NET_ADMIN));
        assert!(!of(&["af_packet:a"]).contains(CapabilitySet::SYS_ADMIN));
    }
}
