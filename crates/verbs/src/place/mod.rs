//! The transport engine in this process, between the program and two queues of a card.
//!
//! ```text
//! ibv_post_send ---> engine ---> frames ---> TX queue --+
//! ibv_poll_cq  <---- engine <--- frames <--- RX queue <-+-- card
//! ```
//!
//! There is one for all contexts of a process: it has one address. Whoever posts or polls moves the protocol on, in his own
//! thread; when nobody does, a helper thread does.
//!
//! With `place=card` the engine is in the card, and with `split=` in a backend of the split driver; this process posts to it and polls (`card`, `door`), `arena`: its memory in pages of a transport.
//!
//! * `frames`: packets into frames. `memory`: keys. `running`: what moves.
//! * `local`: other processes of the same user on the same card, which are reached without frames.
//! * `stats`: what happened, in numbers. `stages`: what took how long. `events`: what programs sleep on. `helper`: the thread that takes over. `profile`: what
//!   programs are told of the device. `tap`: copies of packets for `millrace rdma capture`.

pub(crate) mod arena;
pub(crate) mod card;
mod door;
mod events;
mod frames;
mod helper;
mod local;
mod memory;
pub(crate) mod profile;
mod running;
mod stages;
mod stats;
mod tap;

pub(crate) use events::Events;
pub(crate) use local::share;
pub(crate) use running::{DEVICE_FATAL, Running, Told};

use crate::abi::AsyncEvent;
use crate::address::Address;
use crate::boundary::ticks;
use crate::config::Config;
use card::InCard;
use local::{Meeting, Serving};
use memory::Reach;
use millrace_link::Link;
pub(crate) use millrace_link::{LinkError, card as open_card};
use millrace_rdma::engine::{Engine, Options};
use millrace_rdma::local::Directory;
use millrace_rdma::memory::{Limits, MOST_SLOTS};
use millrace_rdma::neighbour::{Found, Neighbours};
use millrace_rdma::number::{Gid, Moment};
use rustix::io::Errno;
use stages::{Stage, Stages, stamp};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// Regions that there may be, and windows.
pub(crate) const MAX_REGIONS: u32 = (MOST_SLOTS / 2) as u32;

/// Bytes of a frame that are not payload, at most: Ethernet with a VLAN tag, a global route header, BTH, AtomicETH, immediate data,
/// padding, ICRC.
const OVERHEAD: usize = 18 + 40 + 12 + 28 + 4 + 3 + 4;

/// The other end is a thread that may have to wait for a core: hardware may take up to four times the timeout, too (volume 1, 9.7.6.1.3).
const MIN_TIMEOUT: Duration = Duration::from_millis(250);

/// Polls that find completions without moving the protocol on.
const MOST_SKIPPED: u32 = 32;
/// Polls that look only at what other processes of this host have sent, between two that look at the card, too.
const MOST_GLANCES: u32 = 3;

/// How long who waits for an event looks for it before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// The same with the engine in the card: who lets others work wants to sleep meanwhile.
const SPIN_BESIDE_CARD: Duration = Duration::from_micros(1);

/// How long it is asked for what the card has no room for just now, and how often.
const CROWDED: Duration = Duration::from_millis(500);
const CROWDED_PAUSE: Duration = Duration::from_millis(2);

/// How long the end of the process waits for a thread that is at work.
const AT_EXIT: Duration = Duration::from_millis(100);

/// How long a neighbour is asked for.
const RESOLVE: Duration = Duration::from_secs(3);

