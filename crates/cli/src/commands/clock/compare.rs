//! How far a card's clock is from the host's, `CLOCK_REALTIME`.

use super::moment::host_time;
use millrace::{Clock, PageError};

/// How often the clocks are compared for one result: the comparison during which least went by counts.
const COMPARISONS: usize = 9;

/// The card's clock less the host's, in ns, and how long the comparison took, in ns, which is by how much it can be wrong.
pub fn compare(clock: &Clock) -> Result<(i64, i64), PageError> {
    let mut best = (0, i64::MAX);
    for _ in 0..COMPARISONS {
        let before = host_time();
        let card = clock.now()?;
        let took = host_time().nanoseconds_since(before);
        // A host whose clock was set meanwhile is asked again.
        if (0..best.1).contains(&took) {
            best = (card.nanoseconds_since(before) - took / 2, took);
        }
    }
    Ok(best)
}
