//! The card's side: a socket, and one thread that turns while something moves and sleeps otherwise.
//!
//! The thread never waits for a program: requests are taken one of each program at a look, answers are sent without waiting,
//! and who does not read them is hung up on.

use crate::wire::{Register, Request, Welcome, Words, write_pair, write_query};
use crate::{bell, record};
use millrace_dma::Region;
use millrace_rdma::engine::Options;
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Gid, Moment, Qpn};
use millrace_rdma::served::{Number, Quota, ServeError, Service, Turn};
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Headers, Path};
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

/// Who all programs of the card are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// MAC address.
    pub mac: [u8; 6],
    /// GIDs; the first is that of the IP address.
    pub gids: [Gid; 2],
}

/// Frames to other hosts: there are none yet. Requests that go there end when their retries are over.
struct NoWire;

impl Out for NoWire {
    fn packet<F>(&mut self, _: &Path, _: Qpn, _: &Headers, _: usize, _: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        Sent::Taken
    }
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

    /// Serves programs from now on, on the core `cpu` if one is given. To be called when the process has the rights that it
    /// keeps.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(&mut self, address: Address, quota: Quota, cpu: Option<usize>) -> std::io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (stop, bell) = (self.stop.clone(), self.bell.clone());
        let run = move || {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                // A core that has gone since it was looked at: then it runs on any other.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            let options = Options { datagram_mtu: 4096, seed: seed(), ..Options::default() };
            let service = Service::new(options, &address.gids, quota);
            let worker =
                Worker { service, address, listener, bell, clients: Vec::new(), began: Instant::now(), full: false };
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
    address: Address,
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
        Moment::new(self.began.elapsed().as_nanos() as u64)
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut until = Instant::now();
        // Acquire pairs with the Release in `Server::drop`.
        while !stop.load(Ordering::Acquire) {
            self.look(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
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
                if self.service.has_something() {
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

    fn turn(&mut self) -> Turn {
        let turn = self.service.turn(self.now(), &mut NoWire);
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
        let left = next.map(|next| next.nanoseconds().saturating_sub(self.now().nanoseconds()));
        let left =
            left.map(|left| Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 });
        self.look(left.as_ref());
        self.service.awake();
    }

    /// Waits until something comes by a socket or a bell, at most so long; takes a request of each program.
    fn look(&mut self, most: Option<&Timespec>) {
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        let listens = if self.full { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::new(&self.listener, listens));
        for client in &self.clients {
            fds.push(PollFd::new(&client.socket, PollFlags::IN | PollFlags::RDHUP));
            // Three each; the socket stands for what is missing.
            fds.push(PollFd::new(client.ended.as_ref().unwrap_or(&client.socket), PollFlags::IN));
            fds.push(PollFd::new(client.met.as_ref().map_or(&client.socket, |met| &met.to_card), PollFlags::IN));
        }
        if !matches!(poll(&mut fds, most), Ok(1..)) {
            return;
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        let mut gone = Vec::new();
        for (at, ready) in ready[2..].chunks_exact(3).enumerate() {
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
        if ready[1].contains(PollFlags::IN) {
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
        let socket = &self.clients[at].socket;
        match answer(&mut self.service, number, request, fds) {
            Ok((words, fd)) => record::send(socket, &words, fd.as_ref().map(AsFd::as_fd).as_slice()),
            Err(error) => record::send(socket, &Words::refusal(error.errno()), &[]),
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
        let welcome = Welcome { mac: self.address.mac, gid: self.address.gids[0] };
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
    Some(Client { socket, ended, met: None })
}

/// Does what is asked for.
fn answer(service: &mut Service, of: Number, request: Request, fds: Vec<OwnedFd>) -> Answer {
    let number = |number: u32| Ok((Words::answer(&[number.into()]), None));
    let done = |()| (Words::answer(&[]), None);
    match request {
        // Greeted before.
        Request::Hello => Err(ServeError::Gone),
        Request::CreateDomain => number(service.create_domain(of)?.0),
        Request::DestroyDomain(domain) => service.destroy_domain(of, domain).map(done),
        Request::Register(asked) => {
            let made = register(service, of, &asked, fds)?;
            Ok((Words::answer(&[made.lkey.value().into(), made.rkey.value().into()]), None))
        }
        Request::Deregister(key) => service.deregister(of, key).map(done),
        Request::CreateQueue(depth) => {
            let (queue, memory) = service.create_queue(of, depth)?;
            let fd = memory.fd().and_then(|fd| fd.try_clone_to_owned().ok());
            match fd {
                Some(fd) => Ok((Words::answer(&[queue.into()]), Some(fd))),
                None => {
                    service.destroy_queue(of, queue)?;
                    Err(ServeError::Quota { what: "descriptors", limit: 0 })
                }
            }
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

/// Maps a part of a program's file. Only files that cannot shrink are, and they are guarded against holes: none can be one
/// that keeps this thread waiting for a disk, which has no seals.
fn register(
    service: &mut Service,
    of: Number,
    asked: &Register,
    fds: Vec<OwnedFd>,
) -> Result<millrace_rdma::memory::Registered, ServeError> {
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
    let region = Region::map_parts(&parts)?;
    let window = region.part(asked.skip as usize, asked.len as usize)?;
    service.register_window(of, asked.domain, window, Some(asked.base), asked.access)
}
