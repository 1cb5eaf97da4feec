//! What the programs in `bench/peers` do when frames flow, done with our queues: a receiver reads every line of every
//! frame, a sender writes every byte of it, and the clock starts after a warm-up.

use std::hint;

use millrace_packet::structured::{self, Sequence};
use millrace_tool::clock::Moment;
use millrace_tool::echo::{SILENCE, cannot_receive};
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::{send, stop};

use crate::throughput::Flow;

/// Seconds from the first frame to those that count.
const WARM_UP: f64 = 0.2;
/// Frames on their way at once, out and back.
const WINDOW: u64 = 512;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Empty looks at a ring between two looks at the clock.
const LOOKS: u32 = 1024;

/// Counts what arrives, for so many seconds after the warm-up.
struct Meter {
    seconds: f64,
    packets: u64,
    bytes: u64,
    first: Option<Moment>,
    /// When counting began, and what had come by then.
    begin: Option<(Moment, u64, u64)>,
    flow: Option<Flow>,
}

impl Meter {
    fn new(seconds: f64) -> Self {
        Self { seconds, packets: 0, bytes: 0, first: None, begin: None, flow: None }
    }

    fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
        let now = Moment::now();
        let since = |earlier: Moment| now.nanos_since(earlier) as f64 * 1e-9;
        let first = *self.first.get_or_insert(now);
        match self.begin {
            None if since(first) >= WARM_UP => self.begin = Some((now, self.packets, self.bytes)),
            Some((begin, packets, bytes)) if since(begin) >= self.seconds && self.flow.is_none() => {
                let (packets, bytes) = (self.packets - packets, self.bytes - bytes);
                self.flow = Some(Flow { packets, bytes, seconds: since(begin), ..Flow::default() });
            }
            _ => {}
        }
    }

    fn is_done(&self) -> bool {
        self.flow.is_some() || stop::asked()
    }

    fn flow(self, lost: u64) -> Flow {
        Flow { lost, ..self.flow.unwrap_or_default() }
    }
}

/// Notices that nothing comes any more.
struct Silence {
    looks: u32,
    since: Moment,
}

impl Silence {
    fn new() -> Self {
        Self { looks: 0, since: Moment::now() }
    }

    fn heard(&mut self) {
        self.looks = 0;
    }

    /// After an empty look; whether it has lasted too long.
    fn lasts(&mut self) -> bool {
        self.looks += 1;
        if self.looks == 1 {
            self.since = Moment::now();
        }
        self.looks.is_multiple_of(LOOKS) && self.since.seconds() > SILENCE
    }
}

/// Takes a burst and reads every line of every frame; how many frames and bytes, and the number in the first of them.
#[inline]
fn take(rx: &mut RxQueue, burst: usize) -> Result<(u64, u64, Option<u32>), Failure> {
    let burst = rx.get(burst).doing(cannot_receive)?;
    let (mut read, mut bytes) = (0_u8, 0);
    for packet in burst.iter() {
        let lines = packet.data.iter().step_by(LINE).chain(packet.data.last());
        read = lines.fold(read, |read, byte| read ^ byte);
        bytes += packet.data.len() as u64;
    }
    hint::black_box(read);
    let first = burst.iter().next().and_then(|packet| number(packet.data));
    Ok((burst.len() as u64, bytes, first))
}

/// The bits of a structured frame's number that it carries.
fn number(frame: &[u8]) -> Option<u32> {
    frame.first_chunk::<4>().map(|word| u32::from_be_bytes(*word) & Sequence::new(u64::MAX).wire())
}

/// Receives what a generator makes as fast as it comes.
pub fn receive(rx: &mut RxQueue, burst: usize, seconds: f64) -> Result<Flow, Failure> {
    let (mut meter, mut silence) = (Meter::new(seconds), Silence::new());
    let (mut next, mut lost) = (None::<Sequence>, 0);
    while !meter.is_done() {
        let (packets, bytes, first) = take(rx, burst)?;
        let Some(first) = first else {
            if silence.lasts() {
                return Err(nothing_comes());
            }
            continue;
        };
        silence.heard();
        let missing = next.map_or(0, |next| first.wrapping_sub(next.wire()) & Sequence::new(u64::MAX).wire());
        lost += u64::from(missing);
        next = Some(Sequence::new(u64::from(first)).offset(packets as i64));
        meter.add(packets, bytes);
    }
    Ok(meter.flow(lost))
}

/// Sends, and receives what comes back, from one thread.
pub fn both(rx: &mut RxQueue, tx: &mut TxQueue, size: u16, burst: usize, seconds: f64) -> Result<Flow, Failure> {
    let (mut meter, mut silence) = (Meter::new(seconds), Silence::new());
    let lens = vec![size; burst];
    let mut sent = 0;
    while !meter.is_done() || meter.packets < sent {
        if !meter.is_done() && sent - meter.packets + burst as u64 <= WINDOW {
            let fill = |at, slot: &mut [u8]| structured::fill(slot, Sequence::new(sent + at as u64));
            sent += send::burst(tx, &lens, fill)? as u64;
            send::flush(tx)?;
        }
        let (packets, bytes, _) = take(rx, burst)?;
        if packets > 0 {
            silence.heard();
            meter.add(packets, bytes);
        } else if silence.lasts() {
            break;
        }
    }
    let lost = sent - meter.packets;
    if meter.packets == 0 && lost > 0 {
        return Err(nothing_comes());
    }
    Ok(meter.flow(lost))
}

fn nothing_comes() -> Failure {
    Failure::Found("no frame came for five seconds: is the card alive?".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_say_which_they_are() {
        let mut frame = [0; 64];
        structured::fill(&mut frame, Sequence::new(0x1_234_567));
        assert_eq!(number(&frame), Some(0x234_567));
        assert_eq!(number(&[1, 2]), None);
    }
}
