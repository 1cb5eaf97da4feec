//! Packets behind the handshake, with keys that an application has handed over.

use super::keys::{HeaderKey, KeyError, PacketKey, Secret, Side, Suite, Version};
use super::protection::{Scratch, Unmasked, unmask};

/// Keys of a connection, one direction each.
#[derive(Debug, Default)]
pub struct OneRtt {
    client: Option<Direction>,
    server: Option<Direction>,
}

impl OneRtt {
    /// Takes a secret, in place of one that was there.
    ///
    /// # Errors
    /// It is no secret of a cipher suite.
    pub fn put(&mut self, version: Version, side: Side, secret: &[u8]) -> Result<(), KeyError> {
        *self.of(side) = Some(Direction::new(version, secret)?);
        Ok(())
    }

    /// Decrypts a packet with a short header and a connection id of `id_len` bytes; returns how long the payload in
    /// `scratch` is. `None`: there is no key of this side, or it does not fit.
    pub fn open(&mut self, side: Side, packet: &[u8], id_len: usize, scratch: &mut Scratch) -> Option<usize> {
        self.of(side).as_mut()?.open(packet, id_len, scratch)
    }

    fn of(&mut self, side: Side) -> &mut Option<Direction> {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

/// Keys of one direction. A secret of 32 bytes belongs to one of two cipher suites: the first packet that can be opened
/// says to which.
#[derive(Debug)]
struct Direction {
    suites: Vec<Keys>,
}

impl Direction {
    fn new(version: Version, secret: &[u8]) -> Result<Self, KeyError> {
        let suites = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305, Suite::Aes256Gcm];
        let fitting = suites.into_iter().filter(|suite| suite.secret_len() == secret.len());
        let keys =
            fitting.map(|suite| Keys::new(Secret::new(version, suite, secret)?)).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(KeyError) } else { Ok(Self { suites: keys }) }
    }

    fn open(&mut self, packet: &[u8], id_len: usize, scratch: &mut Scratch) -> Option<usize> {
        let opened = self.suites.iter_mut().enumerate().find_map(|(at, keys)| {
            let len = keys.open(packet, id_len, scratch)?;
            Some((at, len))
        });
        let (at, len) = opened?;
        if self.suites.len() > 1 {
            self.suites.swap(0, at);
            self.suites.truncate(1);
        }
        Some(len)
    }
}

/// Keys of one direction and cipher suite, through its key updates (RFC 9001 §6).
#[derive(Debug)]
struct Keys {
    header: HeaderKey,
    phase: bool,
    previous: Option<PacketKey>,
    current: PacketKey,
    next: PacketKey,
    /// That of `next`.
    next_secret: Secret,
    /// Highest packet number that was opened.
    largest: Option<u64>,
}

impl Keys {
    fn new(secret: Secret) -> Result<Self, KeyError> {
        let next_secret = secret.next()?;
        Ok(Self {
            header: secret.header_key()?,
            phase: false,
            previous: None,
            current: secret.packet_key()?,
            next: next_secret.packet_key()?,
            next_secret,
            largest: None,
        })
    }

    fn open(&mut self, packet: &[u8], id_len: usize, scratch: &mut Scratch) -> Option<usize> {
        scratch.packet.clear();
        scratch.packet.extend_from_slice(packet);
        let unmasked = unmask(&self.header, &mut scratch.packet, 1 + id_len)?;
        let number = unmasked.number(self.largest);
        let len = self.open_unmasked(&unmasked, number, &mut scratch.payload)?;
        self.largest = self.largest.max(Some(number));
        Some(len)
    }

