//! The other end says whatever it likes: it is lost by name, or nothing comes of it, and whoever is beside it notices nothing.

use millrace_message::Scheme;
use millrace_message::control::{Control, Message, Origin, Tag};
use millrace_message::engine::{Action, Breach, Engine, Limits, Outcome, PairId, Way, Work};
use proptest::prelude::*;

const LIMITS: Limits =
    Limits { mtu: 1024, smbs: 2, rmbs: 2, slots: 2, credits: 2, eager: 64, early_request: true, patience: 3 };

fn engine() -> (Engine, PairId) {
    let mut engine = Engine::new(LIMITS).unwrap();
    let pair = engine.connect(Way::Staged, engine.terms()).unwrap();
    (engine, pair)
}

fn request(message: u32, len: u64) -> Control {
    Control::Request { message: Message(message), tag: Tag(0), len, direct: None, ahead: true }
}

/// What it says is refused by that name; all buffers are back, and whoever waited is told.
fn breaks(said: &[Control], breach: Breach, prepare: impl Fn(&mut Engine, PairId)) {
    let (mut engine, pair) = engine();
    prepare(&mut engine, pair);
    let (last, before) = said.split_last().unwrap();
    for control in before {
        engine.arrive(pair, *control, &[0; 8]).unwrap();
    }
    assert_eq!(engine.arrive(pair, *last, &[0; 8]), Err(breach), "{said:?}");
    assert_eq!(engine.given_up(), Some((pair, breach)));
    while let Some(action) = engine.action() {
        if action.work == Work::Expose {
            engine.exposed(action.ticket, None);
            continue;
        }
        engine.finished(action.ticket, true);
    }
    while let Some(completion) = engine.completion() {
        assert!(matches!(completion.outcome, Outcome::Lost | Outcome::TooLong { .. }));
    }
    assert_eq!((engine.in_use(), engine.open_requests()), ((0, 0), 0));
    assert!(engine.send(pair, Tag(0), 1, Scheme::Eager).is_err());
}

