//! Where the packets of a burst lie.

use crate::error::Error;
use crate::handle::QueueHandle;
use millrace_abi::header::{self, RxMetadata};
use millrace_abi::message::Layout;
use millrace_dma::Window;
use millrace_ring::medusa::RxHeader;
use millrace_ring::{calypte, dd, sze};

/// Where the buffers of packets lie in the data window.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) mask: u32,
    pub(super) stride: u32,
    pub(super) size: u32,
}

impl Geometry {
    pub(super) fn of(layout: &Layout) -> Self {
        match *layout {
            Layout::Medusa { entries, stride, buffer_size, .. } | Layout::Dd { entries, stride, buffer_size, .. } => {
                Self { mask: entries - 1, stride, size: buffer_size }
            }
            Layout::Sze { ring, .. } => Self { mask: ring - 1, stride: 8, size: ring },
            Layout::Calypte { ring, .. } => Self { mask: ring - 1, stride: calypte::BLOCK, size: ring },
        }
    }

    #[inline(always)]
    pub(super) fn buffer_at(&self, number: u32) -> u32 {
        (number & self.mask) * self.stride
    }
}

/// One packet of the burst in hand.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    // The frame.
    pub(super) at: u32,
    pub(super) len: u16,
    // The metadata.
    pub(super) header_len: u8,
    pub(super) flags: u8,
    pub(super) header_at: u32,
}

/// Finds the packets behind Medusa headers, and asks for their first cache lines.
#[inline(always)]
pub(super) fn place_medusa(
    packets: &mut [Place],
    headers: impl Iterator<Item = RxHeader>,
    geometry: Geometry,
    data: &Window,
    first: u32,
    handle: &QueueHandle,
) -> Result<(), Error> {
    for ((i, header), place) in (0u32..).zip(headers).zip(packets) {
        let at = geometry.buffer_at(first.wrapping_add(i));
        let frame_len = header.len.checked_sub(header.header_len.into());
        let Some(len) = frame_len.filter(|_| u32::from(header.len) <= geometry.size) else {
            return Err(handle.bad(format!("a header with impossible sizes: {header:?}")));
        };
        if let Some(line) = data.span(at as usize, 1) {
            line.prefetch();
        }
        let header_len = header.header_len;
        *place = Place { at: at + u32::from(header_len), len, header_len, flags: header.meta, header_at: at };
    }
    Ok(())
}

/// Finds the packets that Calypte headers name, and asks for their first cache lines.
#[inline(always)]
pub(super) fn place_calypte(
    packets: &mut [Place],
    headers: impl Iterator<Item = calypte::Header>,
    geometry: Geometry,
    data: &Window,
    handle: &QueueHandle,
) -> Result<(), Error> {
    for (header, place) in headers.zip(packets) {
        let at = u32::from(header.at) * geometry.stride;
        let possible = at <= geometry.mask && u32::from(header.len) <= geometry.size;
        let frame_len = header.len.checked_sub(header.header_len.into());
        let Some(len) = frame_len.filter(|_| possible) else {
            return Err(handle.bad(format!("a header with impossible sizes: {header:?}")));
        };
        if let Some(line) = data.span(at as usize, 1) {
            line.prefetch();
        }
        let header_len = header.header_len;
        *place = Place { at: at + u32::from(header_len), len, header_len, flags: header.flags, header_at: at };
    }
    Ok(())
}

/// Finds the frames that DD descriptors name, from the one `ahead` of the first on, and asks for their first cache
/// lines.
#[inline(always)]
pub(super) fn place_dd(
    packets: &mut [Place],
    stamps: &mut [[u8; header::LEN]],
    queue: &mut dd::FixedRx,
    ahead: u32,
    geometry: Geometry,
    data: &Window,
    handle: &QueueHandle,
) -> Result<(), Error> {
    const SECOND: u64 = 1_000_000_000;
    for (ahead, place) in (ahead..).zip(packets) {
        let impossible = |received| handle.bad(format!("a descriptor that no card writes: {received:?}"));
        let dd::Found { buffer, len, received } = queue.find(ahead).map_err(impossible)?;
        let at = geometry.buffer_at(buffer);
        if let Some(line) = data.span(at as usize, 1) {
            line.prefetch();
        }
        let mut stamp = (0, 0);
        if received.time != 0 {
            let (seconds, nanoseconds) = ((received.time / SECOND) as u32, (received.time % SECOND) as u32);
            let slot = queue.first().wrapping_add(ahead) & geometry.mask;
            stamps[slot as usize] = RxMetadata { port: received.port, seconds, nanoseconds }.encode();
            stamp = (header::LEN as u8, slot);
        }
        *place = Place { at, len, header_len: stamp.0, flags: 0, header_at: stamp.1 };
    }
    Ok(())
}

#[inline(always)]
pub(super) fn place_sze(packet: sze::RxPacket) -> Place {
    // No protocol of the card has longer metadata than this; of what another card writes, the beginning.
    let header_len = packet.meta_len.min(u8::MAX.into()) as u8;
    Place { at: packet.frame_at, len: packet.frame_len, header_len, flags: 0, header_at: packet.meta_at }
}

/// Finds up to `packets.len()` packets in `units` of a stream. Returns how many, and how many units they take.
pub(super) fn place_stream(
    packets: &mut [Place],
    data: &Window,
    first: u32,
    units: u32,
    handle: &QueueHandle,
) -> Result<(u32, u32), Error> {
    let mut scanner = sze::Scanner::new(data, first, units * 8);
    let mut count = 0;
    for place in packets {
        match scanner.next_packet() {
            Ok(Some(packet)) => *place = place_sze(packet),
            Ok(None) => break,
            Err(error) => return Err(handle.bad(error)),
        }
        count += 1;
    }
    Ok((count, scanner.passed() / 8))
}
