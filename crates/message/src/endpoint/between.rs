//! Endpoints of other hosts: what the program's calls and the thread do about them. The protocol is in [`crate::hosts`].

use super::error::Error;
use super::name::Name;
use super::state::State;
use super::{Config, Peer, Shared};
use crate::buffer::Buffer;
use crate::engine::Terms;
use crate::hosts::{CallError, GREETING, Hosts, Own, Target, host_name, is_name};
use rustix::fd::OwnedFd;
use rustix::process::geteuid;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long what was said last may take to arrive when an endpoint is closed.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a call is not looked at.
const LOOK: Duration = Duration::from_micros(200);

/// A rail as it is named in words: a card (`unix:PATH`, `embedded`), or a port (`virtio-user:PATH`; docs/ports.md has them all).
pub fn rail(spec: &str) -> millrace_slurpoe::Config {
    let is_card = ["unix:", "embedded"].iter().any(|kind| spec.starts_with(kind));
    let (card, port) = if is_card { (Some(spec.to_owned()), None) } else { (None, Some(spec.to_owned())) };
    millrace_slurpoe::Config { card, port, ..millrace_slurpoe::Config::default() }
}

/// The key of a rail in the epoll: no multiple of 2^32, and greater.
fn key(rail: usize) -> u64 {
    1 << 32 | (rail as u64 + 1)
}

/// The descriptor of a rail was readable.
pub fn rung<B: Buffer>(state: &mut State<B>, key: u64) {
    if let Some(hosts) = state.local.hosts() {
        hosts.rung((key as u32 as usize).wrapping_sub(1));
    }
}

/// Opens the rails that `config` names.
pub fn open(config: &Config, terms: Terms, epoll: &Arc<OwnedFd>) -> Result<Hosts, Error> {
    let host = config.host.clone().unwrap_or_else(host_name);
    if !is_name(&host) {
        return Err(Error::Name(host));
    }
    let Config { name, peers, limits, rails, .. } = config;
    let (name, user) = (name.clone(), geteuid().as_raw());
    let own = Own { name, host, user, peers: *peers, terms, smbs: limits.smbs };
    Hosts::open(own, rails, epoll, key).map_err(|(rail, error)| Error::Rail(rail, error))
}

/// What was said last has a while to arrive.
pub fn linger<B: Buffer>(shared: &Shared<B>) {
    let begin = Instant::now();
    loop {
        let mut state = shared.lock();
        if state.local.hosts().is_none_or(|hosts| hosts.is_quiet()) || begin.elapsed() > FAREWELL {
            return;
        }
        // Nothing new is said.
        state.local.advance_hosts();
        drop(state);
        std::thread::yield_now();
    }
}

/// A call of somebody who may be on this host or on another one.
pub struct Call<'c, B: Buffer> {
    shared: &'c Shared<B>,
    text: String,
    /// Whom to call on this host; `None`: nobody.
    pub here: Option<Name>,
    call: Option<usize>,
    /// Since when the caller's patience is over.
    over: Option<Instant>,
}

impl<'c, B: Buffer> Call<'c, B> {
    /// Begins to look for `text`: `[HOST:][USER/]NAME`.
    pub fn begin(shared: &'c Shared<B>, config: &Config, text: &str) -> Result<Self, Error> {
        let (host, rest) = match text.split_once(':') {
            Some((host, rest)) if is_name(host) => (Some(host.to_owned()), rest),
            Some(_) => return Err(Error::Name(text.to_owned())),
            None => (None, text),
        };
        let name = Name::parse(rest).map_err(|_| Error::Name(text.to_owned()))?;
        if config.rails.is_empty() {
            return match host {
                Some(_) => Err(Error::NoRail(text.to_owned())),
                None => Ok(Self { shared, text: text.to_owned(), here: Some(name), call: None, over: None }),
            };
        }
        let user = rest.contains('/').then_some(name.user);
        let target = Target { host: host.clone(), user, name: name.text.clone() };
        let here = Some(name).filter(|_| host.is_none());
        let call = shared.lock().local.hosts().map(|hosts| hosts.call(target));
        Ok(Self { shared, text: text.to_owned(), here, call, over: None })
    }

    /// Moves it on. Whether somebody is there.
    pub fn look(&mut self) -> Result<Option<Peer>, Error> {
        let Some(call) = self.call else { return Ok(None) };
        let (mut state, _) = self.shared.progress(self.shared.lock());
        let Some(called) = state.local.hosts().and_then(|hosts| hosts.called(call)) else { return Ok(None) };
        let text = || self.text.clone();
        match called {
            Ok(pair) => Ok(Some(state.peer(pair)).filter(|peer| state.pair(*peer).is_some())),
            Err(CallError::Several(hosts)) => {
                let host = hosts.first().cloned().unwrap_or_default();
                Err(Error::Several { name: text(), host, all: hosts.join(", ") })
            }
            Err(CallError::Refused(why)) => Err(Error::Refused(text(), why)),
            Err(CallError::Full(most)) => Err(Error::Full(most)),
            Err(CallError::Memory(_)) => {
                Err(Error::System { doing: "allocate memory", source: rustix::io::Errno::NOMEM })
            }
        }
    }

    /// Waits until somebody is there.
    pub fn wait(&mut self, left: impl Fn() -> Duration) -> Result<Peer, Error> {
        loop {
            if let Some(peer) = self.look()? {
                return Ok(peer);
            }
            let left = left();
            if left.is_zero() && self.is_over() {
                return Err(if self.end() {
                    Error::Silent(self.text.clone())
                } else {
                    Error::Nobody(self.text.clone())
                });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The caller's patience is over: whether the call is. Who has answered is waited for, as on one host: he may have let this end in by now, and would
    /// have somebody who has gone at once.
    pub fn is_over(&mut self) -> bool {
        let over = *self.over.get_or_insert_with(Instant::now);
        let is_answered = |call| self.shared.lock().local.hosts().is_some_and(|hosts| hosts.is_answered(call));
        !self.call.is_some_and(is_answered) || over.elapsed() > GREETING
    }

    /// There is nobody, or nobody who speaks.
    pub fn nobody(&mut self, name: &Name) -> Error {
        if self.end() { Error::Silent(name.to_string()) } else { Error::Nobody(name.to_string()) }
    }

    fn end(&mut self) -> bool {
        let Some(call) = self.call.take() else { return false };
        self.shared.lock().local.hosts().is_some_and(|hosts| hosts.end_call(call))
    }
}

impl<B: Buffer> Drop for Call<'_, B> {
    fn drop(&mut self) {
        self.end();
    }
}
