//! What a driver attaches to a queue: memory, and those who have it open.

use crate::buffers::TxBuffers;
use millrace_dma::{Domain, Window};
use millrace_port::Bell;
use millrace_ring::shared::Reclaimer;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Who has a queue open, as the card needs to know it.
pub struct Opener {
    /// Chosen by the driver; unique among the openers of the queue.
    pub id: u32,
    /// Process that has it open, with which the queue's share of its worker is reckoned; 0: nobody in particular.
    pub owner: u32,
    /// The control page (`abi::control`).
    pub control: Window,
    /// Software to card: signalled when a sleeping worker should look at the doorbell. Openers may have it in common;
    /// one without it wakes the worker by [`crate::Card::kick_all`].
    pub kick: Option<Arc<OwnedFd>>,
    /// Card to software: a socket, so that whatever is done to the other end nobody waits here. It is rung when
    /// the opener sleeps and something has come. An opener that never sleeps needs none.
    pub call: Option<Arc<Bell>>,
}

/// What the driver attaches to a queue before it starts it through the registers.
pub struct Attachment {
    /// Where the card finds the memory whose IOVAs are written to the registers and descriptors.
    pub domain: Arc<Domain>,
    /// The page whose doorbell word is SDP and SHP, or SW, or TAIL.
    pub control: Window,
    /// For a queue with subscribers: who gives the ring back.
    pub reclaimer: Option<Box<Reclaimer>>,
    /// Who is to be woken and may wake.
    pub openers: Vec<Opener>,
    /// For a Calypte TX queue: the buffers of the device that software shares. Without them the queue has its own.
    pub buffers: Option<TxBuffers>,
    /// Medusa: whether the card notes in `control` how far it is, for one that follows it when it is killed.
    pub is_noted: bool,
}
