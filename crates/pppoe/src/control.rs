//! Packets of PPP's control protocols (RFC 1661 §5), their options, and the numbers of protocols.

use crate::frame::Malformed;

/// Numbers of protocols.
pub mod protocol {
    /// Link control (RFC 1661).
    pub const LCP: u16 = 0xc021;
    /// Passwords (RFC 1334).
    pub const PAP: u16 = 0xc023;
    /// Challenges (RFC 1994).
    pub const CHAP: u16 = 0xc223;
    /// IPv4's control (RFC 1332).
    pub const IPCP: u16 = 0x8021;
    /// IPv6's control (RFC 5072).
    pub const IPV6CP: u16 = 0x8057;
}

/// Codes of control packets.
pub mod code {
    /// This is what we want.
    pub const CONFIGURE_REQUEST: u8 = 1;
    /// Agreed.
    pub const CONFIGURE_ACK: u8 = 2;
    /// These values instead.
    pub const CONFIGURE_NAK: u8 = 3;
    /// These not at all.
    pub const CONFIGURE_REJECT: u8 = 4;
    /// The end.
    pub const TERMINATE_REQUEST: u8 = 5;
    /// The end, too.
    pub const TERMINATE_ACK: u8 = 6;
    /// This code is not known here.
    pub const CODE_REJECT: u8 = 7;
    /// Nor is this protocol (LCP only, as the following).
    pub const PROTOCOL_REJECT: u8 = 8;
    /// Are you there?
    pub const ECHO_REQUEST: u8 = 9;
    /// Yes.
    pub const ECHO_REPLY: u8 = 10;
    /// Nothing.
    pub const DISCARD_REQUEST: u8 = 11;
}

/// Bytes of code, identifier and length.
pub const HEADER_LEN: usize = 4;

/// A control packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub code: u8,
    pub id: u8,
    pub data: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet, without what fills it up.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let ([code, id, a, b], rest) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        let len = usize::from(u16::from_be_bytes([*a, *b])).checked_sub(HEADER_LEN).ok_or(Malformed::Length)?;
        Ok(Self { code: *code, id: *id, data: rest.get(..len).ok_or(Malformed::Length)? })
    }

    /// The packet as bytes. Nothing of ours is longer than what came in, and that is a frame.
    pub fn build(&self) -> Vec<u8> {
        let len = (HEADER_LEN + self.data.len()) as u16;
        [&[self.code, self.id], &len.to_be_bytes()[..], self.data].concat()
    }
}

/// The options of a Configure packet: kind, length of all of it, value.
pub struct Options<'a>(pub &'a [u8]);

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub kind: u8,
    pub value: &'a [u8],
    /// With kind and length.
    pub whole: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let all = std::mem::take(&mut self.0);
        let (kind, rest) = all.split_first()?;
        let len = rest.first().map_or(0, |len| usize::from(*len));
        match all.split_at_checked(len) {
            Some((whole, rest)) if len >= 2 => {
                self.0 = rest;
                Some(Ok(Item { kind: *kind, value: &whole[2..], whole }))
            }
            _ => Some(Err(Malformed::Tag)),
        }
    }
}

/// Appends an option.
pub fn put(options: &mut Vec<u8>, kind: u8, value: &[u8]) {
    options.extend_from_slice(&[kind, value.len() as u8 + 2]);
    options.extend_from_slice(value);
}

/// What is said to the options of a Configure-Request: as it is filled while they are gone through.
#[derive(Debug, Default)]
pub struct Answer {
    naks: Vec<u8>,
    /// What the naks are about, in the words of the request.
    naked: Vec<u8>,
    rejects: Vec<u8>,
}

/// The same, at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ack,
    Nak(Vec<u8>),
    Reject(Vec<u8>),
}

impl Answer {
    /// Another value instead of that of this option.
    pub fn nak(&mut self, option: &Item, value: &[u8]) {
        put(&mut self.naks, option.kind, value);
        self.naked.extend_from_slice(option.whole);
    }

    /// Not this option at all.
    pub fn reject(&mut self, option: &Item) {
        self.rejects.extend_from_slice(option.whole);
    }

    /// What to answer: rejects first (RFC 1661 §5.4). Who has said Nak often enough rejects (RFC 1661 §4.6, Max-Failure).
    pub fn verdict(self, insist: bool) -> Verdict {
        match self {
            Self { naks, naked, mut rejects } if insist && !naks.is_empty() => {
                rejects.extend(naked);
                Verdict::Reject(rejects)
            }
            Self { rejects, .. } if !rejects.is_empty() => Verdict::Reject(rejects),
            Self { naks, .. } if !naks.is_empty() => Verdict::Nak(naks),
            _ => Verdict::Ack,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_options_back_and_forth() {
        let mut options = Vec::new();
        put(&mut options, 1, &[5, 0xd4]);
        put(&mut options, 7, &[]);
        let mut bytes = Packet { code: 1, id: 9, data: &options }.build();
        bytes.push(0);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.code, packet.id, packet.data), (1, 9, &options[..]));
        let seen: Vec<_> =
            Options(packet.data).map(|option| option.map(|item| (item.kind, item.value)).unwrap()).collect();
        assert_eq!(seen, [(1, &[5, 0xd4][..]), (7, &[])]);
        assert_eq!(Packet::parse(&bytes[..9]).map(drop), Err(Malformed::Length));
        assert_eq!(Packet::parse(&[1, 2, 0, 3]).map(drop), Err(Malformed::Length));
        assert_eq!(Packet::parse(&[1, 2, 0]).map(drop), Err(Malformed::Truncated));
    }

    #[test]
    fn options_without_length_end() {
        for bytes in [&[1][..], &[1, 0], &[1, 1, 1], &[1, 3], &[7, 2, 1]] {
            let last = Options(bytes).last().unwrap();
            assert!(last.is_err(), "{bytes:?}");
            assert!(Options(bytes).count() <= 2);
        }
    }

    #[test]
    fn rejects_before_naks_and_rejects_in_the_end() {
        let whole = [1, 4, 0, 0, 8, 2];
        let items: Vec<_> = Options(&whole).map(Result::unwrap).collect();
        let answer = |insist| {
            let mut answer = Answer::default();
            answer.nak(&items[0], &[5, 0xd4]);
            answer.verdict(insist)
        };
        assert_eq!(
            (answer(false), answer(true)),
            (Verdict::Nak(vec![1, 4, 5, 0xd4]), Verdict::Reject(vec![1, 4, 0, 0]))
        );
        let mut both = Answer::default();
        both.nak(&items[0], &[5, 0xd4]);
        both.reject(&items[1]);
        assert_eq!(both.verdict(false), Verdict::Reject(vec![8, 2]));
        assert_eq!(Answer::default().verdict(true), Verdict::Ack);
    }
}
