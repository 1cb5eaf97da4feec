//! Queues driven as a native driver drives them: by registers, with memory of this process and plain addresses. The
//! steps are those of `docs/spec/nfb-card.md` §3.1 and §3.2; nothing here knows of sessions.

mod addresses;
mod calypte;
mod controller;
mod medusa;
mod owners;
mod placement;
mod sze;
