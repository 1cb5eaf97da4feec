//! Probe frames: real Ethernet, IPv4 or IPv6, and UDP with correct checksums, whose payload says which frame it is.
//!
//! ```text
//! byte 0        14            34 or 54  42 or 62                                  60 or 80           len
//!      | Ethernet | IPv4 or IPv6 | UDP | tag 16 | flow 32 | sequence 32 | stamp 64 | filler ...        |
//! ```
//!
//! All of it is big-endian. The tag tells the probes of one run from those of others, the sequence counts the frames of
//! one flow, the stamp is the sender's clock in nanoseconds. Filler and tag follow from a seed, and so do the addresses
//! and ports of the flows: two programs with the same [`Plan`] understand each other.
//!
//! The headers of every flow are built once. [`Probes::write`] copies them, and adds lengths, sequence and stamp to sums
//! that are known, so a correct checksum costs no look at the payload.
//!
//! ```
//! use millrace_packet::probe::{Plan, Probe, Probes, Reading};
//! use millrace_packet::structured::Stamp;
//!
//! let probes = Probes::new(&Plan { flows: 10, longest: 1518, ..Plan::default() }).unwrap();
//! let mut frame = [0; 64];
//! let sent = Probe { flow: 7, sequence: 3, stamp: Stamp::from_nanos(500) };
//! probes.write(&mut frame, sent);
//! assert_eq!(probes.read(&frame), Reading::Probe(sent));
//! frame[63] ^= 1;
//! assert_eq!(probes.read(&frame), Reading::Corrupt);
//! ```

mod flows;
mod tracker;

pub use flows::{Addresses, Endpoint, MacAddress, NotAnAddress, Plan, PlanError};
pub use tracker::{Arrival, Tracker};

use crate::checksum::Sum;
use crate::structured::Stamp;
use flows::Headers;

/// Most flows of one [`Plan`].
pub const MAX_FLOWS: u32 = 1 << 22;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of all headers, with IPv4 and with IPv6.
const HEADERS_4: usize = ETHERNET + 20 + 8;
const HEADERS_6: usize = ETHERNET + 40 + 8;
/// Bytes of tag, flow, sequence and stamp.
const PROBE: usize = 18;

/// What a probe frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Which flow it belongs to.
    pub flow: u32,
    /// The low 32 bits of its number within the flow.
    pub sequence: u32,
    /// When it was sent; 0 if nobody wants to know.
    pub stamp: Stamp,
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A probe, whole. Ethernet and IP headers are not compared: routers change them.
    Probe(Probe),
    /// A probe that was damaged on its way.
    Corrupt,
    /// Something else: a frame that somebody else has sent, or a probe of another run.
    Other,
}

/// Everything that probe frames are made of. Nothing is allocated after [`Probes::new`], and threads may share it.
#[derive(Clone, Debug)]
pub struct Probes {
    version: Version,
    tag: u16,
    flows: Box<[Headers]>,
    /// What follows the probe.
    filler: Box<[u8]>,
    /// Folded sums over the first so many bytes of it.
    sums: Box<[u16]>,
}

/// Which internet protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// The shortest frame that holds a probe, in bytes without FCS.
    pub const fn shortest(self) -> usize {
        self.headers() + PROBE
    }

    /// Bytes of all headers.
    const fn headers(self) -> usize {
        match self {
            Version::V4 => HEADERS_4,
            Version::V6 => HEADERS_6,
        }
    }
}

impl Probes {
    /// Builds the headers of all flows.
    ///
    /// # Errors
    /// The plan asks for more than there is: see [`PlanError`].
    pub fn new(plan: &Plan) -> Result<Self, PlanError> {
        plan.check()?;
        let mut random = flows::Random::new(plan.seed);
        let tag = random.next() as u16;
        let filler: Box<[u8]> = (0..plan.longest).map(|_| random.next() as u8).collect();
        let flows = (0..plan.flows).map(|flow| Headers::new(plan, tag, flow)).collect();
        Ok(Self { version: plan.addresses.version(), tag, flows, sums: sums(&filler), filler })
    }

