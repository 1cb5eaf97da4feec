//! Programs that keep the driver's thread busy, its descriptors in use, or make it wait. Everybody else is served.

use crate::common::peer::{Peer, hello};
use crate::common::*;
use millrace::{Device, Mode, QueueId, Sharing};
use millrace_abi::message::*;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long anything may take that must not depend on what hostile programs do: less than they make the card wait for.
const MOST: Duration = Duration::from_secs(60);

/// Requests of a program that does nothing wrong, one after the other.
fn ask_often(device: &Device, times: usize) {
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let before = Instant::now();
        device.stats().unwrap();
        longest = longest.max(before.elapsed());
    }
    println!("{times} requests, the longest {longest:?}");
    assert!(begin.elapsed() < MOST, "others were served instead");
}

/// A card with few descriptors, of which it uses up all when it is told so.
pub fn small_daemon() {
    let few = Some(400);
    setrlimit(Resource::Nofile, Rlimit { current: few, maximum: few }).unwrap();
    let card = millrace_card::Card::new(&options("queues=4,spin=20,buffers=256")).unwrap();
    let driver = millrace_driver::Driver::listen(card, Path::new(&argument("SOCKET"))).unwrap();
    say("ready");
    let mut files = Vec::new();
    loop {
        match listen().as_str() {
            "fill" => {
                // The driver uses and returns some all the time.
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                say("full");
            }
            "empty" => {
                files.clear();
                say("empty");
            }
            _ => break,
        }
    }
    drop(driver);
}

/// As many connections as can be had, until it is told to end.
pub fn crowd() {
    let path = argument("SOCKET");
    let peers: Vec<_> = (0..300).filter_map(|_| Peer::try_connect(Path::new(&path)).ok()).collect();
    for peer in &peers {
        // Those that were turned away cannot.
        let _ = peer.send_bytes(&hello(), &[]);
    }
    say("there");
    listen();
}

fn start_small() -> (Process, tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.sock");
    let mut process = Process::start("small daemon", &[("SOCKET", path.to_str().unwrap())]);
    process.expect("ready");
    (process, folder, path)
}

fn open_at(path: &Path) -> Result<Device, millrace::Error> {
    Device::open(&format!("unix:{}", path.display()))
}

#[test]
fn a_crowd_that_wants_all_descriptors_leaves_the_card_alive() {
    let (mut daemon, _folder, path) = start_small();
    let device = open_at(&path).unwrap();
    let mut crowds: Vec<_> = (0..8).map(|_| Process::start("crowd", &[("SOCKET", path.to_str().unwrap())])).collect();
    crowds.iter_mut().for_each(|crowd| crowd.expect("there"));
    ask_often(&device, 200);
    assert!(open_at(&path).is_err(), "a newcomer is refused, and told why");
    crowds.iter_mut().for_each(Process::kill);
    let (newcomer, _) = within(MOST, || open_at(&path));
    let (mut receiver, mut sender) =
        (rx(&newcomer, 0, Mode::Direct, Sharing::Exclusive), tx(&newcomer, 0, Mode::Direct, Sharing::Exclusive));
    send_all(&mut sender, 0, 100, 100);
    receive_all(&mut receiver, 0, 100);
    drop((receiver, sender, newcomer, device));
    daemon.tell("");
    daemon.wait();
}

#[test]
fn a_card_without_descriptors_refuses_and_goes_on() {
    let (mut daemon, _folder, path) = start_small();
    let device = open_at(&path).unwrap();
    let mut peer = Peer::introduced(&path);
    let memory = rustix::fs::memfd_create("honest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, 1 << 16).unwrap();
    let map = Request::Map { len: 1 << 16, writable: true, at: None };
    daemon.tell("fill");
    daemon.expect("full");
    for _ in 0..20 {
        // Its descriptor finds no place in the card.
        match peer.ask_with(&map, &[memory.as_fd()]) {
            Some(Reply::Error { code: ErrorCode::System, text }) => assert!(text.contains("fds"), "{text}"),
            other => panic!("{other:?}"),
        }
        assert!(device.rx(1).open().is_err());
        // Whoever comes now is turned away, or waits.
        drop(Peer::try_connect(&path));
        ask_often(&device, 10);
    }
    daemon.tell("empty");
    daemon.expect("empty");
    let (mapped, _) = within(MOST, || match peer.ask_with(&map, &[memory.as_fd()]) {
        Some(Reply::Mapped { iova }) => Ok(iova),
        other => Err(other),
    });
    peer.done(&Request::Unmap { iova: mapped });
    let (idle, _) = within(MOST, || device.rx(1).open());
    drop(idle);
    within(MOST, || open_at(&path));
    daemon.tell("");
    daemon.wait();
}

/// A descriptor whose last close takes 25 seconds, or until the other end is gone: a socket that lingers. Longer than a request is
/// waited for.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    set_socket_linger(&sender, Some(Duration::from_secs(25))).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 16]).is_ok() {}
    (sender.into(), receiver)
}

