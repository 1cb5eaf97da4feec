//! Counters that several threads add to, each on cache lines of its own.

use super::answer::{Counters, Why};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// So many threads have a stripe of their own; more share them.
const STRIPES: usize = 32;

/// What is counted without the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    KnownId,
    KnownPath,
    Routable,
    Stream,
    Name,
    Hash,
    HelloIncomplete,
    Unknown,
    NotQuic,
    NotEntered,
    NotLearned,
    Busy,
}

const COUNTS: usize = Count::Busy as usize + 1;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([AtomicU64; COUNTS]);

/// Counters of all threads.
#[derive(Debug, Default)]
pub struct Stripes([Stripe; STRIPES]);

/// The stripe of this thread.
fn own() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Relaxed) % STRIPES;
    }
    OWN.with(|own| *own)
}

impl Stripes {
    #[inline]
    pub fn count(&self, what: Count) {
        self.0[own()].0[what as usize].fetch_add(1, Relaxed);
    }

    /// Counts an answer.
    #[inline]
    pub fn count_why(&self, why: Why) {
        self.count(match why {
            Why::KnownId(..) => Count::KnownId,
            Why::KnownPath => Count::KnownPath,
            Why::Routable(_) => Count::Routable,
            Why::Stream(_) => Count::Stream,
            Why::Name(_) => Count::Name,
            Why::Hash => Count::Hash,
            Why::HelloIncomplete => Count::HelloIncomplete,
            Why::Unknown => Count::Unknown,
            Why::NotQuic => Count::NotQuic,
        });
    }

    pub fn add_to(&self, counters: &mut Counters) {
        let sum = |what: Count| self.0.iter().map(|stripe| stripe.0[what as usize].load(Relaxed)).sum::<u64>();
        for (counter, what) in [
            (&mut counters.known_id, Count::KnownId),
            (&mut counters.known_path, Count::KnownPath),
            (&mut counters.routable, Count::Routable),
            (&mut counters.stream, Count::Stream),
            (&mut counters.name, Count::Name),
            (&mut counters.hash, Count::Hash),
            (&mut counters.hello_incomplete, Count::HelloIncomplete),
            (&mut counters.unknown, Count::Unknown),
            (&mut counters.not_quic, Count::NotQuic),
            (&mut counters.not_entered, Count::NotEntered),
            (&mut counters.not_learned, Count::NotLearned),
            (&mut counters.busy, Count::Busy),
        ] {
            *counter += sum(what);
        }
    }
}
