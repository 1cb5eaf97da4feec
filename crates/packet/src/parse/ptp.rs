//! Precision Time Protocol, version 2 (IEEE 1588-2019, clause 13.3), over Ethernet (annex E) or UDP (annexes C and D).

use super::Malformed;
use super::bytes::{array, be16, be64};

/// What a message is (IEEE 1588-2019 table 36).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the standard")]
pub enum PtpType {
    Sync,
    DelayReq,
    PdelayReq,
    PdelayResp,
    FollowUp,
    DelayResp,
    PdelayRespFollowUp,
    Announce,
    Signaling,
    Management,
    /// One that is reserved.
    Reserved(u8),
}

impl PtpType {
    /// Whether it counts when the message is sent and arrives.
    pub const fn is_event(self) -> bool {
        matches!(self, Self::Sync | Self::DelayReq | Self::PdelayReq | Self::PdelayResp)
    }
}

/// A message: a header of 34 bytes and what depends on the type.
#[derive(Clone, Copy, Debug)]
pub struct Ptp<'a> {
    fixed: &'a [u8; Ptp::LEN],
    payload: &'a [u8],
}

impl<'a> Ptp<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 34;

    /// The message at the start of `bytes`; what lies behind its length is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; [`Malformed::Version`]: not 2; [`Malformed::Length`]: its length is less than the
    /// header or more than `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, _) = bytes.split_first_chunk::<{ Ptp::LEN }>().ok_or(Malformed::Truncated)?;
        if fixed[1] & 15 != 2 {
            return Err(Malformed::Version);
        }
        let message = bytes.get(..usize::from(be16(fixed, 2))).ok_or(Malformed::Length)?;
        let payload = message.get(Self::LEN..).ok_or(Malformed::Length)?;
        Ok(Self { fixed, payload })
    }

    /// What it is.
    #[inline]
    pub fn kind(&self) -> PtpType {
        match self.fixed[0] & 15 {
            0 => PtpType::Sync,
            1 => PtpType::DelayReq,
            2 => PtpType::PdelayReq,
            3 => PtpType::PdelayResp,
            8 => PtpType::FollowUp,
            9 => PtpType::DelayResp,
            10 => PtpType::PdelayRespFollowUp,
            11 => PtpType::Announce,
            12 => PtpType::Signaling,
            13 => PtpType::Management,
            other => PtpType::Reserved(other),
        }
    }

    /// Standards organisation, 12 bits: 0 is IEEE 1588, 0x100 is 802.1AS.
    #[inline]
    pub fn sdo(&self) -> u16 {
        u16::from(self.fixed[0] >> 4) << 8 | u16::from(self.fixed[5])
    }

    /// Minor version: 1 since 2019.
    #[inline]
    pub fn minor_version(&self) -> u8 {
        self.fixed[1] >> 4
    }

    /// Domain.
    #[inline]
    pub fn domain(&self) -> u8 {
        self.fixed[4]
    }

    /// Flags, the first byte above the second (table 37).
    #[inline]
    pub fn flags(&self) -> u16 {
        be16(self.fixed, 6)
    }

    /// Whether a follow-up message says when this one was sent.
    #[inline]
    pub fn is_two_step(&self) -> bool {
        self.flags() & 0x0200 != 0
    }

    /// Correction, in nanoseconds times 2^16.
    #[inline]
    pub fn correction(&self) -> i64 {
        be64(self.fixed, 8).cast_signed()
    }

    /// Clock identity and port number of the sender.
    #[inline]
    pub fn source_port(&self) -> ([u8; 8], u16) {
        (array(self.fixed, 20), be16(self.fixed, 28))
    }

    /// Sequence number.
    #[inline]
    pub fn sequence(&self) -> u16 {
        be16(self.fixed, 30)
    }

    /// Mean interval between messages of this type, as logarithm to base 2 of seconds.
    #[inline]
    pub fn log_interval(&self) -> i8 {
        self.fixed[33].cast_signed()
    }

    /// The time stamp at the start of the body, in seconds (48 bits) and nanoseconds, if the type has one.
    #[inline]
    pub fn timestamp(&self) -> Option<(u64, u32)> {
        if matches!(self.kind(), PtpType::Signaling | PtpType::Management | PtpType::Reserved(_)) {
            return None;
        }
        let [a, b, c, d, e, f, nanoseconds @ ..] = *self.payload.first_chunk::<10>()?;
        Some((u64::from_be_bytes([0, 0, a, b, c, d, e, f]), u32::from_be_bytes(nanoseconds)))
    }

    /// What follows the header, up to the length of the message.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow_up() -> [u8; 46] {
        let mut bytes = [0; 46];
        bytes[..8].copy_from_slice(&[0x18, 0x12, 0, 44, 5, 0x23, 2, 8]);
        bytes[8..16].copy_from_slice(&(-65536i64).to_be_bytes());
        bytes[20..34].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0x12, 0x34, 2, 0xfd]);
        bytes[34..44].copy_from_slice(&[0, 0, 0, 0, 1, 2, 0, 0, 3, 4]);
        bytes
    }

    #[test]
    fn every_field() {
        let bytes = follow_up();
        let ptp = Ptp::parse(&bytes).unwrap();
        assert_eq!((ptp.kind(), ptp.sdo(), ptp.minor_version(), ptp.domain()), (PtpType::FollowUp, 0x123, 1, 5));
        assert_eq!((ptp.flags(), ptp.is_two_step(), ptp.correction()), (0x0208, true, -65536));
        assert_eq!((ptp.source_port(), ptp.sequence()), (([1, 2, 3, 4, 5, 6, 7, 8], 9), 0x1234));
        assert_eq!((ptp.log_interval(), ptp.timestamp(), ptp.payload().len()), (-3, Some((0x102, 0x304)), 10));
    }

    #[test]
    fn every_type() {
        let mut bytes = follow_up();
        let events: Vec<u8> = (0..16)
            .filter(|kind| {
                bytes[0] = *kind;
                Ptp::parse(&bytes).unwrap().kind().is_event()
            })
            .collect();
        assert_eq!(events, [0, 1, 2, 3]);
        bytes[0] = 12;
        assert_eq!(Ptp::parse(&bytes).unwrap().timestamp(), None);
        bytes[0] = 4;
        assert_eq!(Ptp::parse(&bytes).unwrap().kind(), PtpType::Reserved(4));
    }

    #[test]
    fn what_is_malformed() {
        let with = |at: usize, byte: u8| {
            let mut bytes = follow_up();
            bytes[at] = byte;
            Ptp::parse(&bytes).map(drop)
        };
        assert_eq!(with(1, 1), Err(Malformed::Version));
        assert_eq!(with(3, 33), Err(Malformed::Length));
        assert_eq!(with(3, 47), Err(Malformed::Length));
        assert_eq!(with(3, 34), Ok(()));
        assert_eq!(Ptp::parse(&follow_up()[..33]).unwrap_err(), Malformed::Truncated);
    }
}
