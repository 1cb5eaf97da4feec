//! Eight senders and one receiver behind a switch with a short queue: some packets are lost, nothing is for good.

use crate::common::link::{End, Frame, path_between};
use crate::common::{Wish, create, engine, init, make_ready};
use millrace_rdma::engine::Options;
use millrace_rdma::number::Moment;
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};
use std::collections::VecDeque;

const SENDERS: usize = 8;
const LEN: usize = 1 << 20;
/// Packets that the switch has room for, and from which on it marks them.
const QUEUE: usize = 200;
const MARK: usize = 40;
/// Nanoseconds for a packet of 1 KiB at 10 Gbit/s.
const PACKET: u64 = 870;

struct Outcome {
    /// Of all packets that came to the switch.
    lost: f64,
    nanoseconds: u64,
}

fn incast(extended: bool, rate_control: bool) -> Outcome {
    let options = Options { extended, rate_control, line_rate: 10_000_000_000, ..Options::default() };
    let wish = Wish { timeout: 9, ..Wish::default() };
    let mut receiver = End::new(engine(options));
    let domain = receiver.engine.create_domain().unwrap();
    let cq = receiver.engine.create_cq(100).unwrap();
    let space = vec![0; SENDERS * LEN];
    let rkey = receiver.engine.memory().register(domain, 0, space, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE));
    let mut senders = Vec::new();
    for at in 0..SENDERS {
        let mut end = End::new(engine(options));
        let pair = create(&mut end.engine, &wish);
        let (qpn, _) = receiver.engine.create_qp(&init(&wish, domain, cq)).unwrap();
        let number = 10 + at as u8;
        make_ready(&mut end.engine, pair.qpn, &wish, path_between(number, 1), qpn);
        make_ready(&mut receiver.engine, qpn, &wish, path_between(1, number), pair.qpn);
        let bytes = vec![at as u8 + 1; LEN];
        let lkey = end.engine.memory().register(pair.domain, 0, bytes, Access::default());
        let pieces = [Piece { address: 0, len: LEN as u32, lkey }];
        let operation = Operation::Write { address: (at * LEN) as u64, rkey, immediate: None };
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id: 1, operation, data: Data::Pieces(&pieces), flags, target: None };
        end.engine.post_send(pair.qpn, &request).unwrap();
        senders.push((end, pair));
    }
    let mut queue: VecDeque<Frame> = VecDeque::new();
    // What is on the way back, with the time at which it arrives.
    let mut back: VecDeque<(u64, Frame)> = VecDeque::new();
    let (mut now, mut came, mut lost, mut ended) = (0, 0_u64, 0_u64, 0);
    let mut lines = [Completion::default(); 4];
    while ended < SENDERS {
        now += PACKET;
        assert!(now < 30_000_000_000, "it ends: {ended} of {SENDERS}");
        let moment = Moment::new(now);
        for (end, _) in &mut senders {
            // Each sender's own link is as fast as the receiver's.
            for mut frame in end.take(moment, 1) {
                came += 1;
                if queue.len() >= QUEUE {
                    lost += 1;
                    continue;
                }
                frame.congested = frame.path.traffic_class & 3 == 2 && queue.len() >= MARK;
                queue.push_back(frame);
            }
        }
        if let Some(frame) = queue.pop_front() {
            receiver.give(moment, &frame);
        }
        back.extend(receiver.take(moment, 8).into_iter().map(|frame| (now + 2000, frame)));
        while back.front().is_some_and(|(time, _)| *time <= now) {
            let (_, frame) = back.pop_front().unwrap();
            let to = usize::from(frame.path.destination.0[15]) - 10;
            senders[to].0.give(moment, &frame);
        }
        for (end, pair) in &mut senders {
            let count = end.engine.poll(pair.cq, &mut lines).unwrap();
            assert!(lines[..count].iter().all(|line| line.status == Status::Success), "{:?}", lines[0]);
            ended += count;
        }
    }
    let bytes = receiver.engine.memory().bytes(rkey);
    for at in 0..SENDERS {
        assert!(bytes[at * LEN..][..LEN].iter().all(|byte| *byte == at as u8 + 1));
    }
    assert_eq!(receiver.engine.counters().notifications_sent > 0, rate_control);
    Outcome { lost: lost as f64 / came as f64, nanoseconds: now }
}

#[test]
fn eight_senders_lose_nothing_for_good() {
    let ideal = (SENDERS * LEN / 1024) as u64 * PACKET;
    for extended in [false, true] {
        let plain = incast(extended, false);
        let rated = incast(extended, true);
        println!(
            "extended {extended}: {:.1} % lost, {:.2} x the time; with rate control {:.1} %, {:.2} x",
            100.0 * plain.lost,
            plain.nanoseconds as f64 / ideal as f64,
            100.0 * rated.lost,
            rated.nanoseconds as f64 / ideal as f64,
        );
        assert!(rated.lost < plain.lost, "marks save packets: {} {}", rated.lost, plain.lost);
        assert!(rated.nanoseconds < 3 * ideal, "{}", rated.nanoseconds);
    }
}
