//! How two endpoints meet: one calls the name of the other one, which makes the memory that both will have.
//!
//! ```text
//! connect -- hello: terms, name ------> helper thread of the other endpoint
//!    |    <------ welcome: terms, memory --+
//! ```
//!
//! From then on the socket is what they wake each other by, and by which each learns that the other one has gone.

use super::between::Call;
use super::closer::Closer;
use super::error::{Error, Refusal};
use super::name::{Caller, caller};
use super::record::Greeting;
use super::{Config, Peer, Shared, Users};
use crate::buffer::Buffer;
use crate::channel::Side;
use crate::engine::Terms;
use crate::local::memory_len;
use millrace_dma::{Pages, Protection, Region, take_descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a name is called that nobody has yet.
const AGAIN: Duration = Duration::from_millis(5);
/// How long is waited for an answer at least: who greets and goes at once is somebody to the other end all the same.
const ANSWERED: Duration = Duration::from_secs(1);

impl Users {
    /// Whether a user may connect. Root may look into every process anyway.
    pub(super) fn may(&self, user: u32) -> bool {
        user == geteuid().as_raw()
            || user == 0
            || match self {
                Self::Own => false,
                Self::Anybody => true,
                Self::Also(users) => users.contains(&user),
            }
    }
}

/// Calls an endpoint.
pub fn connect<B: Buffer>(shared: &Shared<B>, config: &Config, name: &str, patience: Duration) -> Result<Peer, Error> {
    // `None`: for ever.
    let until = Instant::now().checked_add(patience);
    let left = || until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
    let mut call = Call::begin(shared, config, name)?;
    let name = match call.here.take() {
        Some(name) => name,
        None => return call.wait(left),
    };
    let socket = loop {
        if let Some(socket) = name.call()? {
            break socket;
        }
        if let Some(peer) = call.look()? {
            return Ok(peer);
        }
        let left = left();
        if left.is_zero() && call.is_over() {
            return Err(call.nobody(&name));
        }
        std::thread::sleep(if left.is_zero() { AGAIN } else { left.min(AGAIN) });
    };
    let hello = Greeting::Hello(shared.terms, config.name.clone().unwrap_or_default());
    let silent = || Error::Silent(name.to_string());
    // It may have hung up already, and have said why.
    let _ = hello.send(&socket, None);
    let mut fds = Vec::new();
    let answered = answer(&socket, left().max(ANSWERED), &mut fds);
    let memory = fds.pop().map(Arc::new);
    forget(fds);
    let met = match (answered, &memory) {
        (Ok(Some(Greeting::Welcome(terms))), Some(memory)) => {
            let len = memory_len(terms, shared.terms);
            Region::map_guarded(Arc::clone(memory), len, Protection::ReadWrite)
                .map_err(Error::from)
                .and_then(|region| Ok((terms, region, caller(&socket)?)))
        }
        (Ok(Some(Greeting::Refused(why))), _) => Err(Error::Refused(name.to_string(), why)),
        _ => Err(silent()),
    };
    let (terms, region, caller) = match met {
        Ok(met) => met,
        Err(error) => {
            forget(memory.and_then(Arc::into_inner).into_iter().chain([socket]));
            return Err(error);
        }
    };
    shared.with(|state| {
        if state.count() >= config.peers as usize {
            forget([socket]);
            return Err(Error::Full(config.peers));
        }
        let whose = (name.text.clone(), caller);
        state.join((region.window(), Side::Taker, terms), socket, whose, true).map_err(|_| silent())
    })
}

/// Closes what another one has sent, or what it may lie in: that may take as long as that one likes, and who has called does not wait for it.
fn forget(fds: impl IntoIterator<Item = OwnedFd>) {
    let mut closer = Closer::default();
    fds.into_iter().for_each(|fd| closer.close(fd));
}

/// Waits for an answer. `Ok(None)`: there was none in time.
fn answer(socket: &OwnedFd, patience: Duration, fds: &mut Vec<OwnedFd>) -> Result<Option<Greeting>, Errno> {
    /// Of one call.
    const LONGEST: Duration = Duration::from_secs(3600);
    let begin = Instant::now();
    loop {
        if let Some(answer) = Greeting::receive(socket, fds)? {
            return Ok(Some(answer));
        }
        let left = patience.saturating_sub(begin.elapsed()).min(LONGEST);
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Who calls and may is let in, or told why not. The socket comes back if it is not used.
pub fn welcome<B: Buffer>(
    shared: &Shared<B>,
    config: &Config,
    (socket, caller): (OwnedFd, Caller),
    (terms, name): (Terms, String),
) -> Option<OwnedFd> {
    let refuse = |socket: OwnedFd| {
        let _ = Greeting::Refused(Refusal::Full).send(&socket, None);
        Some(socket)
    };
    // One other user has a quarter of the places, so that something is left to everybody; and none while what he may have sent cannot be closed.
    let is_other = caller.user != geteuid().as_raw();
    let may_have = (config.peers as usize).div_ceil(4);
    let is_full = shared.with(|state| {
        state.count() >= config.peers as usize
            || is_other && (state.count_of(caller.user) >= may_have || state.has_much_to_close(caller.user))
    });
    if is_full {
        return refuse(socket);
    }
    // Sealed, so that nobody makes it shorter, and empty until it is written to.
    let Ok(memory) = Region::allocate(memory_len(shared.terms, terms), Pages::Ordinary) else {
        return refuse(socket);
    };
    shared.with(|state| {
        // This program may have called somebody meanwhile.
        if state.count() >= config.peers as usize {
            return refuse(socket);
        }
        // From now on it may give files in which messages are. An older system always lets it.
        let _ = take_descriptors(&socket);
        // Before it is joined: nothing else is said by this socket before.
        if Greeting::Welcome(shared.terms).send(&socket, memory.fd().as_ref().map(|fd| fd.as_fd())).is_err() {
            return Some(socket);
        }
        let _ = state.join((memory.window(), Side::Maker, terms), socket, (name, caller), false);
        None
    })
}
