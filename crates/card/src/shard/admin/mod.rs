//! What the control side changes in a shard, and what its worker does before it sleeps.
//!
//! * `handover`: queues that another card goes on with. `running`: queues start and stop, openers come and go. `moving`: queues and port queues come and go. `sleeping`: falling asleep.

mod handover;
mod moving;
mod running;
mod sleeping;
