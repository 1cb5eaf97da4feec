//! What is sent through a forwarder, and what has to arrive.

use millrace_packet::checksum::Sum;

use super::rules::{OUR_MAC, OURS, THEIR_MAC, THEIRS, VNI};

/// Frames of one size.
pub struct Frames {
    bytes: Vec<u8>,
    size: usize,
}

impl Frames {
    /// All alike.
    pub fn one(frame: &[u8]) -> Self {
        Self { bytes: frame.to_vec(), size: frame.len() }
    }

    /// `count` of them, at least one, which `make` makes from their numbers, all as long as the first.
    pub fn many(count: usize, make: impl Fn(usize) -> Vec<u8>) -> Self {
        let mut frames = Self::one(&make(0));
        (1..count).for_each(|number| frames.bytes.extend(make(number)));
        assert_eq!(frames.bytes.len(), frames.size * count.max(1));
        frames
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.size
    }

    /// One of them.
    #[inline(always)]
    pub fn get(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.size..][..self.size]
    }
}

/// What a forwarder is to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// It is put into a VXLAN packet.
    Encapsulated,
    /// It is taken out of one.
    Opened,
}

/// Frames, and what becomes of them.
pub struct Traffic {
    /// What is sent.
    pub frames: Frames,
    change: Change,
}

impl Traffic {
    /// Frames with which a forwarder does that.
    pub fn new(frames: Frames, change: Change) -> Self {
        Self { frames, change }
    }

    /// Whether a frame that arrived can be what has become of one that was sent.
    pub fn may_become(&self, arrived: &[u8]) -> bool {
        let mut all = (0..self.frames.count()).map(|number| self.frames.get(number));
        match self.change {
            Change::None => all.any(|sent| sent == arrived),
            Change::Encapsulated => arrived
                .split_at_checked(vxlan::OVERHEAD)
                .is_some_and(|(outer, inner)| vxlan::vni(outer) == Some(VNI) && all.any(|sent| sent == inner)),
            Change::Opened => all.any(|sent| &sent[vxlan::OVERHEAD..] == arrived),
        }
    }
}

/// UDP datagrams over IPv4: something that every switch can read.
pub mod udp {
    use super::Sum;

    /// One of `size` bytes, of flow `flow`.
    pub fn frame(size: u16, flow: u16) -> Vec<u8> {
        let mut frame = vec![0; usize::from(size)];
        let (ip_len, udp_len) = ((size - 14).to_be_bytes(), (size - 34).to_be_bytes());
        let source = (0x1000 + flow).to_be_bytes();
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..34]
            .copy_from_slice(&[0x45, 0, ip_len[0], ip_len[1], 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let checksum = Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame[34..42].copy_from_slice(&[source[0], source[1], 0x20, 0, udp_len[0], udp_len[1], 0, 0]);
        frame
    }
}

/// 64 bytes of TCP or UDP over IPv4 from an address and port to another, without a checksum of TCP or UDP.
pub fn tcp_or_udp(is_udp: bool, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let mut frame = udp::frame(64, 0);
    frame[26..30].copy_from_slice(&from.0);
    frame[30..34].copy_from_slice(&to.0);
    frame[34..36].copy_from_slice(&from.1.to_be_bytes());
    frame[36..38].copy_from_slice(&to.1.to_be_bytes());
    if !is_udp {
        frame[23] = 6;
        frame[38..64].fill(0);
        // A header of five words, of a segment in the middle of a connection.
        frame[46..48].copy_from_slice(&[0x50, 0x10]);
    }
    frame[24..26].fill(0);
    let checksum = Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// VXLAN packets (RFC 7348) over IPv4, without a checksum of UDP.
pub mod vxlan {
    use std::net::Ipv4Addr;

    use super::{OUR_MAC, OURS, Sum, THEIR_MAC, THEIRS, VNI};

    /// Bytes of Ethernet, IPv4, UDP and VXLAN headers.
    pub const OVERHEAD: usize = 50;
    /// Where each begins.
    const IP: usize = 14;
    const UDP: usize = 34;
    const VXLAN: usize = 42;

    /// A packet from the other end to ours with a frame in it.
    pub fn packet(inner: &[u8], flow: u16) -> Vec<u8> {
        let mut packet = vec![0; OVERHEAD];
        packet[..6].copy_from_slice(&mac(OUR_MAC));
        packet[6..12].copy_from_slice(&mac(THEIR_MAC));
        packet[12..14].copy_from_slice(&[8, 0]);
        let len = (OVERHEAD - IP + inner.len()) as u16;
        packet[IP..IP + 12].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        packet[IP + 12..IP + 16].copy_from_slice(&address(THEIRS));
        packet[IP + 16..UDP].copy_from_slice(&address(OURS));
        let checksum = Sum::of(&packet[IP..UDP]).checksum();
        packet[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        packet[UDP..UDP + 2].copy_from_slice(&(0xc000 | flow).to_be_bytes());
        packet[UDP + 2..UDP + 4].copy_from_slice(&4789_u16.to_be_bytes());
        packet[UDP + 4..UDP + 6].copy_from_slice(&(len - 20).to_be_bytes());
        packet[VXLAN] = 8;
        packet[VXLAN + 4..].copy_from_slice(&(VNI << 8).to_be_bytes());
        packet.extend_from_slice(inner);
        packet
    }

    /// The identifier in the headers in front of a frame, if they are VXLAN's.
    pub fn vni(outer: &[u8]) -> Option<u32> {
        let (headers, vni) = outer.split_at_checked(VXLAN + 4)?;
        let is_vxlan = headers[UDP + 2..UDP + 4] == 4789_u16.to_be_bytes() && headers[VXLAN] & 8 != 0;
        vni.first_chunk().filter(|_| is_vxlan).map(|word| u32::from_be_bytes(*word) >> 8)
    }

    fn mac(text: &str) -> [u8; 6] {
        let mut parts = text.split(':').map(|part| u8::from_str_radix(part, 16).unwrap_or(0));
        std::array::from_fn(|_| parts.next().unwrap_or(0))
    }

    fn address(text: &str) -> [u8; 4] {
        text.parse().unwrap_or(Ipv4Addr::UNSPECIFIED).octets()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_packet::parse::Layers;

    #[test]
    fn packets_of_vxlan_are_read_by_the_parser_and_recognised() {
        let frame = udp::frame(64, 3);
        let packet = vxlan::packet(&frame, 3);
        assert_eq!(packet.len(), 64 + vxlan::OVERHEAD);
        let layers = format!("{:?}", Layers::parse(&packet));
        assert!(layers.to_lowercase().contains("vxlan"), "{layers}");
        let opened = Traffic::new(Frames::one(&packet), Change::Opened);
        assert!(opened.may_become(&frame) && !opened.may_become(&packet));
        let put_in = Traffic::new(Frames::one(&frame), Change::Encapsulated);
        assert!(put_in.may_become(&packet) && !put_in.may_become(&frame));
        assert!(!put_in.may_become(&vxlan::packet(&udp::frame(64, 4), 3)));
    }

    #[test]
    fn frames_lie_one_after_the_other() {
        let frames = Frames::many(3, |flow| udp::frame(60, flow as u16));
        assert_eq!((frames.count(), frames.get(2)), (3, &udp::frame(60, 2)[..]));
    }
}
