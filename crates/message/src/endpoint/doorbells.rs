//! Doorbells of one pair without the lock of the endpoint: whoever has one of these is the only one who rings that pair, or hears it, and a call is some
//! loads and stores.

use super::state::State;
use super::{Endpoint, Peer};
use crate::bell::{Bell, Filter, Full, Receiver, Sender, Sent};
use crate::buffer::Buffer;
use crate::engine::{Breach, PairId};
use crate::hosts::Bells;
use crate::local::Lent;

/// Rings doorbells of one pair: no other way rings them meanwhile ([`Full::Lent`]). While there is one, the memory of the pair stays mapped, when the other
/// endpoint has gone too.
pub struct DoorbellSender<'e, B: Buffer = Vec<u8>> {
    endpoint: &'e Endpoint<B>,
    peer: Peer,
    /// `None`: the pair goes to another host, by the endpoint, where it is kept that this is the only one.
    lent: Option<Lent<Sender>>,
}

/// Hears doorbells of one pair: no other call, thread or descriptor is told of them meanwhile, and nobody is woken by them. It is for a thread that looks again and
/// again. One that is to sleep drops it, and waits for the endpoint. While there is one, the memory of the pair stays mapped, when the other endpoint has gone too.
pub struct DoorbellReceiver<'e, B: Buffer = Vec<u8>> {
    endpoint: &'e Endpoint<B>,
    peer: Peer,
    lent: Option<(Lent<Receiver>, Filter)>,
}

impl<B: Buffer> Endpoint<B> {
    /// What rings the doorbells of a pair faster than [`Endpoint::ring`]. `None`: the other endpoint is gone, or somebody has it already.
    pub fn doorbells_to(&self, to: Peer) -> Option<DoorbellSender<'_, B>> {
        let lent = self.lend(to, |bells| &mut bells.is_out_lent, |state, pair| state.local.lend_sender(pair))?;
        Some(DoorbellSender { endpoint: self, peer: to, lent })
    }

    /// What hears the doorbells of a pair faster than [`Endpoint::bell`]. `None`: the other endpoint is gone, or somebody has it already.
    pub fn doorbells_from(&self, from: Peer) -> Option<DoorbellReceiver<'_, B>> {
        let lent = self.lend(from, |bells| &mut bells.is_into_lent, |state, pair| state.local.lend_receiver(pair))?;
        Some(DoorbellReceiver { endpoint: self, peer: from, lent })
    }

    /// `Some(None)`: there is nothing to lend of a pair that goes to another host.
    fn lend<T>(
        &self,
        peer: Peer,
        mark: impl FnOnce(&mut Bells) -> &mut bool,
        lend: impl FnOnce(&mut State<B>, PairId) -> Option<T>,
    ) -> Option<Option<T>> {
        let mut state = self.shared.lock();
        let pair = state.pair(peer)?;
        let lent = match state.local.bells_elsewhere(pair) {
            Some(bells) => (!core::mem::replace(mark(bells), true)).then_some(None),
            None => lend(&mut state, pair).map(Some),
        };
        // Those that wait are nobody's news any more.
        state.show();
        lent
    }
}

impl<B: Buffer> DoorbellSender<'_, B> {
    /// Rings a doorbell.
    ///
    /// # Errors
    /// [`Full`]. `None`: the other endpoint is gone.
    #[inline]
    pub fn ring(&mut self, number: u16) -> Option<Result<(), Full>> {
        let Some(lent) = &mut self.lent else {
            return Some(ring_elsewhere(self.endpoint, self.peer, number, false)?.map(drop));
        };
        if lent.has_changed() && !is_there(self.endpoint, self.peer, lent) {
            return None;
        }
        let rung = lent.half.ring(number);
        if rung.is_ok() && lent.half.must_wake() {
            wake(self.endpoint, self.peer);
        }
        Some(rung)
    }

    /// Rings a doorbell, unless the last one is the same, and waits.
    ///
    /// # Errors
    /// [`Full`]. `None`: the other endpoint is gone.
    #[inline]
    pub fn ring_once(&mut self, number: u16) -> Option<Result<Sent, Full>> {
        let Some(lent) = &mut self.lent else {
            return ring_elsewhere(self.endpoint, self.peer, number, true);
        };
        if lent.has_changed() && !is_there(self.endpoint, self.peer, lent) {
            return None;
        }
        let rung = lent.half.ring_once(number);
        if rung.is_ok() && lent.half.must_wake() {
            wake(self.endpoint, self.peer);
        }
        Some(rung)
    }
}

