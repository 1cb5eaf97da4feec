//! Addresses of endpoints.

use core::fmt;
use core::str::FromStr;
use std::hash::{BuildHasher, RandomState};

/// The MAC address of an endpoint; written `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address(pub [u8; 6]);

/// Not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the MAC address of one endpoint, such as 02:00:00:00:00:01")]
pub struct BadAddress(String);

impl Address {
    /// A random one, locally administered.
    pub(crate) fn random() -> Self {
        let [a, b, c, d, e, ..] = RandomState::new().hash_one(std::process::id()).to_ne_bytes();
        Self([2, a, b, c, d, e])
    }

    /// Whether it is that of one end: no group, and not all zeros.
    pub fn is_single(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+')).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        let address = Self(bytes);
        if parts.next().is_none() && address.is_single() { Ok(address) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let address = Address([2, 0, 0xab, 0, 0, 1]);
        assert_eq!((address.to_string().as_str(), "02:00:ab:00:00:01".parse()), ("02:00:ab:00:00:01", Ok(address)));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "01:00:00:00:00:01",
            "00:00:00:00:00:00",
            "02:+1:00:00:00:01",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
        assert!(Address::random().is_single());
    }
}
