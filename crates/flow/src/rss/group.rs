//! An RSS group: which fields count, the key of the hash, and the queues.

use super::toeplitz::{KEY_LEN, Toeplitz};
use crate::field::Field;
use crate::field::needs::{ether_type, protocol};
use crate::key::Key;

/// Most entries of an indirection table.
pub const MAX_TABLE: usize = 512;

/// Which fields of a packet count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Tuple {
    /// None: all such packets go to the first queue of the table.
    #[serde(rename = "none")]
    None,
    /// Addresses.
    #[serde(rename = "2")]
    Two,
    /// Addresses and ports.
    #[serde(rename = "4")]
    Four,
    /// Addresses, ports and protocol.
    #[serde(rename = "5")]
    Five,
}

/// Which fields count for which protocol. Fragments have no ports: of them only addresses count, unless it is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Choices {
    /// TCP over IPv4.
    pub tcp4: Tuple,
    /// UDP over IPv4.
    pub udp4: Tuple,
    /// SCTP over IPv4.
    pub sctp4: Tuple,
    /// Anything else over IPv4; without ports, 4 is the same as 2.
    pub ip4: Tuple,
    /// TCP over IPv6.
    pub tcp6: Tuple,
    /// UDP over IPv6.
    pub udp6: Tuple,
    /// SCTP over IPv6.
    pub sctp6: Tuple,
    /// Anything else over IPv6.
    pub ip6: Tuple,
}

impl Default for Choices {
    fn default() -> Self {
        use Tuple::{Four, Two};
        Self { tcp4: Four, udp4: Four, sctp4: Four, ip4: Two, tcp6: Four, udp6: Four, sctp6: Four, ip6: Two }
    }
}

/// A group as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// The key of the hash, 40 to 64 bytes.
    pub key: Vec<u8>,
    /// Queues by hash: a power of two of them, up to [`MAX_TABLE`].
    pub table: Vec<u16>,
    /// Which fields count.
    #[serde(default)]
    pub choices: Choices,
    /// Both directions of a flow have one hash: the smaller address and port come first.
    #[serde(default)]
    pub symmetric: bool,
    /// The headers within a tunnel count, where there is one.
    #[serde(default)]
    pub inner: bool,
}

impl GroupSpec {
    /// Queues 0, 1, ... evenly over a table of 128 entries, or more where there are more queues: as many queues as there are,
    /// but not more than cores that could serve them.
    pub fn spread(key: &[u8], queues: u16, cores: u16) -> Self {
        let active = queues.min(cores).clamp(1, MAX_TABLE as u16);
        let len = usize::from(active).next_power_of_two().max(128);
        let table = (0..len).map(|at| (at % usize::from(active)) as u16).collect();
        Self { key: key.to_vec(), table, choices: Choices::default(), symmetric: false, inner: false }
    }
}

/// Why a group cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The key has a wrong length.
    #[error("an RSS key of {0} bytes: {KEY_LEN} to 64 are right")]
    Key(usize),
    /// The table has a wrong length.
    #[error("an indirection table of {0} entries: a power of two up to {MAX_TABLE} is right")]
    Table(usize),
}

/// An RSS group.
#[derive(Clone, Debug)]
pub struct Group {
    toeplitz: Toeplitz,
    table: Box<[u16]>,
    choices: Choices,
    symmetric: bool,
    inner: bool,
}

impl Group {
    /// A group.
    ///
    /// # Errors
    /// Key or table are not what they have to be.
    pub fn new(spec: &GroupSpec) -> Result<Self, GroupError> {
        if !(KEY_LEN..=64).contains(&spec.key.len()) {
            return Err(GroupError::Key(spec.key.len()));
        }
        if !spec.table.len().is_power_of_two() || spec.table.len() > MAX_TABLE {
            return Err(GroupError::Table(spec.table.len()));
        }
        let GroupSpec { table, choices, symmetric, inner, .. } = spec.clone();
        Ok(Self { toeplitz: Toeplitz::new(&spec.key), table: table.into(), choices, symmetric, inner })
    }

    /// What was asked for.
    pub fn spec(&self) -> GroupSpec {
        GroupSpec {
            key: self.toeplitz.key().to_vec(),
            table: self.table.to_vec(),
            choices: self.choices,
            symmetric: self.symmetric,
            inner: self.inner,
        }
    }

