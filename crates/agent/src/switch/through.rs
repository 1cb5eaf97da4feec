//! Packets of controllers through the tables (`OFPP_TABLE`, section 7.3.7). The datapath has no way for them, so the switch looks the entries of each
//! table up itself, one by one, and says for each change and each port what is to be done.

use super::Switch;
use super::datapath::{Datapath, FlowKey};
use super::groups::Groups;
use super::packets::Heard;
use millrace_flow::execute::{Alone, Frame, HEADROOM, Stop, change, emits};
use millrace_flow::field::{Field, Wide};
use millrace_flow::{Action, Ingress, Key};

/// What is in no frame, and goes from table to table.
const CARRIED: [Field; 5] = [Field::Reg0, Field::Reg1, Field::Reg2, Field::Reg3, Field::Metadata];

/// A packet on its way.
pub(super) struct Traveller<'a> {
    frame: Frame<'a>,
    port: u32,
    carried: Vec<(Field, Wide, Wide)>,
    /// Its time to live was at its end.
    is_expired: bool,
    datapath: &'a mut dyn Datapath,
}

impl<'a> Traveller<'a> {
    /// One that comes in at a port. The buffer is for changes: [`HEADROOM`] bytes more than the packet has.
    pub fn new(bytes: &'a [u8], buffer: &'a mut [u8], port: u32, datapath: &'a mut dyn Datapath) -> Self {
        let frame = Frame::new(bytes, buffer, Ingress { port, ..Ingress::default() });
        Self { frame, port, carried: Vec::new(), is_expired: false, datapath }
    }

    /// The packet as it is.
    fn heard(&self) -> Heard {
        let bytes = self.frame.bytes().to_vec();
        let (len, port, is_expired) = (bytes.len() as u32, self.port, self.is_expired);
        Heard { port, tunnel: None, rules: Vec::new(), is_expired, len, bytes }
    }

    fn metadata(&self) -> u64 {
        let written = self.carried.iter().filter(|(field, _, _)| *field == Field::Metadata);
        written.fold(0, |now, (_, value, mask)| now & !mask.0[0] | value.0[0])
    }

    fn key(&mut self) -> Key {
        let mut key = self.frame.key();
        self.carried.iter().for_each(|(field, value, mask)| key.write(*field, *value, *mask));
        key
    }

    /// Does actions to it, in order; whether it goes on behind them.
    pub fn undergo(&mut self, actions: &[Action], groups: &Groups) -> bool {
        for (at, action) in actions.iter().enumerate() {
            match action {
                Action::SetField { field, value, mask } if CARRIED.contains(field) => {
                    self.carried.push((*field, *value, *mask));
                }
                // The last action says where it goes then, and the datapath knows the addresses.
                Action::EncapVxlan(_) => {
                    let _ = self.datapath.send(self.frame.bytes(), self.port, &actions[at..]);
                    return true;
                }
                Action::Balance(group) => {
                    let port = groups.get(*group).and_then(|group| group.port_of(&self.frame.key()));
                    if let Some(port) = port {
                        let _ = self.datapath.send(self.frame.bytes(), self.port, &[Action::Output(port)]);
                    }
                }
                // A port that takes nothing has lost it, as on a wire.
                action if emits(action) && super::packets::goes(action) => {
                    let _ = self.datapath.send(self.frame.bytes(), self.port, std::slice::from_ref(action));
                }
                action if emits(action) => {}
                action => {
                    if let Err(stop) = change(std::slice::from_ref(action), &mut self.frame, &mut Alone::default()) {
                        self.is_expired = stop == Stop::Ttl;
                        return false;
                    }
                }
            }
        }
        true
    }
}

impl Switch {
    /// Takes a packet through the tables; what controllers are to hear of it, with its metadata, and the key of the entry that says so.
    pub(super) fn through_tables(&mut self, traveller: &mut Traveller<'_>) -> Vec<(FlowKey, Heard, u64)> {
        let mut heard = Vec::new();
        let mut table = Some(0);
        while let Some(now) = table {
            let key = traveller.key();
            let Some(entry) = self.best(now, &key) else { break };
            let Some(rule) = self.rule_of(&entry) else { break };
            table = match rule.actions.last() {
                Some(Action::GotoTable(next)) => Some(*next),
                _ => None,
            };
            // What controllers get is the packet as it is at that action.
            for part in rule.actions.split_inclusive(|action| matches!(action, Action::Punt(_))) {
                let goes_on = traveller.undergo(part, &self.groups);
                if traveller.is_expired || goes_on && matches!(part.last(), Some(Action::Punt(_))) {
                    heard.push((entry, traveller.heard(), traveller.metadata()));
                }
                if !goes_on {
                    return heard;
                }
            }
        }
        heard
    }

    /// The entry of a table that wins.
    fn best(&mut self, table: u8, key: &Key) -> Option<FlowKey> {
        self.looked_at += self.entries.in_table(table);
        let all = self.entries.of_table(table).filter(|(entry, _)| entry.matching.covers(key));
        let best = all.max_by_key(|(entry, what)| (entry.priority, std::cmp::Reverse(what.sequence)));
        best.map(|(entry, _)| *entry)
    }
}

/// A buffer for a packet of so many bytes.
pub(super) fn buffer(len: usize) -> Vec<u8> {
    vec![0; HEADROOM + len]
}
