//! Short WRITEs, which the engine does by what it kept of the last one.

use super::*;

/// What happens to the other end after some short WRITEs, and how the next one ends then.
type Change = (&'static str, fn(&mut Service, &[End; 2]), Status);

fn reconnect(service: &mut Service, end: &End, remote: Qpn) {
    service.modify_pair(end.number, end.qpn, &Attributes::state(State::Reset)).unwrap();
    connect(service, end.number, end.qpn, remote);
}

#[test]
fn short_writes_go_where_those_before_went_as_long_as_they_may() {
    let changes: [Change; 8] = [
        ("nothing", |_, _| (), Status::Success),
        (
            "its region is given back",
            |service, [_, b]| drop(service.deregister(b.number, b.key).unwrap()),
            Status::RemoteAccess,
        ),
        (
            "its queue pair fails",
            |service, [_, b]| _ = service.modify_pair(b.number, b.qpn, &Attributes::state(State::Error)).unwrap(),
            Status::RetryExceeded,
        ),
        (
            "its queue pair is destroyed",
            |service, [_, b]| drop(service.destroy_pair(b.number, b.qpn).unwrap()),
            Status::RetryExceeded,
        ),
        ("it ends", |service, [_, b]| drop(service.leave(Moment::new(1), b.number)), Status::RetryExceeded),
        ("it is connected with another", |service, [_, b]| reconnect(service, b, b.qpn), Status::RetryExceeded),
        ("it allows no WRITEs", |service, [_, b]| forbid_writes(service, b), Status::RemoteInvalid),
        (
            "the sender's queue pair fails",
            |service, [a, _]| _ = service.modify_pair(a.number, a.qpn, &Attributes::state(State::Error)).unwrap(),
            Status::Flushed,
        ),
    ];
    for (what, change, expected) in changes {
        let (mut service, mut ends) = two();
        let (mut now, key) = (0, ends[1].key);
        for number in 1..=4_u64 {
            let [a, b] = &mut ends;
            let bytes = number.to_ne_bytes();
            assert_eq!(a.program.write_short(a.qpn, number, (8 * number, key), &bytes, number == 4), Some(false));
            run(&mut service, &mut now);
            assert_eq!(b.bytes(8 * number as usize, 8), bytes, "{what}");
        }
        assert_eq!(ends[0].poll().iter().map(|line| line.id).collect::<Vec<_>>(), [4], "one was signaled");
        assert_eq!(service.counters().again, 2, "where they go is kept from the second one on");
        change(&mut service, &ends);
        let [a, b] = &mut ends;
        a.program.write_short(a.qpn, 5, (64, key), &[5; 16], true).unwrap();
        let mut ended = Vec::new();
        for _ in 0..20_000 {
            now += 1_000_000;
            service.turn(Moment::new(now), &mut NoWire);
            ended.extend(a.poll());
        }
        assert_eq!(ended.iter().map(|line| (line.id, line.status)).collect::<Vec<_>>(), [(5, expected)], "{what}");
        let came = if expected == Status::Success { [5; 16] } else { [0; 16] };
        assert_eq!(b.bytes(64, 16), came, "{what}");
    }
}

fn forbid_writes(service: &mut Service, b: &End) {
    let access = Some(Access::LOCAL_WRITE.with(Access::REMOTE_READ));
    service.modify_pair(b.number, b.qpn, &Attributes { access, ..Attributes::default() }).unwrap();
}

#[test]
fn short_writes_keep_their_order() {
    let (mut service, [mut a, b]) = two();
    let mut now = 0;
    for number in 0..3_u8 {
        a.program.write_short(a.qpn, number.into(), (0, b.key), &[number; 8], false).unwrap();
        run(&mut service, &mut now);
    }
    a.fill(0, &pattern(2 << 20, 1));
    let own = a.piece(0, 2 << 20);
    // It is longer than a turn, and goes as packets; what is posted behind it comes behind it.
    a.post(10, write_to(b.key, 0), &[own]).unwrap();
    a.program.write_short(a.qpn, 11, (8, b.key), &[7; 16], true).unwrap();
    let (bad, len) = ((LEN - 8) as u64, 16);
    a.program.write_short(a.qpn, 12, (bad, b.key), &[9; 16][..len], true).unwrap();
    a.program.write_short(a.qpn, 13, (8, b.key), &[8; 16], true).unwrap();
    run(&mut service, &mut now);
    let ended: Vec<_> = a.poll().iter().map(|line| (line.id, line.status)).collect();
    let expected = [Status::Success, Status::Success, Status::RemoteAccess, Status::Flushed];
    assert_eq!(ended, (10..).zip(expected).collect::<Vec<_>>());
    assert_eq!(b.bytes(8, 16), [7; 16]);
    assert_eq!(b.bytes(24, 64), pattern(2 << 20, 1)[24..88]);
    assert_eq!(b.bytes(LEN - 8, 8), [0; 8]);
    // No room, too long, or nothing: it is to be posted as all others.
    assert_eq!(a.program.write_short(a.qpn, 14, (8, b.key), &[1; 17], true), None);
    assert_eq!(a.program.write_short(a.qpn, 14, (8, b.key), &[], true), None);
}
