//! Frames on which something is left to do, from and to drivers that take them so and such that do not.

use super::*;
use crate::virtio_user::{Device, Size, Wishes};
use crate::{MAX_FRAME_LEN, Sink};
use millrace_packet::checksum::Sum;
use millrace_packet::offload::{PartialChecksum, SegmentKind, Segments};

const PLAIN: Wishes = Wishes {
    pairs: 1,
    size: Size::new(256).unwrap(),
    mergeable: true,
    event_index: false,
    in_order: false,
    offloads: false,
};
const ABLE: Wishes = Wishes { offloads: true, ..PLAIN };
const HEADERS: usize = 14 + 20 + 20;

/// TCP over IPv4 with `payload` bytes, whose checksum is that of the pseudo header only.
fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = vec![0; HEADERS];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6]);
    frame[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    frame[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    let sum = Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..38].copy_from_slice(&[0x10, 0, 0x20, 0]);
    frame[46..48].copy_from_slice(&[0x50, 0x18]);
    let pseudo = Sum::of(&frame[26..34]).with(6).with(20 + payload as u32).folded();
    frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
    frame.extend((0..payload).map(|at| (at * 7) as u8));
    frame
}

const CHECKSUM: Option<PartialChecksum> = Some(PartialChecksum { start: 34, offset: 16 });

/// What is left to do on such a frame: its checksum, and to be cut into segments of `size` bytes if that is not 0.
fn left(size: u16) -> Offload {
    let segments = Segments { kind: SegmentKind::Tcp4, ecn: false, size, header_len: HEADERS as u16 };
    Offload { checksum: CHECKSUM, segments: (size > 0).then_some(segments) }
}

fn header(offload: &Offload) -> [u8; NetHeader::LEN] {
    let mut header = [0; NetHeader::LEN];
    header[..VIRTIO_HEADER_LEN].copy_from_slice(&offload.to_virtio());
    header
}

/// Whether the checksums of IP and TCP of a frame are right, and its length.
fn is_complete(frame: &[u8]) -> bool {
    let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let tcp = Sum::of(&frame[26..34]).with(6).with(frame.len() as u32 - 34).folded();
    let whole = [&tcp.to_be_bytes()[..], &frame[34..]].concat();
    len == frame.len() - 14 && Sum::of(&frame[14..34]).checksum() == 0 && Sum::of(&whole).checksum() == 0
}

fn payload(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame[HEADERS..].to_vec()).collect()
}

/// Two wires whose frames go from the first to the second, as in a card that connects them, with a driver at each.
struct Pair {
    from: Scene,
    to: Scene,
    sender: Device,
    receiver: Device,
}

struct Forward<'a>(&'a mut VhostUserPort);

impl Sink for Forward<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        if self.0.transmit(frame) == TxOutcome::Sent { Accept::Taken } else { Accept::Full }
    }

    fn offloads(&self) -> Offloads {
        self.0.offloads()
    }

    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        if self.0.transmit_offloaded(frame, offload) == TxOutcome::Sent { Accept::Taken } else { Accept::Full }
    }
}

impl Pair {
    fn new(wishes: Wishes) -> Self {
        let (from, to) = (scene(""), scene(""));
        let sender = Device::connect(&from.path, ABLE).unwrap();
        let receiver = Device::connect(&to.path, wishes).unwrap();
        eventually("links", || from.ports[0].counters().link() && to.ports[0].counters().link());
        Self { from, to, sender, receiver }
    }

    /// What the receiver gets when the sender sends this: frames with their headers.
    fn pass(&mut self, frame: &[u8], offload: &Offload) -> Vec<(Offload, Vec<u8>)> {
        let queue = &mut self.sender.pairs[0];
        queue.tx.room();
        assert!(queue.tx.push(Span::from_slice(frame), Some(&header(offload))));
        queue.publish();
        self.from.ports[0].receive(64, &mut Forward(&mut self.to.ports[0]));
        self.to.ports[0].flush();
        let queue = &mut self.receiver.pairs[0];
        let mut got = Vec::new();
        loop {
            let count = queue.rx.poll(64);
            for at in 0..count {
                let (header, frame) = (queue.rx.header(at), queue.rx.frame_mut(at).to_vec());
                let (header, _) = header.split_first_chunk().unwrap();
                got.push((Offload::from_virtio(header, frame.len()).unwrap(), frame));
            }
            queue.rx.recycle();
            queue.publish();
            if count == 0 {
                return got;
            }
        }
    }
}