#[test]
fn what_may_not_be_said_loses_the_pair_by_name() {
    let sends = |engine: &mut Engine, pair| {
        engine.send(pair, Tag(0), 3000, Scheme::OneCopy).unwrap();
        while engine.outgoing(pair).is_some() {
            engine.said(pair);
        }
    };
    let receives = |engine: &mut Engine, pair| {
        engine.receive(Some(pair), Tag(0), 0, 5000).unwrap();
    };
    let nothing = |_: &mut Engine, _| {};
    let (first, other) = (Message(0), Message(1));
    let eager = Control::Eager { tag: Tag(0), len: 8 };
    // A grant of a buffer that there is not, twice, for a message that was not announced, for more parts than there are.
    breaks(&[Control::Grant(first, 2)], Breach::Grant, sends);
    breaks(&[Control::Grant(first, 0), Control::Grant(first, 0)], Breach::Grant, sends);
    breaks(&[Control::Grant(other, 0)], Breach::Grant, sends);
    breaks(&[Control::Grant(first, 0)], Breach::Grant, nothing);
    // Moved, what goes by buffers; what was granted buffers; what was moved already.
    let exposes = |engine: &mut Engine, pair| {
        engine.send(pair, Tag(0), 3000, Scheme::ZeroCopy).unwrap();
        let ticket = engine.action().unwrap().ticket;
        engine.exposed(ticket, Some(Origin { key: 0, address: 0 }));
        engine.said(pair);
    };
    breaks(&[Control::Moved(first)], Breach::Answer, sends);
    breaks(&[Control::Grant(first, 0), Control::Moved(first)], Breach::Answer, exposes);
    breaks(&[Control::Moved(other)], Breach::Answer, exposes);
    // Answers to what was not asked.
    breaks(&[Control::Withdrawn(first)], Breach::Answer, sends);
    breaks(&[Control::TooLong(first), Control::TooLong(first)], Breach::Answer, |engine, pair| {
        sends(engine, pair);
    });
    breaks(&[Control::Grant(first, 0), Control::TooLong(first)], Breach::Answer, sends);
    // Credits for what was not sent.
    breaks(&[Control::Credit(2)], Breach::Credit, sends);
    breaks(&[Control::Credit(u32::MAX)], Breach::Credit, nothing);
    // More envelopes than credits: twice as many as there are (`docs/spec/message.md` §5).
    breaks(&[eager; 5], Breach::Flood, nothing);
    breaks(&[request(0, 1), request(1, 1), request(2, 1), request(3, 1), request(4, 1)], Breach::Flood, nothing);
    // A message twice; one of more parts than can be counted.
    breaks(&[request(0, 3000), request(0, 3000)], Breach::Nonsense, receives);
    breaks(&[request(0, 3000), request(0, 3000)], Breach::Nonsense, nothing);
    breaks(&[request(0, u64::MAX)], Breach::Nonsense, receives);
    // A buffer that was not granted, twice, for another message; memory that was not given.
    breaks(&[Control::Done(first, 0)], Breach::Done, receives);
    breaks(&[request(0, 3000), Control::Done(first, 0), Control::Done(first, 0)], Breach::Done, receives);
    breaks(&[request(0, 3000), Control::Done(first, 64)], Breach::Done, receives);
    breaks(&[request(0, 3000), Control::Done(first, 255)], Breach::Done, receives);
    breaks(&[request(0, 3000), Control::Moved(first)], Breach::Answer, receives);
    // More buffers than it has parts for.
    breaks(&[request(0, 3000), Control::Ask(first)], Breach::Nonsense, receives);
    breaks(&[Control::Ask(first)], Breach::Nonsense, nothing);
    // An eager message with fewer bytes than it says.
    breaks(&[Control::Eager { tag: Tag(0), len: 65 }], Breach::Nonsense, nothing);
}

/// It takes buffers and never uses them. Others get theirs when patience is over; who hoards alone is left alone.
#[test]
fn who_keeps_buffers_that_others_want_is_lost() {
    let (mut engine, hoarder) = engine();
    let honest = engine.connect(Way::Staged, engine.terms()).unwrap();
    engine.receive(Some(hoarder), Tag(0), 0, 5000).unwrap();
    engine.arrive(hoarder, request(0, 3000), &[]).unwrap();
    (0..100).for_each(|_| engine.tick());
    assert_eq!((engine.in_use(), engine.given_up()), ((0, 2), None));
    engine.receive(Some(honest), Tag(0), 0, 5000).unwrap();
    engine.arrive(honest, request(0, 1000), &[]).unwrap();
    assert_eq!(engine.outgoing(honest), None, "there is no buffer");
    engine.tick();
    assert_eq!(engine.given_up(), Some((hoarder, Breach::Hoards)));
    assert!(engine.outgoing(honest).is_some(), "there is one now");
    assert_eq!(engine.completion().unwrap().outcome, Outcome::Lost);
    assert_eq!(engine.in_use(), (0, 1));
}

