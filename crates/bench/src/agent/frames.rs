//! Frames that leave the card and come back by its rules, so many a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::echo::cannot_receive;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::{send, stop};

/// Bytes of a frame.
const SIZE: u16 = 64;
/// Frames on their way at most: fewer than any queue holds, so that none is lost because this program does not run.
const WINDOW: u64 = 256;
/// Frames that are sent at once.
const BURST: u64 = 64;
/// How long is slept between two looks.
const NAP: Duration = Duration::from_micros(200);
/// How long frames may take to come back when no more are sent.
const LAST: Duration = Duration::from_secs(2);

/// What became of frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Frames that were sent.
    pub sent: u64,
    /// Those of them that came back.
    pub received: u64,
    /// The longest time in which frames were on their way and none came back, in ns. This program's own absence counts.
    pub longest_ns: u64,
}

impl Seen {
    /// Those that did not come back.
    pub fn dropped(&self) -> u64 {
        self.sent - self.received
    }
}

/// Sends `rate` frames a second until it is over, and waits for the last.
pub fn pass(rx: &mut RxQueue, tx: &mut TxQueue, rate: u64, is_over: &AtomicBool) -> Result<Seen, Failure> {
    let (begin, mut seen) = (Instant::now(), Seen::default());
    let (mut last, mut ended) = (begin, None);
    loop {
        let now = Instant::now();
        // Pairs with nothing: only the word counts.
        if ended.is_none() && (is_over.load(Ordering::Relaxed) || stop::asked()) {
            ended = Some(now);
        }
        let due = (now - begin).as_nanos() as u64 * rate / 1_000_000_000;
        if ended.is_none() {
            // What could not be sent in time is not made up for in one go.
            let more = due.saturating_sub(seen.sent).min(BURST).min(WINDOW - seen.dropped());
            let was_idle = seen.dropped() == 0;
            let lens = [SIZE; BURST as usize];
            if more > 0 {
                seen.sent += send::burst(tx, &lens[..more as usize], |_, slot| slot.copy_from_slice(&FRAME))? as u64;
                send::flush(tx)?;
                last = if was_idle { now } else { last };
            }
        }
        let came = rx.get(WINDOW as usize).doing(cannot_receive)?.len() as u64;
        seen.received += came;
        if came > 0 {
            seen.longest_ns = seen.longest_ns.max(last.elapsed().as_nanos() as u64);
            last = Instant::now();
        }
        if ended.is_some_and(|ended| seen.dropped() == 0 || ended.elapsed() > LAST) {
            return Ok(seen);
        }
        thread::sleep(NAP);
    }
}

/// A UDP packet from 192.0.2.1 to 192.0.2.2.
const FRAME: [u8; SIZE as usize] = {
    let head = [
        0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0, 0x45, 0, 0, 50, 0, 1, 0, 0, 64, 17, 0xf6, 0xb7, 192, 0, 2,
        1, 192, 0, 2, 2, 0x12, 0x34, 0x56, 0x78, 0, 30, 0, 0,
    ];
    let (mut frame, mut at) = ([0; SIZE as usize], 0);
    while at < head.len() {
        frame[at] = head[at];
        at += 1;
    }
    frame
};
