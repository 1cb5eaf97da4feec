//! Queues driven as a native driver drives them: by registers, with memory of this process and plain addresses. The
//! steps are those of `docs/spec/nfb-card.md` §3.1 and §3.2; nothing here knows of sessions.

mod addresses;
mod calypte;
#[path = "../common/mod.rs"]
mod common;
mod controller;
mod medusa;
mod owners;
mod placement;
mod sze;

#[test]
fn role() {
    if common::role().as_deref() == Some("daemon") {
        common::run_daemon();
    }
}
