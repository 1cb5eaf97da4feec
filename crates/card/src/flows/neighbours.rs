//! The slow path: a thread that finds neighbours of tunnels and speaks ARP and ND for the card. It begins when a rule first needs
//! it.

use super::now_ns;
use crate::card::Card;
use crate::command::Command;
use crate::mailbox::Mailbox;
use crate::shard::{Brought, SlowSide, cross_slowly};
use millrace_flow::neighbour::{MOST_NEIGHBOURS, MOST_OF_USERS, Neighbour, Own, Published, Refused, Resolver};
use millrace_flow::rule::Rule;
use millrace_flow::version::Op;
use millrace_packet::parse::MacAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most frames between two looks at what is due, and most that are taken without a pause after it was quiet.
const AT_ONCE: usize = 256;
/// Frames for each [`PAUSE`]: whoever brings more has them wait, so that nobody makes the thread take a core.
const REFILL: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// Addresses of the card that rules need neighbours for, and how many rules each.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    rules: BTreeMap<Own, usize>,
    changed: bool,
}

impl Tunnels {
    /// Takes down what was done to rules.
    pub fn note(&mut self, steps: &[Op]) {
        for step in steps {
            match step {
                Op::Insert(rule) => self.add(rule),
                Op::Remove(rule) => self.remove(rule),
                Op::Swap { old, new } => {
                    self.add(new);
                    self.remove(old);
                }
                _ => {}
            }
        }
    }

    fn add(&mut self, rule: &Rule) {
        for own in Own::of(&rule.spec.actions) {
            let count = self.rules.entry(own).or_default();
            *count += 1;
            self.changed |= *count == 1;
        }
    }

    fn remove(&mut self, rule: &Rule) {
        for own in Own::of(&rule.spec.actions) {
            if let Some(count) = self.rules.get_mut(&own) {
                *count -= 1;
                if *count == 0 {
                    self.rules.remove(&own);
                    self.changed = true;
                }
            }
        }
    }

    /// The addresses, if there are others than at the last call.
    pub fn take(&mut self) -> Option<Vec<Own>> {
        std::mem::take(&mut self.changed).then(|| self.rules.keys().copied().collect())
    }
}

/// What the thread and the control side share.
struct Shared {
    resolver: Mutex<Resolver>,
    published: Published,
    dropped: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn resolver(&self) -> MutexGuard<'_, Resolver> {
        self.resolver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, resolver: &mut Resolver) {
        if let Some(table) = resolver.take_table() {
            self.published.store(table);
        }
        self.dropped.fetch_add(resolver.take_dropped(), Ordering::Relaxed);
    }
}

/// The neighbours of a card. Dropping it ends the thread.
pub(super) struct Neighbours {
    shared: Arc<Shared>,
    thread: Mutex<Option<(Arc<Mailbox>, JoinHandle<()>)>>,
}

