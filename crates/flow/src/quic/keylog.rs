//! Lines of `SSLKEYLOGFILE`, in which applications hand over secrets of TLS (RFC 9850).

use super::keys::Side;
use std::fmt;

/// A secret of the packets behind the handshake.
#[derive(Clone)]
pub struct KeyLogLine {
    /// The random number of the client's ClientHello, which says whose secret it is.
    pub random: [u8; 32],
    /// Who encrypts with it.
    pub side: Side,
    /// The secret: 32 or 48 bytes. It is not printed.
    pub secret: Vec<u8>,
}

impl fmt::Debug for KeyLogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLogLine").field("side", &self.side).finish_non_exhaustive()
    }
}

/// What became of a secret that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOver {
    /// It is kept until its connection is forgotten, or whoever has handed it over goes.
    Taken,
    /// No connection of the group has this random number, or the group takes no keys.
    Unknown,
    /// As many connections have keys as may.
    Full,
    /// Somebody else has handed over keys of this connection.
    Foreign,
    /// It has not the length of a secret.
    Invalid,
}

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyLogError {
    /// It is not a label, a random number and a secret.
    #[error("a line of a key log is a label, 64 hexadecimal digits and a secret of 64 or 96")]
    Format,
}

impl KeyLogLine {
    /// Reads a line. `None`: an empty line, a comment, or a secret of something else (RFC 9850 §2).
    ///
    /// # Errors
    /// The label is one of those two that are read, and what follows is not what it has to be.
    pub fn parse(line: &str) -> Result<Option<Self>, KeyLogError> {
        let mut words = line.split_ascii_whitespace();
        let side = match words.next() {
            Some("CLIENT_TRAFFIC_SECRET_0") => Side::Client,
            Some("SERVER_TRAFFIC_SECRET_0") => Side::Server,
            _ => return Ok(None),
        };
        let random = words.next().and_then(unhex).and_then(|bytes| bytes.try_into().ok()).ok_or(KeyLogError::Format)?;
        let secret = words.next().and_then(unhex).ok_or(KeyLogError::Format)?;
        if !matches!(secret.len(), 32 | 48) || words.next().is_some() {
            return Err(KeyLogError::Format);
        }
        Ok(Some(Self { random, side, secret }))
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let (random, secret) = ("ab".repeat(32), "0C".repeat(48));
        let line = KeyLogLine::parse(&format!("SERVER_TRAFFIC_SECRET_0 {random} {secret}\n")).unwrap().unwrap();
        assert_eq!((line.side, line.random, line.secret), (Side::Server, [0xab; 32], vec![0x0c; 48]));
        for skipped in ["", "# comment", "CLIENT_HANDSHAKE_TRAFFIC_SECRET ab cd", "EXPORTER_SECRET"] {
            assert!(KeyLogLine::parse(skipped).unwrap().is_none(), "{skipped}");
        }
        for wrong in [
            "CLIENT_TRAFFIC_SECRET_0".to_owned(),
            format!("CLIENT_TRAFFIC_SECRET_0 {random}"),
            format!("CLIENT_TRAFFIC_SECRET_0 {random} abcd"),
            format!("CLIENT_TRAFFIC_SECRET_0 {random} {secret} more"),
            format!("CLIENT_TRAFFIC_SECRET_0 {secret} {secret}"),
            format!("CLIENT_TRAFFIC_SECRET_0 {random} {}", "0g".repeat(32)),
        ] {
            assert_eq!(KeyLogLine::parse(&wrong).map(|_| ()), Err(KeyLogError::Format), "{wrong}");
        }
    }
}