#[test]
fn a_driver_that_takes_unfinished_frames_gets_them_whole() {
    let mut pair = Pair::new(ABLE);
    assert_eq!(pair.to.ports[0].offloads(), Offloads { udp: false, ..Offloads::ALL });
    for (len, size) in [(100, 0), (1400, 0), (100, 1448), (1449, 1448), (9000, 1448), (60_000, 1448), (65_495, 536)] {
        let frame = tcp(len);
        assert!(!is_complete(&frame));
        assert_eq!(pair.pass(&frame, &left(size)), [(left(size), frame)], "{len} bytes in segments of {size}");
    }
    let (from, to) = (pair.from.ports[0].counters(), pair.to.ports[0].counters());
    assert_eq!((from.rx_frames(), to.tx_frames()), (7, 7), "a frame that passes whole is one");
}

#[test]
fn a_driver_that_does_not_gets_complete_ones() {
    let mut pair = Pair::new(PLAIN);
    assert_eq!(pair.to.ports[0].offloads(), Offloads::NONE);
    let mut count = 0;
    for (len, size) in [(100, 0), (1400, 0), (100, 1448), (1449, 1448), (9000, 1448), (60_000, 1448), (65_495, 536)] {
        let frame = tcp(len);
        let got = pair.pass(&frame, &left(size));
        let segments = if size == 0 { 1 } else { len.div_ceil(usize::from(size)) };
        assert_eq!(got.len(), segments, "{len} bytes in segments of {size}");
        count += segments as u64;
        let frames: Vec<_> = got.into_iter().map(|(offload, frame)| (offload.is_done(), frame).1).collect();
        assert!(frames.iter().all(|frame| is_complete(frame)), "{len} bytes in segments of {size}");
        assert_eq!(payload(&frames), frame[HEADERS..]);
    }
    let (from, to) = (pair.from.ports[0].counters(), pair.to.ports[0].counters());
    assert_eq!((from.rx_frames(), to.tx_frames()), (count, count), "one that is cut is as many as its segments");
    assert_eq!((from.rx_offered(), to.tx_offered()), (count, count));
}

#[test]
fn without_mergeable_buffers_only_the_checksum_is_left() {
    let mut pair = Pair::new(Wishes { mergeable: false, ..ABLE });
    // Such a driver has no place for large frames, and has asked for none.
    assert_eq!(pair.to.ports[0].offloads(), Offloads::NONE);
    let got = pair.pass(&tcp(9000), &left(1448));
    assert_eq!(got.len(), 7);
    assert!(got.iter().all(|(offload, frame)| offload.is_done() && is_complete(frame)));
}

#[test]
fn headers_that_do_not_fit_their_frames_are_dropped_and_counted() {
    let mut pair = Pair::new(ABLE);
    let mut frame = tcp(3000);
    let wrong = Offload { checksum: Some(PartialChecksum { start: 30, offset: 16 }), ..left(1448) };
    assert!(pair.pass(&frame, &wrong).is_empty());
    let outside = Offload { checksum: Some(PartialChecksum { start: 3000, offset: 60 }), segments: None };
    assert!(pair.pass(&frame, &outside).is_empty());
    frame[17] ^= 1;
    assert!(pair.pass(&frame, &left(1448)).is_empty(), "IP says another length");
    assert!(pair.pass(&vec![0; MAX_FRAME_LEN + 1], &Offload::default()).is_empty());
    let counters = pair.from.ports[0].counters();
    assert_eq!((counters.rx_dropped(DropReason::Offload), counters.rx_dropped(DropReason::TooLong)), (3, 1));
    assert_eq!((counters.rx_frames(), counters.rx_offered()), (0, 4));
    assert!(counters.link(), "a frame is no ring");
}
