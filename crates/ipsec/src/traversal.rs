//! ESP through address translation: in UDP, beside IKE, on port 4500 (RFC 3948).

/// The port of IKE and ESP behind translators.
pub const PORT: u16 = 4500;

/// Bytes of a UDP header.
pub(crate) const UDP_LEN: usize = 8;

/// What is in a datagram of port 4500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// One byte that keeps the translator's entry alive; to be dropped.
    Keepalive,
    /// A message of IKE, without the four zeros before it.
    Ike(&'a [u8]),
    /// ESP, from its SPI on.
    Esp(&'a [u8]),
    /// Neither: too short to say.
    Unknown,
}

impl<'a> Datagram<'a> {
    /// What this payload of a datagram is.
    #[inline]
    pub fn of(payload: &'a [u8]) -> Self {
        match payload {
            [0xff] => Self::Keepalive,
            [0, 0, 0, 0, message @ ..] => Self::Ike(message),
            // SPI and sequence number, at least.
            [_, _, _, _, _, _, _, _, ..] => Self::Esp(payload),
            _ => Self::Unknown,
        }
    }

    /// The payload of a keepalive.
    pub const KEEPALIVE: [u8; 1] = [0xff];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_apart() {
        assert_eq!(Datagram::of(&Datagram::KEEPALIVE), Datagram::Keepalive);
        assert_eq!(Datagram::of(&[0, 0, 0, 0, 7]), Datagram::Ike(&[7]));
        assert_eq!(Datagram::of(&[0, 0, 1, 0, 0, 0, 0, 1]), Datagram::Esp(&[0, 0, 1, 0, 0, 0, 0, 1]));
        assert_eq!(Datagram::of(&[0, 0, 1, 0, 0, 0, 1]), Datagram::Unknown);
        assert_eq!(Datagram::of(&[0xff, 0xff]), Datagram::Unknown);
        assert_eq!(Datagram::of(&[]), Datagram::Unknown);
    }
}
