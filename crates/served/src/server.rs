//! The card's side: a socket, and one thread that turns while something moves and sleeps otherwise.
//!
//! The thread never waits for a program: requests are taken one of each program at a look, answers are sent without waiting,
//! and who does not read them is hung up on.

use crate::network::{Doze, Network, Outside};
use crate::wire::{Bytes, Register, Request, Reregister, Welcome, Words, write_mac, write_pair, write_query};
use crate::{bell, record};
use millrace_dma::{Region, Window};
use millrace_link::Link;
use millrace_rdma::engine::Options;
use millrace_rdma::neighbour::Found;
use millrace_rdma::number::{Gid, Moment};
use millrace_rdma::served::{Number, Quota, ServeError, Service, Turn};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, write};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BACKLOG: i32 = 32;
/// Programs at once: each costs the card memory.
const MOST_PROGRAMS: usize = 256;
/// Calls that are accepted at a look: strangers, who are hung up on, may call without end.
const ACCEPTED: usize = 16;
/// How often the socket is looked at while something moves.
const LOOK: Duration = Duration::from_micros(200);
/// How long the thread looks on after something moved.
const LINGER: Duration = Duration::from_micros(100);
/// Looks at what programs want between two turns that look at the clock, too.
const LOOKS: u32 = 256;
/// Turns that move something between two such turns.
const TURNS: u32 = 16;
/// The longest sleep where nothing says that a frame has come.
const SILENT: Duration = Duration::from_millis(1);
/// Addresses that a program may have asked for at a time.
const MOST_ASKED: usize = 16;

/// Who all programs of the card are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// MAC address.
    pub mac: [u8; 6],
    /// GIDs; the first is that of the IP address.
    pub gids: [Gid; 2],
}

/// With what the engine of a card starts.
pub struct Start {
    /// Who its programs are.
    pub address: Address,
    /// How much one of them may have.
    pub quota: Quota,
    /// The core on which it works; without one, any.
    pub cpu: Option<usize>,
    /// What leads to other hosts.
    pub link: Option<Link>,
    /// Most bytes of payload of a packet: what fits into frames of the link.
    pub mtu: u16,
}

/// A socket that programs find; it is removed when this is dropped, and what was served ends.
pub struct Server {
    path: PathBuf,
    inode: u64,
    listener: Option<OwnedFd>,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, where nothing may be but the socket of a card that has died. Nobody is served before
    /// [`Server::start`].
    ///
    /// # Errors
    /// Those of the system; `EADDRINUSE` when something else is there.
    pub fn listen(path: PathBuf) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let address = SocketAddrUnix::new(&path)?;
        if let Ok(found) = std::fs::symlink_metadata(&path) {
            let is_dead = found.file_type().is_socket() && connect(socket()?, &address) == Err(Errno::CONNREFUSED);
            if !is_dead {
                return Err(Errno::ADDRINUSE);
            }
            std::fs::remove_file(&path).map_err(|_| Errno::ADDRINUSE)?;
        }
        let listener = socket()?;
        bind(&listener, &address)?;
        listen(&listener, BACKLOG)?;
        let inode = std::fs::symlink_metadata(&path).map_or(0, |found| found.ino());
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { path, inode, listener: Some(listener), stop: Arc::default(), bell, thread: None })
    }

    /// Serves programs from now on. To be called when the process has the rights that it
    /// keeps.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(&mut self, start: Start) -> std::io::Result<()> {
        let Start { address, quota, cpu, link, mtu } = start;
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (stop, bell) = (self.stop.clone(), self.bell.clone());
        let run = move || {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                // A core that has gone since it was looked at: then it runs on any other.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            let options = Options { datagram_mtu: mtu, seed: seed(), ..Options::default() };
            let service = Service::new(options, address.mac, &address.gids, quota);
            let network = link.map(|link| Network::new(link, &address));
            let (clients, began) = (Vec::new(), Instant::now());
            let worker = Worker { service, network, address, mtu, listener, bell, clients, began, full: false };
            worker.run(&stop);
        };
        self.thread = Some(std::thread::Builder::new().name("millrace-rdma".into()).spawn(run)?);
        Ok(())
    }
}

