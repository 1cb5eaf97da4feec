//! A kind of port of one's own, plugged into a card inside the program: at the other end of this wire is a host that sends
//! every frame back to where it came from.
//!
//! `cargo run --release -p millrace --example own_port`. A port that others are to have too, by a word behind `--port`,
//! belongs to `crates/port`; CONTRIBUTING.md says how.

use millrace::Device;
use millrace::stats::PortStats;
use millrace_abi::name::CardOptions;
use millrace_card::Card;
use millrace_dma::Span;
use millrace_port::{Accept, DropReason, MAX_FRAME_LEN, MIN_FRAME_LEN, PortCounters, PortQueue, Sink, TxOutcome};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames on the wire at most.
const ROOM: usize = 64;

/// The wire. One worker of the card has it and is the only one to call it; it never waits.
struct Echo {
    // On their way back, and empty buffers: the data path allocates nothing.
    on_the_wire: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    counters: Arc<PortCounters>,
}

impl Echo {
    fn new() -> Self {
        let spare = (0..ROOM).map(|_| Vec::with_capacity(MAX_FRAME_LEN)).collect();
        Self { on_the_wire: VecDeque::with_capacity(ROOM), spare, counters: Arc::default() }
    }
}

impl PortQueue for Echo {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        let len = frame.len();
        if !(MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&len) {
            // What is dropped has a reason and is counted under it.
            let reason = if len > MAX_FRAME_LEN { DropReason::TooLong } else { DropReason::TooShort };
            self.counters.count_tx_drops(reason, 1);
            return TxOutcome::Dropped(reason);
        }
        // Full: the card offers the same frame again, and its program waits.
        let Some(mut bytes) = self.spare.pop() else { return TxOutcome::Full };
        bytes.resize(len, 0);
        // The frame lies in memory of the program, which may change it at any time: read once.
        frame.read_into(&mut bytes);
        let (to, from) = bytes[..12].split_at_mut(6);
        to.swap_with_slice(from);
        self.on_the_wire.push_back(bytes);
        self.counters.count_tx(1, len as u64);
        TxOutcome::Sent
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some(frame) = self.on_the_wire.front()
            && sink.take(Span::from_slice(frame)) != Accept::Full
        {
            self.counters.count_rx(1, frame.len() as u64);
            self.spare.extend(self.on_the_wire.pop_front());
            taken += 1;
        }
        taken
    }

    fn can_wait(&self) -> bool {
        true
    }

    /// A worker that wants to sleep asks: there is something to be received now, or not before the next frame is sent.
    fn next_due(&self) -> Option<Instant> {
        (!self.on_the_wire.is_empty()).then(Instant::now)
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 2];
const FRAMES: u64 = 1000;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let card = Card::new(&CardOptions { ports: vec!["none".to_owned()], ..CardOptions::default() })?;
    card.plug_own(0, "echo", vec![Box::new(Echo::new())])?;
    let device = Device::on_card(card)?;
    let mut rx = device.rx(0).open()?.start()?;
    let mut tx = device.tx(0).open()?.start()?;

    for number in 0..FRAMES {
        let mut slot = tx.get(&[64])?.ok_or("a ring for 2048 frames is full with one")?;
        slot[0].fill(0);
        slot[0][..12].copy_from_slice([THERE, HERE].as_flattened());
        slot[0][14..22].copy_from_slice(&number.to_le_bytes());
        slot.send()?;
        assert!(rx.wait(Duration::from_secs(10))?, "nothing came back");
        let burst = rx.get(1)?;
        let answer = burst.packet(0).data;
        assert_eq!(answer[..12], *[HERE, THERE].as_flattened());
        assert_eq!(answer[14..22], number.to_le_bytes());
    }

    // A worker shows its counters at the end of a burst: a moment after the program has the last frame of it.
    let end = Instant::now() + Duration::from_secs(10);
    let port = loop {
        let port = device.stats()?.ports.remove(0);
        if port.rx_frames == FRAMES || Instant::now() > end {
            break port;
        }
    };
    let PortStats { spec, tx_frames, rx_frames, .. } = port;
    println!("port 0 ({spec}): {tx_frames} frames out, {rx_frames} back");
    assert_eq!((tx_frames, rx_frames), (FRAMES, FRAMES));
    Ok(())
}
