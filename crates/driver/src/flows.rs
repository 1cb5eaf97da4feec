//! A program's side of what is asked about the flow table.

use crate::client::{Client, ClientError};
use millrace_abi::flow::{
    FlowChange, FlowCommitted, FlowEntry, FlowEvents, FlowExplained, FlowHeard, FlowInfo, FlowKeyLog, FlowKeys,
    FlowNeighbour, FlowOptions, FlowReply, FlowRequest, FlowTap, MAX_FLOW_TEXT,
};
use millrace_abi::message::{Reply, Request};
use rustix::fd::OwnedFd;
use std::net::IpAddr;
use std::sync::PoisonError;

/// Most changes of one message.
const MOST_CHANGES: usize = 2048;
/// Most entries of a list: as many as there can be rules, groups and meters, and more.
const MOST_ENTRIES: usize = 1 << 21;

impl Client {
    fn ask_flow(&self, request: FlowRequest) -> Result<(FlowReply, Vec<OwnedFd>), ClientError> {
        match self.ask(&Request::Flow(request), &[])? {
            (Reply::Flow(reply), fds) => Ok((reply, fds)),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn tell_flow(&self, request: FlowRequest) -> Result<(), ClientError> {
        match self.ask(&Request::Flow(request), &[])?.0 {
            Reply::Done => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Does all changes to the flow table or none; with `dry_run` it is only said what would come of them. Transactions of several
    /// threads take turns.
    ///
    /// # Errors
    /// [`ClientError`]; the text names the change that cannot be, from 1 on.
    pub fn change_flows(
        &self,
        options: FlowOptions,
        changes: Vec<FlowChange>,
        dry_run: bool,
    ) -> Result<FlowCommitted, ClientError> {
        let _turn = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = parts(changes);
        let last = match &mut parts[..] {
            [only] => FlowRequest::Once { options, changes: std::mem::take(only), dry_run },
            _ => {
                self.tell_flow(FlowRequest::Begin(options))?;
                parts.into_iter().try_for_each(|part| self.tell_flow(FlowRequest::Add(part)))?;
                FlowRequest::Commit { dry_run }
            }
        };
        match self.ask_flow(last)?.0 {
            FlowReply::Committed(committed) => Ok(committed),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Rules, and with an empty filter groups, meters and miss as well, as of a version. `take` is told the version and some of the
    /// entries at a time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list_flows(
        &self,
        filter: &str,
        version: Option<u64>,
        mut take: impl FnMut(u64, Vec<FlowEntry>),
    ) -> Result<(), ClientError> {
        let _turn = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut request = FlowRequest::List { filter: filter.to_owned(), version };
        let mut count = 0;
        loop {
            let FlowReply::Listed { version, entries, more } = self.ask_flow(request)?.0 else {
                return Err(ClientError::Unexpected);
            };
            count += entries.len();
            if count > MOST_ENTRIES || more && entries.is_empty() {
                return Err(ClientError::Nonsense("a list without end"));
            }
            take(version, entries);
            if !more {
                return Ok(());
            }
            request = FlowRequest::More;
        }
    }

    /// How much there is in the flow table.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn flow_info(&self) -> Result<FlowInfo, ClientError> {
        match self.ask_flow(FlowRequest::Info)?.0 {
            FlowReply::Info(info) => Ok(info),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// An eventfd that can be read when something has happened to the flow table, and the number of the last event so far. A later
    /// one takes its place. If `removed`, only rules that have gone count.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn watch_flows(&self, removed: bool) -> Result<(OwnedFd, u64), ClientError> {
        let (reply, fds) = self.ask_flow(FlowRequest::Watch { removed })?;
        match (reply, fds.into_iter().next()) {
            (FlowReply::Watching { last }, Some(fd)) => Ok((fd, last)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// What has happened to the flow table after event `after`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn flow_events(&self, after: u64) -> Result<FlowEvents, ClientError> {
        match self.ask_flow(FlowRequest::Events { after })?.0 {
            FlowReply::Events(events) if events.next < after => Err(ClientError::Nonsense("events of the past")),
            FlowReply::Events(events) => Ok(events),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Listens to frames on which rules decide, from now on. A later call takes its place.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tap_flows(&self, wanted: FlowTap) -> Result<(), ClientError> {
        self.tell_flow(FlowRequest::Tap(wanted))
    }

    /// What was heard since the last call, some of it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn heard_flows(&self) -> Result<FlowHeard, ClientError> {
        match self.ask_flow(FlowRequest::Heard)?.0 {
            FlowReply::Heard(heard) => Ok(heard),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Listens no more.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn untap_flows(&self) -> Result<(), ClientError> {
        self.tell_flow(FlowRequest::Untap)
    }

    /// What becomes of a frame that comes in at `port`, and why, under a version.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn explain_flow(
        &self,
        version: Option<u64>,
        port: u32,
        frame: &[u8],
        better: u32,
    ) -> Result<FlowExplained, ClientError> {
        match self.ask_flow(FlowRequest::Explain { version, port, frame: frame.to_vec(), better })?.0 {
            FlowReply::Explained(explained) => Ok(explained),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Neighbours of tunnels, in the order of their addresses.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn neighbours(&self) -> Result<Vec<FlowNeighbour>, ClientError> {
        let mut all: Vec<FlowNeighbour> = Vec::new();
        loop {
            let after = all.last().map(|last| last.address);
            let FlowReply::Neighbours { neighbours, more } = self.ask_flow(FlowRequest::Neighbours { after })?.0 else {
                return Err(ClientError::Unexpected);
            };
            if neighbours.first().is_some_and(|first| Some(first.address) <= after) || more && neighbours.is_empty() {
                return Err(ClientError::Nonsense("a list without end"));
            }
            all.extend(neighbours);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Says that a neighbour of tunnels has this MAC address, at the port of this number; or forgets it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_neighbour(&self, address: IpAddr, at: Option<([u8; 6], u32)>) -> Result<(), ClientError> {
        self.tell_flow(FlowRequest::SetNeighbour { address, at })
    }

    /// Sends a frame within a tunnel, whose MAC addresses are zeros, out of a port once its neighbour is known.
    ///
    /// # Errors
    /// [`ClientError`]. What is lost later is counted as that of rules is.
    pub fn send_in_tunnel(&self, port: u32, frame: &[u8]) -> Result<(), ClientError> {
        self.tell_flow(FlowRequest::SendInTunnel { port, frame: frame.to_vec() })
    }

    /// Hands over keys of connections of a QUIC group: lines of `SSLKEYLOGFILE`. They are forgotten when this connection ends.
    ///
    /// # Errors
    /// [`ClientError`]. What comes before that was handed over.
    pub fn hand_over_keys(&self, group: u32, log: &str) -> Result<FlowKeys, ClientError> {
        let mut told = FlowKeys::default();
        for part in lines_in_parts(log, &mut told.malformed) {
            match self.ask_flow(FlowRequest::Keys { group, log: FlowKeyLog(part) })?.0 {
                FlowReply::Keys(keys) => {
                    told.taken += keys.taken;
                    told.unknown += keys.unknown;
                    told.full += keys.full;
                    told.foreign += keys.foreign;
                    told.malformed += keys.malformed;
                    told.connections = keys.connections;
                }
                _ => return Err(ClientError::Unexpected),
            }
        }
        Ok(told)
    }
}

/// Lines in parts that fit a message each; at least one. Lines that fit none are left out and counted.
fn lines_in_parts(text: &str, too_long: &mut u64) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        let last = parts.last().map_or(0, String::len);
        if line.len() + 1 > MAX_FLOW_TEXT {
            *too_long += 1;
            continue;
        }
        if last + line.len() + 1 > MAX_FLOW_TEXT {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

/// Changes in parts that fit a message each; at least one.
fn parts(changes: Vec<FlowChange>) -> Vec<Vec<FlowChange>> {
    let mut parts = vec![Vec::new()];
    let mut len = 0;
    for change in changes {
        let last = parts.last().map_or(0, Vec::len);
        if last > 0 && (last == MOST_CHANGES || len + change.len() > MAX_FLOW_TEXT) {
            parts.push(Vec::new());
            len = 0;
        }
        len += change.len();
        if let Some(part) = parts.last_mut() {
            part.push(change);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::message::encode;

    #[test]
    fn lines_fit_messages_and_none_is_torn() {
        let lines: Vec<String> = (0..2000).map(|at| "x".repeat(at % 300)).chain(["y".repeat(MAX_FLOW_TEXT)]).collect();
        let mut too_long = 0;
        let parts = lines_in_parts(&lines.join("\n"), &mut too_long);
        assert!(parts.len() > 1 && too_long == 1 && parts.iter().all(|part| part.len() <= MAX_FLOW_TEXT));
        assert_eq!(parts.concat().lines().collect::<Vec<_>>(), lines[..2000].iter().collect::<Vec<_>>());
        assert_eq!(lines_in_parts("", &mut too_long), [""]);
    }

    #[test]
    fn parts_fit_messages_and_lose_nothing() {
        let line = |len: usize| FlowChange::Add("x".repeat(len));
        let changes: Vec<FlowChange> = (0..10_000).map(|at| line(at % 17_000)).chain([line(0)]).collect();
        let all = parts(changes.clone());
        assert!(all.len() > 1);
        for part in &all {
            encode(&Request::Flow(FlowRequest::Add(part.clone()))).unwrap();
        }
        assert_eq!(all.concat(), changes);
        assert_eq!(parts(Vec::new()), [Vec::new()]);
    }
}
