//! A program that uses its pair of queues properly: every frame has to come back, in order and whole.

use std::thread;
use std::time::{Duration, Instant};

use millrace_packet::structured::{self, Checker, Findings, MIN_LEN, Sequence, Stamping};
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::session::Session;
use millrace_tool::{send, stop};

/// Frames on their way at once.
const BURST: u64 = 8;
/// Between two bursts: there is more on these cores than this program.
const NAP: Duration = Duration::from_millis(1);
/// A frame that is not back after so long is lost.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Runs it until standard input ends.
pub fn run(shared: &Shared) -> Result<(), Failure> {
    thread::spawn(stop::with_standard_input);
    let session = Session::open(shared)?;
    let index = shared.queues().indices()[0];
    let mut bystander = Bystander::new(session.rx(index)?, session.tx(index)?);
    let output = Output::new(true);
    bystander.exchange()?;
    output.rows("", &[Row::new().text("event", "ready")])?;
    while !stop::asked() && bystander.is_well() {
        bystander.exchange()?;
        thread::sleep(NAP);
    }
    let (frames, findings) = bystander.findings();
    let bad = frames - findings.in_order.min(frames);
    output.rows("", &[Row::new().text("event", "bystander").count("frames", frames).count("bad", bad)])?;
    if findings.is_clean() && bad == 0 {
        Ok(())
    } else {
        Err(Failure::Found(format!("of {frames} frames: {findings:?}")))
    }
}

struct Bystander {
    rx: RxQueue,
    tx: TxQueue,
    checker: Checker,
    sent: Sequence,
    frames: u64,
    received: u64,
}

impl Bystander {
    fn new(rx: RxQueue, tx: TxQueue) -> Self {
        Self { rx, tx, checker: Checker::new(Stamping::Off), sent: Sequence::ZERO, frames: 0, received: 0 }
    }

    /// Sends a burst and waits for all of it.
    fn exchange(&mut self) -> Result<(), Failure> {
        // Lengths of all sorts, so that rings are gone round at all places.
        let lens: Vec<u16> = (0..BURST).map(|at| 64.max(MIN_LEN as u16) + ((self.frames + at) % 1400) as u16).collect();
        let begin = Instant::now();
        let mut left = &lens[..];
        while !left.is_empty() {
            let sent = &mut self.sent;
            let fill = |_, slot: &mut [u8]| {
                structured::fill(slot, *sent);
                *sent = sent.next();
            };
            let count = send::burst(&mut self.tx, left, fill)?;
            send::flush(&mut self.tx)?;
            (left, self.frames) = (&left[count..], self.frames + count as u64);
            if count == 0 {
                check_time(begin, "there is no room to send")?;
                self.tx.wait(Duration::from_secs(1)).doing(|| "cannot wait for room".to_owned())?;
            }
        }
        self.receive(begin)
    }

    fn receive(&mut self, begin: Instant) -> Result<(), Failure> {
        while self.received < self.frames {
            self.rx.wait(Duration::from_secs(1)).doing(|| "cannot wait for frames".to_owned())?;
            let burst = self.rx.get(64).doing(|| "cannot receive".to_owned())?;
            for packet in burst.iter() {
                let _ = self.checker.check(packet.data);
                self.received += 1;
            }
            drop(burst);
            check_time(begin, "frames do not come back")?;
        }
        Ok(())
    }

    /// Whether everything so far was right.
    fn is_well(&self) -> bool {
        self.received == self.frames
    }

    fn findings(mut self) -> (u64, Findings) {
        (self.frames, self.checker.finish(self.sent))
    }
}

fn check_time(begin: Instant, what: &str) -> Result<(), Failure> {
    if begin.elapsed() < LOST_AFTER { Ok(()) } else { Err(Failure::Found(format!("{what}, for a minute"))) }
}
