//! Memory: arrays with keys.

use millrace_rdma::memory::{Asker, Binding, Memory, ProtectionDomain, Refused};
use millrace_rdma::number::Key;
use millrace_rdma::work::Access;

#[derive(Debug)]
pub struct Region {
    key: Key,
    domain: ProtectionDomain,
    access: Access,
    base: u64,
    /// A window opens a part of another region.
    of: Option<(usize, usize)>,
    pub bytes: Vec<u8>,
    len: u64,
    is_valid: bool,
}

/// Arrays with keys: the upper 24 bits say which, the lower eight make it hard to guess.
#[derive(Debug, Default)]
pub struct Flat {
    pub regions: Vec<Region>,
    /// Bytes that were moved for other ends.
    pub touched: u64,
}

impl Flat {
    pub fn register(&mut self, domain: ProtectionDomain, base: u64, bytes: Vec<u8>, access: Access) -> Key {
        let key = Key::new(((self.regions.len() as u32 + 1) << 8) | 0x5a);
        let len = bytes.len() as u64;
        self.regions.push(Region { key, domain, access, base, of: None, bytes, len, is_valid: true });
        key
    }

    pub fn bytes(&mut self, key: Key) -> &mut Vec<u8> {
        &mut self.regions[(key.value() >> 8) as usize - 1].bytes
    }

    #[inline]
    fn find(
        &self,
        asker: Asker,
        key: Key,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<(usize, usize), Refused> {
        let at = ((key.value() >> 8) as usize).wrapping_sub(1);
        let region = self.regions.get(at).ok_or(Refused::Key)?;
        if region.key != key || region.domain != asker.domain || !region.is_valid {
            return Err(Refused::Key);
        }
        if !region.access.allows(access) {
            return Err(Refused::Permission);
        }
        let offset = address.checked_sub(region.base).ok_or(Refused::Bounds)?;
        if offset.checked_add(len as u64).is_none_or(|end| end > region.len) {
            return Err(Refused::Bounds);
        }
        Ok(match region.of {
            Some((of, skip)) => (of, skip + offset as usize),
            None => (at, offset as usize),
        })
    }

    fn atomic(&mut self, asker: Asker, key: Key, address: u64, change: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        if address % 8 != 0 {
            return Err(Refused::Alignment);
        }
        let (at, offset) = self.find(asker, key, address, 8, Access::REMOTE_ATOMIC)?;
        let place = &mut self.regions[at].bytes[offset..offset + 8];
        let found = u64::from_ne_bytes(place.try_into().unwrap());
        place.copy_from_slice(&change(found).to_ne_bytes());
        self.touched += 8;
        Ok(found)
    }
}

impl Memory for Flat {
    fn gather(&mut self, asker: Asker, key: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        let (at, offset) = self.find(asker, key, address, to.len(), Access::default())?;
        to.copy_from_slice(&self.regions[at].bytes[offset..offset + to.len()]);
        Ok(())
    }

    fn scatter(&mut self, asker: Asker, key: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        let (at, offset) = self.find(asker, key, address, from.len(), Access::LOCAL_WRITE)?;
        self.regions[at].bytes[offset..offset + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn allows(&mut self, asker: Asker, key: Key, address: u64, len: u64, wanted: Access) -> Result<(), Refused> {
        self.find(asker, key, address, len as usize, wanted).map(|_| ())
    }

    fn read(&mut self, asker: Asker, key: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        let (at, offset) = self.find(asker, key, address, to.len(), Access::REMOTE_READ)?;
        to.copy_from_slice(&self.regions[at].bytes[offset..offset + to.len()]);
        self.touched += to.len() as u64;
        Ok(())
    }

    fn write(&mut self, asker: Asker, key: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        let (at, offset) = self.find(asker, key, address, from.len(), Access::REMOTE_WRITE)?;
        self.regions[at].bytes[offset..offset + from.len()].copy_from_slice(from);
        self.touched += from.len() as u64;
        Ok(())
    }

    fn compare_swap(&mut self, asker: Asker, key: Key, address: u64, compare: u64, swap: u64) -> Result<u64, Refused> {
        self.atomic(asker, key, address, |found| if found == compare { swap } else { found })
    }

    fn fetch_add(&mut self, asker: Asker, key: Key, address: u64, add: u64) -> Result<u64, Refused> {
        self.atomic(asker, key, address, |found| found.wrapping_add(add))
    }

    fn invalidate(&mut self, asker: Asker, key: Key, _remote: bool) -> Result<(), Refused> {
        let (at, _) = self.find(asker, key, self.base_of(key), 0, Access::default())?;
        let place = self.regions.iter().position(|region| region.key == key).unwrap_or(at);
        self.regions[place].is_valid = false;
        Ok(())
    }

    fn bind(&mut self, asker: Asker, window: Binding) -> Result<(), Refused> {
        let (at, skip) = self.find(asker, window.region, window.address, window.len as usize, Access::WINDOW_BIND)?;
        if (window.rkey.value() >> 8) as usize != self.regions.len() + 1 {
            return Err(Refused::Key);
        }
        self.regions.push(Region {
            key: window.rkey,
            domain: asker.domain,
            access: window.access,
            base: window.address,
            of: Some((at, skip)),
            bytes: Vec::new(),
            len: window.len,
            is_valid: true,
        });
        Ok(())
    }
}

impl Flat {
    fn base_of(&self, key: Key) -> u64 {
        self.regions.iter().find(|region| region.key == key).map_or(0, |region| region.base)
    }
}
