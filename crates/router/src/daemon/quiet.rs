//! What changes in Linux without an event: tables of the old iptables and ebtables, sets that packets fill, programs of BPF, the choice
//! between next hops, `accept_local`; and who sends, where a ruleset looks at Ethernet addresses, of which a rule remembers nothing. It is looked
//! for every second, and where there is such a thing, every rule is on trial again then: what Linux drops since a second is not forwarded any more.

use std::time::Duration;

use super::router::State;
use crate::engine::{self, Engine};
use crate::kernel::settings;

/// How often.
pub const EVERY: Duration = Duration::from_secs(1);

impl State {
    /// Looks, and has rules put on trial.
    pub fn look_for_quiet_changes(&mut self, engine: &Engine) {
        if self.sight.look_again() {
            engine.bump(engine::Change::Ruleset);
            self.after.settle = true;
        }
        // By what Linux chooses between next hops.
        let choices = settings::choices();
        if choices != std::mem::replace(&mut self.sight.choices, choices) {
            engine.bump(engine::Change::Ruleset);
            *self.counts.entry("settings").or_default() += 1;
        }
        if self.sight.has_accept_local_moved() {
            engine.bump(engine::Change::Ruleset);
            *self.counts.entry("settings").or_default() += 1;
        }
        // Somebody has ended the link of a program, or put another in the place of a filter.
        self.after.settle |= self.interfaces.has_lost(&mut self.sight, engine);
        // A card takes tags off by now, or leaves them.
        self.after.settle |= self.interfaces.takes_tags_anew(&mut self.sight);
        // `bridge-nf-call-iptables` is another of them.
        self.set_mode(engine);
        if self.sight.hooks.unannounced().next().is_some() {
            engine.bump(engine::Change::Ruleset);
            *self.counts.entry("unannounced").or_default() += 1;
        }
    }
}
