//! Why the gateway let a packet go for which no association or policy is the reason: those have names of their own
//! ([`millrace_ipsec::refusal::Refusal`]).

use nix::errno::Errno;

/// Why a packet was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// Linux routed it into the tunnel interface, and no policy says what shall protect it: it would have left in the clear.
    Unprotected,
    /// It was protected already: the route to the other gateway leads into the tunnel interface.
    Loop,
    /// Neither IPv4 nor IPv6.
    NoIp,
    /// Longer than the path takes; who sent it was told.
    TooBig,
    /// Longer than the path takes, and in more pieces than are made.
    Pieces,
    /// Longer than any IP packet: it came cut off.
    CutOff,
    /// A socket had no room for it, because packets came faster than they could be looked at.
    Flood,
    /// Linux did not take what was opened: the tunnel interface is down.
    InterfaceDown,
    /// Linux has no route to the other gateway.
    Unreachable,
    /// A rule of nft does not let protected packets out.
    NotPermitted,
    /// The interface to the other gateway has no room.
    NoRoom,
    /// Sending has failed for another reason.
    SendFailed,
    /// A frame of the fast way found no place, because frames came faster than they could be looked at.
    RingFull,
    /// A frame was longer than the fast way's memory has room for.
    LongFrame,
    /// Not dropped: Linux has sent a protected packet with another header than it had, so the next ones go by Linux, too.
    Changed,
}

impl Drop {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Unprotected,
        Self::Loop,
        Self::NoIp,
        Self::TooBig,
        Self::Pieces,
        Self::CutOff,
        Self::Flood,
        Self::InterfaceDown,
        Self::Unreachable,
        Self::NotPermitted,
        Self::NoRoom,
        Self::SendFailed,
        Self::RingFull,
        Self::LongFrame,
        Self::Changed,
    ];

    /// Its name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unprotected => "unprotected",
            Self::Loop => "loop",
            Self::NoIp => "no_ip",
            Self::TooBig => "too_big_told",
            Self::Pieces => "pieces",
            Self::CutOff => "cut_off",
            Self::Flood => "flood",
            Self::InterfaceDown => "interface_down",
            Self::Unreachable => "unreachable",
            Self::NotPermitted => "not_permitted",
            Self::NoRoom => "no_room_to_send",
            Self::SendFailed => "send_failed",
            Self::RingFull => "ring_full",
            Self::LongFrame => "long_frame",
            Self::Changed => "changed_by_linux",
        }
    }

    /// What an error of sending means.
    pub(super) const fn of_sending(error: Errno) -> Self {
        match error {
            Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN | Errno::EADDRNOTAVAIL => Self::Unreachable,
            Errno::EPERM | Errno::EACCES => Self::NotPermitted,
            Errno::ENOBUFS | Errno::EAGAIN | Errno::ENOMEM => Self::NoRoom,
            Errno::EMSGSIZE => Self::Pieces,
            _ => Self::SendFailed,
        }
    }
}

/// How often each was the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    counts: [u64; Drop::ALL.len()],
}

impl Drops {
    pub(super) fn count(&mut self, reason: Drop) {
        self.add(reason, 1);
    }

    pub(super) fn add(&mut self, reason: Drop, packets: u64) {
        self.counts[reason as usize] += packets;
    }

    /// All reasons, with how often they were.
    pub fn all(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.into_iter().map(|reason| (reason, self.counts[reason as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_at_its_place_with_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = Drop::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Drop::ALL.len());
        assert!(Drop::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
        let mut drops = Drops::default();
        drops.count(Drop::Changed);
        assert_eq!(drops.all().last(), Some((Drop::Changed, 1)));
    }
}
