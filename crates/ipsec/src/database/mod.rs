//! Associations and policies together: which association is a packet's, what may pass, and what is to be reported.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::algorithm::Unsupported;
use crate::association::{Arrival, Association, Id, Opened, Parameters};
use crate::counter::Counters;
use crate::lifetime::{End, Usage};
use crate::policy::{Action, Direction, Policies, Policy, PolicyKey, Template};
use crate::refusal::{Refusal, Way};
use crate::selector::{Flow, Mark};
use crate::traversal::PORT;

/// An association, for as long as it is there: numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    number: u64,
}

/// What the kernel or a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new association, or news of one.
    Associate(Box<Parameters>),
    /// It is gone.
    Dissociate(Id, Mark),
    /// All are gone.
    FlushAssociations,
    /// A new policy, or news of one.
    Policy(Box<Policy>),
    /// It is gone.
    RemovePolicy(PolicyKey),
    /// All are gone.
    FlushPolicies,
    /// What becomes of packets of which no policy speaks.
    Default(Direction, Action),
}

/// What has happened that IKE should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An association should be renewed, or is over.
    End {
        /// Which.
        id: Id,
        /// Its number.
        reqid: u32,
        /// How far.
        end: End,
        /// What was used of it.
        usage: Usage,
    },
    /// The other end's address or port has changed on the way (RFC 3948 §4).
    Moved {
        /// Whose.
        id: Id,
        /// Where it is now.
        source: IpAddr,
        /// Its UDP port.
        port: u16,
    },
}

/// Events that nobody has asked for; more are lost, and counted.
const MOST_EVENTS: usize = 4096;

struct Entry {
    association: Association,
    number: u64,
    round: u64,
}

/// Associations and policies.
#[derive(Default)]
pub struct Database {
    entries: Slab<Entry>,
    arriving: FxHashMap<Id, Vec<u32>>,
    leaving: FxHashMap<IpAddr, Vec<u32>>,
    policies: Policies,
    counters: Counters,
    events: VecDeque<Event>,
    lost_events: u64,
    last_number: u64,
    changes: u64,
    round: u64,
}

impl Database {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often anything has changed; what was made of the database before is old then.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// What passed and what was refused.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The policies.
    pub const fn policies(&self) -> &Policies {
        &self.policies
    }

    /// All associations, the oldest places first.
    pub fn associations(&self) -> impl Iterator<Item = &Association> {
        self.entries.iter().map(|(_, entry)| &entry.association)
    }

    /// The association of a handle, while it is there.
    pub fn association(&self, handle: Handle) -> Option<&Association> {
        let entry = self.entries.get(handle.index as usize)?;
        (entry.number == handle.number).then_some(&entry.association)
    }

    /// The same, to be changed.
    pub fn association_mut(&mut self, handle: Handle) -> Option<&mut Association> {
        let entry = self.entries.get_mut(handle.index as usize)?;
        (entry.number == handle.number).then_some(&mut entry.association)
    }

    /// Does what the kernel or a file says. `now`: seconds since 1970.
    ///
    /// # Errors
    /// [`Unsupported`]: the association stays the kernel's, and one that was there by its name is gone.
    pub fn apply(&mut self, change: Change, now: u64) -> Result<(), Unsupported> {
        self.changes += 1;
        match change {
            Change::Associate(parameters) => return self.associate(*parameters, now),
            Change::Dissociate(id, mark) => self.dissociate(id, mark),
            Change::FlushAssociations => {
                self.entries.clear();
                self.arriving.clear();
                self.leaving.clear();
            }
            Change::Policy(policy) => self.policies.insert(*policy, self.round),
            Change::RemovePolicy(key) => {
                self.policies.remove(&key);
            }
            Change::FlushPolicies => self.policies.clear(),
            Change::Default(direction, action) => self.policies.set_default(direction, action),
        }
        Ok(())
    }

    /// A list of everything begins: what does not come until [`Database::end_list`] is gone.
    pub fn begin_list(&mut self) {
        self.round += 1;
    }

    /// The list is at its end.
    pub fn end_list(&mut self) {
        self.changes += 1;
        let round = self.round;
        self.policies.keep(round);
        let old = self.entries.iter().filter(|(_, entry)| entry.round != round).map(|(index, _)| index);
        for index in old.collect::<Vec<_>>() {
            self.remove(index);
        }
    }

