//! Programs that share memory by a server of ivshmem, and a backend among them: as programs in virtual machines, but that these are on the host.

mod running;

use millrace_callers::{Carries, Listener};
use millrace_dma::{Ordering, Protection, Region, Window};
use millrace_ivshmem::layout::bytes_of;
use millrace_ivshmem::protocol::Reader;
use millrace_split::ivshmem::IvshmemDoor;
use millrace_split::message::Request;
use millrace_split::run::{MOST_REFERENCE, runs_of};
use millrace_split::{
    Access, Config, Door, Endpoint, Error, Event, Failed, Frontend, Kind, Land, Limits, PAGE, Transfer,
};
use running::{Running, SOON, done, until};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const PEERS: u16 = 6;
const BYTES: usize = 16 << 20;

/// A server of ivshmem.
struct Shared {
    folder: TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::private(folder.path().join("socket"), Carries::Streams).unwrap();
        let limits = millrace_ivshmem::Limits {
            peers: PEERS,
            vectors: 1,
            bytes: Some(BYTES),
            ..millrace_ivshmem::Limits::default()
        };
        let mut server = millrace_ivshmem::Server::new(listener, limits).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                server.turn(Duration::from_millis(5), |_| {}).unwrap();
            }
        });
        Self { folder, stop, thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn backend(&self) -> Running {
        let door: Box<dyn Door> = Box::new(IvshmemDoor::open(&self.socket(), 0).unwrap());
        Running::start_at(Limits::default(), None, vec![door])
    }

    fn place(&self) -> String {
        format!("ivshmem:{}", self.socket().display())
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::open(&Config { place: self.place(), depth: 64 }).unwrap()
    }

    /// What a machine sees: the number of a peer, and all of the memory. It is there as long as its socket is.
    fn peer(&self) -> (UnixStream, u16, Region) {
        let socket = UnixStream::connect(self.socket()).unwrap();
        let mut reader = Reader::default();
        let mut next = || loop {
            if let Some(message) = reader.next(&socket).unwrap() {
                return message;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        next();
        let id = next().0 as u16;
        let memory = next().1.unwrap();
        let region = Region::map(memory, BYTES, Protection::ReadWrite, false).unwrap();
        (socket, id, region)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The slice of a peer, by what the document says.
fn slice(memory: &Window, peer: u16) -> Window {
    let skip = bytes_of(PEERS).next_multiple_of(PAGE);
    let len = (BYTES - skip) / PAGE / usize::from(PEERS) * PAGE;
    memory.part(skip + usize::from(peer) * len, len).unwrap()
}

#[test]
fn memory_of_machines_is_copied_once_and_each_goes_alone() {
    let shared = Shared::start();
    let backend = shared.backend();
    let (one, other) = (shared.endpoint(), shared.endpoint());
    assert_eq!(one.address().0[..2], [2, b'I']);
    const LEN: usize = 300_000;
    let (ours, theirs) = (one.allocate(LEN, Access::LOCAL).unwrap(), other.allocate(LEN, Access::ALL).unwrap());
    one.connect(other.address(), SOON).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 % 251) as u8).collect();
    ours.store(0, &bytes).unwrap();
    let before = one.status().unwrap().backend;
    one.post(other.address(), &[Transfer::write(ours.part(0, LEN as u32).unwrap(), theirs.key(), 0)], 7).unwrap();
    let end = done(&one);
    assert_eq!((end.token, end.kind, end.failed), (7, Kind::Write, None));
    let mut found = vec![0; LEN];
    theirs.load(0, &mut found).unwrap();
    assert!(found == bytes);
    let spent = one.status().unwrap().backend.since(&before);
    assert_eq!((spent.copied, spent.packets, spent.transport.pages), (LEN as u64, 0, 0));
    // What was given back is granted again, and zeros.
    drop(ours);
    for _ in 0..20 {
        let again = one.allocate(LEN, Access::LOCAL).unwrap();
        let mut found = vec![1; LEN];
        again.load(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0));
    }
    assert!(one.allocate(BYTES, Access::LOCAL).is_err(), "more than its part");
    // The other one ends; a third comes in its place.
    let (gone, key) = (other.address(), theirs.key());
    drop((theirs, other));
    until("it is missed", || one.peers().unwrap().is_empty());
    until("its place is free", || backend.left(gone).is_some());
    let third = shared.endpoint();
    let ours = one.allocate(64, Access::LOCAL).unwrap();
    one.connect(third.address(), SOON).unwrap();
    one.post(third.address(), &[Transfer::write(ours.part(0, 8).unwrap(), key, 0)], 1).unwrap();
    assert_eq!(done(&one).failed, Some(Failed::RemoteAccess), "the key of one that has gone");
    // The backend ends: an error, and no hang; and nobody is a backend.
    drop(backend);
    let waited = (0..100).find_map(|_| one.wait(Duration::from_millis(100)).err());
    assert!(matches!(waited, Some(Error::Gone)), "{waited:?}");
    drop((ours, one, third));
    let _next = shared.backend();
    assert!(shared.endpoint().status().is_ok(), "the next backend");
}

#[test]
fn a_machine_that_writes_nonsense_harms_nobody() {
    let shared = Shared::start();
    let backend = shared.backend();
    let (_socket, id, memory) = shared.peer();
    let own = slice(memory.window(), id);
    let (one, other) = (shared.endpoint(), shared.endpoint());
    let (ours, theirs) = (one.allocate(64, Access::LOCAL).unwrap(), other.allocate(64, Access::ALL).unwrap());
    one.connect(other.address(), SOON).unwrap();
    let mut number = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number
    };
    for round in 0..200 {
        // Who it is, and where its control page would be: anywhere, its own first page, behind the end; sometimes with rings of nonsense.
        let page = [random(), 0, 1, (own.len() / PAGE) as u64, u64::from(u32::MAX)][round % 5];
        for _ in 0..50 {
            own.word64(PAGE + random() as usize % (PAGE / 8) * 8)
                .unwrap()
                .store(random() & 0xff_0000_00ff, Ordering::Relaxed);
        }
        if round % 2 == 0 {
            own.word64(PAGE).unwrap().store(u64::from_le_bytes(*b"MILLSPLT"), Ordering::Relaxed);
            own.word64(PAGE + 8).unwrap().store(millrace_split::page::VERSION.into(), Ordering::Relaxed);
            own.word64(PAGE + 16).unwrap().store(1, Ordering::Relaxed);
        }
        own.word64(8).unwrap().store(page, Ordering::Relaxed);
        own.word64(0).unwrap().store(random() | 1, Ordering::Release);
        one.post(other.address(), &[Transfer::write(ours.part(0, 8).unwrap(), theirs.key(), 0)], round as u64).unwrap();
        let ended = done(&one);
        assert_eq!((ended.token, ended.failed), (round as u64, None));
        one.status().unwrap();
    }
    // Pages of others are not granted by whoever names them.
    let mut third = Frontend::call_at(&shared.place()).unwrap();
    for references in
        [vec![0], vec![own.len() as u64 / PAGE as u64], vec![5, 7], vec![MOST_REFERENCE, 0], vec![MOST_REFERENCE]]
    {
        let (pages, what) = (references.len() as u32, format!("{references:?}"));
        let runs = runs_of(&references).unwrap();
        assert!(matches!(third.ask(&Request::Grant { pages, first: 0, runs }), Err(Error::Refused { .. })), "{what}");
    }
    assert!(third.status().is_ok() && backend.left(one.address()).is_none());
}

