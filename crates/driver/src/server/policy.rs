//! What the administrator of a card says about others: who may do what, and how much.

use millrace_abi::access::{Access, Names, Peer, Quota, Rights};

/// Most bytes that are read of a file of names.
const MAX_NAMES: u64 = 4 << 20;

/// Who may use a card for what, and how much of it. By default nobody but the user who runs the card, and root.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Rights of users other than the owner and root, who have all.
    pub access: Access,
    /// What each of those users may have at most.
    pub quota: Quota,
    /// Names of users and groups, for what is said to people.
    pub names: Names,
}

impl Policy {
    /// Nobody but the owner and root, with the names of users and groups that this machine knows.
    pub fn closed() -> Self {
        Self { names: names(), ..Self::default() }
    }

    /// What a peer may do.
    pub fn rights_of(&self, peer: &Peer) -> Rights {
        self.access.rights_of(peer, rustix::process::geteuid().as_raw())
    }
}

/// The names of users and groups of this machine; none where the files cannot be read.
fn names() -> Names {
    let read = |path: &str| {
        let mut text = String::new();
        let file = std::fs::File::open(path).map(|file| std::io::Read::take(file, MAX_NAMES));
        let _ = file.and_then(|mut file| std::io::Read::read_to_string(&mut file, &mut text));
        text
    };
    Names::new(&read("/etc/passwd"), &read("/etc/group"))
}
