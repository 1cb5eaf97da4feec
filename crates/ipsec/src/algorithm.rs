//! Which algorithms there are, by the names that Linux gives them, and keys that fit.

use std::fmt;

use aws_lc_rs::{aead, cipher, hmac};
use zeroize::Zeroizing;

/// Why a security association cannot be used here. The kernel can still do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// No such algorithm here.
    #[error(
        "algorithm {0} is not supported; there are rfc4106(gcm(aes)), rfc7539esp(chacha20,poly1305), and cbc(aes) or ecb(cipher_null) with hmac(sha256), hmac(sha384) or hmac(sha512)"
    )]
    Algorithm(String),
    /// A key of another length.
    #[error("{name} does not take a key of {bits} bits")]
    KeyLength {
        /// The algorithm, as Linux calls it.
        name: String,
        /// What was given.
        bits: usize,
    },
    /// An integrity check value of another length.
    #[error("{name} with a check value of {bits} bits is not supported: {why}")]
    CheckLength {
        /// The algorithm, as Linux calls it.
        name: String,
        /// What was given.
        bits: usize,
        /// What there is.
        why: &'static str,
    },
    /// Encryption that does not notice a change.
    #[error("encryption without integrity is not supported (RFC 8221 §4)")]
    NoIntegrity,
    /// Neither an AEAD nor a cipher.
    #[error("there is no algorithm")]
    NoAlgorithm,
    /// AH, IPComp and others.
    #[error("protocol {0} is not supported, only ESP (50)")]
    Protocol(u8),
    /// BEET, route optimisation, IPTFS.
    #[error("mode {0} is not supported, only tunnel and transport")]
    Mode(u8),
    /// ESP in something else than UDP.
    #[error("encapsulation of type {0} is not supported, only UDP (2)")]
    Encapsulation(u16),
    /// Source and destination of different families.
    #[error("the addresses are not of one family")]
    Family,
    /// An anti-replay window that is too long.
    #[error("a window of {0} is not supported, at most 4096")]
    Window(u32),
    /// Extended sequence numbers without a window, from which the upper half is inferred.
    #[error("extended sequence numbers need a window")]
    NoWindow,
    /// A reserved index.
    #[error("SPI {0:#x} is reserved (RFC 4303 §2.1)")]
    Spi(u32),
    /// The card encrypts, and only the kernel can tell it.
    #[error("it is offloaded to an interface")]
    Offloaded,
}

/// Secret bytes, which are not shown, and overwritten when they are forgotten.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// These bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits", self.0.len() * 8)
    }
}

/// Encryption and integrity in one: an 8-byte IV, and a check value of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aead {
    /// AES-GCM (RFC 4106) with a key of 128 bits.
    AesGcm128,
    /// The same with 192 bits.
    AesGcm192,
    /// The same with 256 bits.
    AesGcm256,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
}

/// Encryption alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-CBC (RFC 3602) with a key of 128 bits.
    AesCbc128,
    /// The same with 192 bits.
    AesCbc192,
    /// The same with 256 bits.
    AesCbc256,
    /// No encryption (RFC 2410).
    Null,
}

/// Integrity alone (RFC 4868).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hash {
    /// HMAC-SHA2-256.
    Sha256,
    /// HMAC-SHA2-384.
    Sha384,
    /// HMAC-SHA2-512.
    Sha512,
}

/// Bytes of salt at the end of an AEAD's key (RFC 4106 §8.1, RFC 7634 §2).
pub(crate) const SALT: usize = 4;

const GCM: &str = "rfc4106(gcm(aes))";
const CHACHA: &str = "rfc7539esp(chacha20,poly1305)";

impl Aead {
    /// As Linux calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AesGcm128 | Self::AesGcm192 | Self::AesGcm256 => GCM,
            Self::ChaCha20Poly1305 => CHACHA,
        }
    }

    pub(crate) fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::AesGcm128 => &aead::AES_128_GCM,
            Self::AesGcm192 => &aead::AES_192_GCM,
            Self::AesGcm256 => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

impl Cipher {
    /// As Linux calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "ecb(cipher_null)",
            _ => "cbc(aes)",
        }
    }

    pub(crate) fn algorithm(self) -> Option<&'static cipher::Algorithm> {
        match self {
            Self::AesCbc128 => Some(&cipher::AES_128),
            Self::AesCbc192 => Some(&cipher::AES_192),
            Self::AesCbc256 => Some(&cipher::AES_256),
            Self::Null => None,
        }
    }
}

impl Hash {
    /// As Linux calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "hmac(sha256)",
            Self::Sha384 => "hmac(sha384)",
            Self::Sha512 => "hmac(sha512)",
        }
    }

    /// Bytes of the hash, of which the check value is the first part.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(crate) fn algorithm(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }
}

/// Algorithms with keys that fit them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// An AEAD; the last four bytes of its key are the salt.
    Aead {
        /// Which.
        aead: Aead,
        /// Key and salt.
        key: Secret,
    },
    /// Encryption, and a hash over what was encrypted.
    Separate {
        /// Which encryption.
        cipher: Cipher,
        /// Its key.
        cipher_key: Secret,
        /// Which hash.
        hash: Hash,
        /// Its key.
        hash_key: Secret,
        /// Bytes of the check value.
        check: usize,
    },
}