    /// How many flows there are.
    pub fn flows(&self) -> u32 {
        self.flows.len() as u32
    }

    /// The shortest frame that can be written, in bytes.
    pub fn shortest(&self) -> usize {
        self.version.shortest()
    }

    /// Writes the whole frame, whose length says how long it is to be. A frame that is shorter than
    /// [`Probes::shortest`] or longer than the plan's longest, and a flow that does not exist, leave it unwritten; the
    /// answer says so.
    #[inline]
    pub fn write(&self, frame: &mut [u8], probe: Probe) -> bool {
        match self.version {
            Version::V4 => self.write_version::<HEADERS_4>(frame, probe),
            Version::V6 => self.write_version::<HEADERS_6>(frame, probe),
        }
    }

    #[inline(always)]
    fn write_version<const HEADERS: usize>(&self, frame: &mut [u8], probe: Probe) -> bool {
        let len = frame.len();
        let Some(headers) = self.flows.get(probe.flow as usize) else { return false };
        let Some((head, rest)) = frame.split_first_chunk_mut::<HEADERS>() else { return false };
        let Some((body, filler)) = rest.split_first_chunk_mut::<PROBE>() else { return false };
        let (Some(from), Some(sum)) = (self.filler.get(..filler.len()), self.sums.get(filler.len())) else {
            return false;
        };
        let payload = headers.payload_sum(probe).with(u32::from(*sum));
        headers.write(head, len, payload);
        body[..2].copy_from_slice(&self.tag.to_be_bytes());
        body[2..6].copy_from_slice(&probe.flow.to_be_bytes());
        body[6..10].copy_from_slice(&probe.sequence.to_be_bytes());
        body[10..].copy_from_slice(&probe.stamp.nanos().to_be_bytes());
        filler.copy_from_slice(from);
        true
    }

    /// Says what a frame is. Every byte of the payload and the UDP checksum are checked.
    #[inline]
    pub fn read(&self, frame: &[u8]) -> Reading {
        match self.version {
            Version::V4 => self.read_version::<HEADERS_4>(frame),
            Version::V6 => self.read_version::<HEADERS_6>(frame),
        }
    }

    #[inline(always)]
    fn read_version<const HEADERS: usize>(&self, frame: &[u8]) -> Reading {
        let Some((head, rest)) = frame.split_first_chunk::<HEADERS>() else { return Reading::Other };
        let Some((body, rest)) = rest.split_first_chunk::<PROBE>() else { return Reading::Other };
        if head[12..14] != flows::ethertype(self.version) || body[..2] != self.tag.to_be_bytes() {
            return Reading::Other;
        }
        let probe = decode(body);
        // What lies behind the datagram is padding.
        let datagram = u16::from_be_bytes([head[HEADERS - 4], head[HEADERS - 3]]);
        let filler = usize::from(datagram).checked_sub(8 + PROBE).and_then(|len| rest.get(..len));
        let Some(filler) = filler else { return Reading::Corrupt };
        let (Some(wanted), Some(sum)) = (self.filler.get(..filler.len()), self.sums.get(filler.len())) else {
            return Reading::Corrupt;
        };
        let is_whole = probe.flow < self.flows()
            && filler == wanted
            && flows::checksum_holds(self.version, head, Sum::of(body).with(u32::from(*sum)));
        if is_whole { Reading::Probe(probe) } else { Reading::Corrupt }
    }
}

fn decode(body: &[u8; PROBE]) -> Probe {
    let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    let stamp = u64::from(word(10)) << 32 | u64::from(word(14));
    Probe { flow: word(2), sequence: word(6), stamp: Stamp::from_nanos(stamp) }
}

/// Folded sums over the first 0, 1, 2, ... bytes.
fn sums(filler: &[u8]) -> Box<[u16]> {
    let mut sum = Sum::default();
    let add = |(at, byte): (usize, &u8)| {
        sum = sum.with(if at.is_multiple_of(2) { u32::from(*byte) << 8 } else { u32::from(*byte) });
        sum.folded()
    };
    std::iter::once(0).chain(filler.iter().enumerate().map(add)).collect()
}

#[cfg(test)]
mod tests;
