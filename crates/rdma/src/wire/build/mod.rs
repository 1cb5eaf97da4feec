//! From a packet to a frame. The payload is written once, by whoever has it, straight into the frame.
//!
//! ```
//! use millrace_rdma::number::{Gid, Psn, Qpn};
//! use millrace_rdma::wire::{Format, Headers, Opcode, Path, Place, Prepared, Service, parse};
//!
//! let (here, there) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
//! let path = Path {
//!     format: Format::RoceV2,
//!     source_mac: here,
//!     destination_mac: there,
//!     source: Gid::link_local(here),
//!     destination: Gid::link_local(there),
//!     hop_limit: 64,
//!     traffic_class: 0,
//!     flow_label: 0,
//!     source_port: 0xc000,
//! };
//! let prepared = Prepared::new(&path)?;
//! let opcode = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
//! let headers = Headers::new(Service::ReliableConnection, opcode, Qpn::new(17), Psn::new(5));
//! let mut buffer = [0; 128];
//! let mut frame = prepared.open(Qpn::new(16), &headers, 5, &mut buffer)?;
//! frame.payload().copy_from_slice(b"hello");
//! let len = frame.close();
//! let (packet, from) = parse(&buffer[..len]).unwrap();
//! assert_eq!((packet.headers, packet.payload, from.back.destination), (headers, &b"hello"[..], path.source));
//! # Ok::<(), millrace_rdma::wire::Unbuildable>(())
//! ```

mod template;

use super::code::{decode, encode};
use super::extended::put;
use super::{Format, Headers, Known, Path, extended, icrc, slurpoe as lean};
use crate::number::Qpn;
use template::{ETHERNET, Front};

/// Shortest frame without FCS (IEEE 802.3, 4.2.3.3); shorter ones get zeros behind everything else.
const SHORTEST: usize = 60;
/// Bytes of the base transport header.
const BTH: usize = 12;
/// Bytes of an invariant CRC, and of a CRC-32C.
const SUM: usize = 4;
/// More than the bytes before the payload of any packet.
const MOST_HEADERS: usize = 128;
/// Where the congestion marks are in a base transport header.
const BTH_MARKS: usize = 4;

/// Why there is no frame for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbuildable {
    /// One end is an IPv4 address and the other is not.
    #[error("one end is an IPv4 address and the other is not; both have to be of one kind")]
    Addresses,
    /// SLURPoE knows its ends by their MAC addresses only.
    #[error("with SLURPoE the GIDs of both ends have to be the link-local addresses of their MAC addresses")]
    Identity,
    /// The service has no such operation.
    #[error("the transport service has no such operation")]
    Operation,
    /// More payload than a path MTU can be.
    #[error("the payload is longer than {0} bytes, the largest path MTU of this format")]
    Payload(usize),
    /// The frame does not fit.
    #[error("the frame needs {0} bytes, and there are fewer")]
    Room(usize),
}

/// A path, ready for packets: everything that all of them have in common.
///
/// It does not change; a path that changes, as when a neighbour gets another MAC address, is prepared anew.
#[derive(Clone, Debug)]
pub struct Prepared {
    front: Front,
    bytes: [u8; ETHERNET + 48],
    format: Format,
    checksum: bool,
}

/// Where the parts of a frame are.
#[derive(Clone, Copy, Debug)]
struct Places {
    opcode: u8,
    known: &'static Known,
    payload: usize,
    payload_len: usize,
    /// Zeros behind the payload, which make it a multiple of four bytes.
    pad: usize,
    /// Bytes up to the padding of Ethernet.
    end: usize,
}

impl Prepared {
    /// Prepares a path. Of the flow label the lower 20 bits count.
    ///
    /// # Errors
    /// [`Unbuildable::Addresses`], [`Unbuildable::Identity`].
    pub fn new(path: &Path) -> Result<Self, Unbuildable> {
        let (front, bytes) = template::bytes(path)?;
        Ok(Self { front, bytes, format: path.format, checksum: false })
    }

    /// With a CRC-32C at the end of frames of SLURPoE, which does without if nobody asks. The other formats always have
    /// their invariant CRC.
    #[must_use]
    pub fn with_checksum(mut self, wanted: bool) -> Self {
        self.checksum = wanted && self.format == Format::Slurpoe;
        self
    }