impl Neighbours {
    pub fn new() -> Self {
        // Others see it: it only has to be another than that of the next card. Each state has keys of its own.
        let [_, _, a, b, c, d, ..] = RandomState::new().hash_one(0).to_be_bytes();
        let base = MacAddress([2, a, b, c, d, 0]);
        let shared = Shared {
            resolver: Mutex::new(Resolver::new(base)),
            published: Published::default(),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Frames that were dropped because their neighbour was not found, or because too many waited.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Does something to the resolver, and has the thread see to what comes of it.
    fn with<R>(&self, change: impl FnOnce(&mut Resolver) -> R) -> R {
        let mut resolver = self.shared.resolver();
        let result = change(&mut resolver);
        self.shared.publish(&mut resolver);
        drop(resolver);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.iter().for_each(|(mailbox, _)| mailbox.rouse());
        result
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some((mailbox, thread)) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            mailbox.rouse();
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Card {
    /// Has the addresses of tunnels answered for, from the first rule on that needs it.
    pub(super) fn settle_neighbours(&self) {
        let Some(own) = self.flows.state().tunnels.take() else { return };
        if !own.is_empty() {
            self.start_slow_path();
        }
        self.flows.neighbours.with(|resolver| resolver.set_own(own));
    }

    fn start_slow_path(&self) {
        let mut thread = self.flows.neighbours.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return;
        }
        let workers = self.affinity().mailboxes();
        let started = Mailbox::new(workers.len()).map_err(std::io::Error::from).and_then(|mailbox| {
            let mailbox = Arc::new(mailbox);
            let shared = self.flows.neighbours.shared.clone();
            let (ends, side) = cross_slowly(workers, &mailbox, &shared.published);
            let own = mailbox.clone();
            let builder = std::thread::Builder::new().name("millrace-slow".to_owned());
            let handle = builder.spawn(move || run(&shared, side, &own))?;
            Ok((mailbox, handle, ends))
        });
        match started {
            Ok((mailbox, handle, ends)) => {
                for (worker, ends) in workers.iter().zip(ends) {
                    drop(worker.ask(Command::Neighbours(Box::new(ends))));
                }
                *thread = Some((mailbox, handle));
            }
            Err(error) => tracing::error!(%error, "nobody finds neighbours of tunnels: there is no thread for it"),
        }
    }

    /// Neighbours of tunnels, in order.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        self.flows.neighbours.shared.resolver().list(now_ns())
    }

    /// Says where a neighbour of tunnels is, for ever. `by` is the user who says so; `None`: one who may do everything.
    ///
    /// # Errors
    /// What is wrong with it; `None`: somebody else has said where it is.
    pub fn add_neighbour(
        &self,
        address: IpAddr,
        mac: [u8; 6],
        port: u32,
        by: Option<u32>,
    ) -> Result<(), Option<String>> {
        let mac = MacAddress(mac);
        let count = self.ports.len();
        let Some(port) = u16::try_from(port).ok().filter(|port| usize::from(*port) < count) else {
            return Err(Some(format!("there is no port {port}: the card has {count}")));
        };
        if mac.0[0] & 1 != 0 || mac.0 == [0; 6] {
            return Err(Some(format!("{mac} is not the address of one host")));
        }
        let most = if by.is_some() { MOST_OF_USERS } else { MOST_NEIGHBOURS };
        let added = self.flows.neighbours.with(|resolver| resolver.add(now_ns(), address, mac, port, by));
        added.map_err(|refused| match refused {
            Refused::Full => Some(format!("there are {most} neighbours, and no room for more")),
            Refused::Foreign => None,
        })
    }

    /// Sends a frame within a tunnel, with zeros for MAC addresses, out of a port once its neighbour is known. What has another source than that of
    /// a tunnel of some rule is dropped, and counted as what waits too long is.
    ///
    /// # Errors
    /// There is no such port.
    pub fn send_in_tunnel(&self, port: u32, frame: Vec<u8>) -> Result<(), String> {
        let count = self.ports.len();
        let Some(port) = u16::try_from(port).ok().filter(|port| usize::from(*port) < count) else {
            return Err(format!("there is no port {port}: the card has {count}"));
        };
        self.flows.neighbours.with(|resolver| resolver.send(now_ns(), (port, 0), frame));
        Ok(())
    }

    /// Forgets a neighbour. `false`: there is none of that address; `None`: somebody else has said where it is. `by` is as with
    /// [`Card::add_neighbour`].
    pub fn delete_neighbour(&self, address: IpAddr, by: Option<u32>) -> Option<bool> {
        self.flows.neighbours.with(|resolver| resolver.delete(address, by)).ok()
    }
}

/// How many frames may be taken now.
struct Allowance {
    left: usize,
    /// When it was filled last.
    at: u64,
}

impl Allowance {
    fn new(now: u64) -> Self {
        Self { left: AT_ONCE, at: now }
    }

    /// What there is at this time.
    fn fill(&mut self, now: u64) -> usize {
        let pauses = now.saturating_sub(self.at) / PAUSE.as_nanos() as u64;
        self.at += pauses * PAUSE.as_nanos() as u64;
        let more = usize::try_from(pauses).unwrap_or(usize::MAX).saturating_mul(REFILL);
        self.left = self.left.saturating_add(more).min(AT_ONCE);
        self.left
    }

    fn take(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
    }
}

fn run(shared: &Shared, mut side: SlowSide, mailbox: &Mailbox) {
    let mut allowance = Allowance::new(now_ns());
    while !shared.stop.load(Ordering::Acquire) {
        let mut resolver = shared.resolver();
        let now = now_ns();
        let brought = side.receive(allowance.fill(now), |brought| match brought {
            Brought::Waits(port, frame) => resolver.send(now, port, frame),
            Brought::Heard(port, frame) => resolver.hear(now, port, &frame),
        });
        allowance.take(brought);
        resolver.tick(now);
        let (out, due) = (resolver.take_out(), resolver.next_due());
        // What has waited goes before what workers send by themselves.
        let lost = out.iter().filter(|out| !side.send(out.port, &out.frame)).count();
        shared.publish(&mut resolver);
        drop(resolver);
        shared.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        if allowance.left == 0 {
            std::thread::sleep(PAUSE);
        } else if brought == 0 && out.is_empty() && side.fall_asleep() {
            sleep(mailbox, due.map(|due| due.saturating_sub(now)));
            side.awake();
        }
    }
}

/// Until somebody wakes it, or so many nanoseconds are over.
fn sleep(mailbox: &Mailbox, left: Option<u64>) {
    let timeout = left.and_then(|left| Timespec::try_from(Duration::from_nanos(left.max(1))).ok());
    let mut fds = [PollFd::new(&mailbox.wake, PollFlags::IN)];
    // An interruption is as good as a wake-up.
    if poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::read(&mailbox.wake, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_so_many_turns_and_no_more() {
        let mut allowance = Allowance::new(5);
        let pause = PAUSE.as_nanos() as u64;
        assert_eq!(allowance.fill(5), AT_ONCE);
        allowance.take(AT_ONCE + 1);
        assert_eq!([5, 4 + pause, 5 + pause, 5 + pause].map(|now| allowance.fill(now)), [0, 0, REFILL, REFILL]);
        allowance.take(REFILL);
        let taken: usize = (0..1000)
            .map(|at| {
                let left = allowance.fill(5 + pause + at * pause / 10);
                allowance.take(left);
                left
            })
            .sum();
        assert!(taken <= 100 * REFILL, "{taken}");
        assert_eq!(allowance.fill(u64::MAX), AT_ONCE);
    }
}
