//! Packets that arrive: what is taken off, and everything that is checked.

use std::net::IpAddr;
use std::ops::Range;

use super::{Association, Mode};
use crate::cipher::{HEADER, Sequence};
use crate::ip::{self, Header, be16, protocol};
use crate::lifetime::End;
use crate::refusal::Refusal;
use crate::selector::Flow;
use crate::traversal::UDP_LEN;

/// A packet that was protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where it lies in the buffer.
    pub packet: Range<usize>,
    /// What policies look at in it, without interface and marks.
    pub flow: Flow,
}

/// Where ESP is in a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its header.
    pub header: Header,
    /// Where the SPI is, from the beginning of the IP packet.
    pub esp: usize,
    /// Source port of UDP, for ESP in UDP.
    pub udp_source: Option<u16>,
}

impl Arrival {
    /// Finds ESP in the IP packet at the beginning of `packet`: right behind the IP header, or in UDP to `port`. `None`: it
    /// is another packet.
    ///
    /// # Errors
    /// [`Refusal::Header`]; [`Refusal::Fragment`] of ESP; [`Refusal::Truncated`].
    #[inline]
    pub fn find(packet: &[u8], port: u16) -> Result<Option<Self>, Refusal> {
        let header = Header::parse(packet)?;
        let payload = &packet[header.len..header.total];
        let (esp, udp_source) = match header.protocol {
            protocol::ESP => (header.len, None),
            protocol::UDP if header.is_first && payload.len() >= UDP_LEN && be16(payload, 2) == port => {
                let crate::traversal::Datagram::Esp(_) = crate::traversal::Datagram::of(&payload[UDP_LEN..]) else {
                    return Ok(None);
                };
                (header.len + UDP_LEN, Some(be16(payload, 0)))
            }
            _ => return Ok(None),
        };
        if header.is_fragment {
            return Err(Refusal::Fragment);
        }
        if header.total < esp + HEADER {
            return Err(Refusal::Truncated);
        }
        Ok(Some(Self { header, esp, udp_source }))
    }

