//! Queue pair 1, which the programs of a card share, because they share its address. Each has a queue pair that stands for it, with a number as
//! any other; on the wire its datagrams come from queue pair 1, and what comes to queue pair 1 is given to the program that it is for.
//!
//! | Message | For the program |
//! |---|---|
//! | REQ, SIDR_REQ | that offers the service; one does at most |
//! | all others | whose the number of the connection is: the upper 12 bits are the program's |
//! | REJ of a call, before there is such a number | to which that call was given |
//!
//! Programs are not believed: what one sends has its own number, its own queue pair and the card's address in it, or it does not go. Connections
//! themselves are the programs' matter (decision 60). What one sends, and what comes from the wire for one, or for nobody, is as much as a
//! [`Bucket`](bucket::Bucket) has, so that nobody takes the turns, buffers or answers of others.
//!
//! * `router`: who gets what, and who may say what. `serve`: the same as calls of the service.
//! * `bucket`: so many in a second. `nobody`, `answers`: what is answered for programs that are not there. `counters`: what happened.

mod answers;
mod bucket;
mod counters;
mod nobody;
mod router;
mod serve;

pub use counters::GeneralCounters;
pub(super) use router::General;
pub use router::ID_BITS;
