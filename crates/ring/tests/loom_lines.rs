//! Rings of messages under every order in which two processors may see each other's stores, as far as loom can enumerate
//! them. A ring has two lines, so that a message of two lines fills it and every message meets lines used before.
//!
//! Each model names the weakenings that it was seen to catch (a plain store or load of the stamp in the place of the ordered one;
//! `Relaxed` for an ordering); how to run it: `loom.rs`.
#![cfg(loom)]

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use millrace_dma::Window;
use millrace_ring::lines::{MOST_WORDS, Receiver, Sender, bytes_of};

const LINES: u32 = 2;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

fn ring() -> (Sender, Receiver) {
    let window = Window::model(bytes_of(LINES));
    (Sender::new(&window, LINES).unwrap(), Receiver::new(&window, LINES).unwrap())
}

/// Messages of one line and of two: what comes is what went. Catches: the first stamp stored or loaded plainly, `Relaxed` in
/// `Receiver::give_back` or in `Sender::has_room`.
#[test]
fn messages_come_as_they_went() {
    model(|| {
        let (mut sender, mut receiver) = ring();
        let sizes = [1, 8, 2];
        let other = thread::spawn(move || {
            for (number, &words) in (1..).zip(&sizes) {
                while !sender.send(&[number; 8][..words]) {
                    thread::yield_now();
                }
            }
        });
        let mut to = [0; MOST_WORDS];
        for (number, &words) in (1_u64..).zip(&sizes) {
            let found = loop {
                match receiver.take(&mut to).unwrap() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(found, words);
            assert!(to[..words].iter().all(|&word| word == number));
            receiver.give_back();
        }
        other.join().unwrap();
    });
}

/// A receiver that dozes is woken, or sees what was sent. Catches: the first stamp stored plainly, no fence in `Receiver::doze`.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let (mut sender, mut receiver) = ring();
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let rung = Arc::clone(&bell);
        let other = thread::spawn(move || {
            assert!(sender.send(&[7]));
            if sender.must_wake() {
                *rung.0.lock().unwrap() = true;
                rung.1.notify_one();
            }
        });
        let mut to = [0; MOST_WORDS];
        if receiver.doze() {
            let mut is_rung = bell.0.lock().unwrap();
            while !*is_rung {
                is_rung = bell.1.wait(is_rung).unwrap();
            }
        }
        receiver.awake();
        assert_eq!(receiver.take(&mut to), Ok(Some(1)));
        assert_eq!(to[0], 7);
        other.join().unwrap();
    });
}
