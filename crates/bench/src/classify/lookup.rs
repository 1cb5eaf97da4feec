//! What a frame costs: parsing, key and lookup, in bursts of 64.

use std::hint::black_box;

use millrace_flow::Key;
use millrace_flow::table::{BURST, Classifier, VerdictId};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::stop;

use super::traffic::{self, SIZE};
use crate::median::median;

/// Room for all flows, so that every lookup but the first of a flow is a hit.
const LARGE: usize = 32 * 1024;
/// Room for eight flows: nearly every frame is searched for.
const SMALL: usize = 8;

/// Whether the cache knows the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// It does.
    Hit,
    /// It does not.
    Miss,
}

/// Nanoseconds per frame: the median of passes over all frames, for so many seconds. Checks that frames hit, or miss, as they
/// are to.
pub fn nanos(case: Case, rules: u32, frames: &[[u8; SIZE]], seconds: f64) -> Result<Option<f64>, Failure> {
    let writer = traffic::writer(rules)?;
    let mut classifier = writer.classifier(0, if case == Case::Hit { LARGE } else { SMALL });
    // Twice: the ways through the rules are learned, and the cache is filled.
    pass(&mut classifier, frames);
    pass(&mut classifier, frames);
    let before = classifier.stats();
    let (start, mut passes) = (Moment::now(), Vec::new());
    while passes.is_empty() || (start.seconds() < seconds && !stop::asked()) {
        let begin = Moment::now();
        pass(&mut classifier, frames);
        passes.push(Moment::now().nanos_since(begin) as f64 / frames.len() as f64);
    }
    let after = classifier.stats();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    let (wanted, other) = if case == Case::Hit { (hits, misses) } else { (misses, hits) };
    if wanted < 9 * other || wanted + other != (passes.len() * frames.len()) as u64 {
        return Err(Failure::Found(format!("{hits} hits and {misses} misses are not what {case:?} is to be")));
    }
    Ok(median(&passes))
}

#[inline(never)]
fn pass(classifier: &mut Classifier, frames: &[[u8; SIZE]]) {
    let (mut keys, mut ids) = ([Key::ZERO; BURST], [VerdictId::default(); BURST]);
    for burst in frames.chunks(BURST) {
        for (key, frame) in keys.iter_mut().zip(burst) {
            *key = traffic::key(black_box(frame));
        }
        black_box(classifier.lookup(0, &keys[..burst.len()], &mut ids));
    }
}
