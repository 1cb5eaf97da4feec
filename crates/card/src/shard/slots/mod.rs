//! What is in a shard: rings and port queues with all that belongs to them, and what moves of them between workers.

mod answer;
mod departure;
mod detached;
mod engine_state;
mod loan;
mod on_loan;
mod openers;
mod parked;
mod port_slot;
mod rx;
mod tx;
mod wanted;

pub(crate) use answer::Answer;
pub(crate) use detached::{Detach, Detached, TxQueue};
pub(crate) use loan::{Loan, Loans};
pub(crate) use on_loan::OnLoan;
pub(crate) use openers::{Openers, wake_fence};
pub(crate) use parked::{Parked, Steady, Target};
pub(crate) use port_slot::PortSlot;
pub(crate) use rx::RxSlot;
pub(crate) use tx::TxSlot;
pub(crate) use wanted::Wanted;
