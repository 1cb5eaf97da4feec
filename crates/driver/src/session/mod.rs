//! One open queue: its memory, who has it open, and what the card is told when it starts and stops.
//!
//! Exclusive direct queues belong to their program: it writes descriptors and doorbell. All others the driver drives:
//! a `Reclaimer` on the card's worker gives an RX ring back at the pace of its subscribers, and mediated writers of a
//! TX ring take turns under a lock. A direct writer of a shared TX queue has a ring of its own beside that one: it can
//! harm no other, and the card's worker gives the rings their turns.
//!
//! * `wish`: what a program asks for; `page`, `own_ring`: what a member has; `error`: why not.
//! * `start`, `stop`: what the card is told. `driven`: the driver's half of a ring; `mediated`: who asks
//!   it to go on.

mod driven;
mod error;
mod mediated;
mod own_ring;
mod page;
mod start;
mod stop;
mod wish;

pub(crate) use error::SessionError;
pub(crate) use page::Kick;
pub(crate) use wish::Wish;

use crate::memory::QueueMemory;
use crate::protocol::{QueueProtocol, protocol};
use crate::registers::Registers;
use driven::Driven;
use millrace_abi::control::PAGE_SIZE;
use millrace_abi::message::{Handle, Layout, Reply};
use millrace_abi::queue::{Direction, Engine, Joiners, Laggard, MAX_SUBSCRIBERS, Mode, QueueId, Sharing};
use millrace_card::{Card, LentPool};
use millrace_dma::{Domain, Iova, Region};
use millrace_ring::shared::{Losses, Reader};
use own_ring::OwnRing;
use page::Page;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Which program, and which of its queues.
pub(crate) type Key = (u64, Handle);

/// How long to wait for the card to let go of memory.
const UNMAP_TIMEOUT: Duration = Duration::from_secs(2);

/// One program that has the queue open.
struct Member {
    key: Key,
    pid: u32,
    uid: u32,
    id: u32,
    mode: Mode,
    policy: Laggard,
    page: Page,
    started: bool,
    losses: Arc<Losses>,
    // Mediated RX: the driver reads on the program's behalf.
    reader: Option<Reader>,
    // Direct TX of a shared queue.
    ring: Option<OwnRing>,
}

/// One open queue.
pub(crate) struct Session {
    pub id: QueueId,
    engine: Engine,
    exclusive: bool,
    // What the first opener lets those choose who join; None: anything but making others wait, which programs of the
    // same user may too.
    joiners: Option<Joiners>,
    // The first opener's user.
    uid: Option<u32>,
    memory: QueueMemory,
    domain: Arc<Domain>,
    members: Vec<Member>,
    // None: exclusive and direct.
    driven: Option<Driven>,
    // The program's pool, for a port that can work on it.
    pool: Option<LentPool>,
    running: bool,
    base: u64,
    next_member: u32,
    limits: (u16, u16),
}

impl Session {
    /// Opens a queue that nobody has open. `domain` is the program's, for a queue of its own, and `mapped` what the
    /// program has mapped there.
    pub fn open(
        card: &Card,
        engine: Engine,
        wish: Wish,
        domain: &Arc<Domain>,
        mapped: &HashMap<u64, Region>,
    ) -> Result<Self, SessionError> {
        wish.check(engine)?;
        let pool = wish.pool(domain, mapped)?;
        card.forget_launch_policy(wish.id);
        let exclusive = wish.sharing == Sharing::Exclusive;
        let own = exclusive && wish.mode == Mode::Direct;
        let domain = if own { domain.clone() } else { Arc::new(Domain::new()) };
        let mut memory = protocol(engine).allocate(wish.id, card.options(), wish.buffers, &domain)?;
        let driven = if own { None } else { Some(Driven { page: Page::own()?, writer: None, lock: None }) };
        if driven.is_some() {
            memory.keep_descriptors();
        }
        Ok(Self {
            id: wish.id,
            engine,
            exclusive,
            joiners: wish.joiners,
            uid: None,
            memory,
            domain,
            members: Vec::new(),
            driven,
            pool,
            running: false,
            base: 0,
            next_member: 1,
            limits: (card.options().frame_min as u16, card.options().frame_max as u16),
        })
    }

