//! Packets behind the handshake, with keys that an application has handed over. Several threads open packets with the same keys:
//! nothing here takes a lock.

use super::keys::{HeaderKey, KeyError, PacketKey, Secret, Side, Suite, Version};
use super::protection::{Scratch, Unmasked, unmask};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Keys of a connection, one direction each.
#[derive(Clone, Debug, Default)]
pub struct OneRtt {
    client: Option<Arc<Direction>>,
    server: Option<Arc<Direction>>,
}

impl OneRtt {
    /// Takes the keys of a side, in place of those that were there.
    pub fn put(&mut self, side: Side, direction: Arc<Direction>) {
        match side {
            Side::Client => self.client = Some(direction),
            Side::Server => self.server = Some(direction),
        }
    }

    /// The keys of a side.
    pub fn of(&self, side: Side) -> Option<&Arc<Direction>> {
        match side {
            Side::Client => self.client.as_ref(),
            Side::Server => self.server.as_ref(),
        }
    }
}

/// Which of several it is, is not known yet.
const UNKNOWN: usize = usize::MAX;

/// Keys of one direction. A secret of 32 bytes belongs to one of two cipher suites: the first packet that can be opened
/// says to which.
#[derive(Debug)]
pub struct Direction {
    suites: Vec<Keys>,
    /// That which has opened a packet.
    fits: AtomicUsize,
}

impl Direction {
    /// Keys from a secret.
    ///
    /// # Errors
    /// It is no secret of a cipher suite.
    pub fn new(version: Version, secret: &[u8]) -> Result<Self, KeyError> {
        let suites = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305, Suite::Aes256Gcm];
        let fitting = suites.into_iter().filter(|suite| suite.secret_len() == secret.len());
        let keys =
            fitting.map(|suite| Keys::new(Secret::new(version, suite, secret)?)).collect::<Result<Vec<_>, _>>()?;
        let fits = AtomicUsize::new(if keys.len() == 1 { 0 } else { UNKNOWN });
        if keys.is_empty() { Err(KeyError) } else { Ok(Self { suites: keys, fits }) }
    }

    /// Decrypts a packet with a short header and a connection id of `id_len` bytes; returns how long the payload in
    /// `scratch` is. `None`: the keys do not fit.
    pub fn open(&self, packet: &[u8], id_len: usize, scratch: &mut Scratch) -> Option<usize> {
        // Relaxed: the number says nothing about other memory, and whoever does not see it finds it out again.
        if let Some(keys) = self.suites.get(self.fits.load(Relaxed)) {
            return keys.open(packet, id_len, scratch);
        }
        let opened = self.suites.iter().enumerate().find_map(|(at, keys)| {
            let len = keys.open(packet, id_len, scratch)?;
            Some((at, len))
        });
        let (at, len) = opened?;
        self.fits.store(at, Relaxed);
        Some(len)
    }
}

/// Keys of one direction and cipher suite, through its key updates (RFC 9001 §6).
#[derive(Debug)]
struct Keys {
    header: HeaderKey,
    phases: ArcSwap<Phases>,
    /// One more than the highest packet number that was opened; 0: none was.
    expected: AtomicU64,
}

/// What a key update exchanges, as a whole.
#[derive(Debug)]
struct Phases {
    phase: bool,
    previous: Option<Arc<PacketKey>>,
    current: Arc<PacketKey>,
    next: Arc<PacketKey>,
    /// That of `next`.
    next_secret: Secret,
}

impl Phases {
    /// Those after a key update.
    fn updated(&self) -> Result<Self, KeyError> {
        let next_secret = self.next_secret.next()?;
        Ok(Self {
            phase: !self.phase,
            previous: Some(Arc::clone(&self.current)),
            current: Arc::clone(&self.next),
            next: Arc::new(next_secret.packet_key()?),
            next_secret,
        })
    }
}

impl Keys {
    fn new(secret: Secret) -> Result<Self, KeyError> {
        let next_secret = secret.next()?;
        let phases = Phases {
            phase: false,
            previous: None,
            current: Arc::new(secret.packet_key()?),
            next: Arc::new(next_secret.packet_key()?),
            next_secret,
        };
        Ok(Self { header: secret.header_key()?, phases: ArcSwap::from_pointee(phases), expected: AtomicU64::new(0) })
    }

