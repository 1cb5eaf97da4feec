//! What a worker hands back.

use super::Detached;
use crate::engine::{RxEngine, TxEngine};
use crate::opener::Opener;
use crate::shard::Tapper;
use millrace_ring::shared::Reclaimer;

/// What comes back from a worker: things to be dropped where dropping may take its time.
#[derive(Default)]
#[allow(dead_code)]
pub(crate) struct Answer {
    pub done: bool,
    /// A frozen RX queue drops when there is no room.
    pub discard: bool,
    pub tx: Vec<TxEngine>,
    pub rx: Option<Box<RxEngine>>,
    pub reclaimer: Option<Box<Reclaimer>>,
    pub openers: Vec<Opener>,
    pub tapper: Option<Box<Tapper>>,
    pub detached: Option<Box<Detached>>,
}