/// One end: an address, an engine, a link.
pub(crate) struct Place {
    config: Config,
    address: Address,
    options: Options,
    mtu: u16,
    began: Instant,
    /// How many times this process had been made by `fork` when it was opened: a child has its memory, and neither its threads
    /// nor its right to the queues.
    forks: u32,
    /// Contexts that are open. Relaxed: it orders nothing.
    contexts: AtomicU32,
    /// Polls in a row that found nothing. Relaxed: it orders nothing.
    idle: AtomicU32,
    /// After so many of them others get the core.
    patience: u32,
    /// Calls that have moved the protocol on; the helper sees by it whether somebody does. Relaxed: it orders nothing.
    polls: AtomicU64,
    running: Mutex<Running>,
    /// How other processes are met; none where that is switched off.
    meeting: Option<Meeting>,
    /// Polls in a row that found completions without moving the protocol on. Relaxed: it orders nothing.
    skipped: AtomicU32,
    /// Polls in a row that found nothing, and have not looked at the card. Relaxed: it orders nothing.
    glances: AtomicU32,
    /// Threads that sleep until an event comes. Relaxed: it orders nothing; who sleeps rings.
    sleepers: AtomicU32,
}

/// The place of this process, as long as a context is open.
static CURRENT: Mutex<Weak<Place>> = Mutex::new(Weak::new());

