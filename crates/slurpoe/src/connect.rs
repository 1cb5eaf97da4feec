//! How two ends agree on queue pairs: datagrams between the queue pairs with the number 1. Public for whoever speaks for endpoints that are not
//! in his process.
//!
//! | Byte | What |
//! |---|---|
//! | 0 to 3 | `SLPE` |
//! | 4 | version: 1 |
//! | 5 | 1 ask, 2 answer, 3 over, 4 refused |
//! | 6, 7 | most bytes of payload of a packet |
//! | 8 to 15 | which opening of the sender's endpoint, a random number |
//! | 16 to 23 | the same of the receiver's, as far as known, or 0 |
//! | 24 to 27 | queue pair of the sender |
//! | 28 to 31 | its first sequence number |
//! | 32 to 35 | queue pair of the receiver, as far as known, or 0 |
//! | 36 to 39 | which connection of this opening: later ones have higher numbers |
//!
//! What a program tells others ([`Endpoint::tell`](crate::Endpoint::tell)) are datagrams between the same queue pairs: `SLPT`, and up to 200 bytes.
//!
//! All numbers are big-endian. An ask is repeated until it is answered; one that comes again is answered again.

use millrace_rdma::number::{Psn, Qpn};
use millrace_rdma::transport::{Attributes, State};
use millrace_rdma::wire::Path;

/// Bytes of a message.
pub const LEN: usize = 40;
const MAGIC: &[u8; 4] = b"SLPE";
const VERSION: u8 = 1;
/// Stands before what a program tells others.
pub const TOLD: &[u8; 4] = b"SLPT";
/// Most bytes of that.
pub const MOST: usize = 200;
/// The queue key of the queue pairs with the number 1 (volume 1, 10.2.5, says the upper bit is for such).
pub const QKEY: u32 = 0x8001_0000;
/// How long an ask is waited for before it is sent again, in nanoseconds.
pub const ASK_AGAIN: u64 = 20_000_000;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// To be connected.
    Ask = 1,
    /// Yes.
    Answer = 2,
    /// The connection is over.
    Over = 3,
    /// No.
    Refused = 4,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub what: What,
    /// Most bytes of payload of a packet.
    pub mtu: u16,
    /// Which opening of the sender's endpoint.
    pub opening: u64,
    /// The same of the receiver's, as far as known, or 0.
    pub receiver_opening: u64,
    /// Queue pair of the sender.
    pub qpn: Qpn,
    /// Its first sequence number.
    pub psn: Psn,
    /// Queue pair of the receiver, as far as known, or 0.
    pub receiver_qpn: Qpn,
    /// Which connection of this opening.
    pub count: u32,
}

impl Message {
    /// What the queue pair on this side is told when its other end has said this, one after the other: packets have at most `mtu` bytes of payload, and
    /// begin with the number `psn`.
    pub fn attributes(&self, path: Path, mtu: u16, psn: Psn) -> [Attributes; 2] {
        let receive = Attributes {
            path: Some(path),
            path_mtu: Some(mtu.min(self.mtu)),
            remote: Some(self.qpn),
            receive_psn: Some(self.psn),
            max_dest_rd_atomic: Some(16),
            // 1.28 ms.
            min_rnr_timer: Some(14),
            ..Attributes::state(State::ReadyToReceive)
        };
        let send = Attributes {
            send_psn: Some(psn),
            // 67 ms, which the engine makes longer where the other end may have to wait for a core.
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..Attributes::state(State::ReadyToSend)
        };
        [receive, send]
    }

    /// As bytes of a datagram.
    pub fn write(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.what as u8;
        bytes[6..8].copy_from_slice(&self.mtu.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.opening.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.receiver_opening.to_be_bytes());
        let words = [self.qpn.value(), self.psn.value(), self.receiver_qpn.value(), self.count];
        for (to, word) in bytes[24..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// `None`: it is none.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        if !bytes.starts_with(MAGIC) || bytes[4] != VERSION {
            return None;
        }
        let what = match bytes[5] {
            1 => What::Ask,
            2 => What::Answer,
            3 => What::Over,
            4 => What::Refused,
            _ => return None,
        };
        let long = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let word = |at: usize| bytes[at..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let mtu = u16::from_be_bytes([bytes[6], bytes[7]]);
        let number = |at: usize| word(at).filter(|number| *number < 1 << 24);
        if !matches!(mtu, 256 | 512 | 1024 | 2048 | 4096 | 8192) {
            return None;
        }
        Some(Self {
            what,
            mtu,
            opening: long(8)?,
            receiver_opening: long(16)?,
            qpn: Qpn::new(number(24)?),
            psn: Psn::new(number(28)?),
            receiver_qpn: Qpn::new(number(32)?),
            count: word(36)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        let message = Message {
            what: What::Answer,
            mtu: 8192,
            opening: 0x0102_0304_0506_0708,
            receiver_opening: 9,
            qpn: Qpn::new(0x11),
            psn: Psn::new(0xff_ffff),
            receiver_qpn: Qpn::new(0x12),
            count: 3,
        };
        let bytes = message.write();
        assert_eq!(Message::read(&bytes), Some(message));
        assert_eq!(Message::read(&bytes[..39]), None);
        // Magic, version, kind, size, the upper byte of each number: nothing else is refused.
        let refused: Vec<usize> = (0..LEN)
            .filter(|&at| {
                let mut bytes = bytes;
                bytes[at] ^= 0x80;
                Message::read(&bytes).is_none()
            })
            .collect();
        assert_eq!(refused, [0, 1, 2, 3, 4, 5, 6, 7, 24, 28, 32]);
    }
}