    fn protocol(&self) -> &'static dyn QueueProtocol {
        protocol(self.engine)
    }

    fn registers<'c>(&self, card: &'c Card) -> Registers<'c> {
        Registers { card, id: self.id }
    }

    /// Adds a program; the first one, or one more of a shared queue.
    pub fn add(
        &mut self,
        card: &Card,
        wish: Wish,
        key: Key,
        (pid, uid): (u32, u32),
        kick: Kick,
    ) -> Result<(), SessionError> {
        wish.check(self.engine)?;
        if let Some(holder) = self.members.first() {
            let (id, pid) = (self.id, holder.pid);
            if self.exclusive {
                return Err(SessionError::Held { id, pid });
            }
            if wish.sharing == Sharing::Exclusive {
                return Err(SessionError::Shared { id, pid });
            }
        }
        if self.members.len() >= MAX_SUBSCRIBERS {
            return Err(SessionError::Full(self.id));
        }
        let strangers = self.members.iter().filter(|member| Some(member.uid) != self.uid).count();
        if self.uid.is_some_and(|first| first != uid) && strangers >= MAX_SUBSCRIBERS / 2 {
            return Err(SessionError::FullOfOthers(self.id));
        }
        let policy = if let Sharing::Shared(policy) = wish.sharing { policy } else { Laggard::Block };
        self.admit(uid, policy)?;
        let id = self.next_member;
        self.next_member += 1;
        let (page, losses) = (Page::new(Some(kick))?, Arc::default());
        let ring = wish.has_own_ring().then(|| OwnRing::new(wish.id, self.engine, card)).transpose()?;
        let (started, reader) = (false, None);
        self.members.push(Member { key, pid, uid, id, mode: wish.mode, policy, page, started, losses, reader, ring });
        Ok(())
    }

    /// Whether a program of this user may join with this policy, if somebody else has opened the queue before.
    fn admit(&mut self, uid: u32, policy: Laggard) -> Result<(), SessionError> {
        let first = *self.uid.get_or_insert(uid);
        // Writers of a TX queue wait for nobody who only has it open.
        if self.members.is_empty() || self.id.direction == Direction::Tx {
            return Ok(());
        }
        let allowed = match self.joiners {
            Some(joiners) => joiners.allow(policy),
            None => policy != Laggard::Block || uid == first,
        };
        let pid = self.members[0].pid;
        if allowed { Ok(()) } else { Err(SessionError::Joiner { id: self.id, policy, pid }) }
    }

    /// The connection that has the queue for itself and drives it; `None`: the driver does.
    pub fn owner(&self) -> Option<u64> {
        if self.driven.is_some() { None } else { self.members.first().map(|member| member.key.0) }
    }

    /// Bytes of memory that an opener has a part in: of the queue, of its ring and of its page.
    pub fn memory_of(&self, key: Key) -> u64 {
        let ring = self.members.iter().find(|member| member.key == key).and_then(|member| member.ring.as_ref());
        self.memory.bytes() + ring.map_or(0, |ring| ring.memory.bytes()) + PAGE_SIZE as u64
    }

    /// The answer to an open, with the fds that belong to it.
    pub fn opened(&self, key: Key) -> Option<(Reply, Vec<BorrowedFd<'_>>)> {
        let member = self.members.iter().find(|member| member.key == key)?;
        let kick = member.page.kick.as_ref()?;
        let mut fds = vec![member.page.region.fd()?, kick.fd.as_fd()];
        let memory = member.ring.as_ref().map_or(&self.memory, |ring| &ring.memory);
        fds.push(memory.status.fd()?);
        if let Some(data) = &memory.data {
            fds.push(data.fd()?);
        }
        let own = self.driven.is_none() || member.ring.is_some();
        let mut layout = memory.layout;
        if let Layout::Medusa { descriptors_len, .. } | Layout::Calypte { descriptors_len, .. } = &mut layout {
            match &memory.descriptors {
                Some(descriptors) if own => fds.push(descriptors.fd()?),
                _ => *descriptors_len = 0,
            }
        }
        Some((Reply::Opened { handle: key.1, engine: self.engine, layout, kick: kick.number }, fds))
    }

    /// The answer has gone out. Nobody else will ever get a member's page and ring, nor the memory of an exclusive
    /// queue, so the fds of them can go, which would be too many for thousands of queues.
    pub fn handed_over(&mut self, key: Key) {
        if let Some(member) = self.members.iter_mut().find(|member| member.key == key) {
            member.page.region.close_fd();
            member.ring.iter_mut().for_each(|ring| ring.memory.close_fds());
        }
        if self.exclusive {
            self.memory.close_fds();
        }
    }

    /// What a program waits for that sleeps on the queue.
    pub fn new_call(&mut self, card: &Card, key: Key) -> Result<OwnedFd, SessionError> {
        let place = self.place(key)?;
        let member = &mut self.members[place];
        let theirs = member.page.new_call(member.uid)?;
        if member.started
            && let Some(call) = &member.page.call
        {
            card.set_call(self.id, member.id, call.clone());
        }
        Ok(theirs)
    }

    /// Process ids of all who have the queue open.
    pub fn holders(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.pid).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether somebody has started the queue and nobody has stopped it since; a fault may have.
    pub fn is_running(&self) -> bool {
        self.running
    }

    fn place(&self, key: Key) -> Result<usize, SessionError> {
        self.members.iter().position(|member| member.key == key).ok_or(SessionError::NotStarted(self.id))
    }

    /// Takes one program off the queue, in whatever state it is. Returns the position if the queue stopped.
    pub fn close(&mut self, card: &Card, key: Key) -> Option<u64> {
        let position = self.stop(card, key, true, None).ok().flatten();
        self.members.retain(|member| member.key != key);
        position
    }

    /// Takes the memory off the card. Nobody has the queue open any more.
    pub fn dissolve(self, card: &Card) {
        // One that does not run has nothing on the card; somebody else's may run there.
        if self.running {
            card.detach(self.id);
        }
        let mappings: Vec<Iova> = self.memory.mappings().collect();
        for iova in mappings {
            if let Err(error) = self.domain.unmap(iova, UNMAP_TIMEOUT, || card.pass_all()) {
                tracing::warn!(queue = %self.id, %error, "queue memory stays mapped");
            }
        }
    }
}
