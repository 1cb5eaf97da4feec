//! The server against clients as they should be, and as they should not.

use millrace_callers::{Carries, Listener};
use millrace_dma::{Protection, Region};
use millrace_ivshmem::layout::Layout;
use millrace_ivshmem::protocol::{MEMORY, Message, Reader, VERSION};
use millrace_ivshmem::{Counters, Limits, Server, ServerError, Status};
use rustix::fd::OwnedFd;
use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::private(folder.path().join("socket"), Carries::Streams).unwrap();
        let mut server = Server::new(listener, limits).unwrap();
        let (stop, status) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(server.status())));
        let (asked, shown) = (Arc::clone(&stop), Arc::clone(&status));
        let run = move || {
            while !asked.load(Ordering::Relaxed) {
                server.turn(Duration::from_millis(5), |_| {}).unwrap();
                *shown.lock().unwrap() = server.status();
            }
        };
        Self { folder, stop, status, thread: Some(std::thread::spawn(run)) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn stream(&self) -> UnixStream {
        UnixStream::connect(self.path()).unwrap()
    }

    fn client(&self) -> Client {
        Client::greeted(self.stream())
    }

    fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let begin = Instant::now();
        loop {
            let status = self.status.lock().unwrap().clone();
            if is_so(&status) {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {status:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A client that reads what comes.
struct Client {
    stream: UnixStream,
    reader: Reader,
    id: u16,
    memory: OwnedFd,
}

impl Client {
    fn greeted(stream: UnixStream) -> Self {
        Self::if_greeted(stream).unwrap()
    }

    /// `None`: it was turned away.
    fn if_greeted(stream: UnixStream) -> Option<Self> {
        let mut reader = Reader::default();
        let (version, none) = next(&stream, &mut reader)?;
        assert!(version == VERSION && none.is_none());
        let (id, none) = next(&stream, &mut reader).unwrap();
        assert!(none.is_none());
        let (memory, fd) = next(&stream, &mut reader).unwrap();
        assert_eq!(memory, MEMORY);
        Some(Self { stream, reader, id: u16::try_from(id).unwrap(), memory: fd.unwrap() })
    }

    /// The next number, and whether an eventfd came with it.
    fn next(&mut self) -> Option<(u16, bool)> {
        next(&self.stream, &mut self.reader).map(|(id, fd)| (u16::try_from(id).unwrap(), fd.is_some()))
    }

    fn expect(&mut self, all: &[(u16, bool)]) {
        for one in all {
            assert_eq!(self.next(), Some(*one));
        }
    }
}

/// `None`: hung up.
fn next(stream: &UnixStream, reader: &mut Reader) -> Option<(i64, Option<OwnedFd>)> {
    let begin = Instant::now();
    loop {
        match reader.next(stream) {
            Ok(Some(message)) => return Some(message),
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
        assert!(begin.elapsed() < PATIENCE, "nothing comes");
    }
}

fn limits(peers: u16, vectors: u16) -> Limits {
    Limits { peers, vectors, ..Limits::default() }
}

#[test]
fn peers_hear_of_one_another_in_the_order_of_the_specification() {
    let server = Running::start(limits(4, 2));
    let mut one = server.client();
    one.expect(&[(0, true), (0, true)]);
    let mut two = server.client();
    two.expect(&[(0, true), (0, true), (1, true), (1, true)]);
    one.expect(&[(1, true), (1, true)]);
    let window = |fd: &OwnedFd| {
        let len = usize::try_from(rustix::fs::fstat(fd).unwrap().st_size).unwrap();
        Region::map(fd.try_clone().unwrap(), len, Protection::ReadWrite, false).unwrap()
    };
    let (mine, theirs) = (window(&one.memory), window(&two.memory));
    let layout = Layout::open(mine.window()).unwrap();
    let presence = |slot| layout.presence(slot).unwrap().load(millrace_dma::Ordering::Acquire);
    assert_eq!([u64::from(layout.slots()), presence(0), presence(1), presence(2)], [4, 1 << 16, 2 << 16 | 1, 0]);
    mine.window().span_mut(5000, 4).unwrap().write_from(b"seen");
    let mut seen = [0; 4];
    theirs.window().span(5000, 4).unwrap().read_into(&mut seen);
    assert_eq!(&seen, b"seen");
    drop(two);
    one.expect(&[(1, false)]);
    let status = server.until("it has left", |status| status.counters.left == 1);
    assert_eq!(presence(1), 0);
    assert_eq!((status.peers.len(), status.peers[0].id, status.peers[0].pid), (1, 0, std::process::id()));
    // Its slot is the last that is given again, and who gets it is not called as the one before.
    let more: Vec<_> = (0..3).map(|_| server.client()).collect();
    assert_eq!(more.iter().map(|client| client.id).collect::<Vec<_>>(), [2, 3, 4 + 1]);
    assert_eq!(presence(1), 5 << 16 | 5);
}

#[test]
fn the_memory_cannot_be_taken_away_from_others() {
    let server = Running::start(limits(2, 1));
    let client = server.client();
    assert!(ftruncate(&client.memory, 0).is_err());
    assert!(ftruncate(&client.memory, 1 << 30).is_err());
    assert!(fcntl_add_seals(&client.memory, SealFlags::FUTURE_WRITE).is_err());
    assert!(fcntl_add_seals(&client.memory, SealFlags::WRITE).is_err());
}

#[test]
fn who_speaks_is_cut_off() {
    let server = Running::start(limits(4, 1));
    let mut honest = server.client();
    honest.expect(&[(0, true)]);
    let mut loud = server.client();
    loud.stream.write_all(&[0; 3]).unwrap();
    loud.expect(&[(0, true), (1, true)]);
    assert_eq!(loud.next(), None);
    honest.expect(&[(1, true), (1, false)]);
    let status = server.until("it was counted", |status| status.counters.spoke == 1);
    // Its process, which is this one, lives.
    assert_eq!(status.held, 1);
    let counters = status.counters;
    assert_eq!(counters, Counters { joined: 2, spoke: 1, ..Counters::default() });
}

#[test]
fn who_does_not_read_is_cut_off_and_holds_up_nobody() {
    let limits = Limits { patience: Duration::from_secs(2), ..limits(16, 32) };
    let server = Running::start(limits);
    let mut honest = server.client();
    honest.expect(&[(0, true); 32]);
    let silent = server.stream();
    honest.expect(&[(1, true); 32]);
    // More than the system keeps for the silent one: it waits at the server, and no more than each peer once.
    let begin = Instant::now();
    let (mut rounds, mut most) = (0, 0);
    while server.until("always", |_| true).counters.slow == 0 {
        assert!(begin.elapsed() < PATIENCE);
        // Numbers that the silent one has known are not given again before it has been cut off.
        let Some(mut guest) = Client::if_greeted(server.stream()) else { continue };
        let id = guest.id;
        let others = honest_and_silent(&mut guest, id);
        assert!(others <= 2 * 32 + 1);
        drop(guest);
        loop {
            match honest.next().unwrap() {
                (found, true) => assert!(found == id, "{found}"),
                (found, false) if found == id => break,
                // The silent one has been cut off.
                (found, false) => assert_eq!(found, 1),
            }
        }
        let status = server.until("always", |_| true);
        most = status.peers.iter().map(|peer| peer.waiting).max().unwrap_or(0).max(most);
        rounds += 1;
    }
    assert!(rounds >= 8, "the others went on: {rounds}");
    assert!((1..=16 * 33).contains(&most), "{most}");
    drop(silent);
}

/// Reads all that a newcomer hears until its own vectors have come; how many of others.
fn honest_and_silent(guest: &mut Client, id: u16) -> usize {
    let (mut own, mut others) = (0, 0);
    while own < 32 {
        match guest.next().unwrap() {
            (found, true) if found == id => own += 1,
            _ => others += 1,
        }
    }
    others
}

#[test]
fn who_was_cut_off_and_has_ended_holds_no_number() {
    let server = Running::start(limits(4, 1));
    let mut honest = server.client();
    honest.expect(&[(0, true)]);
    // Another process, which says something and lives on until it is told to end; its socket is closed at once.
    let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(b'x')\nsys.stdin.read()";
    let mut command = std::process::Command::new("python3");
    let Ok(mut loud) = command.args(["-c", script]).arg(server.path()).stdin(std::process::Stdio::piped()).spawn()
    else {
        return eprintln!("skipped: there is no python3");
    };
    honest.expect(&[(1, true), (1, false)]);
    server.until("its number is held", |status| status.held == 1);
    drop(loud.stdin.take());
    loud.wait().unwrap();
    server.until("its number is free", |status| status.held == 0);
}

#[test]
fn nobody_sends_descriptors_and_nobody_is_kept_out_by_those_who_go() {
    let server = Running::start(limits(2, 1));
    let stream = server.stream();
    let is_known = millrace_dma::take_descriptors(&stream).is_ok();
    let mut greeted = Client::greeted(stream);
    greeted.expect(&[(0, true)]);
    let event = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap());
    let sent = Message::with(0, &event).send(&greeted.stream);
    // Before Linux 6.16 everybody can.
    assert_eq!(sent.is_err(), is_known, "{sent:?}");
    assert_eq!(server.until("always", |_| true).counters.shut, 0);
}

#[test]
fn a_flood_of_connections_is_turned_away_and_passes() {
    let server = Running::start(limits(4, 2));
    let mut honest = server.client();
    honest.expect(&[(0, true), (0, true)]);
    // Half-open: they never read a byte.
    let mut flood: Vec<_> = (0..40).map(|_| server.stream()).collect();
    let status = server.until("they were looked at", |status| status.counters.joined + status.counters.full == 41);
    assert_eq!((status.peers.len(), status.counters.full), (4, 37));
    for _ in 0..100 {
        drop(server.stream());
    }
    // Those that were turned away, and those that were let in.
    flood.clear();
    server.until("they have gone", |status| status.peers.len() == 1);
    // The honest one reads that they have gone, and then their numbers are free.
    let begin = Instant::now();
    honest.stream.set_nonblocking(true).unwrap();
    let id = loop {
        while let Ok(Some(_)) = honest.reader.next(&honest.stream) {}
        let stream = server.stream();
        let mut reader = Reader::default();
        if next(&stream, &mut reader).is_some() {
            break next(&stream, &mut reader).unwrap().0;
        }
        assert!(begin.elapsed() < PATIENCE);
    };
    assert!((1..4).contains(&(id % 4)));
}

#[test]
fn a_number_is_not_given_again_before_all_know_that_it_is_free() {
    let server = Running::start(limits(2, 1));
    let mut one = server.client();
    one.expect(&[(0, true)]);
    let mut two = server.client();
    two.expect(&[(0, true), (1, true)]);
    drop(two);
    server.until("it has left", |status| status.counters.left == 1);
    // Nobody has read that peer 1 was there, and that it has gone.
    let stream = server.stream();
    assert!(next(&stream, &mut Reader::default()).is_none());
    let status = server.until("it was turned away", |status| status.counters.full == 1);
    assert_eq!((status.held, status.behind), (0, 1));
    one.expect(&[(1, true), (1, false)]);
    assert_eq!(server.client().id, 2 + 1, "the same slot, and another name");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let server = |limits| {
        let folder = tempfile::tempdir().unwrap();
        Server::new(Listener::private(folder.path().join("socket"), Carries::Streams).unwrap(), limits).err().unwrap()
    };
    assert!(matches!(server(limits(1, 1)), ServerError::Peers(1)));
    assert!(matches!(server(limits(65, 1)), ServerError::Peers(65)));
    assert!(matches!(server(limits(2, 0)), ServerError::Vectors(0)));
    for bytes in [1 << 16, (1 << 20) + 1] {
        let error = server(Limits { bytes: Some(bytes), ..limits(2, 1) });
        assert!(matches!(error, ServerError::Bytes { least: 67_072, .. }), "{error}");
    }
}