impl Keys {
    /// An AEAD by Linux's name, with its key and salt, and the bits of its check value.
    ///
    /// # Errors
    /// [`Unsupported`] by name: other algorithms, keys of other lengths, and check values that are not of 128 bits,
    /// because `aws-lc-rs` does not open shorter ones.
    pub fn aead(name: &str, key: &[u8], check_bits: usize) -> Result<Self, Unsupported> {
        let bits = key.len() * 8;
        let aead = match (name, key.len().saturating_sub(SALT)) {
            (GCM, 16) => Aead::AesGcm128,
            (GCM, 24) => Aead::AesGcm192,
            (GCM, 32) => Aead::AesGcm256,
            (CHACHA, 32) => Aead::ChaCha20Poly1305,
            (GCM | CHACHA, _) => return Err(Unsupported::KeyLength { name: name.into(), bits }),
            _ => return Err(Unsupported::Algorithm(name.into())),
        };
        if check_bits != 128 {
            let why = "only 128 bits, because the library of ciphers opens no others";
            return Err(Unsupported::CheckLength { name: name.into(), bits: check_bits, why });
        }
        Ok(Self::Aead { aead, key: Secret::new(key) })
    }

    /// Encryption and hash by Linux's names, with their keys, and the bits of the check value.
    ///
    /// # Errors
    /// [`Unsupported`] by name.
    pub fn separate(cipher: (&str, &[u8]), hash: (&str, &[u8], usize)) -> Result<Self, Unsupported> {
        let ((cipher_name, cipher_key), (hash_name, hash_key, bits)) = (cipher, hash);
        let cipher = match (cipher_name, cipher_key.len()) {
            ("cbc(aes)" | "aes", 16) => Cipher::AesCbc128,
            ("cbc(aes)" | "aes", 24) => Cipher::AesCbc192,
            ("cbc(aes)" | "aes", 32) => Cipher::AesCbc256,
            ("ecb(cipher_null)" | "cipher_null", 0) => Cipher::Null,
            ("cbc(aes)" | "aes" | "ecb(cipher_null)" | "cipher_null", len) => {
                return Err(Unsupported::KeyLength { name: cipher_name.into(), bits: len * 8 });
            }
            _ => return Err(Unsupported::Algorithm(cipher_name.into())),
        };
        let hash = match hash_name {
            "hmac(sha256)" | "sha256" => Hash::Sha256,
            "hmac(sha384)" | "sha384" => Hash::Sha384,
            "hmac(sha512)" | "sha512" => Hash::Sha512,
            "digest_null" | "" => return Err(Unsupported::NoIntegrity),
            _ => return Err(Unsupported::Algorithm(hash_name.into())),
        };
        // The RFC wants a key as long as the hash; Linux takes any, and so do people who set keys by hand.
        if hash_key.is_empty() {
            return Err(Unsupported::KeyLength { name: hash_name.into(), bits: 0 });
        }
        // 96 bits are what Linux cuts SHA-256 to when nobody says 128.
        if bits % 32 != 0 || bits < 96 || bits / 8 > hash.bytes() {
            let why = "from 96 bits to those of the hash, in steps of 32";
            return Err(Unsupported::CheckLength { name: hash_name.into(), bits, why });
        }
        let (cipher_key, hash_key) = (Secret::new(cipher_key), Secret::new(hash_key));
        Ok(Self::Separate { cipher, cipher_key, hash, hash_key, check: bits / 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_fit_and_keys_that_do_not() {
        for (name, len, wanted) in [
            (GCM, 20, Aead::AesGcm128),
            (GCM, 28, Aead::AesGcm192),
            (GCM, 36, Aead::AesGcm256),
            (CHACHA, 36, Aead::ChaCha20Poly1305),
        ] {
            let keys = Keys::aead(name, &vec![1; len], 128).unwrap();
            assert!(matches!(&keys, Keys::Aead { aead, .. } if *aead == wanted && aead.name() == name));
            assert!(!format!("{keys:?}").contains("1, 1"), "keys are not shown");
        }
        let said = |result: Result<Keys, Unsupported>| result.unwrap_err().to_string();
        assert!(said(Keys::aead(GCM, &[0; 16], 128)).contains("does not take a key of 128 bits"));
        assert!(said(Keys::aead(GCM, &[], 128)).contains("key of 0 bits"));
        assert!(said(Keys::aead(GCM, &[0; 20], 64)).contains("check value of 64 bits"));
        assert!(said(Keys::aead("rfc4543(gcm(aes))", &[0; 20], 128)).contains("rfc4543(gcm(aes)) is not supported"));
        let sha = ("hmac(sha256)", &[1u8; 32][..], 128);
        assert!(Keys::separate(("cbc(aes)", &[0; 24]), sha).is_ok());
        assert!(Keys::separate(("ecb(cipher_null)", &[]), ("hmac(sha512)", &[1; 64], 256)).is_ok());
        assert!(said(Keys::separate(("cbc(aes)", &[0; 17]), sha)).contains("136 bits"));
        assert!(said(Keys::separate(("cbc(des3_ede)", &[0; 24]), sha)).contains("des3_ede"));
        assert!(said(Keys::separate(("cbc(aes)", &[0; 16]), ("hmac(md5)", &[1; 16], 96))).contains("md5"));
        assert!(said(Keys::separate(("cbc(aes)", &[0; 16]), ("digest_null", &[], 0))).contains("integrity"));
        for bits in [0, 64, 100, 288] {
            assert!(said(Keys::separate(("cbc(aes)", &[0; 16]), ("hmac(sha256)", &[1; 32], bits))).contains("steps"));
        }
    }
}
