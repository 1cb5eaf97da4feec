//! Connection ids that say which server they belong to (draft-ietf-quic-load-balancers): the server puts its number
//! into them, in the clear or encrypted, so that they are found without having been seen before.

use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};
use std::collections::HashMap;
use std::fmt;

/// Configurations 0 to 6; 7 says that an id is not routable.
pub const CONFIGURATIONS: usize = 7;
/// Most bytes of server id and nonce together.
const LONGEST: usize = 19;
/// Fewest bytes of nonce.
const SHORTEST_NONCE: usize = 4;
/// Bytes of an AES block; ids whose server id and nonce are as long are encrypted in one pass.
const BLOCK: usize = 16;

/// How server ids stand in connection ids.
#[derive(Clone, PartialEq, Eq)]
pub struct RoutableSpec {
    /// Number of the configuration, 0 to 6: the first three bits of its connection ids.
    pub configuration: u8,
    /// Length of a server id, in bytes, at least 1.
    pub server_id_len: usize,
    /// Length of the nonce behind it, in bytes, at least 4; both together at most 19.
    pub nonce_len: usize,
    /// Key of AES-128, if server ids are encrypted.
    pub key: Option<[u8; 16]>,
    /// Instance of each server id.
    pub servers: Vec<(Vec<u8>, u16)>,
}

impl fmt::Debug for RoutableSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutableSpec")
            .field("configuration", &self.configuration)
            .field("server_id_len", &self.server_id_len)
            .field("nonce_len", &self.nonce_len)
            .field("encrypted", &self.key.is_some())
            .field("servers", &self.servers)
            .finish()
    }
}

/// Why a configuration cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutableError {
    /// The number is above 6, or two have the same.
    #[error("each QUIC-LB configuration has a number of its own, 0 to 6")]
    Configuration,
    /// The lengths are not allowed.
    #[error("a QUIC-LB server id has 1 byte or more, a nonce 4 or more, and both together at most 19")]
    Length,
    /// A server id has another length, or is there twice.
    #[error("each QUIC-LB server id has the length of its configuration and is named once")]
    ServerId,
    /// The library refused the key.
    #[error("the key was refused")]
    Key,
}

/// A configuration, ready to read connection ids.
#[derive(Debug)]
struct Routable {
    server_id_len: usize,
    nonce_len: usize,
    cipher: Option<Cipher>,
    servers: HashMap<Vec<u8>, u16>,
}

/// All configurations of a port.
#[derive(Debug, Default)]
pub struct RoutableIds {
    configurations: [Option<Routable>; CONFIGURATIONS],
}

impl RoutableIds {
    /// These configurations.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn new(specs: &[RoutableSpec]) -> Result<Self, RoutableError> {
        let mut all = Self::default();
        for spec in specs {
            let place = all.configurations.get_mut(usize::from(spec.configuration));
            match place {
                Some(place @ None) => *place = Some(Routable::new(spec)?),
                _ => return Err(RoutableError::Configuration),
            }
        }
        Ok(all)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.configurations.iter().all(Option::is_none)
    }

    /// Configuration and instance of the connection id at the start of `bytes`, which may go on behind it (the payload of a
    /// short header, which does not say how long the id is). `None`: no configuration, too short, or no such server.
    pub fn find(&self, bytes: &[u8]) -> Option<(u8, u16)> {
        let configuration = bytes.first()? >> 5;
        let routable = self.configurations.get(usize::from(configuration))?.as_ref()?;
        let mut id = [0; LONGEST];
        let id = &mut id[..routable.server_id_len + routable.nonce_len];
        id.copy_from_slice(bytes.get(1..=id.len())?);
        if let Some(cipher) = &routable.cipher {
            cipher.decrypt(id)?;
        }
        let instance = routable.servers.get(&id[..routable.server_id_len])?;
        Some((configuration, *instance))
    }
}

impl Routable {
    fn new(spec: &RoutableSpec) -> Result<Self, RoutableError> {
        let len = spec.server_id_len.saturating_add(spec.nonce_len);
        if spec.server_id_len == 0 || spec.nonce_len < SHORTEST_NONCE || len > LONGEST {
            return Err(RoutableError::Length);
        }
        let mut servers = HashMap::new();
        for (id, instance) in &spec.servers {
            if id.len() != spec.server_id_len || servers.insert(id.clone(), *instance).is_some() {
                return Err(RoutableError::ServerId);
            }
        }
        let cipher = spec.key.as_ref().map(Cipher::new).transpose()?;
        Ok(Self { server_id_len: spec.server_id_len, nonce_len: spec.nonce_len, cipher, servers })
    }
}