    /// With the key of its phase. In the other phase it is of the next keys, or a late packet of the previous ones.
    fn open_unmasked(&mut self, unmasked: &Unmasked<'_>, number: u64, payload: &mut Vec<u8>) -> Option<usize> {
        if unmasked.key_phase() == self.phase {
            return unmasked.try_open(&self.current, number, payload);
        }
        if let Some(len) = self.previous.as_ref().and_then(|key| unmasked.try_open(key, number, payload)) {
            return Some(len);
        }
        let len = unmasked.try_open(&self.next, number, payload)?;
        let secret = self.next_secret.next().ok()?;
        let next = secret.packet_key().ok()?;
        self.previous = Some(std::mem::replace(&mut self.current, std::mem::replace(&mut self.next, next)));
        self.next_secret = secret;
        self.phase = !self.phase;
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::tests::{hex, protect};

    const ID: [u8; 4] = [1, 2, 3, 4];

    /// A packet of a sender whose keys were updated `updates` times.
    fn packet(suite: Suite, secret: &[u8], updates: u32, number: u64, payload: &[u8]) -> Vec<u8> {
        let first = Secret::new(Version::V1, suite, secret).unwrap();
        let mut secret = first.clone();
        for _ in 0..updates {
            secret = secret.next().unwrap();
        }
        let phase = if updates % 2 == 1 { 0x04 } else { 0 };
        let header = [&[0x41 | phase][..], &ID, &(number as u16).to_be_bytes()].concat();
        protect(&first.header_key().unwrap(), &secret.packet_key().unwrap(), number, header, 2, payload)
    }

    #[test]
    fn each_suite_is_found_out() {
        for suite in [Suite::Aes128Gcm, Suite::ChaCha20Poly1305, Suite::Aes256Gcm] {
            let secret = vec![3; suite.secret_len()];
            let mut keys = OneRtt::default();
            let mut scratch = Scratch::default();
            keys.put(Version::V1, Side::Client, &secret).unwrap();
            let first = packet(suite, &secret, 0, 7, b"in the first packet");
            let len = keys.open(Side::Client, &first, ID.len(), &mut scratch).unwrap();
            assert_eq!(&scratch.payload[..len], b"in the first packet");
            assert!(keys.open(Side::Server, &first, ID.len(), &mut scratch).is_none(), "no key");
            assert!(keys.open(Side::Client, &first, ID.len() + 1, &mut scratch).is_none(), "another length");
        }
        assert_eq!(OneRtt::default().put(Version::V1, Side::Client, &[0; 31]), Err(KeyError));
    }

    #[test]
    fn key_updates_with_packets_that_come_late() {
        let secret = [9; 32];
        let mut keys = OneRtt::default();
        let mut scratch = Scratch::default();
        keys.put(Version::V1, Side::Server, &secret).unwrap();
        let mut opens = |updates, number| {
            let packet = packet(Suite::Aes128Gcm, &secret, updates, number, b"some bytes");
            keys.open(Side::Server, &packet, ID.len(), &mut scratch).is_some()
        };
        assert!(opens(0, 1));
        assert!(opens(1, 3));
        assert!(opens(0, 2), "late");
        assert!(opens(2, 4));
        assert!(!opens(4, 5), "not two updates at once");
        assert!(opens(3, 30_000), "within half of what two bytes of number say");
    }

    /// RFC 9001 appendix A.5 and RFC 9369 appendix A.5.
    #[test]
    fn chacha_of_both_versions() {
        let secret = hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b");
        for (version, bytes, update) in [
            (
                Version::V1,
                "4cfe4189655e5cd55c41f69080575d7999c25a5bfb",
                "1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9",
            ),
            (
                Version::V2,
                "5558b1c60ae7b6b932bc27d786f4bc2bb20f2162ba",
                "c69374c49e3d2a9466fa689e49d476db5d0dfbc87d32ceeaa6343fd0ae4c7d88",
            ),
        ] {
            let mut direction = Direction::new(version, &secret).unwrap();
            let mut scratch = Scratch::default();
            direction.suites.iter_mut().for_each(|keys| keys.largest = Some(654_360_563));
            assert_eq!(direction.open(&hex(bytes), 0, &mut scratch), Some(1));
            assert_eq!(scratch.payload[0], 1);
            let next = Secret::new(version, Suite::ChaCha20Poly1305, &secret).unwrap().next().unwrap();
            assert!(next.is(&hex(update)));
        }
    }
}