/// It announces nothing, grants nothing, reads nothing: what waits for it is bounded, and others have buffers.
#[test]
fn who_never_answers_holds_nobody_up() {
    let (mut engine, silent) = engine();
    let honest = engine.connect(Way::Staged, engine.terms()).unwrap();
    for _ in 0..1000 {
        engine.send(silent, Tag(0), 3000, Scheme::OneCopy).unwrap();
    }
    let mut said = 0;
    while engine.outgoing(silent).is_some() {
        engine.said(silent);
        said += 1;
    }
    assert_eq!(said, 4, "no more envelopes than credits");
    let mut copies: Vec<Action> = core::iter::from_fn(|| engine.action()).collect();
    assert_eq!(copies.len(), 1, "one buffer is filled in the hope of a grant");
    let Some(Action { ticket, work: Work::CopyIn { .. }, .. }) = copies.pop() else { panic!("{copies:?}") };
    engine.finished(ticket, true);
    let request = engine.send(honest, Tag(0), 3000, Scheme::OneCopy).unwrap();
    engine.said(honest);
    for (part, slot) in [0, 1, 0].into_iter().enumerate() {
        engine.arrive(honest, Control::Grant(Message(0), slot), &[]).unwrap();
        while let Some(action) = engine.action() {
            assert!(matches!(action.work, Work::CopyIn { .. } | Work::Transfer { .. }), "{action:?}");
            assert_eq!(action.request, request);
            engine.finished(action.ticket, true);
        }
        assert!(engine.outgoing(honest).is_some(), "part {part} is told as done");
        engine.said(honest);
    }
    assert_eq!(engine.completion().unwrap().outcome, Outcome::Sent);
    engine.lose(silent);
    assert_eq!((engine.in_use(), engine.open_requests()), ((0, 0), 0));
}

fn control() -> impl Strategy<Value = Control> {
    let message = || (0u32..4).prop_map(Message);
    let tag = (0u64..2).prop_map(Tag);
    prop_oneof![
        (tag.clone(), 0u16..65).prop_map(|(tag, len)| Control::Eager { tag, len }),
        (message(), tag, 0u64..6000, prop::option::of(Just(Origin { key: 1, address: 1 })), any::<bool>())
            .prop_map(|(message, tag, len, direct, ahead)| { Control::Request { message, tag, len, direct, ahead } }),
        message().prop_map(Control::Ask),
        (message(), 0u8..3).prop_map(|(message, slot)| Control::Grant(message, slot)),
        (message(), 0u8..3).prop_map(|(message, slot)| Control::Done(message, slot)),
        message().prop_map(Control::Moved),
        (0u32..6).prop_map(Control::Credit),
        message().prop_map(Control::Withdraw),
        message().prop_map(Control::Withdrawn),
        message().prop_map(Control::TooLong),
        message().prop_map(Control::Failed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any words in any order, while this end sends, receives and works: it never panics, and has all its buffers when the pair is lost.
    #[test]
    fn nonsense_does_no_harm(said in prop::collection::vec((control(), 0u8..8), 1..80)) {
        let (mut engine, pair) = engine();
        let mut open: Vec<Action> = Vec::new();
        for (control, turn) in said {
            match turn {
                0 => drop(engine.send(pair, Tag(0), 3000, Scheme::OneCopy)),
                1 => drop(engine.send(pair, Tag(1), 3000, Scheme::ZeroCopy)),
                2 => drop(engine.receive(Some(pair), Tag(0), 0, 5000)),
                3 => drop(engine.receive(None, Tag(1), 1, 2000)),
                4 => engine.said(pair),
                5 => engine.tick(),
                _ => {}
            }
            let _ = engine.arrive(pair, control, &[0; 8]);
            open.extend(core::iter::from_fn(|| engine.action()));
            if turn > 4 && let Some(action) = open.pop() {
                finish(&mut engine, &action);
            }
            let (smbs, rmbs) = engine.in_use();
            prop_assert!(smbs <= 2 && rmbs <= 2);
        }
        engine.lose(pair);
        open.extend(core::iter::from_fn(|| engine.action()));
        while let Some(action) = open.pop() {
            finish(&mut engine, &action);
            open.extend(core::iter::from_fn(|| engine.action()));
        }
        prop_assert_eq!(engine.in_use(), (0, 0));
        // Only receives from anybody are left.
        while engine.completion().is_some() {}
        prop_assert_eq!(engine.given_up().map(|_| ()).into_iter().count() <= 1, true);
    }
}

fn finish(engine: &mut Engine, action: &Action) {
    match action.work {
        Work::Expose => engine.exposed(action.ticket, Some(Origin { key: 1, address: 1 })),
        _ => engine.finished(action.ticket, true),
    }
}
