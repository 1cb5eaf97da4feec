//! A security association's keys, expanded once: what encrypts and checks the bytes of a packet in place.
//!
//! | | IV in the packet | what is authenticated besides |
//! |---|---|---|
//! | AEAD | 8 bytes: the sequence number, XORed with a random value of this association's | SPI and sequence number (RFC 4106 §5) |
//! | AES-CBC with HMAC | 16 bytes: the sequence number, encrypted with a random key of this association's | the IV; the upper half of an extended number (RFC 4303 §2.2.1) |
//! | NULL with HMAC | none | likewise |

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{constant_time, hmac, rand};

use crate::algorithm::{Cipher, Keys, SALT};

/// Bytes of SPI and sequence number, which cannot be left out.
pub const HEADER: usize = 8;

/// The longest check value.
const MAX_CHECK: usize = 64;

/// How many bytes an algorithm adds where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The IV, behind the header.
    pub iv: usize,
    /// What is encrypted is a multiple of this.
    pub block: usize,
    /// The check value, at the end.
    pub check: usize,
}

impl Shape {
    /// Bytes of padding behind this many of payload, so that with the two of the trailer it is whole blocks.
    #[inline]
    pub const fn padding(&self, payload: usize) -> usize {
        // Both block lengths are powers of two.
        (payload + 2).wrapping_neg() & (self.block - 1)
    }
}

/// What is authenticated besides the packet: the sequence number, whole or its lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The whole number.
    pub number: u64,
    /// Whether it has 64 bits.
    pub is_extended: bool,
}

/// A check value was wrong, or the library of ciphers said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// Keys, expanded.
pub struct Context {
    shape: Shape,
    keys: Expanded,
}

enum Expanded {
    Aead { key: LessSafeKey, salt: [u8; SALT], mask: u64 },
    Cbc(Box<Cbc>),
    Null { hash: Box<hmac::Key> },
}

struct Cbc {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
    /// Makes the IVs.
    generator: EncryptingKey,
    hash: hmac::Key,
}

