//! When a request went through which stage (`profile=FILE`): stamps of the processor's clock, which all cores of a host share, so that
//! those of both ends can be put beside each other. `millrace bench rdma --stages` does that. Without the option it is one look
//! at a pointer for each stage.
//!
//! ```text
//! asked ------ posted ------ begun ------ sent ---------- came ------ done ------ polled
//!  | ibv_post_send | the engine's turn |  | ring or link   |  | memory  |  | ibv_poll_cq
//! ```

use crate::boundary::ticks;
use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Instant;

/// Stamps that are kept: the last ones.
const MOST: usize = 1 << 15;

/// What has just happened.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// The program calls `ibv_post_send`.
    Asked,
    /// The request is taken.
    Posted,
    /// The engine begins to look at what is to be sent.
    Begun,
    /// It has sent something, and has woken who is to take it.
    Sent,
    /// Something has come.
    Came,
    /// It is in memory, with its completion.
    Done,
    /// The program gets the completion of a buffer.
    Polled,
}

const NAMES: [&str; 7] = ["asked", "posted", "begun", "sent", "came", "done", "polled"];

/// The stamps.
pub(crate) struct Stages {
    stamps: VecDeque<(u64, Stage)>,
    began: (u64, Instant),
}

impl Stages {
    pub fn new() -> Self {
        Self { stamps: VecDeque::with_capacity(MOST), began: (ticks(), Instant::now()) }
    }

    /// Now.
    pub fn add(&mut self, stage: Stage) {
        self.add_at(ticks(), stage);
    }

    /// At that moment.
    pub fn add_at(&mut self, ticks: u64, stage: Stage) {
        if self.stamps.len() == MOST {
            self.stamps.pop_front();
        }
        self.stamps.push_back((ticks, stage));
    }

    /// One object of JSON: how long a tick is, and the stamps in the order in which they were made.
    pub fn json(&self) -> String {
        let (ticks, time) = (ticks() - self.began.0, self.began.1.elapsed());
        let mut text = format!("{{\"ns_per_tick\":{},\"stamps\":[", time.as_nanos() as f64 / ticks.max(1) as f64);
        for (number, (ticks, stage)) in self.stamps.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            // Nothing that is written to a string fails.
            let _ = write!(text, "{comma}[{ticks},\"{}\"]", NAMES[*stage as usize]);
        }
        text.push_str("]}");
        text
    }
}

/// A stamp, if they are made.
#[inline]
pub(crate) fn stamp(stages: &mut Option<Box<Stages>>, stage: Stage) {
    if let Some(stages) = stages {
        stages.add(stage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stamps_are_kept_in_order() {
        let mut stages = Stages::new();
        for number in 0..MOST as u64 + 3 {
            stages.add_at(number, if number % 2 == 0 { Stage::Asked } else { Stage::Polled });
        }
        let text = stages.json();
        assert!(text.contains("\"stamps\":[[3,\"polled\"],[4,\"asked\"],"), "{}", &text[..100]);
        assert!(text.ends_with(&format!("[{},\"asked\"]]}}", MOST + 2)));
        let before = ticks();
        stages.add(Stage::Done);
        assert!(stages.stamps.back().unwrap().0 >= before);
    }
}