    /// Bytes of the frame of a packet without FCS, and without VLAN tag: at least 60.
    ///
    /// # Errors
    /// [`Unbuildable::Operation`], [`Unbuildable::Payload`].
    #[inline]
    pub fn frame_len(&self, headers: &Headers, payload_len: usize) -> Result<usize, Unbuildable> {
        Ok(self.places(headers, payload_len)?.end.max(SHORTEST))
    }

    #[inline]
    fn places(&self, headers: &Headers, payload_len: usize) -> Result<Places, Unbuildable> {
        let opcode = encode(headers.service, headers.opcode).ok_or(Unbuildable::Operation)?;
        let known = decode(opcode).map_err(|_| Unbuildable::Operation)?;
        if payload_len > self.format.most_payload() {
            return Err(Unbuildable::Payload(self.format.most_payload()));
        }
        let front = self.front.len();
        let (payload, pad, sum) = match self.front {
            Front::Lean => (front + lean::LEN + usize::from(known.lean_len), 0, if self.checksum { SUM } else { 0 }),
            _ => (front + BTH + usize::from(known.roce_len), payload_len.wrapping_neg() & 3, SUM),
        };
        Ok(Places { opcode, known, payload, payload_len, pad, end: payload + payload_len + pad + sum })
    }

    /// Begins a frame: writes the headers of a packet of `source`, a queue pair of this end. The payload and
    /// [`Open::close`] are still to come. Of `frame` only the bytes of [`Prepared::frame_len`] are written.
    ///
    /// # Errors
    /// [`Unbuildable::Operation`], [`Unbuildable::Payload`], [`Unbuildable::Room`]; `frame` is as it was.
    #[inline]
    pub fn open<'f>(
        &'f self,
        source: Qpn,
        headers: &Headers,
        payload_len: usize,
        frame: &'f mut [u8],
    ) -> Result<Open<'f>, Unbuildable> {
        let places = self.places(headers, payload_len)?;
        let len = places.end.max(SHORTEST);
        let frame = frame.get_mut(..len).ok_or(Unbuildable::Room(len))?;
        self.write(source, headers, &places, frame).ok_or(Unbuildable::Room(len))?;
        Ok(Open { prepared: self, frame, places, marks: headers.fecn_becn })
    }

    /// The 40 bytes that the receiver of a datagram would see before it, if the packet came in a frame: as
    /// [`From::grh`](super::From::grh). `None`: there is no frame for it, or it is one of SLURPoE.
    pub fn route(&self, headers: &Headers, payload_len: usize) -> Option<[u8; 40]> {
        let places = self.places(headers, payload_len).ok()?;
        let mut frame = [0; MOST_HEADERS];
        self.write(Qpn::default(), headers, &places, &mut frame)?;
        unmask(&self.front, &mut frame);
        let mut route = [0; 40];
        match self.front {
            Front::Ipv4 { .. } => route[20..].copy_from_slice(&frame[ETHERNET..ETHERNET + 20]),
            Front::Ipv6 { .. } | Front::Route { .. } => route.copy_from_slice(&frame[ETHERNET..ETHERNET + 40]),
            Front::Lean => return None,
        }
        Some(route)
    }

    /// Everything before the payload. `None` cannot be: the frame is long enough.
    #[inline]
    fn write(&self, source: Qpn, headers: &Headers, places: &Places, frame: &mut [u8]) -> Option<()> {
        let front = self.front.len();
        // One length for all fronts, which is copied with a few instructions; what is too much is written over.
        frame.first_chunk_mut::<SHORTEST>()?.copy_from_slice(&self.bytes[..SHORTEST]);
        frame.get_mut(SHORTEST..front).into_iter().for_each(|rest| rest.copy_from_slice(&self.bytes[SHORTEST..]));
        let len = places.end - ETHERNET;
        match self.front {
            Front::Ipv4 { .. } => {
                *frame[16..].first_chunk_mut()? = (len as u16).to_be_bytes();
                *frame[38..].first_chunk_mut()? = (len as u16 - 20).to_be_bytes();
            }
            Front::Ipv6 { .. } => {
                *frame[18..].first_chunk_mut()? = (len as u16 - 40).to_be_bytes();
                *frame[58..].first_chunk_mut()? = (len as u16 - 40).to_be_bytes();
            }
            Front::Route { .. } => *frame[18..].first_chunk_mut()? = (len as u16 - 40).to_be_bytes(),
            Front::Lean => {}
        }
        let mut rest = frame.get_mut(front..places.payload)?;
        if matches!(self.front, Front::Lean) {
            let what = (places.opcode, places.payload_len as u16, self.checksum);
            lean::write(&mut rest, what, source, headers)?;
            return lean::write_extended(places.known.parts, headers, &mut rest);
        }
        put(&mut rest, transport_header(places, headers))?;
        extended::write(places.known.parts, headers, &mut rest)
    }
}