    fn open(&self, packet: &[u8], id_len: usize, scratch: &mut Scratch) -> Option<usize> {
        scratch.packet.clear();
        scratch.packet.extend_from_slice(packet);
        let unmasked = unmask(&self.header, &mut scratch.packet, 1 + id_len)?;
        let number = unmasked.number(self.expected.load(Relaxed).checked_sub(1));
        let len = self.open_unmasked(&unmasked, number, &mut scratch.payload)?;
        self.expected.fetch_max(number.saturating_add(1), Relaxed);
        Some(len)
    }

    /// With the key of its phase. In the other phase it is of the next keys, or a late packet of the previous ones.
    fn open_unmasked(&self, unmasked: &Unmasked<'_>, number: u64, payload: &mut Vec<u8>) -> Option<usize> {
        let phases = self.phases.load();
        if unmasked.key_phase() == phases.phase {
            return unmasked.try_open(&phases.current, number, payload);
        }
        if let Some(len) = phases.previous.as_ref().and_then(|key| unmasked.try_open(key, number, payload)) {
            return Some(len);
        }
        let len = unmasked.try_open(&phases.next, number, payload)?;
        // Of several threads that see the update, one takes the keys on.
        if let Ok(updated) = phases.updated() {
            self.phases.compare_and_swap(&*phases, Arc::new(updated));
        }
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
            let mut scratch = Scratch::default();
            let keys = Direction::new(Version::V1, &secret).unwrap();
            let first = packet(suite, &secret, 0, 7, b"in the first packet");
            let len = keys.open(&first, ID.len(), &mut scratch).unwrap();
            assert_eq!(&scratch.payload[..len], b"in the first packet");
            assert!(keys.open(&first, ID.len() + 1, &mut scratch).is_none(), "another length");
        }
        assert_eq!(Direction::new(Version::V1, &[0; 31]).map(|_| ()), Err(KeyError));
    }

    #[test]
    fn key_updates_with_packets_that_come_late() {
        let secret = [9; 32];
        let keys = Direction::new(Version::V1, &secret).unwrap();
        let mut scratch = Scratch::default();
        let mut opens = |updates, number| {
            let packet = packet(Suite::Aes128Gcm, &secret, updates, number, b"some bytes");
            keys.open(&packet, ID.len(), &mut scratch).is_some()
        };
        assert!(opens(0, 1));
        assert!(opens(1, 3));
        assert!(opens(0, 2), "late");
        assert!(opens(2, 4));
        assert!(!opens(4, 5), "not two updates at once");
        assert!(opens(3, 30_000), "within half of what two bytes of number say");
    }

    #[test]
    fn threads_follow_key_updates_together() {
        let secret = [9; 32];
        let keys = Direction::new(Version::V1, &secret).unwrap();
        let packets: Vec<Vec<u8>> = (0..120)
            .map(|number| packet(Suite::ChaCha20Poly1305, &secret, number / 40, number.into(), b"some bytes"))
            .collect();
        // Each thread has packets of every phase, and all are through with one before the next begins.
        for phase in packets.chunks(40) {
            std::thread::scope(|scope| {
                for part in 0..4 {
                    let keys = &keys;
                    scope.spawn(move || {
                        let mut scratch = Scratch::default();
                        let own = phase.iter().skip(part).step_by(4);
                        own.for_each(|packet| assert!(keys.open(packet, ID.len(), &mut scratch).is_some()));
                    });
                }
            });
        }
        let mut scratch = Scratch::default();
        assert!(keys.open(&packets[119], ID.len(), &mut scratch).is_some());
        assert!(keys.open(&packets[0], ID.len(), &mut scratch).is_none(), "two updates ago");
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
            let direction = Direction::new(version, &secret).unwrap();
            let mut scratch = Scratch::default();
            direction.suites.iter().for_each(|keys| keys.expected.store(654_360_564, Relaxed));
            assert_eq!(direction.open(&hex(bytes), 0, &mut scratch), Some(1));
            assert_eq!(scratch.payload[0], 1);
            let next = Secret::new(version, Suite::ChaCha20Poly1305, &secret).unwrap().next().unwrap();
            assert!(next.is(&hex(update)));
        }
    }
}
