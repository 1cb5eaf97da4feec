//! The thread of an endpoint: it answers who calls, learns who has gone, and moves messages on while the program computes or sleeps.

use super::between;
use super::closer::Closer;
use super::error::Refusal;
use super::meet::welcome;
use super::name::{Caller, caller};
use super::record::Greeting;
use super::state::{State, was_woken};
use super::{Config, Shared};
use crate::buffer::Buffer;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the program may not have moved things on before this thread takes over.
const PATIENCE: Duration = Duration::from_micros(100);
/// How long it looks on when something has come, at most.
const LINGER: Duration = Duration::from_micros(200);
/// How long it does so without looking at anything else: what comes without end is not to keep others from being let in.
const TURN: Duration = Duration::from_millis(1);
/// The longest pause while the program moves things on, or something is left to do that cannot be done.
const LONGEST: Duration = Duration::from_millis(1);
/// How often time goes on, for those who keep buffers that others want.
const TICK: Duration = Duration::from_millis(100);
/// How long nobody is listened to before it is looked again whether there is room.
const DEAF: Duration = Duration::from_millis(10);
/// Calls that have not greeted yet; those of one process; how long they may take; and how many are accepted at once.
const MOST_CALLS: usize = 16;
const MOST_OF_ONE: usize = 4;
/// Those of one other user, and of all of them together.
const MOST_OF_USER: usize = 4;
const MOST_OF_OTHERS: usize = 12;
const GREETING: Duration = Duration::from_millis(500);
const ACCEPTED: usize = 64;

/// The keys of the two that are no pairs; those of calls are below 2^32 too. Those of pairs are multiples of 2^32, those of rails the others.
const LISTENER: u64 = 0;
pub const WAKER: u64 = 1;

struct Call {
    socket: OwnedFd,
    until: Instant,
    caller: Caller,
}

struct Helper<B: Buffer> {
    shared: Arc<Shared<B>>,
    config: Arc<Config>,
    listener: Option<OwnedFd>,
    is_listening: bool,
    calls: BTreeMap<u64, Call>,
    next: u64,
    /// Of those who are not let in, and of other users who are.
    closer: Closer,
}

/// Starts it; it ends when the endpoint is closed.
pub fn start<B: Buffer>(
    shared: Arc<Shared<B>>,
    config: Arc<Config>,
    listener: Option<OwnedFd>,
) -> io::Result<JoinHandle<()>> {
    let mut helper = Helper {
        shared,
        config,
        listener,
        is_listening: false,
        calls: BTreeMap::new(),
        next: WAKER + 1,
        closer: Closer::default(),
    };
    helper.listen();
    thread::Builder::new().name("millrace-message".to_owned()).spawn(move || helper.run())
}

impl<B: Buffer> Helper<B> {
    fn run(mut self) {
        let (mut seen, mut pause) = (0, Some(PATIENCE));
        let mut ticked = Instant::now();
        loop {
            let is_called = self.serve(pause);
            if self.shared.is_closed() {
                return;
            }
            self.shared.call_back();
            let mut state = match self.shared.try_lock() {
                Ok(state) => state,
                // The program is about it.
                Err(TryLockError::WouldBlock) if self.config.waiters_work => {
                    pause = Some(PATIENCE);
                    continue;
                }
                Err(TryLockError::WouldBlock) => self.shared.lock(),
                Err(TryLockError::Poisoned(state)) => state.into_inner(),
            };
            state.is_asleep = false;
            if state.ticks() && ticked.elapsed() >= TICK {
                ticked = Instant::now();
                state.local.tick();
            }
            if state.calls != seen && state.sleepers == 0 && !state.is_watched() {
                // The program looks itself.
                seen = state.calls;
                let longer = pause.map_or(LONGEST, |pause| (pause * 2).min(LONGEST));
                pause = Some(if is_called { PATIENCE } else { longer });
                continue;
            }
            seen = state.calls;
            drop(state);
            self.look_on(seen);
            pause = self.shared.with(|state| sleep(state, pause));
            if !self.calls.is_empty() {
                pause = Some(pause.unwrap_or(TICK).min(TICK));
            }
            if self.listener.is_some() && !self.is_listening {
                // Nobody tells this thread when sockets have been closed.
                pause = Some(pause.unwrap_or(DEAF).min(DEAF));
            }
        }
    }

    /// Moves messages on while something comes and the program does not do it.
    fn look_on(&self, seen: u64) {
        let begin = Instant::now();
        let (linger, mut last) = (LINGER.min(self.config.spin), begin);
        while begin.elapsed() < TURN && !self.shared.is_closed() {
            let (state, has_moved) = self.shared.progress(self.shared.lock());
            let calls = state.calls;
            drop(state);
            if has_moved {
                last = Instant::now();
            }
            if calls != seen || !has_moved && last.elapsed() >= linger {
                return;
            }
            thread::yield_now();
        }
    }

