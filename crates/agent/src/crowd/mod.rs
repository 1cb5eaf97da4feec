//! Many controllers and one thread: how they share its time and its places, and how long each may take.
//!
//! - [`patience`]: a clock that stands while nobody could be heard; [`places`]: who may stay when there are too many; [`share`]: whose turn it is.

pub mod patience;
pub mod places;
pub mod share;
