//! Buffers that are lent one by one.

use super::*;

/// Odd, so that buffers begin anywhere.
const APART: usize = 2112;

fn lent(bench: &Bench, buffer: usize) -> LentRxQueue {
    let Place { ring, buffers, buffers_at, .. } = bench.place.clone();
    let place = LentPlace { ring, memory: buffers, memory_at: buffers_at, buffer };
    LentRxQueue::new(&place, bench.size, Agreed::default()).unwrap()
}

proptest! {
    /// Whatever is kept and whenever buffers are lent: frames lie whole where it says, in buffers that were lent, and what
    /// was not kept is still there at the end.
    #[test]
    fn frames_land_in_the_buffers_that_were_lent(
        size in 1u32..5,
        turns in prop::collection::vec((0usize..6, prop::collection::vec((14usize..1900, any::<bool>()), 0..12)), 1..60),
    ) {
        let bench = Bench::new(1 << size);
        let (mut rx, mut device) = (lent(&bench, 2048), bench.device_rx(feature::VERSION_1));
        // Buffers of the application: those it has, those with the device, and frames on their way.
        let mut ours: VecDeque<usize> = (0..1usize << size).map(|number| number * APART).collect();
        let (mut out, mut number) = (Vec::new(), 0);
        for (posts, frames) in turns {
            for _ in 0..posts.min(rx.room()) {
                let Some(at) = ours.pop_front() else { break };
                prop_assert!(rx.post(at));
                out.push(at);
            }
            let _ = rx.publish();
            let made: Vec<_> = frames.iter().enumerate().map(|(at, (len, _))| frame(number + at, *len)).collect();
            let spans: Vec<_> = made.iter().map(|frame| Span::from_slice(frame)).collect();
            let taken = device.deliver(&spans).taken;
            prop_assert_eq!(taken, made.len().min(out.len()));
            device.publish();
            prop_assert_eq!(rx.poll(99), taken);
            number += taken;
            for (index, (_, keep)) in frames[..taken].iter().enumerate() {
                let (at, span) = rx.frame(index);
                prop_assert_eq!(bytes(&span), &made[index][..]);
                prop_assert_eq!(bytes(&bench.place.buffers.span(at, span.len()).unwrap()), &made[index][..]);
                let buffer = at - BEFORE_FRAME;
                prop_assert!(out.contains(&buffer));
                if *keep {
                    rx.keep(index);
                    out.retain(|&other| other != buffer);
                    ours.push_back(buffer);
                }
            }
            rx.recycle();
            let _ = rx.publish();
        }
        let mut left = rx.into_buffers();
        left.sort_unstable();
        out.sort_unstable();
        prop_assert_eq!(left, out);
    }
}

#[test]
fn lengths_beyond_a_lent_buffer_end_the_queue_and_lose_no_buffer() {
    for (len, right) in [(12, true), (12 + 2048 - 64, true), (11, false), (12 + 2048 - 63, false), (u32::MAX, false)] {
        let bench = Bench::new(4);
        let mut rx = lent(&bench, 2048);
        assert!(rx.post(APART) && rx.post(0));
        let _ = rx.publish();
        bench.use_one(u32::from(bench.rings.avail.load(1)), 100);
        bench.use_one(u32::from(bench.rings.avail.load(0)), len);
        assert_eq!(rx.poll(9), 1 + usize::from(right));
        assert_eq!(rx.frame(0).0, BEFORE_FRAME);
        assert_eq!(rx.broken(), (!right).then_some(Broken::Length(len)));
        rx.keep(0);
        assert_eq!(rx.into_buffers(), [APART]);
    }
}

#[test]
fn descriptors_without_a_buffer_are_not_the_devices_to_use() {
    let bench = Bench::new(4);
    let mut rx = lent(&bench, 2048);
    assert!(rx.post(0));
    let _ = rx.publish();
    let other = u32::from(bench.rings.avail.load(0)) ^ 1;
    bench.use_one(other, 100);
    assert_eq!((rx.poll(9), rx.broken()), (0, Some(Broken::Descriptor(other))));
    assert_eq!(rx.into_buffers(), [0]);
}

#[test]
fn only_whole_buffers_are_lent_and_as_many_as_there_is_room() {
    let bench = Bench::new(2);
    let mut rx = lent(&bench, 2048);
    let len = bench.place.buffers.len();
    assert!(!rx.post(len - 2047) && !rx.post(usize::MAX) && !rx.post(usize::MAX - 2047));
    assert!(rx.post(len - 2048) && rx.post(0));
    assert_eq!((rx.room(), rx.post(64)), (0, false));
    let Place { ring, buffers: memory, .. } = bench.place.clone();
    let place = LentPlace { ring, memory, memory_at: 0, buffer: BEFORE_FRAME };
    assert!(matches!(LentRxQueue::new(&place, bench.size, Agreed::default()), Err(RingsError::Stride(_))));
}
