//! A stream of bytes under every order in which two processors may see each other's stores, as far as loom can enumerate them. A ring
//! has two words, and a word is what is shown at once, so that every model meets empty, full, and an origin that has moved.
//!
//! Each model names the weakenings that it was seen to catch (`Relaxed` for an ordering, a fence that is not there); how to run it:
//! `loom.rs`. A wake-up that is lost is a deadlock; while it unwinds from that, loom aborts the process.
#![cfg(loom)]

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use millrace_dma::Window;
use millrace_ring::stream::{Reader, Writer, bytes_of};

const SIZE: usize = 16;
const WORD: usize = 8;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

fn stream() -> (Writer, Reader) {
    let window = Window::model(bytes_of(SIZE));
    (Writer::new(&window, SIZE).unwrap(), Reader::new(&window, SIZE).unwrap())
}

/// What TCP is beside the ring: bytes that wake who sleeps, and stay until they are taken.
#[derive(Default)]
struct Bells {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bells {
    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_one();
    }

    /// Sleeps until there are some, and takes them.
    fn sleep(&self) -> u64 {
        let mut rung = self.rung.lock().unwrap();
        while *rung == 0 {
            rung = self.changed.wait(rung).unwrap();
        }
        std::mem::take(&mut *rung)
    }
}

/// Sends all, asleep while there is no room.
fn send(writer: &Writer, mut bytes: &[u8], there: &Bells, here: &Bells) {
    while !bytes.is_empty() {
        let count = writer.write(bytes).unwrap();
        bytes = &bytes[count..];
        if count > 0 {
            if writer.must_wake() {
                there.ring();
            }
            continue;
        }
        writer.doze();
        if !writer.has_much_room().unwrap() {
            here.sleep();
        }
    }
}

/// Receives what is there, asleep while nothing is. 0: nothing follows.
fn receive(reader: &Reader, to: &mut [u8], here: &Bells, there: &Bells) -> usize {
    loop {
        let has_ended = reader.has_ended();
        let count = reader.read(to).unwrap();
        if count > 0 {
            if reader.must_wake() {
                there.ring();
            }
            return count;
        }
        if has_ended {
            return 0;
        }
        reader.doze();
        if reader.available().unwrap() == 0 && !reader.has_ended() {
            let taken = here.sleep();
            assert!(reader.bells() >= taken, "{taken} were taken, {} were rung", reader.bells());
            reader.count_taken(taken);
        }
        reader.awake();
    }
}

fn words(numbers: std::ops::RangeInclusive<u64>) -> Vec<u8> {
    numbers.flat_map(u64::to_le_bytes).collect()
}

/// Receives to the end, and checks that words come from `next` to `last`.
fn check(reader: &Reader, mut next: u64, last: u64, here: &Bells, there: &Bells) {
    let mut to = [0; SIZE];
    loop {
        let count = receive(reader, &mut to, here, there);
        for word in to[..count].chunks(WORD) {
            assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), next);
            next += 1;
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!(next, last + 1, "bytes were missing before the end");
}

/// Both sleep: the writer while the ring is full, the reader while it is empty, and to hear of the end. Catches: Release in
/// `Writer::write`, Acquire in `Reader::available`, Release in `Reader::take`, Acquire in `Writer::room`, Acquire in
/// `Reader::has_ended`, the fences in `Writer::must_wake` and `Reader::must_wake`, in `doze` of either.
#[test]
fn who_sleeps_is_woken_and_nothing_is_lost() {
    const LAST: u64 = 3;
    model(|| {
        let (writer, reader) = stream();
        let (to_reader, to_writer) = (Arc::new(Bells::default()), Arc::new(Bells::default()));
        let (there, here) = (to_reader.clone(), to_writer.clone());
        let other = thread::spawn(move || {
            send(&writer, &words(1..=LAST), &there, &here);
            writer.end();
            if writer.must_wake() {
                there.ring();
            }
        });
        check(&reader, 1, LAST, &to_reader, &to_writer);
        other.join().unwrap();
    });
}

/// Words one by one, each looked at before it is taken, over a ring whose beginning moves when it is empty. Catches: an origin that
/// moves while something is unread, one that is stored behind `written`; Release in `Writer::end`, for which no fence stands in here.
#[test]
fn an_empty_ring_begins_anew_under_the_eyes_of_the_reader() {
    const LAST: u64 = 4;
    model(|| {
        let (writer, reader) = stream();
        let other = thread::spawn(move || {
            for number in 1..=LAST {
                while writer.write(&number.to_le_bytes()).unwrap() == 0 {
                    thread::yield_now();
                }
            }
            writer.end();
        });
        for number in 1..=LAST {
            let (mut seen, mut got) = ([0; WORD], [0; WORD]);
            loop {
                let has_ended = reader.has_ended();
                if reader.peek(0, &mut seen).unwrap() > 0 {
                    break;
                }
                assert!(!has_ended, "{number} is missing before the end");
                thread::yield_now();
            }
            assert_eq!(reader.read(&mut got), Ok(WORD));
            assert_eq!((u64::from_le_bytes(seen), u64::from_le_bytes(got)), (number, number));
        }
        other.join().unwrap();
    });
}

/// What went by TCP comes before what is in the ring. Catches: Release in `Writer::begin`, Acquire in `Reader::before`.
#[test]
fn the_ring_begins_behind_what_went_another_way() {
    model(|| {
        let (writer, reader) = stream();
        let (bells, nobody) = (Arc::new(Bells::default()), Bells::default());
        let kernel = Window::model(WORD);
        let (there, sent) = (bells.clone(), kernel.clone());
        let other = thread::spawn(move || {
            sent.span_mut(0, WORD).unwrap().write_from(&words(1..=1));
            writer.begin(1);
            send(&writer, &words(2..=2), &there, &Bells::default());
            writer.end();
            if writer.must_wake() {
                there.ring();
            }
        });
        while reader.before().is_none() {
            thread::yield_now();
        }
        assert_eq!(reader.before(), Some(1));
        let mut got = [0; WORD];
        kernel.span(0, WORD).unwrap().read_into(&mut got);
        assert_eq!(u64::from_le_bytes(got), 1);
        check(&reader, 2, 2, &bells, &nobody);
        other.join().unwrap();
    });
}
