//! Doorbells of an endpoint: the numbers that it wants, and those of each pair. Either half of a pair's can be lent to a thread that rings, or looks,
//! without the lock of the endpoint: then nobody else does.

use super::Local;
use crate::bell::{Bell, ClaimError, Filter, Full, Owner, Receiver, Sender, Sent, View};
use crate::buffer::Buffer;
use crate::engine::{Breach, PairId};
use crate::hosts;
use millrace_ring::lines::Malformed;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often it has changed what whoever was lent a half has to know: the numbers that are wanted, and whether the pair is there.
#[derive(Clone, Default)]
struct Changes(Arc<AtomicU64>);

impl Changes {
    fn happen(&self) {
        // Release pairs with the Acquire in `count`: what has changed is behind the lock, where it is looked at then.
        self.0.fetch_add(1, Ordering::Release);
    }

    #[inline(always)]
    fn count(&self) -> u64 {
        // Acquire pairs with the Release in `happen`.
        self.0.load(Ordering::Acquire)
    }
}

/// A half that is lent.
pub struct Lent<T> {
    pub half: T,
    changes: Changes,
    seen: u64,
}

impl<T> Lent<T> {
    fn new(half: T, changes: &Changes) -> Self {
        Self { half, changes: changes.clone(), seen: changes.count() }
    }

    /// Whether something has changed since it was looked last.
    #[inline(always)]
    pub fn has_changed(&self) -> bool {
        self.changes.count() != self.seen
    }

    /// It is looked now, behind the lock.
    pub fn looked(&mut self) {
        self.seen = self.changes.count();
    }
}

/// Doorbells of a pair.
pub struct Doorbells {
    /// Those to the other end, and those from it. `None`: that half is lent.
    out: Option<Sender>,
    into: Option<Receiver>,
    wanted: View,
    changes: Changes,
    /// Something was rung, and it was not looked whether the other end sleeps.
    has_rung: bool,
    /// Some wait, and that was told.
    were_noted: bool,
}

impl Drop for Doorbells {
    fn drop(&mut self) {
        self.changes.happen();
    }
}

impl Doorbells {
    pub fn new((out, mut into): (Sender, Receiver), unwanted: &Arc<AtomicU64>) -> Self {
        into.count_in(unwanted);
        let (wanted, changes) = (into.view(), Changes::default());
        Self { out: Some(out), into: Some(into), wanted, changes, has_rung: false, were_noted: false }
    }

    /// Says to the other end which numbers are wanted.
    pub fn publish(&self, filter: &Filter) {
        filter.publish(&self.wanted);
        self.changes.happen();
    }

    /// Whether some wait of which that was not said before.
    #[inline]
    pub fn have_come(&self) -> bool {
        !self.were_noted && self.into.as_ref().is_some_and(Receiver::has_more)
    }

    /// The same, and it is said now.
    pub fn are_new(&mut self) -> bool {
        let are_new = self.have_come();
        self.were_noted |= are_new;
        are_new
    }

    /// Whether the other end is to be woken, after something was rung. It says so once.
    #[inline]
    pub fn must_wake(&mut self) -> bool {
        core::mem::take(&mut self.has_rung) && self.out.as_ref().is_some_and(Sender::must_wake)
    }

    /// Says to the other end that it is to wake this one. Whether it may sleep: those that wait and were told of are no news.
    pub fn doze(&self) -> bool {
        self.into.as_ref().is_none_or(Receiver::doze) || self.were_noted
    }

    fn ring(&mut self, number: u16) -> Result<(), Full> {
        self.has_rung = true;
        self.out.as_mut().ok_or(Full::Lent)?.ring(number)
    }

    fn ring_once(&mut self, number: u16) -> Result<Sent, Full> {
        self.has_rung = true;
        self.out.as_mut().ok_or(Full::Lent)?.ring_once(number)
    }

    fn take(&mut self, filter: &Filter) -> Result<Option<Bell>, Malformed> {
        let Some(into) = &mut self.into else { return Ok(None) };
        let taken = into.take(filter);
        // Behind one that nobody wants others may wait, of which it is to be told.
        self.were_noted = self.were_noted && matches!(taken, Ok(Some(_))) && into.has_more();
        taken
    }
}

impl<B: Buffer> Local<B> {
    fn doorbells(&mut self, pair: PairId) -> Option<&mut Doorbells> {
        self.peer(pair).map(|peer| &mut peer.bells)
    }

    /// Lends what rings the doorbells of a pair. `None`: it is lent already, or the other end is gone, or of another host.
    pub(crate) fn lend_sender(&mut self, pair: PairId) -> Option<Lent<Sender>> {
        let bells = self.doorbells(pair)?;
        Some(Lent::new(bells.out.take()?, &bells.changes))
    }

    /// The same for what hears them, with the numbers that are wanted.
    pub(crate) fn lend_receiver(&mut self, pair: PairId) -> Option<(Lent<Receiver>, Filter)> {
        let bells = self.doorbells(pair)?;
        let lent = Lent::new(bells.into.take()?, &bells.changes);
        bells.were_noted = false;
        Some((lent, self.filter.clone()))
    }

    /// It comes back. Of a pair that has ended it is nobody's.
    pub(crate) fn take_sender_back(&mut self, pair: PairId, lent: Lent<Sender>) {
        if let Some(bells) = self.lender(pair, &lent) {
            bells.out = Some(lent.half);
        }
    }

    /// The same for what hears them. The other end does not know whether this one sleeps.
    pub(crate) fn take_receiver_back(&mut self, pair: PairId, lent: Lent<Receiver>) {
        if let Some(bells) = self.lender(pair, &lent) {
            bells.into = Some(lent.half);
        }
    }