/// AES-128, block by block.
#[derive(Debug)]
struct Cipher {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
}

impl Cipher {
    fn new(key: &[u8; 16]) -> Result<Self, RoutableError> {
        let unbound = || UnboundCipherKey::new(&AES_128, key).map_err(|_| RoutableError::Key);
        let encrypt = EncryptingKey::ecb(unbound()?).map_err(|_| RoutableError::Key)?;
        let decrypt = DecryptingKey::ecb(unbound()?).map_err(|_| RoutableError::Key)?;
        Ok(Self { encrypt, decrypt })
    }

    /// Decrypts server id and nonce where they lie.
    fn decrypt(&self, id: &mut [u8]) -> Option<()> {
        if id.len() == BLOCK {
            return self.decrypt.decrypt(id, DecryptionContext::None).ok().map(|_| ());
        }
        let mut halves = Halves::split(id);
        for pass in [4, 3, 2, 1] {
            self.pass(&mut halves, pass)?;
        }
        halves.join(id);
        Some(())
    }

    /// Encrypts server id and nonce as a server does.
    #[cfg(test)]
    fn encrypt(&self, id: &mut [u8]) -> Option<()> {
        if id.len() == BLOCK {
            return self.encrypt.encrypt(id).ok().map(|_| ());
        }
        let mut halves = Halves::split(id);
        for pass in [1, 2, 3, 4] {
            self.pass(&mut halves, pass)?;
        }
        halves.join(id);
        Some(())
    }

    /// One pass of the Feistel network of the draft: odd passes change the right half by the left one, even ones the left half
    /// by the right one. Each undoes itself.
    fn pass(&self, halves: &mut Halves, pass: u8) -> Option<()> {
        let right = pass % 2 == 1;
        let mut block = [0; BLOCK];
        let from = if right { &halves.left } else { &halves.right };
        block[..BLOCK - 2].copy_from_slice(&from[..BLOCK - 2]);
        block[BLOCK - 2..].copy_from_slice(&[halves.len as u8, pass]);
        self.encrypt.encrypt(&mut block).ok()?;
        let half = halves.half();
        let to = if right { &mut halves.right } else { &mut halves.left };
        to[..half].iter_mut().zip(block).for_each(|(to, byte)| *to ^= byte);
        halves.clear();
        Some(())
    }
}

/// Server id and nonce in two halves, with zeros behind them. If they have an odd number of bytes, the one in the middle is
/// divided: its first four bits belong to the left half, the others to the right one.
struct Halves {
    left: [u8; BLOCK],
    right: [u8; BLOCK],
    len: usize,
}

impl Halves {
    fn split(id: &[u8]) -> Self {
        let mut halves = Self { left: [0; BLOCK], right: [0; BLOCK], len: id.len() };
        let half = halves.half();
        halves.left[..half].copy_from_slice(&id[..half]);
        halves.right[..half].copy_from_slice(&id[id.len() - half..]);
        halves.clear();
        halves
    }

    fn half(&self) -> usize {
        self.len.div_ceil(2)
    }

    /// Clears the bits of the byte in the middle that belong to the other half.
    fn clear(&mut self) {
        if self.len % 2 == 1 {
            self.left[self.half() - 1] &= 0xf0;
            self.right[0] &= 0x0f;
        }
    }

