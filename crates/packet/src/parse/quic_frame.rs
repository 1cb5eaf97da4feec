//! Frames of QUIC versions 1 and 2 (RFC 9000 §19, RFC 9221), in a payload that is decrypted.

use super::Malformed;
use super::quic::number;

/// What is told of a frame. Frames that only keep a connection alive or in bounds are [`QuicFrame::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicFrame<'a> {
    /// CRYPTO (RFC 9000 §19.6): bytes of the TLS handshake, and where they belong.
    #[expect(missing_docs, reason = "see above")]
    Crypto { offset: u64, data: &'a [u8] },
    /// STREAM (RFC 9000 §19.8). The lowest two bits of `id` say who opened the stream, and whether it has one
    /// direction.
    #[expect(missing_docs, reason = "see above")]
    Stream { id: u64, offset: u64, data: &'a [u8], fin: bool },
    /// RESET_STREAM, STOP_SENDING, MAX_STREAM_DATA or STREAM_DATA_BLOCKED of this stream (RFC 9000 §19.4, 19.5, 19.10,
    /// 19.13).
    AboutStream(u64),
    /// NEW_CONNECTION_ID (RFC 9000 §19.15): an id that the receiver may address its packets to; ids with a number below
    /// `retire_prior_to` are not to be used any more.
    #[expect(missing_docs, reason = "see above")]
    NewConnectionId { sequence: u64, retire_prior_to: u64, id: &'a [u8] },
    /// RETIRE_CONNECTION_ID (RFC 9000 §19.16): the sender does not use the id of this number any more.
    RetireConnectionId(u64),
    /// CONNECTION_CLOSE (RFC 9000 §19.19).
    Close,
    /// Any other frame that the two standards know, with its type.
    Other(u64),
}

/// The frames of a payload, one after the other; ends behind the first that is malformed or of a type that is not known,
/// because nothing says how long that is. Padding is skipped.
#[derive(Clone, Copy, Debug)]
pub struct QuicFrames<'a> {
    rest: &'a [u8],
}

impl<'a> QuicFrames<'a> {
    /// Frames of this payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let (value, rest) = number(self.rest)?;
        self.rest = rest;
        Ok(value)
    }

    fn numbers(&mut self, count: usize) -> Result<(), Malformed> {
        (0..count).try_for_each(|_| self.number().map(|_| ()))
    }

    fn bytes(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed::Length)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.number()?;
        self.bytes(len)
    }

    fn frame(&mut self) -> Result<QuicFrame<'a>, Malformed> {
        let kind = self.number()?;
        match kind {
            // PING, HANDSHAKE_DONE.
            0x01 | 0x1e => {}
            0x02 | 0x03 => self.ack(kind == 0x03)?,
            0x04 => return self.about_stream(2),
            0x05 | 0x11 | 0x15 => return self.about_stream(1),
            0x06 => {
                let offset = self.number()?;
                return Ok(QuicFrame::Crypto { offset, data: self.string()? });
            }
            // NEW_TOKEN, DATAGRAM with a length.
            0x07 | 0x31 => {
                self.string()?;
            }
            0x08..=0x0f => return self.stream(kind),
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED.
            0x10 | 0x12..=0x14 | 0x16 | 0x17 => self.numbers(1)?,
            0x18 => return self.new_connection_id(),
            0x19 => return Ok(QuicFrame::RetireConnectionId(self.number()?)),
            // PATH_CHALLENGE, PATH_RESPONSE.
            0x1a | 0x1b => {
                self.bytes(8)?;
            }
            0x1c | 0x1d => {
                self.numbers(if kind == 0x1c { 2 } else { 1 })?;
                self.string()?;
                return Ok(QuicFrame::Close);
            }
            // DATAGRAM without a length is the rest.
            0x30 => self.rest = &[],
            _ => return Err(Malformed::Field),
        }
        Ok(QuicFrame::Other(kind))
    }

    /// ACK (RFC 9000 §19.3), with or without counts of ECN.
    fn ack(&mut self, ecn: bool) -> Result<(), Malformed> {
        self.numbers(2)?;
        let ranges = self.number()?;
        self.numbers(1)?;
        // Each range takes two bytes at least, so this ends with the payload, whatever the number says.
        for _ in 0..ranges {
            self.numbers(2)?;
        }
        self.numbers(if ecn { 3 } else { 0 })
    }

    /// A frame that begins with a stream id and has `more` numbers behind it.
    fn about_stream(&mut self, more: usize) -> Result<QuicFrame<'a>, Malformed> {
        let id = self.number()?;
        self.numbers(more)?;
        Ok(QuicFrame::AboutStream(id))
    }

    fn stream(&mut self, kind: u64) -> Result<QuicFrame<'a>, Malformed> {
        let id = self.number()?;
        let offset = if kind & 4 != 0 { self.number()? } else { 0 };
        let data = if kind & 2 != 0 { self.string()? } else { std::mem::take(&mut self.rest) };
        Ok(QuicFrame::Stream { id, offset, data, fin: kind & 1 != 0 })
    }

    fn new_connection_id(&mut self) -> Result<QuicFrame<'a>, Malformed> {
        let sequence = self.number()?;
        let retire_prior_to = self.number()?;
        let len = *self.bytes(1)?.first().ok_or(Malformed::Truncated)?;
        if !(1..=20).contains(&len) || retire_prior_to > sequence {
            return Err(Malformed::Field);
        }
        let id = self.bytes(u64::from(len))?;
        // The stateless reset token.
        self.bytes(16)?;
        Ok(QuicFrame::NewConnectionId { sequence, retire_prior_to, id })
    }
}

