use core::fmt;

/// An address as a card sees it: a number in the [`Domain`](crate::Domain) of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(u64);

impl Iova {
    /// The address with this number.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The number of this address.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on; wraps at 2^64, where no domain maps anything.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