    fn associate(&mut self, parameters: Parameters, now: u64) -> Result<(), Unsupported> {
        let (id, mark) = (parameters.id, parameters.mark);
        if let Some(index) = self.place(id, mark) {
            let entry = &mut self.entries[index];
            if entry.association.renew(&parameters) {
                entry.round = self.round;
                return Ok(());
            }
            self.remove(index);
        }
        let association = Association::new(parameters, now)?;
        self.last_number += 1;
        let entry = Entry { association, number: self.last_number, round: self.round };
        let index = self.entries.insert(entry) as u32;
        self.arriving.entry(id).or_default().push(index);
        self.leaving.entry(id.destination).or_default().push(index);
        Ok(())
    }

    fn dissociate(&mut self, id: Id, mark: Mark) {
        if let Some(index) = self.place(id, mark) {
            self.remove(index);
        }
    }

    fn place(&self, id: Id, mark: Mark) -> Option<usize> {
        let places = self.arriving.get(&id)?.iter().map(|index| *index as usize);
        places.into_iter().find(|index| self.entries[*index].association.parameters().mark == mark)
    }

    fn remove(&mut self, index: usize) {
        let id = self.entries.remove(index).association.parameters().id;
        forget(&mut self.arriving, &id, index);
        forget(&mut self.leaving, &id.destination, index);
    }

    /// The association of a packet that arrives.
    ///
    /// # Errors
    /// [`Refusal::NoAssociation`].
    #[inline]
    pub fn find_arriving(&self, id: Id, mark: u32) -> Result<Handle, Refusal> {
        let places = self.arriving.get(&id).ok_or(Refusal::NoAssociation)?;
        let mut handles = places.iter().map(|index| (*index, &self.entries[*index as usize]));
        let (index, entry) =
            handles.find(|(_, entry)| entry.association.parameters().mark.has(mark)).ok_or(Refusal::NoAssociation)?;
        Ok(Handle { index, number: entry.number })
    }

    /// What a packet that leaves needs: an association, or none. To be asked once for each flow, and again when
    /// [`Database::changes`] has.
    ///
    /// # Errors
    /// [`Refusal::Blocked`], [`Refusal::NoPolicy`], [`Refusal::Bundle`], [`Refusal::NotYet`].
    pub fn find_leaving(&mut self, flow: &Flow, now: u64) -> Result<Option<Handle>, Refusal> {
        let found = self.policies.wanted(flow).and_then(|template| match template {
            None => Ok(None),
            Some(template) => match self.best(template, flow, now) {
                // Linux goes on in the clear then.
                None if template.is_optional => Ok(None),
                found => found.ok_or(Refusal::NotYet).map(Some),
            },
        });
        found.map_err(|refusal| self.counters.refuse(Way::Out, refusal))
    }

    /// The association that fits a template: one that need not be renewed before others, then the youngest.
    fn best(&self, template: &Template, flow: &Flow, now: u64) -> Option<Handle> {
        let destination = template.destination.unwrap_or(flow.destination);
        let source = template.source.unwrap_or(flow.source);
        let fitting = self.leaving.get(&destination)?.iter().filter_map(|index| {
            let entry = &self.entries[*index as usize];
            let parameters = entry.association.parameters();
            let end = entry.association.lifetime().end(now);
            let is_fitting = template.accepts(&entry.association)
                && parameters.source == source
                && parameters.if_id == flow.if_id
                && parameters.mark.has(flow.mark)
                && parameters.selector.has(flow)
                && end != End::Hard;
            is_fitting.then_some((end, entry.number, *index))
        });
        let (_, number, index) = fitting.min_by_key(|(end, number, _)| (*end, u64::MAX - number))?;
        Some(Handle { index, number })
    }

    /// Encrypts the IP packet that lies in `buffer[packet]` by this association ([`Association::seal`]).
    ///
    /// # Errors
    /// Those of [`Association::seal`], and [`Refusal::NoAssociation`] when it is gone.
    #[inline]
    pub fn seal(
        &mut self,
        handle: Handle,
        buffer: &mut [u8],
        packet: Range<usize>,
        now: u64,
    ) -> Result<Range<usize>, Refusal> {
        let len = packet.len();
        let result = self.with(handle, |association| association.seal(buffer, packet, now));
        self.count(Way::Out, len, &result);
        result
    }

