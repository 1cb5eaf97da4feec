//! Why a packet was not let through, by name.

/// Why a packet was not let through. Each has a counter ([`crate::counter::Counters`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No IP header, or one whose lengths do not fit the packet.
    Header,
    /// A fragment: it has to be put together first.
    Fragment,
    /// No association of this address and SPI.
    NoAssociation,
    /// The association is for packets in UDP and this one is not, or the other way round.
    Encapsulation,
    /// Its life is over.
    Expired,
    /// Too short for what its algorithm adds, or no whole blocks.
    Truncated,
    /// The sequence number was here before.
    Replayed,
    /// The sequence number is left of the window, or 0.
    TooOld,
    /// The check value is wrong: changed on the way, or another key.
    Integrity,
    /// More padding than packet.
    Padding,
    /// A dummy packet (next header 59), which is there to be dropped.
    Dummy,
    /// What was in the tunnel is no IP packet.
    InnerHeader,
    /// Congestion was marked on the way, and what was in the tunnel cannot say so (RFC 6040 §4.2).
    Congestion,
    /// The packet is none that its association may carry.
    Selector,
    /// It came through a tunnel, and no policy speaks of it.
    NoPolicy,
    /// A policy forbids it.
    Blocked,
    /// It came in the clear, and a policy wants it protected.
    Clear,
    /// It came by an association that its policy does not name.
    Template,
    /// A policy wants more than one association for a packet; Linux does that.
    Bundle,
    /// No association yet for what a policy wants protected; IKE was asked for one.
    NotYet,
    /// The last sequence number was used (RFC 4303 §3.3.3).
    SequenceOver,
    /// Longer than the path takes, and not to be cut; the sender has to be told.
    TooBig,
    /// Longer than the path takes; Linux cuts it.
    NeedsFragments,
    /// Not enough room before or behind the packet.
    NoRoom,
    /// The library of ciphers failed.
    Cipher,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::Header,
        Self::Fragment,
        Self::NoAssociation,
        Self::Encapsulation,
        Self::Expired,
        Self::Truncated,
        Self::Replayed,
        Self::TooOld,
        Self::Integrity,
        Self::Padding,
        Self::Dummy,
        Self::InnerHeader,
        Self::Congestion,
        Self::Selector,
        Self::NoPolicy,
        Self::Blocked,
        Self::Clear,
        Self::Template,
        Self::Bundle,
        Self::NotYet,
        Self::SequenceOver,
        Self::TooBig,
        Self::NeedsFragments,
        Self::NoRoom,
        Self::Cipher,
    ];

    /// Its name in counters and explanations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Fragment => "fragment",
            Self::NoAssociation => "no_association",
            Self::Encapsulation => "encapsulation",
            Self::Expired => "expired",
            Self::Truncated => "truncated",
            Self::Replayed => "replayed",
            Self::TooOld => "too_old",
            Self::Integrity => "integrity",
            Self::Padding => "padding",
            Self::Dummy => "dummy",
            Self::InnerHeader => "inner_header",
            Self::Congestion => "congestion",
            Self::Selector => "selector",
            Self::NoPolicy => "no_policy",
            Self::Blocked => "blocked",
            Self::Clear => "clear",
            Self::Template => "template",
            Self::Bundle => "bundle",
            Self::NotYet => "not_yet",
            Self::SequenceOver => "sequence_over",
            Self::TooBig => "too_big",
            Self::NeedsFragments => "needs_fragments",
            Self::NoRoom => "no_room",
            Self::Cipher => "cipher",
        }
    }

    /// The line of `/proc/net/xfrm_stat` in which Linux would count it, where there is one.
    pub const fn linux_name(self, direction: Way) -> Option<&'static str> {
        Some(match (self, direction) {
            (Self::Header, Way::In) => "XfrmInHdrError",
            (Self::NoAssociation, Way::In) => "XfrmInNoStates",
            (Self::Encapsulation | Self::Selector, Way::In) => "XfrmInStateMismatch",
            (Self::Expired, Way::In) => "XfrmInStateExpired",
            (Self::Truncated | Self::Integrity | Self::Padding | Self::Dummy | Self::Cipher, Way::In) => {
                "XfrmInStateProtoError"
            }
            (Self::Replayed | Self::TooOld, Way::In) => "XfrmInStateSeqError",
            (Self::InnerHeader, Way::In) => "XfrmInStateModeError",
            (Self::NoPolicy, Way::In) => "XfrmInNoPols",
            (Self::Blocked, Way::In) => "XfrmInPolBlock",
            (Self::Clear | Self::Template, Way::In) => "XfrmInTmplMismatch",
            (Self::NoAssociation | Self::NotYet, Way::Out) => "XfrmOutNoStates",
            (Self::Blocked, Way::Out) => "XfrmOutPolBlock",
            (Self::Expired, Way::Out) => "XfrmOutStateExpired",
            (Self::SequenceOver, Way::Out) => "XfrmOutStateSeqError",
            (Self::Cipher, Way::Out) => "XfrmOutStateProtoError",
            _ => return None,
        })
    }
}

/// To which side a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// It arrives, or is forwarded after having been decrypted.
    In,
    /// It leaves.
    Out,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_have_names_of_their_own_and_are_at_their_place() {
        let names: HashSet<_> = Refusal::ALL.iter().map(|refusal| refusal.name()).collect();
        assert_eq!(names.len(), Refusal::ALL.len());
        for (at, refusal) in Refusal::ALL.iter().enumerate() {
            assert_eq!(*refusal as usize, at);
        }
        assert_eq!(Refusal::Clear.linux_name(Way::In), Some("XfrmInTmplMismatch"));
        assert_eq!(Refusal::Clear.linux_name(Way::Out), None);
    }
}