    fn join(&self, id: &mut [u8]) {
        let half = self.half();
        id[..half].copy_from_slice(&self.left[..half]);
        let from = id.len() - half;
        id[from..].iter_mut().zip(&self.right[..half]).for_each(|(to, byte)| {
            *to = *byte;
        });
        if self.len % 2 == 1 {
            id[from] |= self.left[half - 1];
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::quic::tests::hex;
    use proptest::prelude::*;

    const KEY: &str = "8f95f09245765f80256934e50c66207f";

    fn spec(configuration: u8, server_id: &[u8], nonce_len: usize, key: Option<&str>) -> RoutableSpec {
        RoutableSpec {
            configuration,
            server_id_len: server_id.len(),
            nonce_len,
            key: key.map(|key| hex(key).try_into().unwrap()),
            servers: vec![(server_id.to_vec(), 5)],
        }
    }

    /// The connection id of a server, whose first byte says how long it is.
    pub(crate) fn encode(spec: &RoutableSpec, server_id: &[u8], nonce: &[u8]) -> Vec<u8> {
        let mut id = [server_id, nonce].concat();
        if let Some(key) = &spec.key {
            Cipher::new(key).unwrap().encrypt(&mut id).unwrap();
        }
        [vec![spec.configuration << 5 | id.len() as u8], id].concat()
    }

    /// Appendix B of the draft. Its last row is printed with configuration 3, and its first byte says 0.
    #[test]
    fn vectors_of_the_draft() {
        for (configuration, server_id, nonce, key, id) in [
            (0, "c4605e", "4504cc4f", None, "07c4605e4504cc4f"),
            (0, "ed793a", "ee080dbf", Some(KEY), "0720b1d07b359d3c"),
            (1, "ed793a51d49b8f5fab65", "ee080dbf48", Some(KEY), "2fcc381bc74cb4fbad2823a3d1f8fed2"),
            (2, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", Some(KEY), "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
            (0, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", Some(KEY), "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"),
            (0, "31441a", "9c69c275", Some("fdf726a9893ec05c0632d3956680baf0"), "0767947d29be054a"),
        ] {
            let (server_id, nonce) = (hex(server_id), hex(nonce));
            let spec = spec(configuration, &server_id, nonce.len(), key);
            assert_eq!(encode(&spec, &server_id, &nonce), hex(id));
            let ids = RoutableIds::new(&[spec]).unwrap();
            assert_eq!(ids.find(&hex(id)), Some((configuration, 5)));
            assert_eq!(ids.find(&[&hex(id)[..], &[1, 2, 3]].concat()), Some((configuration, 5)), "something behind it");
            assert_eq!(ids.find(&hex(id)[..id.len() / 2 - 1]), None);
        }
    }

    #[test]
    fn what_is_refused() {
        let new = |spec: RoutableSpec| RoutableIds::new(&[spec]).map(|_| ());
        assert_eq!(new(spec(7, &[1], 4, None)), Err(RoutableError::Configuration));
        assert_eq!(new(spec(0, &[], 4, None)), Err(RoutableError::Length));
        assert_eq!(new(spec(0, &[1], 3, None)), Err(RoutableError::Length));
        assert_eq!(new(spec(0, &[1], 19, None)), Err(RoutableError::Length));
        let mut twice = spec(0, &[1], 4, None);
        twice.servers.push((vec![1], 6));
        assert_eq!(new(twice), Err(RoutableError::ServerId));
        let one = spec(3, &[1], 4, None);
        assert_eq!(RoutableIds::new(&[one.clone(), one]).map(|_| ()), Err(RoutableError::Configuration));
    }

    #[test]
    fn what_is_not_routable() {
        let ids = RoutableIds::new(&[spec(1, &[9], 4, None)]).unwrap();
        assert_eq!(ids.find(&[0x20, 9, 0, 0, 0, 0]), Some((1, 5)));
        assert_eq!(ids.find(&[0x20, 8, 0, 0, 0, 0]), None, "no such server");
        assert_eq!(ids.find(&[0x40, 9, 0, 0, 0, 0]), None, "another configuration");
        assert_eq!(ids.find(&[0xe0, 9, 0, 0, 0, 0]), None, "said to be not routable");
        assert_eq!(ids.find(&[]), None);
    }

    proptest! {
        #[test]
        fn what_is_encrypted_is_found(
            server_id in proptest::collection::vec(any::<u8>(), 1..16),
            nonce in proptest::collection::vec(any::<u8>(), 18),
            nonce_len in 4usize..19,
            key: Option<[u8; 16]>,
        ) {
            let nonce_len = nonce_len.min(LONGEST - server_id.len());
            let spec = RoutableSpec { key, ..spec(4, &server_id, nonce_len, None) };
            let id = encode(&spec, &server_id, &nonce[..nonce_len]);
            prop_assert_eq!(RoutableIds::new(&[spec]).unwrap().find(&id), Some((4, 5)));
        }
    }
}