#[test]
fn who_finds_no_backend_is_told() {
    let shared = Shared::start();
    let (socket, id, memory) = shared.peer();
    // One that has been a backend, and is it no more: another peer has its number.
    let own = slice(memory.window(), id);
    own.word64(8).unwrap().store(u64::MAX, Ordering::Relaxed);
    own.word64(0).unwrap().store(u64::from_le_bytes(*b"MILLBACK"), Ordering::Relaxed);
    let refused = Frontend::call_at(&shared.place()).err().unwrap();
    assert!(refused.to_string().contains("no backend is there"), "{refused}");
    drop(socket);
}

#[test]
fn a_backend_whose_server_ends_says_so_once() {
    let shared = Shared::start();
    let mut door = IvshmemDoor::open(&shared.socket(), 0).unwrap();
    let mut look = || -> Vec<String> {
        let lines = door.look().into_iter().filter_map(|event| match event {
            Event::Noted(line) => Some(line),
            _ => None,
        });
        lines.collect()
    };
    assert_eq!(look(), Vec::<String>::new());
    drop(shared);
    let mut said = Vec::new();
    until("it is said", || {
        said = look();
        !said.is_empty()
    });
    assert!(said.len() == 1 && said[0].contains("has ended"), "{said:?}");
    assert_eq!(look(), Vec::<String>::new());
}

#[test]
fn memory_that_a_program_has_in_its_slice_is_lent_as_it_is() {
    let shared = Shared::start();
    let backend = shared.backend();
    let land = Land::open(&shared.place()).unwrap().unwrap();
    let (base, most) = land.extent().unwrap();
    assert!(base.is_multiple_of(PAGE) && most > 64 && Land::open("/tmp/split.sock").is_none());
    assert!(land.take(0, 5) && land.take(5, 3), "before anybody is called");
    let mut guest = Frontend::call_from(&land).unwrap();
    let _program = guest.join().unwrap();
    assert!(!land.take(0, 1) && !land.take(9, most) && land.take(8, 1), "each page once, and none that has a ring");
    let before = guest.status().unwrap().backend.pages;
    let (at, other) = (land.references(2, 4).unwrap(), land.references(3, 1).unwrap());
    assert_eq!((at.len(), other[0]), (4, at[1]));
    let (at, other) = (guest.lend_pages(&at).unwrap(), guest.lend_pages(&other).unwrap());
    assert_eq!(guest.status().unwrap().backend.pages, before + 5, "one of them twice");
    guest.release(at).unwrap();
    guest.release(other).unwrap();
    assert!(matches!(guest.lend_pages(&vec![1; most as usize * 100]), Err(Error::Refused { .. })));
    assert!(matches!(guest.lend_pages(&[u64::from(most) + 1]), Err(Error::Refused { .. })), "behind its slice");
    // One connection at a time; the next one has what the first had.
    assert!(Frontend::call_from(&land).err().unwrap().to_string().contains("a connection already"));
    assert!(!guest.has_gone() && guest.bell().is_some());
    // The backend says in its slice when it is served no more.
    let (_socket, _, memory) = shared.peer();
    let word = |peer, at| slice(memory.window(), peer).word64(at).unwrap().load(Ordering::Acquire);
    let is_program = |peer: &u16| ![0, u64::from_le_bytes(*b"MILLBACK")].contains(&word(*peer, 0));
    let peer = (0..PEERS).find(is_program).unwrap();
    let who = word(peer, 0);
    assert_ne!(word(peer, 24), who);
    drop(guest);
    until("it is served no more", || word(peer, 24) == who);
    let mut next = Frontend::call_from(&land).unwrap();
    let _next_program = next.join().unwrap();
    let at = next.lend_pages(&land.references(0, 9).unwrap()).unwrap();
    next.release(at).unwrap();
    drop(backend);
    until("its end is seen", || {
        next.heard();
        next.has_gone()
    });
}