    fn lender<T>(&mut self, pair: PairId, lent: &Lent<T>) -> Option<&mut Doorbells> {
        self.doorbells(pair).filter(|bells| Arc::ptr_eq(&bells.changes.0, &lent.changes.0))
    }

    /// Doorbells of a pair of another host: of those nothing is lent, but it is kept who is the only one.
    pub(crate) fn bells_elsewhere(&mut self, pair: PairId) -> Option<&mut hosts::Bells> {
        self.hosts.as_mut()?.bells_of(pair)
    }

    /// Rings a doorbell there, for the only one who may; `once`: unless the last one is the same, and waits.
    pub(crate) fn ring_elsewhere(&mut self, pair: PairId, number: u16, once: bool) -> Option<Result<Sent, Full>> {
        self.hosts.as_mut()?.ring(pair, (number, once), &mut self.engine, &self.filter)
    }

    /// The next doorbell from there, for the only one who hears them.
    pub(crate) fn bell_elsewhere(&mut self, pair: PairId) -> Result<Option<Bell>, Breach> {
        self.hosts.as_mut().ok_or(Breach::Gone)?.bell(pair, &mut self.engine, &self.filter)
    }

    /// They are for everybody again.
    pub(crate) fn take_back_from_elsewhere(&mut self, pair: PairId) {
        let Some(bells) = self.bells_elsewhere(pair) else { return };
        bells.is_into_lent = false;
        self.bells_noted += u64::from(bells.has_more());
    }

    /// The numbers that are wanted now, for whoever was lent what hears them. `None`: the pair has ended.
    pub(crate) fn wanted<T>(&mut self, pair: PairId, lent: &mut Lent<T>) -> Option<Filter> {
        // Whoever is told that the pair has ended is told so each time.
        self.lender(pair, lent)?;
        lent.looked();
        Some(self.filter.clone())
    }

    /// What was heard is no doorbell: the pair is lost.
    pub(crate) fn refuse(&mut self, pair: PairId) -> Breach {
        self.engine.refuse(pair)
    }

    /// How often doorbells came when there were none.
    pub fn bells_noted(&self) -> u64 {
        self.bells_noted
    }

    /// Doorbells that came and that nobody had claimed, ever.
    pub fn bells_unwanted(&self) -> u64 {
        let elsewhere = self.hosts.as_ref().map_or(0, |hosts| hosts.counters().unwanted);
        // Relaxed: a count, which orders nothing.
        self.unwanted.load(Ordering::Relaxed) + elsewhere
    }

    /// Whether there were doorbells when it was looked last.
    pub fn has_bells(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.bells.were_noted)
            || self.hosts.as_ref().is_some_and(|hosts| hosts.has_bells())
    }

    /// The next doorbell of any pair.
    pub fn any_bell(&mut self) -> Option<(PairId, Bell)> {
        let count = self.peers.len().max(self.hosts.as_ref().map_or(0, |hosts| hosts.places()));
        let first = self.bells_next;
        for at in (0..count).map(|at| (first + at) % count) {
            let pair = PairId(at as u32);
            // Who writes nonsense is lost, and named by the engine.
            if let Ok(Some(bell)) = self.bell(pair) {
                // Who rings without end has its turn with the others.
                self.bells_next = at + 1;
                return Some((pair, bell));
            }
        }
        None
    }

    /// This program wants these doorbells, from now on, from all.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&mut self, numbers: RangeInclusive<u16>, owner: Owner) -> Result<(), ClaimError> {
        self.filter.claim(numbers, owner)?;
        self.publish();
        Ok(())
    }

    /// Nobody wants the doorbells of that owner any more.
    pub fn release(&mut self, owner: Owner) {
        self.filter.release(owner);
        self.publish();
    }

    fn publish(&mut self) {
        self.peers.iter().flatten().for_each(|peer| peer.bells.publish(&self.filter));
        if let Some(hosts) = &mut self.hosts {
            hosts.publish(&mut self.engine, &self.filter);
        }
    }

    /// Rings a doorbell.
    ///
    /// # Errors
    /// [`Full`]. `None`: the other endpoint is gone.
    #[inline]
    pub fn ring(&mut self, pair: PairId, number: u16) -> Option<Result<(), Full>> {
        let Some(Some(peer)) = self.peers.get_mut(pair.0 as usize) else {
            let is_lent = self.bells_elsewhere(pair)?.is_out_lent;
            return if is_lent {
                Some(Err(Full::Lent))
            } else {
                Some(self.ring_elsewhere(pair, number, false)?.map(drop))
            };
        };
        Some(peer.bells.ring(number))
    }

    /// Rings a doorbell, unless the last one is the same, and waits.
    ///
    /// # Errors
    /// [`Full`]. `None`: the other endpoint is gone.
    #[inline]
    pub fn ring_once(&mut self, pair: PairId, number: u16) -> Option<Result<Sent, Full>> {
        let Some(Some(peer)) = self.peers.get_mut(pair.0 as usize) else {
            let is_lent = self.bells_elsewhere(pair)?.is_out_lent;
            return if is_lent { Some(Err(Full::Lent)) } else { self.ring_elsewhere(pair, number, true) };
        };
        Some(peer.bells.ring_once(number))
    }

    /// The next doorbell of a pair.
    ///
    /// # Errors
    /// [`Breach`]. The pair is lost.
    #[inline]
    pub fn bell(&mut self, pair: PairId) -> Result<Option<Bell>, Breach> {
        let Some(Some(peer)) = self.peers.get_mut(pair.0 as usize) else {
            let is_lent = self.bells_elsewhere(pair).ok_or(Breach::Gone)?.is_into_lent;
            return if is_lent { Ok(None) } else { self.bell_elsewhere(pair) };
        };
        peer.bells.take(&self.filter).map_err(|_| self.engine.refuse(pair))
    }
}