impl<B: Buffer> DoorbellReceiver<'_, B> {
    /// The next doorbell, if there is one.
    ///
    /// # Errors
    /// [`Breach`]. The other endpoint is gone, or was lost.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Bell>, Breach> {
        let Some((lent, filter)) = &mut self.lent else { return bell_elsewhere(self.endpoint, self.peer) };
        if lent.has_changed() {
            look(self.endpoint, self.peer, (lent, filter))?;
        }
        lent.half.take(filter).map_err(|_| refuse(self.endpoint, self.peer))
    }
}

fn ring_elsewhere<B: Buffer>(
    endpoint: &Endpoint<B>,
    peer: Peer,
    number: u16,
    once: bool,
) -> Option<Result<Sent, Full>> {
    let mut state = endpoint.shared.lock();
    let pair = state.pair(peer)?;
    let rung = state.local.ring_elsewhere(pair, number, once)?;
    state.said(pair);
    Some(rung)
}

fn bell_elsewhere<B: Buffer>(endpoint: &Endpoint<B>, peer: Peer) -> Result<Option<Bell>, Breach> {
    let mut state = endpoint.shared.lock();
    let pair = state.pair(peer).ok_or(Breach::Gone)?;
    state.calls = state.calls.wrapping_add(1);
    state.local.bell_elsewhere(pair)
}

#[cold]
fn is_there<B: Buffer>(endpoint: &Endpoint<B>, peer: Peer, lent: &mut Lent<Sender>) -> bool {
    let mut state = endpoint.shared.lock();
    state.pair(peer).is_some_and(|pair| state.local.wanted(pair, lent).is_some())
}

/// Which numbers are wanted now.
#[cold]
fn look<B: Buffer>(
    endpoint: &Endpoint<B>,
    peer: Peer,
    (lent, filter): (&mut Lent<Receiver>, &mut Filter),
) -> Result<(), Breach> {
    let mut state = endpoint.shared.lock();
    let pair = state.pair(peer).ok_or(Breach::Gone)?;
    *filter = state.local.wanted(pair, lent).ok_or(Breach::Gone)?;
    Ok(())
}

#[cold]
fn wake<B: Buffer>(endpoint: &Endpoint<B>, peer: Peer) {
    let mut state = endpoint.shared.lock();
    if let Some(pair) = state.pair(peer) {
        state.wake(pair);
    }
}

#[cold]
fn refuse<B: Buffer>(endpoint: &Endpoint<B>, peer: Peer) -> Breach {
    let mut state = endpoint.shared.lock();
    let breach = state.pair(peer).map_or(Breach::Gone, |pair| state.local.refuse(pair));
    drop(endpoint.shared.progress(state));
    breach
}

impl<B: Buffer> Drop for DoorbellSender<'_, B> {
    fn drop(&mut self) {
        let mut state = self.endpoint.shared.lock();
        let Some(pair) = state.pair(self.peer) else { return };
        if let Some(lent) = self.lent.take() {
            state.local.take_sender_back(pair, lent);
        } else if let Some(bells) = state.local.bells_elsewhere(pair) {
            bells.is_out_lent = false;
        }
    }
}

impl<B: Buffer> Drop for DoorbellReceiver<'_, B> {
    fn drop(&mut self) {
        let mut state = self.endpoint.shared.lock();
        let Some(pair) = state.pair(self.peer) else { return };
        match self.lent.take() {
            Some((lent, _)) => state.local.take_receiver_back(pair, lent),
            None => state.local.take_back_from_elsewhere(pair),
        }
        // The thread of the endpoint may sleep, and has not said so by these.
        state.wake_helper();
        state.show();
        // Those of another host wait here already: nothing comes by which threads that sleep are woken.
        self.endpoint.shared.news.notify_all();
    }
}
