//! Checksums and segments that are left to the other side, both ways.

use super::*;
use millrace_packet::offload::{PartialChecksum, SegmentKind, Segments};

/// TCP over IPv4 of `len` bytes, as far as cutting looks at it, and what is left to do on it.
fn large(len: usize, size: u16) -> (Vec<u8>, Offload) {
    let mut frame = frame(0, len);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6]);
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    let segments = Segments { kind: SegmentKind::Tcp4, ecn: false, size, header_len: 54 };
    let checksum = Some(PartialChecksum { start: 34, offset: 16 });
    (frame, Offload { checksum, segments: (size > 0).then_some(segments) })
}

#[derive(Default)]
struct Card {
    offloads: Offloads,
    complete: Vec<Vec<u8>>,
    unfinished: Vec<(Vec<u8>, Offload)>,
}

impl Sink for Card {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self.complete.push(bytes(frame));
        Accept::Taken
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        self.unfinished.push((bytes(frame), *offload));
        Accept::Taken
    }
}

fn pass(from: &mut dyn PortQueue, to: &mut dyn PortQueue, frames: &[(Vec<u8>, Offload)], card: &mut Card) {
    for (frame, offload) in frames {
        assert!(from.offloads().include(offload));
        assert_eq!(from.transmit_offloaded(Span::from_slice(frame), offload), TxOutcome::Sent);
        from.flush();
        to.receive(64, card);
    }
}

#[test]
fn unfinished_frames_pass_whole_or_are_finished() {
    let mut scene = scene(1);
    let (here, there) = (&mut scene.here[0], &mut scene.there[0]);
    let frames = [large(100, 0), large(1514, 0), large(3000, 1448), large(16_000, 1448), large(65_535, 1448)];
    for round in 0..20 {
        for to_there in [true, false] {
            let (from, to): (&mut dyn PortQueue, &mut dyn PortQueue) =
                if to_there { (here, there) } else { (there, here) };
            let mut able = Card { offloads: Offloads::ALL, ..Card::default() };
            pass(from, to, &frames, &mut able);
            assert_eq!((able.unfinished.len(), able.complete.len()), (frames.len(), 0), "round {round}");
            assert_eq!(able.unfinished, frames);
            let mut unable = Card::default();
            pass(from, to, &frames, &mut unable);
            assert_eq!((unable.unfinished.len(), unable.complete.len()), (0, 2 + 3 + 12 + 46));
            let payload = |frames: &[Vec<u8>]| frames.iter().flat_map(|frame| frame[54..].to_vec()).collect::<Vec<_>>();
            assert_eq!(payload(&unable.complete[17..]), frames[4].0[54..]);
        }
        // A complete frame has a header of zeros, whatever was in its buffer before.
        let plain = [frame(round, 200)];
        assert_eq!(here.transmit_burst(&spans(&plain)).taken, 1);
        assert_eq!(received(there, 9), plain);
    }
    let copies = here.counters().rx_copies();
    assert_eq!(copies, 20 * 2 * frames.len() as u64, "one for each, whole or cut");
    assert_eq!(here.counters().tx_copies(), here.counters().tx_frames());
}

#[test]
fn what_the_other_side_does_not_take_is_refused() {
    let mut scene = scene(1);
    let here = &mut scene.here[0];
    let (udp, offload) = large(3000, 1448);
    let udp_segments = Segments { kind: SegmentKind::Udp, ..offload.segments.unwrap() };
    let refused = here.transmit_offloaded(Span::from_slice(&udp), &Offload { segments: Some(udp_segments), ..offload });
    assert_eq!(refused, TxOutcome::Dropped(DropReason::Offload));
    let (long, _) = large(20_000, 0);
    let refused = here.transmit_offloaded(Span::from_slice(&long), &Offload { segments: None, ..offload });
    assert_eq!(refused, TxOutcome::Dropped(DropReason::TooLong));
    scene.there.clear();
    eventually("no peer", || here.counters().mode().ends_with("no peer"));
    assert_eq!(here.transmit_offloaded(Span::from_slice(&udp), &offload), TxOutcome::Dropped(DropReason::LinkDown));
    assert_eq!(here.counters().tx_offered(), 3);
}
