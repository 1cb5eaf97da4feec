//! Keys of QUIC packets, derived from secrets (RFC 9001 §5, RFC 9369 §3.3).

use aws_lc_rs::aead::quic::{self, HeaderProtectionKey};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{self, KeyType, Prk, Salt};
use millrace_packet::parse::quic_version;
use std::fmt;

/// Length of what AEAD adds behind a payload, in bytes, with every suite.
pub const TAG_LEN: usize = 16;
/// Longest secret, in bytes: a hash of SHA-384.
const LONGEST_SECRET: usize = 48;
/// Salt of Initial secrets of version 1 (RFC 9001 §5.2).
const SALT_V1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f,
    0x0a,
];
/// Salt of Initial secrets of version 2 (RFC 9369 §3.3.1).
const SALT_V2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9, 0xbd, 0x2e,
    0xd9,
];

/// A version of QUIC whose packets can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 9000.
    V1,
    /// RFC 9369.
    V2,
}

impl Version {
    /// The version with this number in long headers.
    pub fn of(number: u32) -> Option<Self> {
        match number {
            quic_version::V1 => Some(Self::V1),
            quic_version::V2 => Some(Self::V2),
            _ => None,
        }
    }

    /// Labels of key, IV, header protection and key update.
    fn labels(self) -> [&'static str; 4] {
        match self {
            Self::V1 => ["quic key", "quic iv", "quic hp", "quic ku"],
            Self::V2 => ["quicv2 key", "quicv2 iv", "quicv2 hp", "quicv2 ku"],
        }
    }
}

/// Which side sends the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Who opened the connection.
    Client,
    /// The other one.
    Server,
}

/// AEAD and hash of a cipher suite of TLS 1.3 that QUIC allows (RFC 9001 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`.
    Aes128Gcm,
    /// `TLS_AES_256_GCM_SHA384`.
    Aes256Gcm,
    /// `TLS_CHACHA20_POLY1305_SHA256`.
    ChaCha20Poly1305,
}

impl Suite {
    fn hash(self) -> hkdf::Algorithm {
        match self {
            Self::Aes256Gcm => hkdf::HKDF_SHA384,
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
        }
    }

    fn key_len(self) -> usize {
        if self == Self::Aes128Gcm { 16 } else { 32 }
    }

    fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    fn header(self) -> &'static quic::Algorithm {
        match self {
            Self::Aes128Gcm => &quic::AES_128,
            Self::Aes256Gcm => &quic::AES_256,
            Self::ChaCha20Poly1305 => &quic::CHACHA20,
        }
    }

    /// Length of its secrets, in bytes.
    pub fn secret_len(self) -> usize {
        if self == Self::Aes256Gcm { LONGEST_SECRET } else { 32 }
    }
}

/// Keys could not be made: a length is wrong, or the library refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no keys can be made of this secret")]
pub struct KeyError;

/// What the keys of one direction are derived from. It is not printed.
#[derive(Clone)]
pub struct Secret {
    version: Version,
    suite: Suite,
    bytes: [u8; LONGEST_SECRET],
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("version", &self.version).field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl Secret {
    /// The secret of the Initial packets that `side` sends in a connection whose client first wrote to `destination`
    /// (RFC 9001 §5.2).
    ///
    /// # Errors
    /// The library refused.
    pub fn initial(version: Version, destination: &[u8], side: Side) -> Result<Self, KeyError> {
        let salt = if version == Version::V1 { &SALT_V1 } else { &SALT_V2 };
        let common = Salt::new(hkdf::HKDF_SHA256, salt).extract(destination);
        let mut bytes = [0; LONGEST_SECRET];
        let label = if side == Side::Client { "client in" } else { "server in" };
        expand_label(&common, label, &mut bytes[..32])?;
        Ok(Self { version, suite: Suite::Aes128Gcm, bytes })
    }

    /// A secret of TLS (`CLIENT_TRAFFIC_SECRET_0`, `SERVER_TRAFFIC_SECRET_0`).
    ///
    /// # Errors
    /// It has not the length that the suite's hash has.
    pub fn new(version: Version, suite: Suite, secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() != suite.secret_len() {
            return Err(KeyError);
        }
        let mut bytes = [0; LONGEST_SECRET];
        bytes[..secret.len()].copy_from_slice(secret);
        Ok(Self { version, suite, bytes })
    }

    /// The secret after a key update (RFC 9001 §6.1).
    ///
    /// # Errors
    /// The library refused.
    pub fn next(&self) -> Result<Self, KeyError> {
        let mut bytes = [0; LONGEST_SECRET];
        let [.., update] = self.version.labels();
        expand_label(&self.prk(), update, &mut bytes[..self.suite.secret_len()])?;
        Ok(Self { bytes, ..*self })
    }

    /// Whether these are its bytes.
    #[cfg(test)]
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        self.bytes[..self.suite.secret_len()] == *bytes
    }

