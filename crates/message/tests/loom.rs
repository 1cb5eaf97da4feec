//! Doorbells under every order in which two processors may see each other's stores, as far as loom can enumerate them. The ring below has
//! models of its own (`crates/ring/tests/loom_lines.rs`); here is what is added to it.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p millrace-message --profile model --test message loom::`
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use millrace_dma::Window;
use millrace_message::bell::{Filter, Owner, Receiver, Sender, Sent, bytes_of};

const BELLS: u32 = 2;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

fn queue() -> (Sender, Receiver, Filter) {
    let window = Window::model(bytes_of(BELLS));
    let (sender, receiver) = (Sender::new(&window, BELLS).unwrap(), Receiver::new(&window, BELLS).unwrap());
    let mut filter = Filter::default();
    filter.claim(0..=9, Owner(1)).unwrap();
    receiver.publish(&filter);
    (sender, receiver, filter)
}

/// More doorbells than there is room for: each one comes, once, in order; a full queue refuses, and nothing is overwritten.
#[test]
fn doorbells_come_as_they_went() {
    model(|| {
        let (mut sender, mut receiver, filter) = queue();
        let other = thread::spawn(move || {
            for number in 1..=3 {
                while sender.ring(number).is_err() {
                    thread::yield_now();
                }
            }
        });
        for number in 1..=3 {
            let bell = loop {
                match receiver.take(&filter).unwrap() {
                    Some(bell) => break bell,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(bell.number, number);
        }
        other.join().unwrap();
    });
}

/// Whoever is told by a coalesced doorbell sees what it is about: after the last one that comes, the receiver has the last value. Catches: no
/// fence in `Sender::ring_once`, none in `Receiver::take`.
#[test]
fn a_coalesced_doorbell_is_as_good_as_one_of_its_own() {
    model(|| {
        let (mut sender, mut receiver, filter) = queue();
        let value = Arc::new(AtomicU64::new(0));
        let written = Arc::clone(&value);
        let other = thread::spawn(move || {
            let mut rung = 0;
            for number in 1..=2 {
                written.store(number, Ordering::Relaxed);
                rung += u64::from(sender.ring_once(7).unwrap() == Sent::Rung);
            }
            rung
        });
        let mut seen = (0, 0);
        let mut look = |receiver: &mut Receiver| {
            if receiver.take(&filter).unwrap().is_some() {
                seen = (seen.0 + 1, value.load(Ordering::Relaxed));
            }
        };
        look(&mut receiver);
        look(&mut receiver);
        let rung = other.join().unwrap();
        look(&mut receiver);
        look(&mut receiver);
        assert_eq!(seen, (rung, 2));
    });
}

/// A receiver that dozes is woken, or sees the doorbell.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let (mut sender, mut receiver, filter) = queue();
        let event = Arc::new((Mutex::new(false), Condvar::new()));
        let signalled = Arc::clone(&event);
        let other = thread::spawn(move || {
            sender.ring(7).unwrap();
            if sender.must_wake() {
                *signalled.0.lock().unwrap() = true;
                signalled.1.notify_one();
            }
        });
        if receiver.doze() {
            let mut is_signalled = event.0.lock().unwrap();
            while !*is_signalled {
                is_signalled = event.1.wait(is_signalled).unwrap();
            }
        }
        receiver.awake();
        assert!(receiver.take(&filter).unwrap().is_some());
        other.join().unwrap();
    });
}
