//! What a client may ask whoever keeps the associations of IPsec, and what it answers: part of the [`protocol`](super::protocol).

use serde::{Deserialize, Serialize};

/// The usual name of the gateway's socket.
pub const NAME: &str = "millrace-ipsec";

/// Entries of one answer at most.
pub const PAGE: usize = 64;

/// Bytes of one text of entries at most.
pub const LONGEST_TEXT: usize = 32 << 10;

/// What a client wants.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How it is.
    Status,
    /// Associations and policies, from this place on.
    List {
        /// Where the page before ended; 0 at first.
        from: u64,
        /// With the keys: only for those who may change them.
        with_keys: bool,
    },
    /// Add entries in the words of `ip xfrm`, all or, at an error, none.
    Add(String),
    /// Remove an association or a policy, in the words of `ip xfrm state delete` or `ip xfrm policy delete`.
    Delete(String),
    /// Remove all associations, all policies, or both.
    Flush {
        /// Associations.
        associations: bool,
        /// Policies.
        policies: bool,
    },
    /// End.
    Stop,
}

/// Without what is added: there are keys in it.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Status => "Status",
            Self::List { .. } => "List",
            Self::Add(_) => "Add",
            Self::Delete(_) => "Delete",
            Self::Flush { .. } => "Flush",
            Self::Stop => "Stop",
        })
    }
}

impl Request {
    /// Whether only root and whoever runs it may ask.
    pub const fn changes(&self) -> bool {
        !matches!(self, Self::Status | Self::List { with_keys: false, .. })
    }
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::Add`], [`Request::Delete`] and [`Request::Flush`]: how many entries.
    Changed(u64),
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::List`].
    List {
        /// Those of this page.
        entries: Vec<Entry>,
        /// Where to go on; `None` at the end.
        next: Option<u64>,
    },
}

/// How the gateway is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// The tunnel interface.
    pub interface: String,
    /// What keeps packets in the clear out, in words.
    pub guard: String,
    /// Who takes UDP of port 4500 that is not ESP, in words.
    pub ike: String,
    /// Associations.
    pub associations: u64,
    /// Policies.
    pub policies: u64,
    /// Packets that were encrypted, and their bytes.
    pub sealed: (u64, u64),
    /// Packets that were decrypted, and their bytes.
    pub opened: (u64, u64),
    /// Why packets did not pass: `in`, `out` or `here`, the name, and how many.
    pub drops: Vec<(String, String, u64)>,
    /// The same in lines of `/proc/net/xfrm_stat`.
    pub linux: Vec<(String, u64)>,
    /// Events that nobody took in time.
    pub lost_events: u64,
    /// Packets that were decrypted, and encrypted, and left without Linux; `None`: there is no fast way.
    pub fast: Option<(u64, u64)>,
}

/// An association or a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// `association` or `policy`.
    pub kind: String,
    /// As `ip xfrm` prints it, to be read again.
    pub text: String,
    /// What else there is of an association.
    pub association: Option<Association>,
}

/// An association in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Association {
    /// Where its packets come from.
    pub source: String,
    /// Where they go.
    pub destination: String,
    /// Its index.
    pub spi: u32,
    /// Its number.
    pub reqid: u32,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// Packets that it has protected.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last sequence number that was sent.
    pub sent: u64,
    /// The highest that came.
    pub received: u64,
    /// Packets that came twice.
    pub replayed: u64,
    /// Packets left of the window.
    pub too_old: u64,
    /// Packets that were changed on the way, or are of another key.
    pub integrity: u64,
    /// The longest packet that goes into it.
    pub inner_mtu: u64,
    /// `open`, `soft` (to be renewed) or `hard` (over).
    pub life: String,
}