/// Of the random keys that the system gives every process.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Worker::run`; the bell comes after it.
        self.stop.store(true, Ordering::Release);
        let _ = write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Another card may have taken the place since somebody removed our socket.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A program that has called.
struct Client {
    socket: OwnedFd,
    /// Readable when the process has ended. Children may hold its socket.
    ended: Option<OwnedFd>,
    /// After its greeting.
    met: Option<Met>,
    /// Addresses that were being asked for when it was told so.
    asked: Vec<Gid>,
}

struct Met {
    number: Number,
    /// By which the program wakes the card.
    to_card: OwnedFd,
    /// By which the card wakes the program.
    to_program: OwnedFd,
}

struct Worker {
    service: Service,
    network: Option<Network>,
    address: Address,
    mtu: u16,
    listener: OwnedFd,
    bell: Arc<OwnedFd>,
    clients: Vec<Client>,
    began: Instant,
    /// No descriptor, or no place, for one more: the socket is not looked at until somebody has gone.
    full: bool,
}

/// What one answer is.
type Answer = Result<(Words, Option<OwnedFd>), ServeError>;

impl Worker {
    fn now(&self) -> Moment {
        since(self.began)
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut until = Instant::now();
        // Acquire pairs with the Release in `Server::drop`.
        while !stop.load(Ordering::Acquire) {
            self.look(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }), None);
            let next = self.turns(&mut until);
            if Instant::now() >= until {
                self.sleep(next);
                until = Instant::now() + LINGER;
            }
        }
    }

    /// Turns for a while, until it is time to look at the socket. When the next turn is to be.
    fn turns(&mut self, until: &mut Instant) -> Option<Moment> {
        let began = Instant::now();
        loop {
            let mut turns = 0;
            for _ in 0..LOOKS {
                if self.has_something() {
                    self.turn();
                    turns += 1;
                    if turns == TURNS {
                        break;
                    }
                }
            }
            let turn = self.turn();
            let moved = turn.moved || turns > 0;
            let now = Instant::now();
            if moved {
                *until = now + LINGER;
            } else {
                // Programs that poll may need this core.
                std::thread::yield_now();
            }
            if now >= *until || now - began >= LOOK {
                return turn.next;
            }
        }
    }

    /// Whether a turn would do something now. Takes frames that have come.
    fn has_something(&mut self) -> bool {
        let Self { network, service, began, .. } = self;
        let came = network.as_mut().map_or(0, |network| network.receive(|| since(*began), service));
        came > 0 || service.has_something()
    }

    fn turn(&mut self) -> Turn {
        let now = self.now();
        let mut turn = self.service.turn(now, &mut Outside(self.network.as_mut()));
        if let Some(network) = &mut self.network {
            network.send(now);
            turn.next = turn.next.into_iter().chain(network.next_due()).min();
            if let Some(error) = network.take_end() {
                tracing::warn!(error, "the RDMA engine reaches other hosts no more");
                self.service.lose_network(now);
            }
        }
        self.after_turn();
        turn
    }

    /// Rings, and hangs up on who was put out. Before anybody else comes, so that its number is nobody else's yet.
    fn after_turn(&mut self) {
        while let Some(number) = self.service.take_put_out() {
            self.clients.retain(|client| client.met.as_ref().is_none_or(|met| met.number != number));
            self.full = false;
        }
        while let Some(number) = self.service.take_bell() {
            let mut met = self.clients.iter().filter_map(|client| client.met.as_ref());
            if let Some(met) = met.find(|met| met.number == number) {
                bell::ring(&met.to_program);
            }
        }
    }

    fn sleep(&mut self, next: Option<Moment>) {
        if !self.service.doze() {
            return;
        }
        let Self { network, service, began, .. } = self;
        let doze = network.as_mut().map(|network| network.doze(|| since(*began), service));
        let (wakes, most) = match doze {
            Some(Doze::Awake) => return self.service.awake(),
            Some(Doze::Wakes(fd)) => (Some(fd), None),
            Some(Doze::Silent) => (None, Some(SILENT)),
            None => (None, None),
        };
        let left = next.map(|next| Duration::from_nanos(next.nanoseconds().saturating_sub(self.now().nanoseconds())));
        let left = left.into_iter().chain(most).min();
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        self.look(left.as_ref(), wakes.as_ref());
        if let Some(network) = &mut self.network {
            network.awake();
        }
        self.service.awake();
    }

    /// Waits until something comes by a socket, a bell, or the link (`wakes`), at most so long; takes a request of each program.
    fn look(&mut self, most: Option<&Timespec>, wakes: Option<&OwnedFd>) {
        let listens = if self.full { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(&self.listener, listens)];
        for client in &self.clients {
            fds.push(PollFd::new(&client.socket, PollFlags::IN | PollFlags::RDHUP));
            // Three each; the socket stands for what is missing.
            fds.push(PollFd::new(client.ended.as_ref().unwrap_or(&client.socket), PollFlags::IN));
            fds.push(PollFd::new(client.met.as_ref().map_or(&client.socket, |met| &met.to_card), PollFlags::IN));
        }
        // Only to be woken.
        fds.extend([Some(&*self.bell), wakes].into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)));
        if !matches!(poll(&mut fds, most), Ok(1..)) {
            return;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut gone = Vec::new();
        for (at, ready) in ready[1..].chunks_exact(3).take(self.clients.len()).enumerate() {
            let client = &self.clients[at];
            if let Some(met) = client.met.as_ref().filter(|_| ready[2].contains(PollFlags::IN)) {
                bell::heard(&met.to_card);
            }
            let has_ended = client.ended.is_some() && ready[1].contains(PollFlags::IN);
            if has_ended || (!ready[0].is_empty() && self.serve(at).is_err()) {
                gone.push(at);
            }
        }
        for at in gone.into_iter().rev() {
            let client = self.clients.swap_remove(at);
            self.full = false;
            if let Some(met) = client.met {
                self.service.leave(self.now(), met.number);
            }
        }
        if ready[0].contains(PollFlags::IN) {
            self.accept();
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            if self.clients.len() >= MOST_PROGRAMS {
                self.full = true;
                return;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.clients.extend(client(socket)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptors: until somebody goes.
                Err(_) => {
                    self.full = !self.clients.is_empty();
                    return;
                }
            }
        }
    }

    /// Takes one request of a program, and answers it. An error: it is to be hung up on.
    fn serve(&mut self, at: usize) -> Result<(), Errno> {
        let Some((words, fds)) = record::receive(&self.clients[at].socket)? else { return Ok(()) };
        let request = Request::read(words).ok_or(Errno::BADMSG)?;
        if request == Request::Hello {
            return self.greet(at);
        }
        let number = self.clients[at].met.as_ref().map(|met| met.number).ok_or(Errno::BADMSG)?;
        let answered = match request {
            Request::Resolve(gid) => self.resolve(at, gid),
            Request::DestroyPair(qpn) => {
                let now = self.now();
                self.service.say_farewell(now, number, qpn, &mut Outside(self.network.as_mut()));
                answer(&mut self.service, number, request, fds)
            }
            _ => answer(&mut self.service, number, request, fds),
        };
        let socket = &self.clients[at].socket;
        match answered {
            Ok((words, fd)) => record::send(socket, &words, fd.as_ref().map(AsFd::as_fd).as_slice()),
            Err(error) => record::send(socket, &Words::refusal(error.errno()), &[]),
        }
    }

    /// Who has an address. Each program may have a few asked for at a time, so that there is room for those that others ask for.
    fn resolve(&mut self, at: usize, gid: Gid) -> Answer {
        if self.address.gids.contains(&gid) {
            return Ok((write_mac(Some(self.address.mac)), None));
        }
        let now = self.now();
        let network = self.network.as_mut().ok_or(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error()))?;
        let asked = &mut self.clients[at].asked;
        asked.retain(|one| *one == gid || network.find(now, *one) == Found::Asked);
        if asked.len() >= MOST_ASKED && !asked.contains(&gid) {
            return Err(ServeError::Quota { what: "addresses that are being asked for", limit: MOST_ASKED as u64 });
        }
        asked.retain(|one| *one != gid);
        match network.find(now, gid) {
            Found::Known(mac) => Ok((write_mac(Some(mac)), None)),
            Found::Asked => {
                asked.push(gid);
                Ok((write_mac(None), None))
            }
            Found::Unreachable => Err(ServeError::NoHosts(Errno::HOSTUNREACH.raw_os_error())),
            Found::NoSource => Err(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error())),
            Found::Full => Err(ServeError::NoHosts(Errno::NOBUFS.raw_os_error())),
        }
    }

    fn greet(&mut self, at: usize) -> Result<(), Errno> {
        if self.clients[at].met.is_some() {
            return Err(Errno::BADMSG);
        }
        let number = match self.service.enter() {
            Ok(number) => number,
            Err(error) => return record::send(&self.clients[at].socket, &Words::refusal(error.errno()), &[]),
        };
        let welcome = Welcome { mac: self.address.mac, gid: self.address.gids[0], mtu: self.mtu };
        let greeted = greeting(&self.service, &self.clients[at].socket, &welcome, number);
        match greeted {
            Ok(met) => {
                self.clients[at].met = Some(met);
                Ok(())
            }
            Err(error) => {
                self.service.leave(self.now(), number);
                Err(error)
            }
        }
    }
}

