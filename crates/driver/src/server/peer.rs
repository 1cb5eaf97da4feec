//! Who is at the other end of a socket, as the system says.

use millrace_abi::access::Peer;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fd::AsFd;

/// Who is at the other end of a socket.
pub fn peer_of(socket: impl AsFd) -> Option<Peer> {
    let credentials = getsockopt(&socket, PeerCredentials).ok()?;
    // 0: of another container.
    let (pid, uid) = (credentials.pid() as u32, credentials.uid());
    let mut gids = vec![credentials.gid()];
    // Those who may do everything need no groups for it, and asking for them takes as long as a request.
    if !may_do_everything(uid) {
        gids.extend(supplementary_groups(pid, uid));
    }
    Some(Peer { pid, uid, gids })
}

/// Root, and whoever runs the card.
fn may_do_everything(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// The supplementary groups of a process, if it is still the user's through and through: one that has become somebody else
/// since it connected (`su`) has that one's groups.
fn supplementary_groups(pid: u32, uid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let users = numbers("Uid:");
    if !users.is_empty() && users.iter().all(|&user| user == uid) { numbers("Groups:") } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_who_it_is() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer_of(&one).unwrap();
        assert_eq!((peer.pid, peer.uid), (std::process::id(), rustix::process::getuid().as_raw()));
        assert!(peer.gids.contains(&rustix::process::getgid().as_raw()));
        let groups = supplementary_groups(peer.pid, peer.uid);
        assert!(
            rustix::process::getgroups().unwrap().iter().all(|group| groups.contains(&group.as_raw())),
            "{groups:?}"
        );
    }

    #[test]
    fn groups_of_a_process_that_became_another_user_do_not_count() {
        let uid = rustix::process::getuid().as_raw();
        assert!(supplementary_groups(std::process::id(), uid + 1).is_empty());
        assert!(supplementary_groups(0, uid).is_empty());
    }
}