/// A socket in which that descriptor waits to be received.
fn wrapped(fd: OwnedFd) -> OwnedFd {
    let (outer, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    put_into(&other, &[fd.as_fd()]).unwrap();
    outer
}

fn put_into(socket: &OwnedFd, fds: &[BorrowedFd<'_>]) -> Result<usize, rustix::io::Errno> {
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Hands such descriptors over in all ways there are, one after the other, and keeps the other ends until it ends.
pub fn slow_closer() {
    let path = argument("SOCKET");
    let mut receivers = Vec::new();
    let mut slow = || {
        let (sender, receiver) = lingering();
        receivers.push(receiver);
        sender
    };
    let map = encode(&Request::Map { len: 4096, writable: true, at: None }).unwrap();
    let stats = encode(&Request::Stats).unwrap();
    // With a request that takes none, with one that takes memory, with nonsense, with too many, unread at the end.
    let ways: [(&[u8], usize, bool); 5] =
        [(&stats, 1, true), (&map, 1, true), (&[0xff; 5], 1, true), (&stats, MAX_FDS + 1, true), (&stats, 1, false)];
    for (bytes, count, read) in ways {
        for wrap in [false, true] {
            let mut peer = Peer::introduced(Path::new(&path));
            let fd = if wrap { wrapped(slow()) } else { slow() };
            assert!(peer.send_bytes(bytes, &vec![fd.as_fd(); count]));
            // The last close is the card's, unless that was quicker.
            std::thread::spawn(move || drop(fd));
            if read {
                assert!(peer.reply().is_some());
            }
            drop(peer);
            say("next");
            listen();
        }
    }
    // What wakes a program cannot carry anything back.
    let mut peer = Peer::introduced(Path::new(&path));
    let handle = peer.open(QueueId::rx(1), Mode::Direct, Sharing::Exclusive);
    peer.send_bytes(&encode(&Request::Call { handle }).unwrap(), &[]);
    let Some((Reply::Call, calls)) = peer.reply_with_fds() else { panic!("no call") };
    let memory = rustix::fs::memfd_create("any", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(put_into(&calls[0], &[memory.as_fd()]), Err(rustix::io::Errno::PIPE));
    say("last");
    listen();
}

#[test]
fn a_descriptor_that_is_slow_to_close_delays_nobody_else() {
    let daemon = Daemon::start("queues=4,spin=20,buffers=256");
    let device = daemon.device();
    let mut bystander = Bystander::start(daemon.device(), 0);
    let before = daemon.fds();
    let mut closer = Process::start("slow closer", &[("SOCKET", daemon.socket())]);
    while closer.hear().expect("it comes through").as_str() == "next" {
        ask_often(&device, 20);
        closer.tell("go on");
    }
    bystander.goes_on();
    // Its other ends go with it, and everything can be closed.
    closer.kill();
    within(MOST, || if daemon.fds() == before { Ok(()) } else { Err(daemon.fds()) });
    bystander.finish();
}

/// Requests of the flood on each of its connections, and in all.
const EACH: usize = 60;
const ALL: usize = 200 * EACH;

/// Asks very much on many connections at once, and says how much was answered.
pub fn flood() {
    let path = argument("SOCKET");
    let mut flood: Vec<Peer> = (0..ALL / EACH).map(|_| Peer::introduced(Path::new(&path))).collect();
    say("there");
    listen();
    let request = encode(&Request::Read { address: 0, len: 4 }).unwrap();
    for peer in &flood {
        (0..EACH).for_each(|_| assert!(peer.send_bytes(&request, &[])));
    }
    say("sent");
    let mut replies = 0;
    loop {
        listen();
        for peer in &mut flood {
            while peer.reply_by_now().is_some() {
                replies += 1;
            }
        }
        say(&replies.to_string());
    }
}

#[test]
fn a_flood_of_requests_is_served_after_those_who_ask_little() {
    let daemon = Daemon::start("queues=4,spin=20,buffers=256");
    let device = daemon.device();
    let mut flood = Process::start("flood of requests", &[("SOCKET", daemon.socket())]);
    flood.expect("there");
    // All at once, before any is served.
    daemon.stop();
    flood.tell("send");
    flood.expect("sent");
    daemon.go_on();
    ask_often(&device, 5);
    let mut count = || {
        flood.tell("count");
        flood.hear().unwrap().parse::<usize>().unwrap()
    };
    let by_then = count();
    println!("{by_then} of {ALL} requests of the flood were answered meanwhile");
    assert!(by_then < ALL / 2, "a program that asks five times had to wait for the flood");
    // All of them are answered in the end.
    within(MOST, || match count() {
        ALL => Ok(()),
        some => Err(some),
    });
}

#[test]
fn connecting_and_leaving_without_end_leaves_others_their_turn() {
    let daemon = Daemon::start("queues=4,spin=20,buffers=256");
    let device = daemon.device();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(Peer::try_connect(&daemon.path));
                }
            });
        }
        ask_often(&device, 100);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn there_is_one_device_tree_for_all_and_nobody_can_change_it() {
    let daemon = Daemon::start("queues=4,spin=20,buffers=256");
    let mut files = Vec::new();
    for _ in 0..2 {
        let mut peer = Peer::connect(&daemon);
        for _ in 0..10 {
            peer.send_bytes(&encode(&Request::DeviceTree).unwrap(), &[]);
            let Some((Reply::DeviceTree { len }, mut fds)) = peer.reply_with_fds() else { panic!("no device tree") };
            assert!(len > 0);
            files.append(&mut fds);
        }
    }
    let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
    assert!(files.iter().all(|file| inode(file) == inode(&files[0])), "what nobody reads costs no memory");
    let file = &files[0];
    assert!(rustix::io::pwrite(file, &[0], 0).is_err());
    assert!(rustix::fs::ftruncate(file, 0).is_err() && rustix::fs::ftruncate(file, 1 << 20).is_err());
    use rustix::fs::FallocateFlags;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(file, hole, 0, 4096).is_err());
    let len = rustix::fs::fstat(file).unwrap().st_size as usize;
    let again = file.try_clone().unwrap();
    assert!(millrace_dma::Region::map(again, len, millrace_dma::Protection::ReadWrite, false).is_err());
    assert!(!daemon.device().device_tree().unwrap().is_empty());
}