fn greeting(service: &Service, socket: &OwnedFd, welcome: &Welcome, number: Number) -> Result<Met, Errno> {
    let ((to_card, for_card), (for_program, to_program)) = (bell::bell()?, bell::bell()?);
    let met = Met { number, to_card, to_program };
    let shared = service.memory_of(number).ok().and_then(Region::fd).ok_or(Errno::NOMEM)?;
    let fds: [BorrowedFd<'_>; 3] = [shared, for_card.as_fd(), for_program.as_fd()];
    record::send(socket, &welcome.write(), &fds)?;
    Ok(met)
}

/// Whoever may use the card: root, and the user who runs it.
fn client(socket: OwnedFd) -> Option<Client> {
    let credentials = getsockopt(&socket, PeerCredentials).ok()?;
    if credentials.uid() != 0 && credentials.uid() != geteuid().as_raw() {
        return None;
    }
    // A process of another container has the number 0, which is not one: then only its socket says that it has ended.
    let ended = match Pid::from_raw(credentials.pid().max(0)) {
        Some(pid) => Some(pidfd_open(pid, PidfdFlags::empty()).ok()?),
        None => None,
    };
    Some(Client { socket, ended, met: None, asked: Vec::new() })
}

fn since(began: Instant) -> Moment {
    Moment::new(began.elapsed().as_nanos() as u64)
}

/// Does what is asked for.
fn answer(service: &mut Service, of: Number, request: Request, fds: Vec<OwnedFd>) -> Answer {
    let number = |number: u32| Ok((Words::answer(&[number.into()]), None));
    let done = |()| (Words::answer(&[]), None);
    match request {
        // Answered before.
        Request::Hello | Request::Resolve(_) => Err(ServeError::Gone),
        Request::CreateDomain => number(service.create_domain(of)?.0),
        Request::DestroyDomain(domain) => service.destroy_domain(of, domain).map(done),
        Request::Register(asked) => {
            let Register { domain, access, bytes } = asked;
            let made = service.register_window(of, domain, map(&bytes, fds)?, Some(bytes.base), access)?;
            Ok((Words::answer(&[made.lkey.value().into(), made.rkey.value().into()]), None))
        }
        Request::Reregister(Reregister { key, domain, access, bytes }) => {
            let bytes = match bytes {
                Some(bytes) => Some((map(&bytes, fds)?, bytes.base)),
                None => None,
            };
            let made = service.reregister(of, key, bytes, domain, access)?;
            Ok((Words::answer(&[made.lkey.value().into(), made.rkey.value().into()]), None))
        }
        Request::Deregister(key) => service.deregister(of, key).map(done),
        Request::CreateWindow(domain, kind) => number(service.create_window(of, domain, kind)?.value()),
        Request::NextWindowKey(key) => number(service.next_window_key(of, key)?.value()),
        Request::ForgetWindowKey(key) => service.forget_window_key(of, key).map(done),
        Request::DestroyWindow(key) => service.destroy_window(of, key).map(done),
        Request::CreateQueue(depth) => {
            let (queue, memory) = service.create_queue(of, depth)?;
            match copy_of(memory) {
                Ok(fd) => Ok((Words::answer(&[queue.into()]), Some(fd))),
                Err(error) => {
                    service.destroy_queue(of, queue)?;
                    Err(error)
                }
            }
        }
        Request::ResizeQueue(queue, depth) => {
            let fd = service.resize_queue(of, queue, depth, copy_of)?;
            Ok((Words::answer(&[]), Some(fd)))
        }
        Request::DestroyQueue(queue) => service.destroy_queue(of, queue).map(done),
        Request::CreateShared(domain, depth, pieces) => number(service.create_shared(of, domain, depth, pieces)?),
        Request::SetLimit(shared, limit) => service.set_shared_limit(of, shared, limit).map(done),
        Request::DestroyShared(shared) => service.destroy_shared(of, shared).map(done),
        Request::CreatePair(init) => {
            let (qpn, granted) = service.create_pair(of, &init)?;
            Ok((write_pair(qpn, &granted), None))
        }
        Request::ModifyPair(qpn, told) => number(service.modify_pair(of, qpn, &told)? as u32),
        Request::QueryPair(qpn) => {
            let query = service.query_pair(of, qpn)?;
            Ok((write_query(&query.attributes, query.draining), None))
        }
        Request::DestroyPair(qpn) => service.destroy_pair(of, qpn).map(done),
    }
}

/// A descriptor for the program. Without one, the card has too few.
fn copy_of(memory: &Region) -> Result<OwnedFd, ServeError> {
    let fd = memory.fd().and_then(|fd| fd.try_clone_to_owned().ok());
    fd.ok_or(ServeError::Quota { what: "descriptors", limit: 0 })
}

/// Maps parts of a program's files. Only files that cannot shrink are, and they are guarded against holes: none can be one
/// that keeps this thread waiting for a disk, which has no seals.
fn map(asked: &Bytes, fds: Vec<OwnedFd>) -> Result<Window, ServeError> {
    const PAGE: u64 = 4096;
    let outside = || ServeError::Engine(millrace_rdma::engine::Error::Range("file of the region"));
    let parts = asked.parts.list();
    if u64::from(asked.skip) >= PAGE || parts.len() != fds.len() {
        return Err(outside());
    }
    let whole = asked.len.checked_add(asked.skip.into()).and_then(|len| len.checked_next_multiple_of(PAGE));
    let whole = whole.and_then(|len| usize::try_from(len).ok()).filter(|_| asked.len > 0).ok_or_else(outside)?;
    let parts = fds.into_iter().zip(parts).map(|(fd, (offset, len))| Some((fd, *offset, usize::try_from(*len).ok()?)));
    let parts = parts.collect::<Option<Vec<_>>>().ok_or_else(outside)?;
    if parts.iter().try_fold(0_usize, |all, (_, _, len)| all.checked_add(*len)) != Some(whole) {
        return Err(outside());
    }
    Ok(Region::map_parts(&parts)?.part(asked.skip as usize, asked.len as usize)?)
}
