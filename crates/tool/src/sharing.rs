//! The options that say whether a receive queue is shared.

use clap::Args;
use millrace_abi::queue::{Joiners, Laggard, Sharing};

/// Whether a receive queue is shared.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct SharingArgs {
    /// Share the queue with up to 15 other readers; if this one falls behind: block them, drop its frames, or evict it
    #[arg(long, value_name = "block|drop|evict")]
    share: Option<Laggard>,
    /// With --share, as the first: what those may choose who join, such as drop,evict or none
    /// [default: drop and evict; programs of the same user also block]
    #[arg(long, value_name = "LIST", requires = "share")]
    joiners: Option<Joiners>,
}

impl SharingArgs {
    /// How to open the queue.
    pub fn sharing(self) -> Sharing {
        self.share.map_or(Sharing::Exclusive, Sharing::Shared)
    }

    /// What those may choose who join it.
    pub fn joiners(self) -> Option<Joiners> {
        self.joiners
    }
}
