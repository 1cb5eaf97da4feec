//! Changes of an agent before that cannot be now, such as an entry for a port that is not there: kept as they are for the next one, until somebody
//! changes what they are about.

use super::datapath::FlowKey;
use super::fields;
use crate::wire::Message;
use crate::wire::flow::{ALL_TABLES, FlowMod, command};
use crate::wire::group::number::{ALL as ALL_GROUPS, ANY as ANY_GROUP};
use crate::wire::meter::number::ALL as ALL_METERS;
use crate::wire::port::number::ANY as ANY_PORT;

/// Changes, in order.
#[derive(Debug, Default)]
pub(super) struct Kept(Vec<Message>);

impl Kept {
    /// Keeps a change. What takes something away is done already: it is not there.
    pub fn keep(&mut self, message: &Message) {
        let deletes = match message {
            Message::FlowMod(change) => matches!(change.command, command::DELETE | command::DELETE_STRICT),
            Message::GroupMod(change) => change.command == crate::wire::group::command::DELETE,
            Message::MeterMod(change) => change.command == crate::wire::meter::command::DELETE,
            _ => true,
        };
        if !deletes {
            self.forget(message);
            self.0.push(message.clone());
        }
    }

    /// A change was done: those before it that it takes the place of, or away, are no more.
    pub fn forget(&mut self, done: &Message) {
        if self.0.is_empty() {
            return;
        }
        let meant = |kept: &Message| match (done, kept) {
            (Message::FlowMod(done), Message::FlowMod(kept)) => means(done, kept),
            (Message::GroupMod(done), Message::GroupMod(kept)) => [kept.group, ALL_GROUPS].contains(&done.group),
            (Message::MeterMod(done), Message::MeterMod(kept)) => [kept.meter, ALL_METERS].contains(&done.meter),
            _ => false,
        };
        self.0.retain(|kept| !meant(kept));
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }
}

/// Whether a change of entries is about the one that another would have added.
fn means(done: &FlowMod, kept: &FlowMod) -> bool {
    let (Ok(of_done), Ok(of_kept)) = (fields::matching(&done.matching), fields::matching(&kept.matching)) else {
        return false;
    };
    let table = done.table == ALL_TABLES || done.table == kept.table;
    let key = |change: &FlowMod, matching| FlowKey { table: kept.table, priority: change.priority, matching };
    let same = table && key(done, of_done) == key(kept, of_kept);
    let filtered = done.out_port == ANY_PORT && done.out_group == ANY_GROUP;
    let filtered = filtered && (kept.cookie ^ done.cookie) & done.cookie_mask == 0;
    match done.command {
        command::ADD => same,
        command::DELETE_STRICT => same && filtered,
        command::DELETE => table && filtered && of_kept.within(&of_done),
        _ => false,
    }
}
