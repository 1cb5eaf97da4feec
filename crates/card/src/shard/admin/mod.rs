//! What the control side changes in a shard, and what its worker does before it sleeps.
//!
//! * `running`: queues start and stop, openers come and go. `moving`: queues and port queues come and go. `sleeping`: falling asleep.

mod moving;
mod running;
mod sleeping;
