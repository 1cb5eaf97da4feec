//! Packets that leave: what is put around them, and encryption in place.

use std::net::IpAddr;
use std::ops::Range;

use super::{Association, Encapsulation, Mode};
use crate::cipher::{HEADER, Sequence};
use crate::ip::{self, Header, protocol, put16};
use crate::lifetime::End;
use crate::refusal::Refusal;
use crate::traversal::UDP_LEN;

/// Where the parts of a packet will be in the buffer.
struct Places {
    /// The outer IP header, or the packet's own.
    start: usize,
    /// SPI.
    esp: usize,
    /// Zeros that nobody sees the end of but by the inner header's length.
    fill: Range<usize>,
    /// Padding.
    padding: Range<usize>,
    /// The end of the packet.
    end: usize,
}

/// Bytes 1, 2, 3 ... (RFC 4303 §2.4).
const PADDING: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

impl Association {
    /// Encrypts the IP packet that lies in `buffer[packet]`, and says where the packet is then. It grows to both sides:
    /// [`Association::headroom`], [`Association::tailroom`]. Bytes behind the IP packet's end, as Ethernet pads it, are cut
    /// off. `now`: seconds since 1970.
    ///
    /// # Errors
    /// [`Refusal::Header`], [`Refusal::Fragment`] (transport mode), [`Refusal::Expired`], [`Refusal::SequenceOver`],
    /// [`Refusal::TooBig`], [`Refusal::NeedsFragments`], [`Refusal::NoRoom`]: the packet is as it was.
    /// [`Refusal::Cipher`]: it is lost.
    #[inline]
    pub fn seal(&mut self, buffer: &mut [u8], packet: Range<usize>, now: u64) -> Result<Range<usize>, Refusal> {
        let header = Header::parse(buffer.get(packet.clone()).ok_or(Refusal::NoRoom)?)?;
        let is_tunnel = self.parameters.mode == Mode::Tunnel;
        if !is_tunnel && (header.is_fragment || header.source.is_ipv4() != self.parameters.source.is_ipv4()) {
            return Err(Refusal::Fragment);
        }
        let kept = if is_tunnel { 0 } else { header.len };
        let places = self.places(buffer.len(), packet.start, kept, header.total)?;
        self.check_mtu(places.end - places.start, &header)?;
        let number = self.next(now)?;

        if !is_tunnel {
            buffer.copy_within(packet.start..packet.start + kept, places.start);
        }
        buffer[places.fill.clone()].fill(0);
        let pad = places.padding.len();
        buffer[places.padding.clone()].copy_from_slice(&PADDING[..pad]);
        let follows = match (is_tunnel, header.source.is_ipv4()) {
            (false, _) => header.protocol,
            (true, true) => protocol::IPV4,
            (true, false) => protocol::IPV6,
        };
        let trailer = places.padding.end;
        buffer[trailer..trailer + 2].copy_from_slice(&[pad as u8, follows]);
        buffer[places.esp..places.esp + 4].copy_from_slice(&self.parameters.id.spi.to_be_bytes());
        buffer[places.esp + 4..places.esp + HEADER].copy_from_slice(&(number as u32).to_be_bytes());

        let sequence = Sequence { number, is_extended: self.parameters.is_extended };
        let result = self.context.seal(&mut buffer[places.esp..places.end], sequence);
        result.map_err(|_| Refusal::Cipher)?;
        let whole = &mut buffer[places.start..places.end];
        self.write_outside(whole, &header, places.esp - places.start, number)?;
        self.lifetime.count(header.total - kept, now);
        self.note_end(self.lifetime.end(now));
        Ok(places.start..places.end)
    }

    /// Where everything goes for a packet of `total` bytes at `at`, whose first `kept` stay before ESP.
    #[inline]
    fn places(&self, room: usize, at: usize, kept: usize, total: usize) -> Result<Places, Refusal> {
        let shape = self.context.shape();
        let start = at.checked_sub(self.headroom()).ok_or(Refusal::NoRoom)?;
        let (text, payload_end) = (at + kept, at + total);
        // Only of whole IP packets the end can be told.
        let filled = if kept == 0 { total.max(usize::from(self.parameters.fill_to)) } else { total - kept };
        let fill = payload_end..text + filled;
        let padding = fill.end..fill.end + shape.padding(filled);
        let end = padding.end + 2 + shape.check;
        if end > room {
            return Err(Refusal::NoRoom);
        }
        Ok(Places { start, esp: text - shape.iv - HEADER, fill, padding, end })
    }

    #[inline]
    fn check_mtu(&self, len: usize, header: &Header) -> Result<(), Refusal> {
        if len <= self.mtu {
            return Ok(());
        }
        let is_whole = header.is_whole && (self.parameters.headers.df || !header.source.is_ipv4());
        Err(if is_whole { Refusal::TooBig } else { Refusal::NeedsFragments })
    }

    /// The next sequence number.
    #[inline]
    fn next(&mut self, now: u64) -> Result<u64, Refusal> {
        let end = self.lifetime.end(now);
        if end == End::Hard {
            self.note_end(end);
            return Err(Refusal::Expired);
        }
        let last = if self.parameters.is_extended { u64::MAX } else { u64::from(u32::MAX) };
        if self.sent >= last {
            self.note_end(End::Hard);
            return Err(Refusal::SequenceOver);
        }
        self.sent += 1;
        Ok(self.sent)
    }

    /// Writes the outer header, or changes the packet's own, and UDP's.
    #[inline]
    fn write_outside(&self, whole: &mut [u8], header: &Header, esp: usize, number: u64) -> Result<(), Refusal> {
        let udp = self.parameters.encapsulation;
        let protocol = if udp.is_some() { protocol::UDP } else { protocol::ESP };
        let mut ends = (header.source, header.destination);
        if self.parameters.mode == Mode::Tunnel {
            ends = (self.parameters.source, self.parameters.id.destination);
            let outer = ip::Outer {
                class: self.class_outside(header.class),
                protocol,
                is_whole: header.is_whole && self.parameters.headers.df,
                id: number as u16,
            };
            if !ip::write(whole, ends.0, ends.1, outer) {
                return Err(Refusal::TooBig);
            }
        } else {
            ip::change(whole, header, protocol)?;
        }
        match udp {
            Some(ports) => write_udp(&mut whole[esp - UDP_LEN..], ends, ports),
            None => Ok(()),
        }
    }

    /// DSCP and ECN of the outer header (RFC 6040 §4.1).
    #[inline]
    const fn class_outside(&self, inner: u8) -> u8 {
        let rules = self.parameters.headers;
        let dscp = if rules.dscp_out { inner & 0xfc } else { 0 };
        dscp | if rules.ecn { inner & 3 } else { 0 }
    }
}

#[inline]
fn write_udp(datagram: &mut [u8], ends: (IpAddr, IpAddr), ports: Encapsulation) -> Result<(), Refusal> {
    let len = u16::try_from(datagram.len()).map_err(|_| Refusal::TooBig)?;
    put16(datagram, 0, ports.source_port);
    put16(datagram, 2, ports.destination_port);
    put16(datagram, 4, len);
    put16(datagram, 6, 0);
    // IPv4 goes without (RFC 3948 §2.1), IPv6 does not.
    if !ends.0.is_ipv4() {
        let sum = ip::transport_checksum(ends.0, ends.1, protocol::UDP, datagram);
        put16(datagram, 6, if sum == 0 { 0xffff } else { sum });
    }
    Ok(())
}