impl<'a> Iterator for QuicFrames<'a> {
    type Item = Result<QuicFrame<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let padding = self.rest.iter().take_while(|byte| **byte == 0).count();
        self.rest = &self.rest[padding..];
        if self.rest.is_empty() {
            return None;
        }
        let frame = self.frame();
        if frame.is_err() {
            self.rest = &[];
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(bytes: &[u8]) -> Vec<Result<QuicFrame<'_>, Malformed>> {
        QuicFrames::new(bytes).collect()
    }

    #[test]
    fn one_of_each() {
        let id = [7u8; 4];
        let mut bytes = vec![0, 0, 0x01];
        bytes.extend([0x03, 9, 0, 1, 0, 2, 3, 1, 1, 1]);
        bytes.extend([0x04, 8, 0, 5]);
        bytes.extend([0x11, 0x40, 12, 5]);
        bytes.extend([0x06, 3, 2, 0xaa, 0xbb]);
        bytes.extend([0x07, 1, 0xcc]);
        bytes.extend([0x0f, 4, 1, 1, 0xdd]);
        bytes.extend([0x18, 2, 1, 4]);
        bytes.extend(id);
        bytes.extend([0; 16]);
        bytes.extend([0x19, 1]);
        bytes.extend([0x1a, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend([0x1c, 1, 0, 1, 0xee]);
        bytes.extend([0x30, 0, 0, 0]);
        assert_eq!(
            frames(&bytes),
            [
                Ok(QuicFrame::Other(1)),
                Ok(QuicFrame::Other(3)),
                Ok(QuicFrame::AboutStream(8)),
                Ok(QuicFrame::AboutStream(12)),
                Ok(QuicFrame::Crypto { offset: 3, data: &[0xaa, 0xbb] }),
                Ok(QuicFrame::Other(7)),
                Ok(QuicFrame::Stream { id: 4, offset: 1, data: &[0xdd], fin: true }),
                Ok(QuicFrame::NewConnectionId { sequence: 2, retire_prior_to: 1, id: &id }),
                Ok(QuicFrame::RetireConnectionId(1)),
                Ok(QuicFrame::Other(0x1a)),
                Ok(QuicFrame::Close),
                Ok(QuicFrame::Other(0x30)),
            ]
        );
    }

    #[test]
    fn a_stream_without_a_length_is_the_rest() {
        assert_eq!(
            frames(&[0x08, 0x05, 1, 0, 0]),
            [Ok(QuicFrame::Stream { id: 5, offset: 0, data: &[1, 0, 0], fin: false })]
        );
    }

    #[test]
    fn what_is_malformed_ends_the_payload() {
        assert_eq!(frames(&[0x01, 0x06, 0, 9, 1]), [Ok(QuicFrame::Other(1)), Err(Malformed::Truncated)]);
        assert_eq!(frames(&[0x40, 0x99, 1, 1]), [Err(Malformed::Field)]);
        let long = [&[0x18, 2, 0, 21][..], &[0; 37]].concat();
        assert_eq!(frames(&long), [Err(Malformed::Field)]);
        let endless = [0x02, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
        assert_eq!(frames(&endless), [Err(Malformed::Truncated)]);
    }

    proptest! {
        #[test]
        fn each_frame_takes_a_byte_at_least(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let found = frames(&bytes);
            prop_assert!(found.len() <= bytes.len());
            prop_assert!(found.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
