//! MS-CHAPv2 (RFC 2759 §8): what proves who we are, and what proves who the other side is.

use des::Des;
use des::cipher::{BlockCipherEncrypt, KeyInit};
use md4::{Digest, Md4};
use sha1::Sha1;

/// What both proofs are about.
pub(crate) struct Exchange<'a> {
    pub user: &'a [u8],
    pub password: &'a [u8],
    /// What the other side has sent.
    pub theirs: &'a [u8; 16],
    /// What we send.
    pub ours: &'a [u8; 16],
}

impl Exchange<'_> {
    /// ChallengeHash: a name in front of the user's is not part of it.
    fn challenge(&self) -> [u8; 8] {
        let user = self.user.rsplit(|byte| *byte == b'\\').next().unwrap_or(self.user);
        let hash = Sha1::new().chain_update(self.ours).chain_update(self.theirs).chain_update(user).finalize();
        std::array::from_fn(|at| hash[at])
    }

    /// NtPasswordHash: over UTF-16, little-endian.
    fn hash(&self) -> [u8; 16] {
        let text = String::from_utf8_lossy(self.password);
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        Md4::digest(wide).into()
    }

    /// ChallengeResponse: the challenge under three keys of DES.
    pub fn response(&self) -> [u8; 24] {
        let mut keys = [0; 21];
        keys[..16].copy_from_slice(&self.hash());
        let (challenge, mut response) = (self.challenge(), [0; 24]);
        for (key, part) in keys.chunks_exact(7).zip(response.chunks_exact_mut(8)) {
            let mut block = challenge.into();
            Des::new(&spread(key).into()).encrypt_block(&mut block);
            part.copy_from_slice(&block);
        }
        response
    }

    /// What the other side has to send if it knows the password, in the letters in which it does.
    pub fn proof(&self, response: &[u8; 24]) -> String {
        let twice = Md4::digest(self.hash());
        let first = Sha1::new()
            .chain_update(twice)
            .chain_update(response)
            .chain_update(b"Magic server to client signing constant")
            .finalize();
        let second = Sha1::new()
            .chain_update(first)
            .chain_update(self.challenge())
            .chain_update(b"Pad to make it do more than one iteration")
            .finalize();
        second.iter().map(|byte| format!("{byte:02X}")).collect()
    }
}

/// Seven bytes of a key as the eight that DES takes: seven bits in each, and one that does not count.
fn spread(key: &[u8]) -> [u8; 8] {
    let bits = key.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    std::array::from_fn(|at| ((bits >> (49 - 7 * at)) as u8 & 0x7f) << 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        let exchange = Exchange {
            user: b"User",
            password: b"clientPass",
            theirs: &[0x5b, 0x5d, 0x7c, 0x7d, 0x7b, 0x3f, 0x2f, 0x3e, 0x3c, 0x2c, 0x60, 0x21, 0x32, 0x26, 0x26, 0x28],
            ours: &[0x21, 0x40, 0x23, 0x24, 0x25, 0x5e, 0x26, 0x2a, 0x28, 0x29, 0x5f, 0x2b, 0x3a, 0x33, 0x7c, 0x7e],
        };
        assert_eq!(exchange.challenge(), [0xd0, 0x2e, 0x43, 0x86, 0xbc, 0xe9, 0x12, 0x26]);
        let response = exchange.response();
        let wanted = [
            0x82, 0x30, 0x9e, 0xcd, 0x8d, 0x70, 0x8b, 0x5e, 0xa0, 0x8f, 0xaa, 0x39, 0x81, 0xcd, 0x83, 0x54, 0x42, 0x33,
            0x11, 0x4a, 0x3d, 0x85, 0xd6, 0xdf,
        ];
        assert_eq!(response, wanted);
        assert_eq!(exchange.proof(&response), "407A5589115FD0D6209F510FE9C04566932CDA56");
        let domain = Exchange { user: b"DOMAIN\\User", ..exchange };
        assert_eq!(domain.response(), wanted);
    }
}