/// The base transport header (volume 1, 9.2), with ones for the marks. Made of whole words: what is written in pieces
/// cannot be read at once by the sum that follows.
#[inline]
fn transport_header(places: &Places, headers: &Headers) -> [u8; BTH] {
    let first = u32::from(places.opcode) << 24
        | u32::from(headers.solicited) << 23
        | (places.pad as u32) << 20
        | u32::from(headers.pkey);
    let second = 0xff << 24 | headers.destination.value();
    let third = u32::from(headers.ack_request) << 31 | u32::from(headers.extended) << 24 | headers.psn.value();
    let [[a, b, c, d], [e, f, g, h], [i, j, k, l]] = [first, second, third].map(u32::to_be_bytes);
    [a, b, c, d, e, f, g, h, i, j, k, l]
}

/// A frame whose headers are written. It is none before [`Open::close`].
#[derive(Debug)]
#[must_use = "a frame that is not closed has no check sum"]
pub struct Open<'f> {
    prepared: &'f Prepared,
    frame: &'f mut [u8],
    places: Places,
    marks: (bool, bool),
}

impl Open<'_> {
    /// Where the payload goes: as many bytes as were asked for, with whatever was there before.
    #[inline]
    pub fn payload(&mut self) -> &mut [u8] {
        let Places { payload, payload_len, .. } = self.places;
        &mut self.frame[payload..payload + payload_len]
    }

    /// Ends the frame: padding, check sum, and the fields that it does not cover. Returns its length.
    #[inline]
    pub fn close(self) -> usize {
        let Places { payload, payload_len, pad, end, .. } = self.places;
        let frame = self.frame;
        frame[payload + payload_len..][..pad].fill(0);
        match self.prepared.front.before() {
            Some(before) => {
                let sum = icrc::of_masked(&frame[ETHERNET..end - SUM]);
                frame[end - SUM..end].copy_from_slice(&sum);
                frame[ETHERNET + before.len() + BTH_MARKS] = lean::marks(self.marks);
            }
            None => {
                if self.prepared.checksum {
                    let sum = crc32c::crc32c(&frame[..end - SUM]).to_le_bytes();
                    frame[end - SUM..end].copy_from_slice(&sum);
                }
                frame[ETHERNET + lean::MARKS] = lean::marks(self.marks);
            }
        }
        unmask(&self.prepared.front, frame);
        frame[end..].fill(0);
        frame.len()
    }
}

/// Puts the fields back that the sum takes as ones.
#[inline]
fn unmask(front: &Front, frame: &mut [u8]) {
    match front {
        Front::Ipv4 { service, live, sum } => {
            frame[15] = *service;
            frame[22] = *live;
            let len = u16::from_be_bytes([frame[16], frame[17]]);
            frame[24..26].copy_from_slice(&sum.with(len.into()).checksum().to_be_bytes());
            frame[40..42].fill(0);
        }
        Front::Ipv6 { first, hop_limit } => {
            frame[14..18].copy_from_slice(first);
            frame[21] = *hop_limit;
            frame[60..62].fill(0);
        }
        Front::Route { first, hop_limit } => {
            frame[14..18].copy_from_slice(first);
            frame[21] = *hop_limit;
        }
        Front::Lean => {}
    }
}
