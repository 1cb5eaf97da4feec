//! What is done for one pair: messages, their parts, and doorbells.

use super::pair::Remote;
use super::rail::Rail;
use super::trunk::Write;
use super::{Bells, Hosts};
use crate::bell::{Bell, Filter, Full, Sent};
use crate::control::Tag;
use crate::engine::{Action, Breach, Engine, PairId, RequestId, Source, Work};
use millrace_dma::{Span, SpanMut};

/// Another endpoint, and what its part of the work goes by.
struct With<'h> {
    remote: &'h mut Remote,
    rails: &'h [Rail],
    smb_len: usize,
}

impl With<'_> {
    fn post(&mut self) {
        self.remote.post(self.rails, self.smb_len);
    }

    /// What there is to say of doorbells goes at once, unless messages wait, which have their own turn.
    fn post_bells(&mut self, pair: PairId, engine: &mut Engine, filter: &Filter) {
        if self.remote.bells.has_news() && engine.outgoing(pair).is_none() {
            self.remote.say(engine, filter, |_| &[]);
            self.post();
        }
    }
}

impl Hosts {
    fn with(&mut self, pair: PairId) -> Option<With<'_>> {
        let id = (*self.pairs.get(pair.0 as usize)?)?;
        let remote = self.remotes.get_mut(&id)?;
        Some(With { remote, rails: &self.rails, smb_len: self.own.terms.mtu as usize })
    }

    /// Says what there is to say to a pair. Whether that was all.
    pub fn say<'a>(
        &mut self,
        pair: PairId,
        engine: &mut Engine,
        filter: &Filter,
        bytes: impl Fn(RequestId) -> &'a [u8],
    ) -> bool {
        let Some(mut with) = self.with(pair) else { return true };
        let is_all = with.remote.say(engine, filter, bytes);
        with.post();
        is_all
    }

    /// Says a short message at once; `false`: something is before it.
    pub fn send_short(&mut self, pair: PairId, engine: &mut Engine, tag: Tag, bytes: &[u8]) -> bool {
        let Some(mut with) = self.with(pair) else { return false };
        let is_sent = with.remote.send_short(engine, tag, bytes);
        if is_sent {
            with.post();
        }
        is_sent
    }

    /// Moves a part of a message to the other end, whenever that is possible; the engine is told when it is there.
    pub fn transfer(&mut self, action: &Action, engine: &mut Engine) {
        let Action { ticket, len, .. } = *action;
        match (self.with(action.pair), action.work) {
            (Some(_), _) if len == 0 => engine.finished(ticket, true),
            (Some(mut with), Work::Transfer { slot, from: Source::Smb(smb) }) => {
                with.remote.trunk.write(Write { ticket, smb, slot, len: len as u32 });
                with.post();
            }
            _ => engine.finished(ticket, false),
        }
    }

    /// A part of a send buffer.
    pub fn smb(&self, smb: u16, offset: usize, len: usize) -> Option<SpanMut<'_>> {
        self.smbs.span_mut(usize::from(smb) * self.own.terms.mtu as usize + offset, len)
    }

    /// A part of a receive buffer of a pair.
    pub fn rmb(&self, pair: PairId, slot: u8, offset: usize, len: usize) -> Option<Span<'_>> {
        let id = (*self.pairs.get(pair.0 as usize)?)?;
        self.remotes.get(&id)?.memory.rmbs.span(usize::from(slot) * self.own.terms.mtu as usize + offset, len)
    }

    /// Rings a doorbell. `None`: the other endpoint is gone.
    pub fn ring(
        &mut self,
        pair: PairId,
        (number, once): (u16, bool),
        engine: &mut Engine,
        filter: &Filter,
    ) -> Option<Result<Sent, Full>> {
        let mut with = self.with(pair)?;
        let rung = with.remote.bells.ring(number, once);
        with.post_bells(pair, engine, filter);
        Some(rung)
    }

    /// The next doorbell of a pair.
    ///
    /// # Errors
    /// [`Breach::Gone`].
    pub fn bell(&mut self, pair: PairId, engine: &mut Engine, filter: &Filter) -> Result<Option<Bell>, Breach> {
        let mut with = self.with(pair).ok_or(Breach::Gone)?;
        let bell = with.remote.bells.take(filter);
        with.post_bells(pair, engine, filter);
        Ok(bell)
    }

    /// Whether some have come that are not for one who hears them by himself.
    pub fn has_bells(&self) -> bool {
        let bells = self.remotes.values().filter(|remote| remote.pair.is_some()).map(|remote| &remote.bells);
        bells.filter(|bells| !bells.is_into_lent).any(Bells::has_more)
    }

    /// Doorbells of a pair.
    pub fn bells_of(&mut self, pair: PairId) -> Option<&mut Bells> {
        self.with(pair).map(|with| &mut with.remote.bells)
    }

    /// Numbers of pairs there may be.
    pub fn places(&self) -> usize {
        self.pairs.len()
    }

    /// How often doorbells came when there were none.
    pub fn bells_noted(&self) -> u64 {
        self.bells_noted
    }

    /// What this program wants has changed.
    pub fn publish(&mut self, engine: &mut Engine, filter: &Filter) {
        for remote in self.remotes.values_mut() {
            remote.bells.publish();
        }
        self.post_all(engine, filter);
    }
}