impl Context {
    /// Expands the keys; `Failed` is no memory or no randomness.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn new(keys: &Keys) -> Result<Self, Failed> {
        Ok(match keys {
            Keys::Aead { aead, key } => {
                let (key, salt) = key.bytes().split_last_chunk().ok_or(Failed)?;
                let key = UnboundKey::new(aead.algorithm(), key).map_err(|_| Failed)?;
                let mut mask = [0; 8];
                rand::fill(&mut mask).map_err(|_| Failed)?;
                Self {
                    shape: Shape { iv: 8, block: 4, check: 16 },
                    keys: Expanded::Aead { key: LessSafeKey::new(key), salt: *salt, mask: u64::from_be_bytes(mask) },
                }
            }
            Keys::Separate { cipher, cipher_key, hash, hash_key, check } => {
                let hash = hmac::Key::new(hash.algorithm(), hash_key.bytes());
                Self::separate(*cipher, cipher_key.bytes(), hash, *check)?
            }
        })
    }

    fn separate(cipher: Cipher, key: &[u8], hash: hmac::Key, check: usize) -> Result<Self, Failed> {
        let Some(algorithm) = cipher.algorithm() else {
            return Ok(Self { shape: Shape { iv: 0, block: 4, check }, keys: Expanded::Null { hash: Box::new(hash) } });
        };
        let unbound = |key: &[u8]| UnboundCipherKey::new(algorithm, key).map_err(|_| Failed);
        let mut random = vec![0; key.len()];
        rand::fill(&mut random).map_err(|_| Failed)?;
        let cbc = Cbc {
            encrypt: EncryptingKey::cbc(unbound(key)?).map_err(|_| Failed)?,
            decrypt: DecryptingKey::cbc(unbound(key)?).map_err(|_| Failed)?,
            generator: EncryptingKey::ecb(unbound(&random)?).map_err(|_| Failed)?,
            hash,
        };
        Ok(Self { shape: Shape { iv: 16, block: 16, check }, keys: Expanded::Cbc(Box::new(cbc)) })
    }

    /// How many bytes it adds where.
    #[inline]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Encrypts `packet`, in which there is room for everything: header, IV, text of whole blocks, check value. The
    /// header is in place.
    ///
    /// # Errors
    /// [`Failed`]; the packet is lost then.
    #[inline]
    pub fn seal(&self, packet: &mut [u8], sequence: Sequence) -> Result<(), Failed> {
        let (header, iv, text, check) = self.parts(packet).ok_or(Failed)?;
        match &self.keys {
            Expanded::Aead { key, salt, mask } => {
                let (whole, len) = associated(header, sequence);
                let bytes: [u8; 8] = (sequence.number ^ mask).to_be_bytes();
                iv.copy_from_slice(&bytes);
                key.seal_in_place_scatter(nonce(*salt, bytes), Aad::from(&whole[..len]), text, &[], check)
                    .map_err(|_| Failed)
            }
            Expanded::Cbc(cbc) => {
                let mut bytes = [0; 16];
                bytes[8..].copy_from_slice(&sequence.number.to_be_bytes());
                cbc.generator.less_safe_encrypt(&mut bytes, EncryptionContext::None).map_err(|_| Failed)?;
                iv.copy_from_slice(&bytes);
                let context = EncryptionContext::Iv128(FixedLength::from(bytes));
                cbc.encrypt.less_safe_encrypt(text, context).map_err(|_| Failed)?;
                self.sign(&cbc.hash, packet, sequence)
            }
            Expanded::Null { hash } => self.sign(hash, packet, sequence),
        }
    }

    /// Checks `packet`, and decrypts the text between IV and check value.
    ///
    /// # Errors
    /// [`Failed`]; the packet is lost then.
    #[inline]
    pub fn open(&self, packet: &mut [u8], sequence: Sequence) -> Result<(), Failed> {
        match &self.keys {
            Expanded::Cbc(cbc) => self.verify(&cbc.hash, packet, sequence)?,
            Expanded::Null { hash } => self.verify(hash, packet, sequence)?,
            Expanded::Aead { .. } => {}
        }
        let (header, iv, text, check) = self.parts(packet).ok_or(Failed)?;
        match &self.keys {
            Expanded::Aead { key, salt, .. } => {
                let (whole, len) = associated(header, sequence);
                let iv: [u8; 8] = (&*iv).try_into().map_err(|_| Failed)?;
                let aad = Aad::from(&whole[..len]);
                key.open_in_place_separate_tag(nonce(*salt, iv), aad, check, text).map_err(|_| Failed)?;
            }
            Expanded::Cbc(cbc) => {
                let iv: [u8; 16] = (&*iv).try_into().map_err(|_| Failed)?;
                cbc.decrypt.decrypt(text, DecryptionContext::Iv128(FixedLength::from(iv))).map_err(|_| Failed)?;
            }
            Expanded::Null { .. } => {}
        }
        Ok(())
    }

    /// Header, IV, text and check value.
    #[inline]
    #[expect(clippy::type_complexity, reason = "four parts of one packet")]
    fn parts<'a>(&self, packet: &'a mut [u8]) -> Option<(&'a [u8; HEADER], &'a mut [u8], &'a mut [u8], &'a mut [u8])> {
        let (header, rest) = packet.split_first_chunk_mut::<HEADER>()?;
        let (iv, rest) = rest.split_at_mut_checked(self.shape.iv)?;
        let (text, check) = rest.split_at_mut_checked(rest.len().checked_sub(self.shape.check)?)?;
        Some((header, iv, text, check))
    }

    fn sign(&self, hash: &hmac::Key, packet: &mut [u8], sequence: Sequence) -> Result<(), Failed> {
        let at = packet.len().checked_sub(self.shape.check).ok_or(Failed)?;
        let (data, check) = packet.split_at_mut(at);
        check.copy_from_slice(&digest(hash, data, sequence)?[..self.shape.check]);
        Ok(())
    }

    fn verify(&self, hash: &hmac::Key, packet: &[u8], sequence: Sequence) -> Result<(), Failed> {
        let at = packet.len().checked_sub(self.shape.check).ok_or(Failed)?;
        let (data, check) = packet.split_at(at);
        let wanted = digest(hash, data, sequence)?;
        constant_time::verify_slices_are_equal(&wanted[..self.shape.check], check).map_err(|_| Failed)
    }
}

#[inline]
fn nonce(salt: [u8; SALT], iv: [u8; 8]) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..SALT].copy_from_slice(&salt);
    bytes[SALT..].copy_from_slice(&iv);
    Nonce::assume_unique_for_key(bytes)
}

/// What an AEAD authenticates besides the text, and how long that is: SPI, number (RFC 4106 §5).
#[inline]
fn associated(header: &[u8; HEADER], sequence: Sequence) -> ([u8; 12], usize) {
    let mut bytes = [0; 12];
    if sequence.is_extended {
        bytes[..4].copy_from_slice(&header[..4]);
        bytes[4..].copy_from_slice(&sequence.number.to_be_bytes());
        return (bytes, 12);
    }
    bytes[..HEADER].copy_from_slice(header);
    (bytes, HEADER)
}

/// The whole hash, of which the check value is the beginning.
fn digest(hash: &hmac::Key, data: &[u8], sequence: Sequence) -> Result<[u8; MAX_CHECK], Failed> {
    let mut bytes = [0; MAX_CHECK];
    if !sequence.is_extended {
        hmac::sign_to_buffer(hash, data, &mut bytes).map_err(|_| Failed)?;
        return Ok(bytes);
    }
    let mut context = hmac::Context::with_key(hash);
    context.update(data);
    context.update(&((sequence.number >> 32) as u32).to_be_bytes());
    let tag = context.sign();
    bytes.get_mut(..tag.as_ref().len()).ok_or(Failed)?.copy_from_slice(tag.as_ref());
    Ok(bytes)
}

#[cfg(test)]
mod vectors;
