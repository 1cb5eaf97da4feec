//! Numbers that are not just numbers.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

const MASK: u32 = 0xff_ffff;

/// A packet sequence number: 24 bits, and what comes after the last is 0 (volume 1, 9.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// 0 to 2^24 - 1.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// How many numbers this one is behind `earlier`: negative if it comes before, -2^23 to 2^23 - 1.
    #[inline]
    pub const fn since(self, earlier: Self) -> i32 {
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }

    /// The next one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }
}

impl Add<u32> for Psn {
    type Output = Self;

    #[inline]
    fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }
}

impl Sub<u32> for Psn {
    type Output = Self;

    #[inline]
    fn sub(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }
}

/// The number of a queue pair: 24 bits. 0 and 1 are those of management, 0xffffff is everybody of a multicast group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The general service interface, where connection management takes place.
    pub const GENERAL: Self = Self(1);

    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// 0 to 2^24 - 1.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// What opens a region or a window, as `lkey` for its owner and as `rkey` for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Key(u32);

impl Key {
    /// A key as it stands in a header.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// As it stands in a header.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// A global identifier: an IPv6 address, or an IPv4 address in the form `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::net::Ipv6Addr::from(self.0), f)
    }
}

/// A moment in nanoseconds, of a clock that only goes forward. Whose, and since when, its owner knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// That many nanoseconds after the clock's beginning.
    #[inline]
    pub const fn new(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds after the clock's beginning.
    #[inline]
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to this moment; nothing if it is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    #[inline]
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_go_round() {
        let last = Psn::new(0xff_ffff);
        assert_eq!((last.next(), last + 5), (Psn::new(0), Psn::new(4)));
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), -3);
        assert_eq!(Psn::new(1) - 2, last);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }
}
