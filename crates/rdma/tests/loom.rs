//! The rings between two processes (`local`) under every order in which two processors may see each other's stores, as far as loom can enumerate
//! them. A ring has two lines of headers and two of payload, so that everything meets lines used before.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p millrace-rdma --profile model --test loom`
//!
//! Each model names the weakenings that it was seen to catch (a plain store or load of a line's first word in the place of the ordered one;
//! `Relaxed` for an ordering).
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use millrace_dma::Window;
use millrace_rdma::local::{CHANNEL_LEN, Receiver, Room, Sender, Short, Side, Source, Taken, TakenShort};
use millrace_rdma::number::{Psn, Qpn};
use millrace_rdma::wire::{Headers, Opcode, Place, Service};

const SOURCE: Source = Source { qpn: Qpn::new(9), is_awaited: true };

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

fn ring() -> (Sender, Receiver) {
    let window = Window::model(CHANNEL_LEN);
    (Sender::new(&window, Side::Maker).unwrap(), Receiver::new(&window, Side::Taker).unwrap())
}

fn headers(psn: u32) -> Headers {
    let send = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
    Headers::new(Service::ReliableConnection, send, Qpn::new(77), Psn::new(psn))
}

fn short(psn: u32) -> Short {
    Short { destination: Qpn::new(77), psn: Psn::new(psn), immediate: None, solicited: false }
}

/// Waits for room, and for its turn.
fn send(sender: &mut Sender, psn: u32, len: usize) {
    while sender.has_room(len) != Room::Sent {
        thread::yield_now();
    }
    assert_eq!(sender.send(&headers(psn), (0, 1), &[psn as u8; 128][..len]), Room::Sent);
}

fn send_short(sender: &mut Sender, psn: u32, heard: u16) {
    while sender.send_short(SOURCE, &short(psn), (0, 1), heard, &[psn as u8; 4]) != Room::Sent {
        thread::yield_now();
    }
}

/// The next packet.
fn take(receiver: &mut Receiver, does: impl Fn(Taken<'_>)) {
    loop {
        if let Some(taken) = receiver.take().unwrap() {
            return does(taken);
        }
        thread::yield_now();
    }
}

/// The next short SEND.
fn take_short<R>(receiver: &mut Receiver, does: impl Fn(TakenShort<'_>) -> R) -> R {
    loop {
        if let Some(taken) = receiver.take_short() {
            return does(taken);
        }
        thread::yield_now();
    }
}

/// Packets with their payload in the headers, and in all lines that there are: what comes is what went. Catches: the first word of a line stored or
/// loaded plainly; `Relaxed` in `Receiver::give_back` of what was taken, or in `Sender::has_room`.
#[test]
fn packets_come_as_they_went() {
    model(|| {
        let (mut sender, mut receiver) = ring();
        let sizes = [8, 128, 100];
        let other = thread::spawn(move || {
            for (psn, len) in (1..).zip(sizes) {
                send(&mut sender, psn, len);
            }
        });
        for (psn, len) in (1..).zip(sizes) {
            take(&mut receiver, |taken| {
                assert_eq!((taken.headers, taken.gids), (headers(psn), (0, 1)));
                assert_eq!(taken.payload, &[psn as u8; 128][..len]);
            });
            receiver.give_back();
        }
        other.join().unwrap();
    });
}

/// A short SEND that was done is known to be done only when all that came of it is seen; one that was not is answered, and never told as
/// done, and the next epoch counts. Catches: `Relaxed` in `Receiver::give_back` of what is said of short SENDs, or in `Sender::settle`.
#[test]
fn what_is_settled_was_done() {
    model(|| {
        let (mut sender, mut receiver) = ring();
        let done = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&done);
        let other = thread::spawn(move || {
            let settle = |sender: &mut Sender| {
                let mut last = 0;
                while sender.has_unsettled() {
                    sender.settle(|source, psn| {
                        assert_eq!(source, SOURCE.qpn);
                        last = psn.value();
                    });
                    assert!(seen.load(Ordering::Relaxed) >= u64::from(last), "told before it was done");
                    thread::yield_now();
                }
                last
            };
            send_short(&mut sender, 1, 0);
            send_short(&mut sender, 2, 0);
            assert_eq!(settle(&mut sender), 1, "the second is answered");
            send_short(&mut sender, 3, 0);
            assert_eq!(settle(&mut sender), 3);
        });
        for psn in 1..=3 {
            let ticket = take_short(&mut receiver, |taken| {
                assert_eq!((taken.payload, taken.short, taken.gids), (&[psn as u8; 4][..], short(psn), (0, 1)));
                assert!(taken.counts, "none was refused of its epoch");
                taken.ticket
            });
            let is_done = psn != 2;
            if is_done {
                done.store(psn.into(), Ordering::Relaxed);
            }
            receiver.done(ticket, is_done);
            receiver.give_back();
        }
        other.join().unwrap();
    });
}

/// The same by what comes with a short SEND the other way. Catches: the first word of a line stored or loaded plainly.
#[test]
fn what_is_heard_was_done() {
    model(|| {
        let window = Window::model(CHANNEL_LEN);
        let (mut sender, mut receiver) =
            (Sender::new(&window, Side::Maker).unwrap(), Receiver::new(&window, Side::Maker).unwrap());
        let (mut back, mut there) =
            (Sender::new(&window, Side::Taker).unwrap(), Receiver::new(&window, Side::Taker).unwrap());
        let done = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&done);
        let other = thread::spawn(move || {
            let ticket = take_short(&mut there, |taken| taken.ticket);
            done.store(1, Ordering::Relaxed);
            there.done(ticket, true);
            let heard = there.heard();
            send_short(&mut back, 7, heard);
            there.give_back();
        });
        send_short(&mut sender, 1, receiver.heard());
        let heard = take_short(&mut receiver, |taken| taken.heard);
        let mut settled = Vec::new();
        sender.hear(heard, |_, psn| settled.push(psn.value()));
        assert_eq!((settled, sender.has_unsettled()), (vec![1], false));
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        other.join().unwrap();
    });
}

/// A receiver that dozes is woken, or sees what was sent. Catches: a first word as above; no fence in `Receiver::doze`, none in `Sender::must_wake`.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let (mut sender, mut receiver) = ring();
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let rung = Arc::clone(&bell);
        let other = thread::spawn(move || {
            send(&mut sender, 7, 4);
            if sender.must_wake() {
                *rung.0.lock().unwrap() = true;
                rung.1.notify_one();
            }
        });
        if receiver.doze() {
            let mut is_rung = bell.0.lock().unwrap();
            while !*is_rung {
                is_rung = bell.1.wait(is_rung).unwrap();
            }
        }
        receiver.awake();
        assert_eq!(receiver.take().unwrap().map(|taken| taken.headers), Some(headers(7)));
        other.join().unwrap();
    });
}