    fn prk(&self) -> Prk {
        Prk::new_less_safe(self.suite.hash(), &self.bytes[..self.suite.secret_len()])
    }

    /// The key of payloads.
    ///
    /// # Errors
    /// The library refused.
    pub fn packet_key(&self) -> Result<PacketKey, KeyError> {
        let [key, iv, ..] = self.version.labels();
        let mut bytes = [0; 32];
        let bytes = &mut bytes[..self.suite.key_len()];
        let prk = self.prk();
        expand_label(&prk, key, bytes)?;
        let aead = UnboundKey::new(self.suite.aead(), bytes).map_err(|_| KeyError)?;
        let mut iv_bytes = [0; NONCE_LEN];
        expand_label(&prk, iv, &mut iv_bytes)?;
        Ok(PacketKey { aead: LessSafeKey::new(aead), iv: iv_bytes })
    }

    /// The key of header protection. It stays the same when keys are updated (RFC 9001 §6).
    ///
    /// # Errors
    /// The library refused.
    pub fn header_key(&self) -> Result<HeaderKey, KeyError> {
        let [_, _, label, _] = self.version.labels();
        let mut bytes = [0; 32];
        let bytes = &mut bytes[..self.suite.key_len()];
        expand_label(&self.prk(), label, bytes)?;
        HeaderProtectionKey::new(self.suite.header(), bytes).map(HeaderKey).map_err(|_| KeyError)
    }
}

/// Encrypts payloads of one direction.
#[derive(Debug)]
pub struct PacketKey {
    aead: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl PacketKey {
    /// The nonce of a packet (RFC 9001 §5.3).
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(to, byte)| *to ^= byte);
        Nonce::assume_unique_for_key(nonce)
    }

    /// Decrypts `payload` where it lies; the tag is at its end. `None`: it was not encrypted with this key, or it is
    /// damaged.
    pub fn open<'a>(&self, number: u64, header: &[u8], payload: &'a mut [u8]) -> Option<&'a [u8]> {
        self.aead.open_in_place(self.nonce(number), Aad::from(header), payload).ok().map(|plain| &*plain)
    }

    /// Encrypts what a test sends; the tag is appended.
    #[cfg(test)]
    pub(crate) fn seal(&self, number: u64, header: &[u8], payload: &mut Vec<u8>) {
        self.aead.seal_in_place_append_tag(self.nonce(number), Aad::from(header), payload).unwrap();
    }
}

/// Hides first bytes and packet numbers of one direction (RFC 9001 §5.4).
pub struct HeaderKey(HeaderProtectionKey);

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderKey").finish_non_exhaustive()
    }
}

impl HeaderKey {
    /// The bits that are changed in the first byte and in the packet number, from the 16 bytes of the sample.
    pub fn mask(&self, sample: &[u8; 16]) -> Option<[u8; 5]> {
        self.0.new_mask(sample).ok()
    }
}

/// How much HKDF is to give.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label of TLS 1.3 with an empty context (RFC 8446 §7.1), which fills `out`.
fn expand_label(prk: &Prk, label: &str, out: &mut [u8]) -> Result<(), KeyError> {
    let len = u16::try_from(out.len()).map_err(|_| KeyError)?.to_be_bytes();
    let label_len = [u8::try_from(6 + label.len()).map_err(|_| KeyError)?];
    let info: [&[u8]; 5] = [&len, &label_len, b"tls13 ", label.as_bytes(), &[0]];
    prk.expand(&info, Length(out.len())).and_then(|okm| okm.fill(out)).map_err(|_| KeyError)
}