/// A stream socket that listens and has no more room for those who want to connect: they wait.
fn full_socket(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
    let address = SocketAddrUnix::new(path).unwrap();
    let socket = |flags| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = socket(SocketFlags::CLOEXEC);
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        waiting.push(socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
        match rustix::net::connect(&waiting[waiting.len() - 1], &address) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return (listener, waiting),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_port_that_is_slow_to_open_delays_nobody_else() {
    let mut daemon = Daemon::start("queues=4,spin=20,buffers=256,port=null");
    let device = daemon.device();
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    // A port that listens asks first whether somebody listens there.
    let (first, second) = (full_socket(&one), full_socket(&other));
    let plug = |path: &Path| Change::Plug { port: 0, spec: format!("vhost-user:{}", path.display()) };
    let spec = |device: &Device| device.stats().unwrap().ports[0].spec.clone();
    let mut patient = Peer::connect(&daemon);
    patient.send_bytes(&encode(&Request::Change(plug(&one))).unwrap(), &[]);
    patient.send_bytes(&encode(&Request::Stats).unwrap(), &[]);
    within(MOST, || if spec(&device) == "none" { Ok(()) } else { Err(spec(&device)) });
    ask_often(&device, 50);
    let mut receiver = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    assert!(receiver.get(1).unwrap().is_empty());
    drop(receiver);
    assert!(patient.reply_by_now().is_none(), "neither it nor what was asked behind it is done");
    // Nobody listens there any more: the socket is dead, and the port takes its place.
    drop(first);
    assert_eq!(patient.reply(), Some(Reply::Done));
    assert!(matches!(patient.reply(), Some(Reply::Stats(_))));
    assert!(spec(&device).starts_with("vhost-user:"));
    // One who asks and does not wait: it is done all the same.
    let hasty = Peer::connect(&daemon);
    hasty.send_bytes(&encode(&Request::Change(Change::Plug { port: 0, spec: "null".to_owned() })).unwrap(), &[]);
    within(MOST, || if spec(&device) == "null" { Ok(()) } else { Err(spec(&device)) });
    drop(hasty);
    let hasty = Peer::connect(&daemon);
    hasty.send_bytes(&encode(&Request::Change(plug(&other))).unwrap(), &[]);
    within(MOST, || if spec(&device) == "none" { Ok(()) } else { Err(spec(&device)) });
    drop(hasty);
    ask_often(&device, 10);
    // It still waits; the card ends nevertheless.
    daemon.process.tell("");
    daemon.process.wait();
    drop(second);
}