    /// Whether the headers within a tunnel count.
    pub fn wants_inner(&self) -> bool {
        self.inner
    }

    /// The queue for a hash; without one, the first.
    #[inline]
    pub fn queue(&self, hash: Option<u32>) -> u16 {
        let at = hash.unwrap_or(0) as usize & (self.table.len() - 1);
        self.table[at]
    }

    /// The queue of a packet, by the key of its headers: what [`Group::hash`] and [`Group::queue`] say, in half the time where
    /// it is TCP or UDP over IPv4, by its addresses and ports.
    #[inline]
    pub fn queue_of(&self, key: &Key) -> u16 {
        const _: () = assert!(MAX_TABLE <= 1 << 16);
        let number = |field: Field| key.get(field).0[0];
        let (kind, protocol) = (number(Field::DlType) as u16, number(Field::NwProto) as u8);
        let is_usual = kind == ether_type::IPV4
            && matches!(protocol, protocol::TCP | protocol::UDP)
            && number(Field::IpFrag) & 1 == 0
            && !self.symmetric
            && self.choice(true, protocol) == Tuple::Four;
        if !is_usual {
            return self.queue(self.hash(key));
        }
        let hash = self.toeplitz.half_of_ipv4(key.words()[3], key.words()[7] as u32);
        self.queue(Some(hash.into()))
    }

    /// The hash of a packet, by the key of its headers, outer or inner. None if nothing of it counts, such as for ARP.
    ///
    /// It is over the bytes that count in the order of Microsoft's definition: source and destination address, source and
    /// destination port; then the protocol.
    #[inline]
    pub fn hash(&self, key: &Key) -> Option<u32> {
        let number = |field: Field| key.get(field).0[0];
        let v4 = match number(Field::DlType) as u16 {
            ether_type::IPV4 => true,
            ether_type::IPV6 => false,
            _ => return None,
        };
        let protocol = number(Field::NwProto) as u8;
        let whole = number(Field::IpFrag) & 1 == 0;
        let has_ports = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        let tuple = self.choice(v4, protocol);
        if tuple == Tuple::None {
            return None;
        }
        let with_ports = has_ports && whole && matches!(tuple, Tuple::Four | Tuple::Five);
        // Addresses and ports lie in a key as the hash wants them: source before target, without a gap.
        let mut ports = if with_ports { key.words()[7] as u32 } else { 0 };
        let mut partly = self.toeplitz.begin();
        if v4 {
            let mut addresses = key.words()[3];
            if self.symmetric && swapped((addresses >> 32, addresses & 0xffff_ffff), ports) {
                (addresses, ports) = (addresses.rotate_left(32), ports.rotate_left(16));
            }
            partly = partly.with::<16>(addresses);
        } else {
            let words = key.words();
            let (mut source, mut target) = ((words[3], words[4]), (words[5], words[6]));
            if self.symmetric && swapped((source, target), ports) {
                (source, target, ports) = (target, source, ports.rotate_left(16));
            }
            for word in [source.0, source.1, target.0, target.1] {
                partly = partly.with::<16>(word);
            }
        }
        if with_ports {
            partly = partly.with::<8>(ports.into());
        }
        if tuple == Tuple::Five && whole {
            partly = partly.with::<2>(protocol.into());
        }
        Some(partly.hash)
    }

    #[inline]
    fn choice(&self, v4: bool, protocol: u8) -> Tuple {
        let choices = &self.choices;
        match (v4, protocol) {
            (true, protocol::TCP) => choices.tcp4,
            (true, protocol::UDP) => choices.udp4,
            (true, protocol::SCTP) => choices.sctp4,
            (true, _) => choices.ip4,
            (false, protocol::TCP) => choices.tcp6,
            (false, protocol::UDP) => choices.udp6,
            (false, protocol::SCTP) => choices.sctp6,
            (false, _) => choices.ip6,
        }
    }
}

/// Whether source and target change places, so that both directions of a flow are one.
#[inline(always)]
fn swapped<A: Ord>((source, target): (A, A), ports: u32) -> bool {
    (source, ports >> 16) > (target, ports & 0xffff)
}
