//! The steps of a message with one copy at each end, by the names of the source's figure 2 (`docs/spec/message.md` §4), and a trace of them.

use crate::control::Message;
use crate::engine::PairId;
use std::collections::VecDeque;

/// What is done. The sender's steps are 1 to 3 and 5 to 7, the receiver's 4 and 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// 1: a send buffer is taken from the pool.
    AllocateSmb,
    /// 2: the program's bytes are copied into it. Begun.
    CopyIn,
    /// 3: a receive buffer is asked for, by doorbell. With optimisation 2 before step 1.
    RequestRmb,
    /// 4: the receiver grants one.
    Grant,
    /// 5: the engine moves the bytes from the send buffer to the receive buffer. Begun.
    Transfer,
    /// 6: the send buffer goes back to the pool.
    ReleaseSmb,
    /// 7: the receiver is told.
    Done,
    /// 8: the bytes are copied to the receiver's program. Begun.
    CopyOut,
    /// The receive buffer goes back to its pool.
    ReleaseRmb,
}

impl Step {
    /// As the command prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllocateSmb => "allocate-smb",
            Self::CopyIn => "copy-in",
            Self::RequestRmb => "request-rmb",
            Self::Grant => "grant",
            Self::Transfer => "transfer",
            Self::ReleaseSmb => "release-smb",
            Self::Done => "done",
            Self::CopyOut => "copy-out",
            Self::ReleaseRmb => "release-rmb",
        }
    }
}

/// A step of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What was done.
    pub step: Step,
    /// With whom.
    pub pair: PairId,
    /// Of which message.
    pub message: Message,
    /// Of which part of it, from 0 on; the first for what concerns all of it.
    pub segment: u32,
}

/// The last steps, if somebody wants to see them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    events: VecDeque<Event>,
    most: usize,
    /// Steps that nobody has taken in time.
    dropped: u64,
}

impl Trace {
    /// Remembers up to `most` steps from now on.
    pub fn begin(&mut self, most: usize) {
        self.most = most;
    }

    #[inline]
    pub fn note(&mut self, step: Step, pair: PairId, message: Message, segment: u32) {
        if self.most == 0 {
            return;
        }
        if self.events.len() == self.most {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(Event { step, pair, message, segment });
    }

    pub fn take(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