impl Place {
    /// That of this process, if a context is open.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The same; opens the card if none is.
    fn enter(config: &Config) -> Result<Arc<Self>, LinkError> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = current.upgrade().filter(|place| place.is_usable()) {
            return Ok(place);
        }
        let place = Arc::new(Self::open(config)?);
        if config.is_outside() {
            card::start(&place).map_err(|error| LinkError::Thread(error.to_string()))?;
        } else if config.helper {
            let serving = place.listen();
            helper::start(&place, serving).map_err(|error| LinkError::Thread(error.to_string()))?;
        }
        if config.report || config.stats.is_some() || config.profile.is_some() {
            crate::boundary::tell_at_exit();
        }
        *current = Arc::downgrade(&place);
        Ok(place)
    }

    fn open(config: &Config) -> Result<Self, LinkError> {
        if let (Some(port), None) = (&config.port, config.ip)
            && !config.is_outside()
        {
            return Err(LinkError::NoAddress(port.clone()));
        }
        let (link, card) = match config.is_outside() {
            true => (None, Some(InCard::open(config)?)),
            false => (Some(Link::open(&config.wanted())?), None),
        };
        let (longest, usual) = link.as_ref().map_or((usize::MAX, None), |link| (link.longest(), link.usual_mtu()));
        let mtu = match &card {
            Some(card) => in_card_mtu(config.mtu, card.mtu()),
            None => mtu(longest, config.mtu.or(usual))?,
        };
        let number = link.as_ref().map_or(0, Link::number);
        let address = card.as_ref().map_or_else(|| Address::new(config, number), InCard::address);
        if link.as_ref().is_some_and(Link::has_wire) && millrace_link::is_of_linux(address.ip) {
            crate::boundary::say(format_args!(
                "an interface of this host has the address {}, too. If it is on the same wire, both answer for it: other hosts lose Linux's end while \
                 this program runs, and answers go to the wrong one. Choose a free address of that network (ip=ADDRESS in MILLRACE_VERBS)",
                address.ip
            ));
        }
        // Of the random keys that the system gives every process.
        let seed = RandomState::new().hash_one(std::process::id());
        let options = Options {
            seed,
            extended: config.extended,
            datagram_mtu: mtu,
            min_timeout: MIN_TIMEOUT,
            ..Options::default()
        };
        let limit = MAX_REGIONS as usize;
        let limits =
            Limits { domains: options.max_objects as usize, regions: limit, windows: limit, ..Limits::default() };
        let meeting = meeting(config, link.as_ref().and_then(Link::card));
        let is_met = meeting.as_ref().is_some_and(Meeting::is_met);
        let adopt = if config.is_outside() { card::scope(config) } else { config.adopt.filter(|_| is_met) };
        let limits = Limits { adopt, ..limits };
        let mut memory = Reach::new(limits).map_err(|error| LinkError::Memory(error.to_string()))?;
        if is_met {
            let directory = Directory::new().map_err(|error| LinkError::Memory(error.to_string()))?;
            memory.regions.show_in(directory);
        }
        let mut running = Running::new(Engine::new(options, memory), link, card, address);
        running.stages = config.profile.as_ref().map(|_| Box::new(Stages::new()));
        let running = Mutex::new(running);
        let (began, polls, idle) = (Instant::now(), AtomicU64::new(0), AtomicU32::new(0));
        let (forks, patience) = (crate::boundary::forks(), patience());
        Ok(Self {
            config: config.clone(),
            address,
            options,
            mtu,
            began,
            forks,
            contexts: AtomicU32::new(0),
            idle,
            patience,
            polls,
            running,
            meeting,
            skipped: AtomicU32::new(0),
            glances: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        })
    }

    /// The socket at which others call. Without it they send frames, which is no error.
    fn listen(&self) -> Option<Serving> {
        let meeting = self.meeting.as_ref()?;
        match meeting.listen(self.address.mac) {
            Ok(listener) => Some(Serving::new(meeting.bell.clone(), listener)),
            Err(error) => {
                if meeting.is_met() {
                    crate::boundary::say(format_args!(
                        "programs of this host send frames, because this one has no socket: {error}"
                    ));
                }
                None
            }
        }
    }

    /// The process ends, and contexts are open: what was to be told at the end is told now. Not after a panic, nor if another
    /// thread is at work for longer than [`AT_EXIT`]: it ends with the process, and may be the one that called `exit`.
    pub fn finish_at_exit() {
        let Some(place) = Self::current() else { return };
        if place.contexts.load(Ordering::Relaxed) == 0 || place.is_inherited() {
            return;
        }
        let until = Instant::now() + AT_EXIT;
        loop {
            match place.running.try_lock() {
                Ok(mut running) => return place.finish(&mut running),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::yield_now(),
                Err(_) => return,
            }
        }
    }

    /// The last context is closed. What was answered last must still go: the other end would wait for it until its retries are
    /// over. The helper thread may keep the place for a moment longer, so this is not left to its end.
    fn finish(&self, running: &mut Running) {
        running.progress(self.now());
        tap::finish(running, self.address.mac);
        if self.config.report {
            crate::boundary::say(running.report());
        }
        let told = running.stages.as_ref().map(|stages| stages.json());
        let stats = self.config.stats.as_ref().map(|file| ("stats", file, stats::json(running)));
        let stages = self.config.profile.as_ref().zip(told).map(|(file, told)| ("profile", file, told));
        for (option, file, text) in stats.into_iter().chain(stages) {
            if let Err(error) = std::fs::write(file, text + "\n") {
                crate::boundary::say(format_args!("{option}={file}: {error}"));
            }
        }
    }

    /// How other processes are met.
    pub fn meeting(&self) -> Option<&Meeting> {
        self.meeting.as_ref()
    }

    /// Meets the process that has that MAC address, if it is one of this user on this card. Otherwise frames go to it.
    pub fn meet(&self, mac: [u8; 6]) {
        if let Some(meeting) = self.meeting.as_ref().filter(|_| !self.is_inherited())
            && let Err(error) = meeting.meet(self, mac)
        {
            crate::boundary::say(format_args!("frames go to a process on this host: {error}"));
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn options(&self) -> Options {
        self.options
    }

    /// Bytes of payload of the longest packet.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    #[inline]
    pub fn now(&self) -> Moment {
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    /// Does something with the engine. EIO after a panic, or in a child of the process that opened it.
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut Running) -> Result<R, i32>) -> Result<R, i32> {
        act(&mut *self.lock()?)
    }

    /// The same, where the card may have no room just now, because it has not dropped yet what this user has given up: it is asked again for
    /// a while, and others may use the engine meanwhile.
    pub fn with_room<R>(&self, mut act: impl FnMut(&mut Running) -> Result<R, i32>) -> Result<R, i32> {
        until_room(|| self.with(&mut act))
    }

    /// In a child nobody may ever unlock it.
    #[inline]
    fn lock(&self) -> Result<MutexGuard<'_, Running>, i32> {
        if self.is_inherited() {
            return Err(libc::EIO);
        }
        self.running.lock().map_err(|_| libc::EIO)
    }

    /// The same, and moves the protocol on: before it if `first`, and after it otherwise.
    #[inline]
    pub fn moving<R>(&self, first: bool, act: impl FnOnce(&mut Running) -> Result<R, i32>) -> Result<R, i32> {
        if first {
            self.give_way();
        }
        let mut running = self.lock()?;
        let moved = !first || self.progress(&mut running);
        let done = act(&mut running);
        if !first {
            // Where all was done at once, nothing needs to move.
            if running.is_quiet() {
                return done;
            }
            self.progress(&mut running);
        }
        drop(running);
        self.count_idle(moved);
        done
    }

    #[inline]
    fn progress(&self, running: &mut Running) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed);
        running.progress(self.now())
    }

    /// As [`Place::moving`] before the call, unless what it looks for is there already, or has been brought by another process of this
    /// host; now and then also then.
    #[inline]
    pub fn taking<R>(
        &self,
        is_there: impl Fn(&mut Running) -> bool,
        act: impl FnOnce(&mut Running) -> Result<R, i32>,
    ) -> Result<R, i32> {
        let mut running = self.lock()?;
        let skipped = self.skipped.load(Ordering::Relaxed);
        let find = |running: &mut Running| is_there(running) || running.glance(|| self.now()) && is_there(running);
        if skipped < MOST_SKIPPED && find(&mut running) {
            self.skipped.store(skipped + 1, Ordering::Relaxed);
            return act(&mut running);
        }
        self.skipped.store(0, Ordering::Relaxed);
        let glances = self.glances.load(Ordering::Relaxed);
        if glances < MOST_GLANCES && running.is_quiet() && running.sessions.is_any() {
            self.glances.store(glances + 1, Ordering::Relaxed);
            return act(&mut running);
        }
        self.glances.store(0, Ordering::Relaxed);
        drop(running);
        self.moving(true, act)
    }

    /// Does something that gives the protocol something to send, and sends it. What has come is left to whoever polls, so that
    /// this is not looked at first.
    #[inline]
    pub fn posting<R>(&self, act: impl FnOnce(&mut Running) -> Result<R, i32>) -> Result<R, i32> {
        let asked = if self.config.profile.is_some() { ticks() } else { 0 };
        let mut running = self.lock()?;
        let done = act(&mut running);
        if let Some(stages) = &mut running.stages {
            stages.add_at(asked, Stage::Asked);
            stages.add(Stage::Posted);
        }
        // Where all was done at once, there is nothing to send.
        if !running.is_quiet() {
            running.send_what_there_is(self.now());
            self.idle.store(0, Ordering::Relaxed);
        } else {
            running.wake();
            stamp(&mut running.stages, Stage::Sent);
        }
        done
    }

    /// Takes the next event of a channel. What comes soon is waited for here, because to sleep and to be woken costs more; then the
    /// helper thread takes over at once.
    pub fn await_event<E: Copy>(&self, events: &Events<E>, claim: impl Fn(&E)) -> Result<E, Errno> {
        if self.is_inherited() || events.is_any() || !events.waits() {
            return events.take(claim);
        }
        let until = Instant::now() + if self.config.is_outside() { SPIN_BESIDE_CARD } else { SPIN };
        while !events.is_any() && Instant::now() < until {
            // Whoever holds it moves the protocol on as well.
            if let Ok(mut running) = self.running.try_lock() {
                self.progress(&mut running);
            }
            std::thread::yield_now();
        }
        if events.is_any() {
            return events.take(claim);
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        if let Some(meeting) = &self.meeting {
            meeting.ring();
        }
        let event = events.take(claim);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        event
    }

    /// Where there are fewer cores than threads that look for something, one that has found nothing for a while lets another one
    /// look: the card, which brings it, or the other end. Before it looks again, and not afterwards: programs that are told that there is
    /// nothing look for other things next (that the connection is over, as libfabric does), and what came before those has to be found first.
    #[inline]
    fn give_way(&self) {
        if self.idle.load(Ordering::Relaxed) >= self.patience {
            self.idle.store(0, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    #[inline]
    fn count_idle(&self, moved: bool) {
        let idle = if moved { 0 } else { self.idle.load(Ordering::Relaxed).saturating_add(1) };
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// Whether it is of this process, and its card has not gone: another one may be there by now.
    fn is_usable(&self) -> bool {
        !self.with(|running| Ok(running.is_down())).unwrap_or(true)
    }

    /// Whether it was opened by another process, whose child this one is.
    pub fn is_inherited(&self) -> bool {
        self.forks != crate::boundary::forks()
    }

    /// The MAC address that leads to `gid`, if it is known; otherwise `asks` for it.
    pub fn look_up(&self, gid: Gid, asks: bool) -> Result<Option<[u8; 6]>, i32> {
        if (0..crate::address::GIDS).any(|index| self.address.gid(index).is_some_and(|(own, _)| own == gid)) {
            return Ok(Some(self.address.mac));
        }
        if let Some(mac) = gid.mac_of_link_local() {
            return Ok(Some(mac));
        }
        if self.with(|running| Ok(running.is_down()))? {
            return Err(libc::EIO);
        }
        if self.config.is_outside() {
            return self.with(|running| running.card.as_mut().ok_or(libc::EIO)?.look_up(gid, asks));
        }
        let find = |neighbours: &mut Neighbours| match asks {
            true => neighbours.find(self.now(), gid),
            false => neighbours.known(gid).map_or(Found::Asked, Found::Known),
        };
        match self.moving(false, |running| Ok(find(&mut running.neighbours)))? {
            Found::Known(mac) => Ok(Some(mac)),
            Found::Asked => Ok(None),
            Found::Unreachable => Err(libc::EHOSTUNREACH),
            Found::NoSource => Err(libc::ENETUNREACH),
            Found::Full => Err(libc::ENOBUFS),
        }
    }

    /// The MAC address that leads to `gid`. Asks for it, and waits for the answer.
    pub fn resolve(&self, gid: Gid) -> Result<[u8; 6], i32> {
        let found = self.wait_for(gid);
        match found {
            Err(libc::EHOSTUNREACH) => crate::boundary::say(format_args!(
                "nobody answers for the address {} ({}). Is its program there, with that address, and does a wire lead to it?{}",
                running::address(gid),
                if gid.is_ipv4() { "ARP" } else { "neighbour discovery" },
                self.what_leads_there()
            )),
            Err(libc::ENETUNREACH) => crate::boundary::say(format_args!(
                "no way leads to the address {}: {}",
                running::address(gid),
                match self.config.is_outside() {
                    true => "the engine that serves this program has no wire (--rdma-wire), or no address of that kind",
                    false => "this end has no address of that kind to ask from (ip=)",
                }
            )),
            _ => {}
        }
        found
    }

    /// What has to be so that others are reached.
    fn what_leads_there(&self) -> String {
        if self.config.is_outside() {
            return " The engine that serves this program needs --rdma-wire, and with queue:N rules that lead ARP and its MAC address there".to_owned();
        }
        let own = self.with(|running| Ok(running.link.as_ref().filter(|link| !link.has_wire()).map(Link::number)));
        own.ok().flatten().map_or_else(String::new, |own| {
            format!(
                " On a card without a wire only queues 0 and 1, 2 and 3 reach each other. This end has TX queue {own}, and reaches the one that has {}: \
                 start both programs of a pair before those of the next one, or give each its queues (tx= and rx=, docs/rdma.md)",
                own ^ 1
            )
        })
    }

    fn wait_for(&self, gid: Gid) -> Result<[u8; 6], i32> {
        let until = Instant::now() + RESOLVE;
        loop {
            match self.look_up(gid, true)? {
                Some(mac) => return Ok(mac),
                None if Instant::now() < until => std::thread::sleep(Duration::from_micros(50)),
                None => return Err(libc::EHOSTUNREACH),
            }
        }
    }
}

/// Asks until the answer is another one than EAGAIN; ENOMEM if that takes too long.
fn until_room<R>(mut ask: impl FnMut() -> Result<R, i32>) -> Result<R, i32> {
    let mut until = None;
    loop {
        let done = ask();
        if !matches!(done, Err(libc::EAGAIN)) {
            return done;
        }
        let now = Instant::now();
        if now >= *until.get_or_insert(now + CROWDED) {
            return Err(libc::ENOMEM);
        }
        std::thread::sleep(CROWDED_PAUSE);
    }
}

/// How other processes are met, and `millrace rdma` is answered. Both is done by the helper thread. Where there is no card there is
/// nobody to meet by it.
fn meeting(config: &Config, device: Option<&str>) -> Option<Meeting> {
    if !config.helper || config.is_outside() {
        return None;
    }
    match Meeting::new(device.filter(|_| config.local)) {
        Ok(meeting) => Some(meeting),
        Err(error) => {
            crate::boundary::say(format_args!("programs of this host send frames: {error}"));
            None
        }
    }
}

/// Two programs and a card make three threads that look; programs often have more of them.
fn patience() -> u32 {
    match std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
        ..=3 => 16,
        _ => 4096,
    }
}

/// The largest that fits into frames, or the one that is wanted.
fn mtu(longest: usize, wanted: Option<u16>) -> Result<u16, LinkError> {
    let fits = |mtu: u16| usize::from(mtu) + OVERHEAD <= longest;
    let mtu = wanted.or_else(|| [4096, 2048, 1024, 512].into_iter().find(|&mtu| fits(mtu))).unwrap_or(256);
    if fits(mtu) { Ok(mtu) } else { Err(LinkError::ShortFrames { longest, mtu }) }
}

/// The engine of a card has one for all of its programs, which may only want less.
fn in_card_mtu(wanted: Option<u16>, most: u16) -> u16 {
    if let Some(wanted) = wanted.filter(|wanted| *wanted > most) {
        crate::boundary::say(format_args!(
            "mtu={wanted}: packets of the engine that serves this program have {most} bytes at most (--rdma-mtu, --frame-max), and so have those of this program"
        ));
    }
    wanted.map_or(most, |wanted| wanted.min(most))
}

/// An open context.
pub(crate) struct Opened {
    pub place: Arc<Place>,
    pub events: Arc<Events<AsyncEvent>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The queues are the parent's: a child does not close them.
        if self.place.is_inherited() {
            core::mem::forget(Arc::clone(&self.place));
            return;
        }
        // Relaxed: what the last one does is behind the lock.
        if self.place.contexts.fetch_sub(1, Ordering::Relaxed) == 1
            && let Ok(mut running) = self.place.lock()
        {
            self.place.finish(&mut running);
        }
    }
}

impl Opened {
    /// Opens the card, unless another context of this process has.
    pub fn new(config: &Config) -> Result<Self, LinkError> {
        let events = Arc::new(Events::new().map_err(LinkError::Descriptor)?);
        let place = Place::enter(config)?;
        place.contexts.fetch_add(1, Ordering::Relaxed);
        // After a panic nobody is told of anything.
        let _ = place.with(|running| {
            running.add_context(&events);
            Ok(())
        });
        Ok(Self { place, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_just_now_is_asked_for_again() {
        let mut asked = 0;
        let mut after = |count, then: Result<u8, i32>| {
            asked = 0;
            let done = until_room(|| {
                asked += 1;
                if asked > count { then } else { Err(libc::EAGAIN) }
            });
            (done, asked)
        };
        assert_eq!(after(3, Ok(7)), (Ok(7), 4));
        assert_eq!(after(0, Err(libc::EINVAL)), (Err(libc::EINVAL), 1));
        assert_eq!(after(0, Err(libc::ENOMEM)), (Err(libc::ENOMEM), 1));
        assert_eq!(after(u32::MAX, Ok(7)).0, Err(libc::ENOMEM));
    }
}
