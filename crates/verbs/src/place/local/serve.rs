//! What the helper thread does for other processes: answers those that call, and sees who has ended. It waits for nobody in particular.

use super::{Said, files, name};
use crate::boundary::Kept;
use crate::place::Place;
use crate::place::tap::{Batch, Tap};
use millrace_served::{Closer, bell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::Pid;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls that have not greeted yet.
const MOST_CALLS: usize = 16;
/// Of one process: it has one session with this one, and needs no more.
const MOST_OF_ONE: usize = 4;
/// Calls that are accepted at once: other users, who are hung up on, may call without end.
const ACCEPTED: usize = 64;
/// Sockets of other users that may wait to be closed before nobody is let in.
const MOST_STRANGERS: usize = 64;
/// How long they may take.
const GREETING: Duration = Duration::from_millis(500);
/// How long a process may take from closing its socket to having ended; and how often it is looked at meanwhile.
const DYING: Duration = Duration::from_millis(50);
const GLANCE: Duration = Duration::from_millis(2);
/// How often it is looked whether there are packets for `millrace rdma capture`, and messages to it at one look.
const CAPTURE: Duration = Duration::from_millis(1);
const MESSAGES: usize = 128;

/// What the helper thread looks at.
pub struct Serving {
    bell: Arc<OwnedFd>,
    listener: Kept,
    calls: Vec<(Arc<Kept>, Instant, Option<Pid>)>,
    /// Closes sockets of other users, with what they have sent: that takes as long as they like.
    strangers: Closer,
    sessions: Vec<Watched>,
    generation: u64,
    capture: Option<Batch>,
}

struct Watched {
    place: usize,
    link: Arc<Kept>,
    ended: Option<Arc<OwnedFd>>,
    /// When it was seen that it has closed its socket.
    hung_up: Option<Instant>,
}

impl Serving {
    /// `listener`: the socket of this process.
    pub fn new(bell: Arc<OwnedFd>, listener: Kept) -> Self {
        let strangers = Closer::default();
        Self { bell, listener, calls: Vec::new(), strangers, sessions: Vec::new(), generation: 0, capture: None }
    }

    /// Waits until something is to be looked at, or `more` is readable, at most `most`. Whether there was something.
    pub fn wait(&self, more: Option<&OwnedFd>, most: Duration) -> bool {
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        // Who calls waits while there are too many.
        if self.calls.len() < MOST_CALLS && !self.strangers.waits_for(MOST_STRANGERS) {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.calls.iter().map(|(link, ..)| PollFd::new(&**link, PollFlags::IN | PollFlags::RDHUP)));
        for watched in &self.sessions {
            // Which stays readable when it is closed.
            if watched.hung_up.is_none() {
                fds.push(PollFd::new(&*watched.link, PollFlags::IN | PollFlags::RDHUP));
            }
            fds.extend(watched.ended.iter().map(|ended| PollFd::new(&**ended, PollFlags::IN)));
        }
        if let Some(capture) = &self.capture {
            let room = if capture.is_sent() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::new(capture.link(), PollFlags::RDHUP | room));
        }
        fds.extend(more.map(|more| PollFd::new(more, PollFlags::IN)));
        let is_dying = self.sessions.iter().any(|watched| watched.hung_up.is_some());
        let most = if is_dying { most.min(GLANCE) } else { most };
        let most = if self.capture.is_some() { most.min(CAPTURE) } else { most };
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        !matches!(poll(&mut fds, Some(&most)), Ok(0) | Err(_)) || is_dying
    }

    /// Answers, and takes away what has ended.
    pub fn serve(&mut self, place: &Place) {
        bell::heard(&*self.bell);
        self.accept();
        let Some(meeting) = place.meeting() else { return };
        let now = Instant::now();
        let capture = &mut self.capture;
        self.calls.retain(|(link, until, _)| match meeting.welcome(place, link) {
            Ok(Said::Nothing) => now < *until,
            Ok(Said::All) => false,
            Ok(Said::Capture) => {
                // One at a time: others are hung up on.
                if capture.is_none() {
                    *capture = begin_capture(place, link);
                }
                false
            }
            // It is hung up on, and sends frames.
            Err(_) => false,
        });
        self.look(place);
        let _ = place.with(|running| {
            self.sessions.iter().for_each(|watched| files::answer(running, watched.place));
            Ok(())
        });
        for watched in &mut self.sessions {
            let Some(has_ended) = watched.has_ended(now) else { continue };
            let _ = place.with(|running| {
                let session = (watched.place, &watched.link);
                running.sessions.remove(&mut running.engine, session, place.now(), has_ended);
                running.tell_all();
                Ok(())
            });
        }
        self.look(place);
    }

    /// Passes packets on to who captures them. Never waits for him.
    pub fn pass_on(&mut self, place: &Place) {
        let Some(capture) = &mut self.capture else { return };
        let found = place.with(|running| Ok((capture.refill(running), running.sessions.tap.is_some())));
        let (has_more, goes_on) = found.unwrap_or((false, false));
        let is_sent = !has_more || matches!(capture.send(MESSAGES), Ok(()) | Err(Errno::AGAIN | Errno::INTR));
        // Without a tap the last context was closed: whoever opens another one is to be asked again.
        if !is_sent || !goes_on || capture.is_over() {
            self.capture = None;
            let _ = place.with(|running| {
                running.sessions.tap = None;
                Ok(())
            });
        }
    }

    /// The place has gone. What was taken from it is passed on as far as there is room.
    pub fn end(self) {
        if let Some(mut capture) = self.capture.filter(|capture| !capture.is_sent()) {
            let _ = capture.send(usize::MAX);
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            if self.calls.len() >= MOST_CALLS || self.strangers.waits_for(MOST_STRANGERS) {
                return;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                // Other users take no place, nor does who has called and says nothing. Without room it is hung up on.
                Ok(link) => {
                    let until = Instant::now() + GREETING;
                    let of_one = |pid| self.calls.iter().filter(|(.., other)| *other == pid).count();
                    match name::same_user(&link) {
                        Ok(pid) if of_one(pid) < MOST_OF_ONE => {
                            self.calls.extend(Kept::new(link).map(|link| (Arc::new(link), until, pid)));
                        }
                        Ok(_) => {}
                        Err(_) => self.strangers.close(link),
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Which sessions there are now.
    pub fn look(&mut self, place: &Place) {
        let generation = self.generation;
        let found = place.with(|running| {
            let sessions = &running.sessions;
            let is_new = sessions.generation != generation;
            let watched = |(place, session): (usize, &super::session::Session)| Watched {
                place,
                link: session.link.clone(),
                ended: session.ended.clone(),
                hung_up: None,
            };
            Ok(is_new.then(|| (sessions.generation, sessions.iter().map(watched).collect())))
        });
        if let Ok(Some((generation, sessions))) = found {
            (self.generation, self.sessions) = (generation, sessions);
        }
    }
}

/// From now on packets are kept for the one at that socket. He is told which end this is.
fn begin_capture(place: &Place, link: &Arc<Kept>) -> Option<Batch> {
    let mut batch = Batch::new(link.clone(), place.address().mac);
    // There is room: nothing was sent by this socket before.
    batch.send(1).ok()?;
    let tap = Box::new(Tap::new(link.clone()));
    let kept = place.with(|running| {
        running.sessions.tap = Some(tap);
        Ok(())
    });
    kept.ok().map(|()| batch)
}

impl Watched {
    /// `None`: it is there. Otherwise whether its process has ended, or has only hung up.
    fn has_ended(&mut self, now: Instant) -> Option<bool> {
        let is_ready = |fd: PollFd<'_>| {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            matches!(poll(&mut [fd], Some(&at_once)), Ok(1))
        };
        if self.ended.as_ref().is_some_and(|ended| is_ready(PollFd::new(&**ended, PollFlags::IN))) {
            return Some(true);
        }
        if self.hung_up.is_none() && is_ready(PollFd::new(&*self.link, PollFlags::RDHUP)) {
            self.hung_up = Some(now);
        }
        let is_dying = |since: Instant| self.ended.is_some() && now.duration_since(since) < DYING;
        self.hung_up.filter(|since| !is_dying(*since)).map(|_| false)
    }
}