    /// Finds the association of the packet that lies in `buffer[packet]`, and opens it. `None`: there is no ESP in it. The
    /// policy is to be asked with what comes out ([`Database::check`]).
    ///
    /// # Errors
    /// Those of [`Arrival::find`], [`Database::find_arriving`] and [`Association::open`].
    #[inline]
    pub fn open(
        &mut self,
        buffer: &mut [u8],
        packet: Range<usize>,
        mark: u32,
        now: u64,
    ) -> Result<Option<(Opened, Handle)>, Refusal> {
        let result = self.find_and_open(buffer, packet, mark, now);
        match &result {
            Ok(None) => {}
            Ok(Some((opened, _))) => self.counters.passed(Way::In, opened.packet.len()),
            Err(refusal) => {
                self.counters.refuse(Way::In, *refusal);
            }
        }
        result
    }

    #[inline]
    fn find_and_open(
        &mut self,
        buffer: &mut [u8],
        packet: Range<usize>,
        mark: u32,
        now: u64,
    ) -> Result<Option<(Opened, Handle)>, Refusal> {
        let bytes = buffer.get(packet.clone()).ok_or(Refusal::Header)?;
        let Some(arrival) = Arrival::find(bytes, PORT)? else { return Ok(None) };
        let id = Id { destination: arrival.header.destination, spi: arrival.spi(bytes) };
        let handle = self.find_arriving(id, mark)?;
        let mut opened = self.with(handle, |association| {
            let mut opened = association.open(buffer, packet, &arrival, now)?;
            // It comes by the XFRM interface of its association.
            opened.flow.if_id = association.parameters().if_id;
            Ok(opened)
        })?;
        opened.flow.mark = mark;
        Ok(Some((opened, handle)))
    }

    /// Whether a packet may come in, by this association or in the clear. For ESP itself this is not asked.
    ///
    /// # Errors
    /// Those of [`Policies::check`].
    pub fn check(&mut self, direction: Direction, flow: &Flow, by: Option<Handle>) -> Result<(), Refusal> {
        let by = match by {
            None => None,
            Some(handle) => match self.entries.get(handle.index as usize) {
                Some(entry) if entry.number == handle.number => Some(&entry.association),
                _ => return Err(self.counters.refuse(Way::In, Refusal::NoAssociation)),
            },
        };
        self.policies.check(direction, flow, by).map_err(|refusal| self.counters.refuse(Way::In, refusal))
    }

    /// Looks whether associations are over because time has passed, tells of those that are, and removes them, as Linux does. Takes as long as there are
    /// associations: once a second.
    pub fn tick(&mut self, now: u64) {
        let indices: Vec<_> = self.entries.iter().map(|(index, entry)| (index, entry.number)).collect();
        for (index, number) in indices {
            let handle = Handle { index: index as u32, number };
            // Nothing is refused, and what is to be told is taken.
            let _: Result<(), Refusal> = self.with(handle, |association| {
                association.tick(now);
                Ok(())
            });
            if self.entries[index].association.lifetime().end(now) == End::Hard {
                self.remove(index);
                self.changes += 1;
            }
        }
    }

    /// What has happened, one by one.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Events that nobody has taken in time.
    pub const fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Does something with an association, and takes what it has to tell.
    #[inline]
    fn with<R>(
        &mut self,
        handle: Handle,
        work: impl FnOnce(&mut Association) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let association = self.association_mut(handle).ok_or(Refusal::NoAssociation)?;
        let result = work(association);
        if association.has_news() {
            self.take_news(handle);
        }
        result
    }

    #[cold]
    fn take_news(&mut self, handle: Handle) {
        let Some(association) = self.association_mut(handle) else { return };
        let (id, reqid) = (association.parameters().id, association.parameters().reqid);
        let usage = association.lifetime().usage;
        let end = association.take_end().map(|end| Event::End { id, reqid, end, usage });
        let moved = association.take_move().map(|(source, port)| Event::Moved { id, source, port });
        for event in end.into_iter().chain(moved) {
            if self.events.len() >= MOST_EVENTS {
                self.lost_events += 1;
            } else {
                self.events.push_back(event);
            }
        }
    }

    #[inline]
    fn count<R>(&mut self, way: Way, len: usize, result: &Result<R, Refusal>) {
        match result {
            Ok(_) => self.counters.passed(way, len),
            Err(refusal) => {
                self.counters.refuse(way, *refusal);
            }
        }
    }
}

fn forget<K: std::hash::Hash + Eq>(map: &mut FxHashMap<K, Vec<u32>>, key: &K, index: usize) {
    if let Some(places) = map.get_mut(key) {
        places.retain(|place| *place as usize != index);
        if places.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
