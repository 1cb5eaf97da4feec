//! Capture files: as a port ([`PcapPort`]), and for whoever reads or writes one by himself ([`Reader`], [`Writer`]).
//! [`Packets`] are for looking at only: of any kind of link, and in pcapng as well.
//!
//! The format is the classic one:
//!
//! ```text
//! file    magic 4 | major 2 = 2 | minor 2 = 4 | 0 4 | 0 4 | snapshot length 4 | link type 4     24 bytes, then records
//! record  seconds 4 | fraction 4 | captured length 4 | original length 4 | captured bytes
//! ```
//!
//! The magic number, `0xa1b2c3d4` or `0xa1b23c4d`, gives the byte order of everything else and says whether the fraction
//! counts microseconds or nanoseconds. Both orders and both units are read; nanoseconds in little-endian order are
//! written. Bits 31:26 of the link type, which tell about an FCS behind each frame, are not looked at: such an FCS
//! passes as part of the frame.
//!
//! Real captures contradict themselves, so what can be understood is read: a captured length above the snapshot length
//! or the original length, a fraction of more than a second, times that run backwards. What cannot be understood is a
//! [`ReadError`].

mod blocks;
mod error;
mod file;
mod input;
mod packets;
mod port;
mod reader;
mod recorder;
mod writer;

pub use error::ReadError;
pub use packets::{ETHERNET, Packet, Packets, link_name};
pub use port::{PcapPort, PortError};
pub use reader::{Frame, FrameInfo, Reader};
pub(crate) use recorder::Recorder;
pub use writer::{Tally, WriteError, Writer};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of the header of a file.
const FILE_HEADER_LEN: usize = 24;

/// Bytes of the header of a record.
const RECORD_HEADER_LEN: usize = 16;

/// A moment of calendar time, in nanoseconds since the beginning of 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureTime(u64);

impl CaptureTime {
    /// The moment `nanos` ns after the beginning of 1970.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the beginning of 1970.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to this moment, 0 if `earlier` is in fact later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This moment.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Seconds as a record has them; they end in the year 2106.
    fn record_seconds(self) -> u32 {
        u32::try_from(self.0 / 1_000_000_000).unwrap_or(u32::MAX)
    }

    /// Nanoseconds as a record has them.
    fn record_nanos(self) -> u32 {
        (self.0 % 1_000_000_000) as u32
    }
}

impl From<SystemTime> for CaptureTime {
    /// Moments before 1970 become its beginning.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_splits_into_what_a_record_holds() {
        let time = CaptureTime::from(UNIX_EPOCH + Duration::new(5, 7));
        assert_eq!(time, CaptureTime::from_nanos(5_000_000_007));
        assert_eq!((time.record_seconds(), time.record_nanos()), (5, 7));
        assert_eq!(time.nanos_since(CaptureTime::from_nanos(6_000_000_000)), 0);
        assert_eq!(CaptureTime::from(UNIX_EPOCH - Duration::from_secs(1)).nanos(), 0);
        assert_eq!(CaptureTime::from_nanos(u64::MAX).record_seconds(), u32::MAX);
        assert!(CaptureTime::now().nanos() > 1_700_000_000_000_000_000);
    }
}