    /// Waits until something is to be looked at, and looks. Whether there was something.
    fn serve(&mut self, pause: Option<Duration>) -> bool {
        let most = pause.map(|pause| Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() });
        let mut events: Vec<Event> = Vec::with_capacity(16);
        let shared = self.shared.clone();
        if epoll::wait(&shared.epoll, spare_capacity(&mut events), most.as_ref()).is_err() {
            return false;
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKER => was_woken(&shared.waker),
                key if key <= u64::from(u32::MAX) => self.hear(key),
                key if key as u32 != 0 => shared.with(|state| between::rung(state, key)),
                key => shared.with(|state| {
                    if let Some(pair) = state.of_key(key) {
                        state.look(pair);
                    }
                }),
            }
        }
        let now = Instant::now();
        let late: Vec<u64> = self.calls.iter().filter(|(_, call)| now >= call.until).map(|(key, _)| *key).collect();
        for key in late {
            // It may be this thread that was late.
            self.hear(key);
            if let Some(Call { socket, .. }) = self.calls.remove(&key) {
                self.closer.hang_up(socket);
            }
        }
        self.listen();
        !events.is_empty()
    }

    /// Who calls waits while there are too many.
    fn listen(&mut self) {
        let Some(listener) = &self.listener else { return };
        let may = self.calls.len() < MOST_CALLS && !self.closer.is_full();
        if may && !self.is_listening {
            let added = epoll::add(&self.shared.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN);
            self.is_listening = added.is_ok();
        } else if !may && self.is_listening {
            self.is_listening = epoll::delete(&self.shared.epoll, listener).is_err();
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTED {
            if self.calls.len() >= MOST_CALLS || self.closer.is_full() {
                return;
            }
            let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            let Ok(caller) = caller(&socket) else { continue };
            // Who may not takes no place; and what he has sent lies in the socket.
            if !self.config.users.may(caller.user) {
                let _ = Greeting::Refused(Refusal::User).send(&socket, None);
                self.closer.hang_up(socket);
                continue;
            }
            // Who has called and says nothing is hung up on, and so is who does so too often.
            let of_one = self.calls.values().filter(|call| call.caller == caller).count();
            let key = EventData::new_u64(self.next);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            let own = |call: &Call| call.caller.user == geteuid().as_raw();
            let is_other = caller.user != geteuid().as_raw();
            let of_user = self.calls.values().filter(|call| call.caller.user == caller.user).count();
            let of_others = self.calls.values().filter(|call| !own(call)).count();
            let is_too_many = is_other && (of_user >= MOST_OF_USER || of_others >= MOST_OF_OTHERS);
            if is_too_many || of_one >= MOST_OF_ONE || epoll::add(&self.shared.epoll, &socket, key, flags).is_err() {
                self.closer.hang_up(socket);
                continue;
            }
            let until = Instant::now() + GREETING;
            self.calls.insert(self.next, Call { socket, until, caller });
            self.next = (self.next + 1) & u64::from(u32::MAX);
            self.next = self.next.max(WAKER + 1);
        }
    }

    /// One who has called has said something.
    fn hear(&mut self, key: u64) {
        let Some(call) = self.calls.get(&key) else { return };
        let mut fds = Vec::new();
        let greeting = Greeting::receive(&call.socket, &mut fds);
        if matches!(greeting, Ok(None)) {
            return;
        }
        let Some(Call { socket, caller, .. }) = self.calls.remove(&key) else { return };
        let _ = epoll::delete(&self.shared.epoll, &socket);
        let left = match greeting {
            Ok(Some(Greeting::Hello(terms, name))) if fds.is_empty() => {
                welcome(&self.shared, &self.config, (socket, caller), (terms, name))
            }
            Err(Errno::BADMSG) => {
                let _ = Greeting::Refused(Refusal::Version).send(&socket, None);
                Some(socket)
            }
            _ => Some(socket),
        };
        left.into_iter().for_each(|socket| self.closer.hang_up(socket));
        fds.into_iter().for_each(|fd| self.closer.close(fd));
    }
}

/// How long the helper may sleep; others ring. `None`: until somebody does.
fn sleep<B: Buffer>(state: &mut State<B>, before: Option<Duration>) -> Option<Duration> {
    if !state.doze() {
        // Something has come; or something cannot be said, because somebody does not listen.
        let longer = before.unwrap_or(PATIENCE) * 2;
        return Some(if state.local.has_work() { longer.clamp(PATIENCE, LONGEST) } else { Duration::ZERO });
    }
    state.is_asleep = true;
    state.is_ticking = state.ticks();
    state.is_ticking.then_some(TICK)
}