    /// The SPI, in the packet in which ESP was found.
    #[inline]
    pub fn spi(&self, packet: &[u8]) -> u32 {
        word(packet, self.esp)
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

impl Association {
    /// Checks and decrypts the packet that lies in `buffer[packet]`, in which ESP was found. `now`: seconds since 1970.
    ///
    /// # Errors
    /// [`Refusal::Encapsulation`], [`Refusal::Expired`], [`Refusal::Truncated`], [`Refusal::TooOld`],
    /// [`Refusal::Replayed`]: the packet is as it was. [`Refusal::Integrity`], [`Refusal::Padding`], [`Refusal::Dummy`],
    /// [`Refusal::InnerHeader`], [`Refusal::Congestion`], [`Refusal::Selector`]: it is lost.
    #[inline]
    pub fn open(
        &mut self,
        buffer: &mut [u8],
        packet: Range<usize>,
        arrival: &Arrival,
        now: u64,
    ) -> Result<Opened, Refusal> {
        let whole = packet.start..packet.start + arrival.header.total;
        let bytes = buffer.get_mut(whole.clone()).filter(|_| whole.end <= packet.end).ok_or(Refusal::Header)?;
        if self.parameters.encapsulation.is_some() != arrival.udp_source.is_some() {
            return Err(Refusal::Encapsulation);
        }
        let end = self.lifetime.end(now);
        if end == End::Hard {
            self.note_end(end);
            return Err(Refusal::Expired);
        }
        let esp = bytes.get_mut(arrival.esp..).filter(|esp| esp.len() >= HEADER).ok_or(Refusal::Truncated)?;
        let (iv, text) = self.text(esp.len())?;
        let number = self.judge(word(esp, 4))?;
        let sequence = Sequence { number, is_extended: self.parameters.is_extended };
        if self.context.open(esp, sequence).is_err() {
            self.statistics.integrity += 1;
            return Err(Refusal::Integrity);
        }
        self.window.note(number);

        let (payload, follows) = without_trailer(&esp[HEADER + iv..][..text])?;
        let at = arrival.esp + HEADER + iv;
        self.lifetime.count(payload, now);
        self.note_end(self.lifetime.end(now));
        self.note_place(arrival);
        let (inner, header) = match self.parameters.mode {
            Mode::Tunnel => self.inner(bytes, at..at + payload, follows, arrival.header.class)?,
            Mode::Transport => joined(bytes, &arrival.header, at..at + payload, follows)?,
        };
        if arrival.udp_source.is_some() && self.parameters.mode == Mode::Transport {
            let inner = &mut bytes[inner.clone()];
            ip::mend_transport_checksum(inner, &header, follows, header.len..header.total);
        }
        let flow = Flow::behind(&header, &bytes[inner.clone()][header.len..header.total]);
        if !self.parameters.selector.has(&flow) {
            return Err(Refusal::Selector);
        }
        Ok(Opened { packet: packet.start + inner.start..packet.start + inner.end, flow })
    }

    /// Bytes of the IV and of what is encrypted, in ESP of this length.
    #[inline]
    fn text(&self, len: usize) -> Result<(usize, usize), Refusal> {
        let shape = self.context.shape();
        let text = len.checked_sub(HEADER + shape.iv + shape.check).ok_or(Refusal::Truncated)?;
        if text < 2 || text & (shape.block - 1) != 0 { Err(Refusal::Truncated) } else { Ok((shape.iv, text)) }
    }

    #[inline]
    fn judge(&mut self, low: u32) -> Result<u64, Refusal> {
        self.window.judge(low).inspect_err(|refusal| match refusal {
            Refusal::Replayed => self.statistics.replayed += 1,
            _ => self.statistics.too_old += 1,
        })
    }

    /// Notes where a genuine packet came from, if not from where it should.
    #[inline]
    fn note_place(&mut self, arrival: &Arrival) {
        let (Some(ports), Some(port)) = (self.parameters.encapsulation, arrival.udp_source) else { return };
        let place: (IpAddr, u16) = (arrival.header.source, port);
        if place != (self.parameters.source, ports.source_port) && self.moved != Some(place) {
            (self.moved, self.told_moved) = (Some(place), false);
        }
    }

    /// Where the packet in a tunnel's is, and its header, in which is then what the outer one has learned on the way (RFC 6040 §4.2).
    #[inline]
    fn inner(
        &self,
        bytes: &mut [u8],
        at: Range<usize>,
        follows: u8,
        outer: u8,
    ) -> Result<(Range<usize>, Header), Refusal> {
        let inner = &mut bytes[at.clone()];
        let header = Header::parse(inner).map_err(|_| Refusal::InnerHeader)?;
        let is_v4 = header.source.is_ipv4();
        if follows != if is_v4 { protocol::IPV4 } else { protocol::IPV6 } {
            return Err(Refusal::InnerHeader);
        }
        let rules = self.parameters.headers;
        let dscp = if rules.dscp_in { outer & 0xfc } else { header.class & 0xfc };
        let ecn = if rules.ecn { ecn_inside(header.class & 3, outer & 3)? } else { header.class & 3 };
        if header.class != dscp | ecn {
            ip::change_class(inner, is_v4, dscp | ecn);
        }
        Ok((at.start..at.start + header.total, header))
    }
}

/// What the inner header says of congestion, after `outer` was seen (RFC 6040, figure 4).
#[inline]
const fn ecn_inside(inner: u8, outer: u8) -> Result<u8, Refusal> {
    const NOT: u8 = 0;
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const EXPERIENCED: u8 = 3;
    Ok(match (inner, outer) {
        (NOT, EXPERIENCED) => return Err(Refusal::Congestion),
        (NOT | EXPERIENCED, _) => inner,
        (_, EXPERIENCED) => EXPERIENCED,
        (ECT_0, ECT_1) => ECT_1,
        _ => inner,
    })
}

/// Bytes before the padding, and what they are. What the padding says is not looked at: the check value has been right, and
/// Linux does not look either.
#[inline]
fn without_trailer(text: &[u8]) -> Result<(usize, u8), Refusal> {
    let Some((rest, [pad, follows])) = text.split_last_chunk::<2>() else { return Err(Refusal::Padding) };
    let payload = rest.len().checked_sub(usize::from(*pad)).ok_or(Refusal::Padding)?;
    if *follows == protocol::NONE { Err(Refusal::Dummy) } else { Ok((payload, *follows)) }
}

/// Moves the IP header of a transport packet to what was protected, and makes it say what that is.
#[inline]
fn joined(
    bytes: &mut [u8],
    header: &Header,
    payload: Range<usize>,
    follows: u8,
) -> Result<(Range<usize>, Header), Refusal> {
    let start = payload.start - header.len;
    bytes.copy_within(..header.len, start);
    let inner = start..payload.end;
    ip::change(&mut bytes[inner.clone()], header, follows)?;
    // What follows may be more headers.
    let header = Header::parse(&bytes[inner.clone()]).map_err(|_| Refusal::InnerHeader)?;
    Ok((inner, header))
}
