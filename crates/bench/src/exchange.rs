//! Frames out and back on many queue pairs from one thread, with no more work in the program than the bare program of
//! `bench peers` does: it writes every byte, and reads one word of every cache line.

use millrace_packet::structured::{self, Sequence};
use millrace_tool::clock::Moment;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::{send, stop};

/// Bytes between two words that are looked at.
const LINE: usize = 64;
/// Rounds over all pairs between two looks at the clock.
const ROUNDS: u32 = 16;

/// Where one pair stands.
struct Pair<'q> {
    rx: &'q mut RxQueue,
    tx: &'q mut TxQueue,
    sent: u64,
    received: u64,
    /// Frames that came with another word than their own.
    wrong: u64,
}

impl Pair<'_> {
    /// Sends a burst, if no more than `window` are on their way then.
    fn send(&mut self, lens: &[u16], window: u64) -> Result<(), Failure> {
        if self.sent - self.received + lens.len() as u64 > window {
            return Ok(());
        }
        let first = Sequence::new(self.sent);
        self.sent += send::burst(self.tx, lens, |at, slot| structured::fill(slot, first.offset(at as i64)))? as u64;
        send::flush(self.tx)
    }

    fn receive(&mut self, most: usize) -> Result<(), Failure> {
        let burst = self.rx.get(most).doing(|| "cannot receive".to_owned())?;
        for packet in burst.iter() {
            let wanted = structured::word(packet.data.len(), Sequence::new(self.received)).to_be_bytes();
            let is_right = packet.data.chunks(LINE).all(|line| line.starts_with(&wanted));
            self.wrong += u64::from(!is_right);
            self.received += 1;
        }
        Ok(())
    }
}

/// Sends and receives for `seconds`, `lens.len()` frames per call, and returns how many millions came back per second.
///
/// # Errors
/// What the queues say; frames that are missing or wrong.
pub fn exchange<'q>(
    queues: impl Iterator<Item = (&'q mut RxQueue, &'q mut TxQueue)>,
    lens: &[u16],
    window: u64,
    seconds: f64,
) -> Result<f64, Failure> {
    let mut pairs: Vec<_> = queues.map(|(rx, tx)| Pair { rx, tx, sent: 0, received: 0, wrong: 0 }).collect();
    // So that every buffer has been used: the system gives memory at the first touch.
    run(&mut pairs, lens, window, seconds.min(0.1))?;
    let before = total(&pairs, |pair| pair.received);
    let took = run(&mut pairs, lens, window, seconds)?;
    Ok((total(&pairs, |pair| pair.received) - before) as f64 / took * 1e-6)
}

/// Until everything is back that was sent within `seconds`. Returns how long that took.
fn run(pairs: &mut [Pair<'_>], lens: &[u16], window: u64, seconds: f64) -> Result<f64, Failure> {
    let start = Moment::now();
    let mut heard = start.seconds();
    loop {
        let sends = start.seconds() < seconds && !stop::asked();
        let before = total(pairs, |pair| pair.received);
        for _ in 0..ROUNDS {
            for pair in &mut *pairs {
                if sends {
                    pair.send(lens, window)?;
                }
                pair.receive(lens.len())?;
            }
        }
        let (sent, received, now) =
            (total(pairs, |pair| pair.sent), total(pairs, |pair| pair.received), start.seconds());
        if received > before {
            heard = now;
        }
        if !sends && sent == received {
            break;
        }
        if now - heard > millrace_tool::echo::SILENCE {
            break;
        }
    }
    let (lost, wrong) = (total(pairs, |pair| pair.sent - pair.received), total(pairs, |pair| pair.wrong));
    match lost + wrong {
        0 => Ok(start.seconds()),
        _ => Err(Failure::Found(format!("{lost} frames lost, {wrong} wrong: such a measurement is none"))),
    }
}

fn total(pairs: &[Pair<'_>], of: impl Fn(&Pair<'_>) -> u64) -> u64 {
    pairs.iter().map(of).sum()
}
