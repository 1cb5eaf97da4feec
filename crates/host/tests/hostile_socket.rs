//! Peers that break every rule of the socket. The daemon tells them why, or ends the connection, and goes on serving
//! those who keep the rules.

use crate::common::peer::{Peer, hello, refused};
use crate::common::*;
use millrace::{Device, Laggard, Mode, Pages, QueueId, Region, Sharing};
use millrace_abi::message::*;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::path::Path;
use std::time::{Duration, Instant};

fn open(queue: QueueId) -> Request {
    Request::Open { queue, mode: Mode::Direct, sharing: Sharing::Exclusive, buffers: Buffers::Driver, joiners: None }
}

fn daemon() -> (Daemon, Bystander) {
    let daemon = Daemon::start("queues=4,engine=sze@2-3,spin=20,buffers=256,ring=65536");
    let bystander = Bystander::start(daemon.device(), 0);
    (daemon, bystander)
}

/// The daemon has nothing left of what hostile peers had, and the well-behaved client has lost nothing.
fn conclude(daemon: &Daemon, mut bystander: Bystander, fds: usize) {
    bystander.goes_on();
    within(PATIENCE, || match daemon.fds() {
        // Fewer, if at first one was still being closed.
        now if now <= fds => Ok(()),
        now => Err(format!("{now} fds, before {fds}")),
    });
    bystander.finish();
    check_equations(&daemon.device());
}

#[test]
fn what_is_no_message_ends_the_connection_with_a_reason() {
    let (daemon, mut bystander) = daemon();
    let fds = daemon.fds();
    let whole = encode(&open(QueueId::rx(1))).unwrap();
    let mut random = Random(3);
    let mut garbage: Vec<Vec<u8>> =
        (0..200).map(|_| (0..1 + random.below(300)).map(|_| random.next() as u8).collect()).collect();
    // Half a message, a message and a half, two in one packet, an unknown variant, a length that promises too much.
    garbage.extend((1..whole.len()).map(|len| whole[..len].to_vec()));
    garbage.push([&whole[..], &whole[..1]].concat());
    garbage.push([&whole[..], &whole[..]].concat());
    garbage.push(vec![0xff; 5]);
    garbage.push(vec![3, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    for bytes in &garbage {
        if decode::<Request>(bytes).is_ok() {
            continue;
        }
        let mut peer = Peer::connect(&daemon);
        peer.send_bytes(bytes, &[]);
        assert_eq!(refused(peer.reply()), ErrorCode::Protocol, "{bytes:?}");
        assert_eq!(peer.reply(), None, "and that was the end");
    }
    // Too large for a message, though the socket carries it.
    let mut peer = Peer::connect(&daemon);
    assert!(peer.send_bytes(&vec![0; MAX_MESSAGE + 1], &[]));
    assert_eq!(refused(peer.reply()), ErrorCode::Protocol);
    assert_eq!(peer.reply(), None);
    // An empty packet is what the end of a connection looks like.
    let mut peer = Peer::connect(&daemon);
    peer.send_bytes(&[], &[]);
    assert_eq!(peer.reply(), None);
    // Half a message and gone.
    for _ in 0..50 {
        Peer::connect(&daemon).send_bytes(&whole[..2], &[]);
        Peer::stranger(&daemon).send_bytes(&hello()[..1], &[]);
        drop(Peer::stranger(&daemon));
    }
    bystander.goes_on();
    conclude(&daemon, bystander, fds);
}

#[test]
fn versions_must_be_the_same_and_hello_the_first_message() {
    let (daemon, bystander) = daemon();
    let fds = daemon.fds();
    for version in [0, VERSION + 1, u32::MAX] {
        let mut peer = Peer::stranger(&daemon);
        assert_eq!(peer.refused(&Request::Hello { version }), ErrorCode::Protocol);
        assert_eq!(peer.reply(), None);
    }
    for request in [Request::Stats, open(QueueId::rx(1)), Request::Write { address: 0, bytes: vec![1] }] {
        let mut peer = Peer::stranger(&daemon);
        assert_eq!(peer.refused(&request), ErrorCode::Protocol);
        assert_eq!(peer.reply(), None);
    }
    // Once more does no harm; with another version it does nothing.
    let mut peer = Peer::connect(&daemon);
    assert!(matches!(peer.ask(&Request::Hello { version: VERSION }), Some(Reply::Hello { .. })));
    drop(peer);
    conclude(&daemon, bystander, fds);
}

fn memfd(len: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

#[test]
fn who_locks_and_leaves_at_once_leaves_no_lock() {
    let (daemon, _bystander) = daemon();
    let lock = Request::Lock { component: "/mac".to_owned(), bits: 1 };
    for _ in 0..3000 {
        let peer = Peer::connect(&daemon);
        peer.send_bytes(&encode(&lock).unwrap(), &[]);
        drop(peer);
    }
    let mut other = Peer::connect(&daemon);
    within(Duration::from_secs(60), || match other.ask(&lock) {
        Some(Reply::Done) => Ok(()),
        reply => Err(reply),
    });
}

/// A worker that meets memory which is being emptied waits for that.
#[test]
fn nobody_makes_holes_in_memory_that_the_card_reads() {
    use rustix::fs::FallocateFlags;
    let (daemon, _bystander) = daemon();
    let mut peer = Peer::connect(&daemon);
    let memory = memfd(1 << 20, MemfdFlags::ALLOW_SEALING);
    let mine = Region::map(memory.try_clone().unwrap(), 1 << 20, millrace_dma::Protection::ReadWrite, false).unwrap();
    let hole = || rustix::fs::fallocate(&memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 20);
    hole().unwrap();
    let reply = peer.ask_with(&Request::Map { len: 1 << 20, writable: false, at: None }, &[memory.as_fd()]);
    assert!(matches!(reply, Some(Reply::Mapped { .. })), "{reply:?}");
    assert_eq!(hole(), Err(rustix::io::Errno::PERM));
    // What was mapped before goes on being written.
    mine.window().word32(0).unwrap().store(1, millrace_dma::Ordering::Relaxed);
}

#[test]
fn memory_that_is_none_is_refused() {
    let (daemon, bystander) = daemon();
    let fds = daemon.fds();
    let mut peer = Peer::connect(&daemon);
    let map = |len, writable, at| Request::Map { len, writable, at };
    let (pipe_out, pipe_in) = rustix::pipe::pipe().unwrap();
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 16).unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let small = memfd(100, MemfdFlags::ALLOW_SEALING);
    let shrinks = memfd(1 << 16, MemfdFlags::empty());
    let sealed = memfd(1 << 16, MemfdFlags::ALLOW_SEALING);
    rustix::fs::fcntl_add_seals(&sealed, SealFlags::SEAL).unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let (one, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let wrong: [BorrowedFd<'_>; 10] = [
        pipe_out.as_fd(),
        pipe_in.as_fd(),
        null.as_fd(),
        file.as_fd(),
        folder.as_fd(),
        small.as_fd(),
        shrinks.as_fd(),
        sealed.as_fd(),
        event.as_fd(),
        one.as_fd(),
    ];
    for (number, fd) in wrong.into_iter().enumerate() {
        for writable in [true, false] {
            let reply = peer.ask_with(&map(1 << 16, writable, None), &[fd]);
            assert!(matches!(refused(reply), ErrorCode::System | ErrorCode::Invalid), "{number}");
        }
    }
    // None at all, and lengths that nothing has.
    assert_eq!(peer.refused(&map(4096, true, None)), ErrorCode::Invalid);
    let good = memfd(1 << 16, MemfdFlags::ALLOW_SEALING);
    for len in [0, (1 << 16) + 1, 1 << 40, u64::MAX >> 1, u64::MAX] {
        refused(peer.ask_with(&map(len, true, None), &[good.as_fd()]));
    }
    // Places that are taken, or that do not exist.
    let Some(Reply::Mapped { iova }) = peer.ask_with(&map(1 << 16, true, None), &[good.as_fd()]) else {
        panic!("good memory is taken")
    };
    for at in [iova, iova + 1, iova - 1, iova + (1 << 16) - 1, u64::MAX, u64::MAX - 100] {
        refused(peer.ask_with(&map(1 << 16, true, Some(at)), &[good.as_fd()]));
    }
    // What it took is sealed now: nobody can pull it away from under the card.
    assert!(rustix::fs::ftruncate(&good, 10).is_err());
    // A read-only descriptor gives no right to write.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good));
    let read_only = std::fs::File::open(path).unwrap();
    refused(peer.ask_with(&map(1 << 16, true, None), &[read_only.as_fd()]));
    // Unmapping what is not there, twice, in the middle, or of a queue.
    peer.done(&Request::Unmap { iova });
    for at in [iova, iova + 1, 0, u64::MAX, 1 << 32] {
        assert_eq!(peer.refused(&Request::Unmap { iova: at }), ErrorCode::NotFound);
    }
    let handle = peer.open(QueueId::rx(1), Mode::Direct, Sharing::Exclusive);
    assert!(matches!(peer.ask(&Request::Start { handle }), Some(Reply::Started { .. })));
    for at in (0..16).map(|page| (1u64 << 32) + page * 0x1_0000) {
        assert_eq!(peer.refused(&Request::Unmap { iova: at }), ErrorCode::NotFound, "queue memory is the driver's");
    }
    // At the very end of the address space, after which the driver finds no room for more of this client.
    let reply = peer.ask_with(&map(1 << 16, false, Some(u64::MAX - 0xffff)), &[good.as_fd()]);
    assert_eq!(reply, Some(Reply::Mapped { iova: u64::MAX - 0xffff }));
    refused(peer.ask(&open(QueueId::rx(2))));
    peer.done(&Request::Unmap { iova: u64::MAX - 0xffff });
    let handle = peer.open(QueueId::rx(2), Mode::Direct, Sharing::Exclusive);
    peer.done(&Request::Close { handle });
    // More fds than a message may have, and fds where none belong.
    let many: Vec<_> = (0..40).map(|_| good.as_fd()).collect();
    for request in [Request::Stats, Request::DeviceTree] {
        assert!(!matches!(peer.ask_with(&request, &many[..MAX_FDS]), None | Some(Reply::Error { .. })));
    }
    assert_eq!(refused(peer.ask_with(&Request::Stats, &many)), ErrorCode::Protocol);
    assert_eq!(peer.reply(), None);
    conclude(&daemon, bystander, fds);
}

/// Thousands of everything, from a process of its own, until it is told to stop.
pub fn flood() {
    let path = argument("SOCKET");
    let mut peers = Vec::new();
    let mut refused = 0;
    for _ in 0..6000 {
        match Peer::try_connect(Path::new(&path)) {
            Ok(peer) => {
                peer.send_bytes(&hello(), &[]);
                peers.push(peer);
            }
            Err(_) => refused += 1,
        }
    }
    let mut served = Vec::new();
    for mut peer in peers {
        if matches!(peer.reply(), Some(Reply::Hello { .. })) {
            served.push(peer);
        }
    }
    assert!(served.len() > 100, "{} of 6000 were served", served.len());
    let count = served.len();
    // One of them maps without end, one opens without end. What a process may have it may have in any form.
    served.truncate(200);
    std::thread::sleep(Duration::from_millis(100));
    let region = memfd(4096, MemfdFlags::ALLOW_SEALING);
    let mut mapped = 0;
    let mapper = &mut served[0];
    while mapped < 20_000 {
        let request = Request::Map { len: 4096, writable: true, at: None };
        match mapper.ask_with(&request, &[region.as_fd()]) {
            Some(Reply::Mapped { .. }) => mapped += 1,
            Some(Reply::Error { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..20_000).contains(&mapped), "the daemon sets a limit, and {mapped} is none");
    let opener = &mut served[1];
    for round in 0..3000 {
        let request = open(QueueId::rx(1 + round % 3));
        match opener.ask(&request) {
            Some(Reply::Opened { .. }) => assert!(round < 3),
            Some(Reply::Error { code: ErrorCode::Busy, .. }) => assert!(round >= 3),
            other => panic!("{other:?}"),
        }
    }
    for number in 0..3000 {
        let request = Request::Lock { component: format!("/component{number}"), bits: 1 };
        if opener.ask(&request) != Some(Reply::Done) {
            assert!(number >= 100);
            break;
        }
        assert!(number < 2000, "the daemon sets a limit");
    }
    say(&format!("{} served, {refused} refused, {mapped} mapped", count));
    listen();
    die();
}

#[test]
fn thousands_of_connections_opens_and_mappings_leave_room_for_others() {
    let (daemon, mut bystander) = daemon();
    let fds = daemon.fds();
    let mut flood = Process::start("flood of connections", &[("SOCKET", daemon.socket())]);
    let told = flood.hear().expect("the flood came through");
    println!("flood: {told}");
    bystander.goes_on();
    // A newcomer is served while all that is open.
    let device = daemon.device();
    let region = Region::allocate(1 << 16, Pages::Ordinary).unwrap();
    device.map(&region, true, None).unwrap().unmap().unwrap();
    device.tx(1).open().unwrap().close().unwrap();
    drop(device);
    let begin = Instant::now();
    flood.tell("end");
    flood.wait();
    let device = daemon.device();
    within(PATIENCE, || device.rx(1).open());
    println!("cleaned up in {:?}", begin.elapsed());
    drop(device);
    conclude(&daemon, bystander, fds);
}

#[test]
fn opening_and_closing_thousands_of_times_leaks_nothing() {
    let (daemon, bystander) = daemon();
    let (fds, mappings) = (daemon.fds(), daemon.mappings());
    let mut peer = Peer::connect(&daemon);
    for round in 0..1500 {
        let sharing = [Sharing::Exclusive, Sharing::Shared(Laggard::Evict)][round % 2];
        let mode = [Mode::Direct, Mode::Mediated][round / 2 % 2];
        let queue = QueueId::rx(1 + round as u32 % 3);
        let handle = peer.open(queue, mode, sharing);
        if round % 3 == 0 {
            assert!(matches!(peer.ask(&Request::Start { handle }), Some(Reply::Started { .. })));
            assert_eq!(peer.refused(&Request::Start { handle }), ErrorCode::Invalid);
        }
        peer.done(&Request::Close { handle });
        assert_eq!(peer.refused(&Request::Close { handle }), ErrorCode::NotFound);
        assert_eq!(peer.refused(&Request::Start { handle }), ErrorCode::NotFound);
    }
    drop(peer);
    for _ in 0..1000 {
        drop(Peer::connect(&daemon));
    }
    within(PATIENCE, || if daemon.mappings() == mappings { Ok(()) } else { Err(daemon.mappings()) });
    conclude(&daemon, bystander, fds);
}

#[test]
fn one_that_never_reads_its_replies_is_ended() {
    let (daemon, bystander) = daemon();
    let fds = daemon.fds();
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::connect(&daemon)).collect();
    for (number, peer) in peers.iter().enumerate() {
        rustix::io::ioctl_fionbio(&peer.socket, true).unwrap();
        let request = encode(&if number % 2 == 0 { Request::Stats } else { Request::DeviceTree }).unwrap();
        let begin = Instant::now();
        // Until the daemon has hung up: sending then fails for good.
        loop {
            let sent = rustix::net::send(&peer.socket, &request, SendFlags::NOSIGNAL);
            match sent {
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => break,
                _ => assert!(begin.elapsed() < PATIENCE, "never disconnected"),
            }
        }
    }
    peers.clear();
    conclude(&daemon, bystander, fds);
}

#[test]
fn handles_belong_to_the_connection_that_got_them() {
    let (daemon, bystander) = daemon();
    let fds = daemon.fds();
    let (mut owner, mut thief) = (Peer::connect(&daemon), Peer::connect(&daemon));
    let handle = owner.open(QueueId::tx(1), Mode::Mediated, Sharing::Exclusive);
    assert!(matches!(owner.ask(&Request::Start { handle }), Some(Reply::Started { .. })));
    for stolen in [handle, Handle(0), Handle(u32::MAX)] {
        for request in [
            Request::Start { handle: stolen },
            Request::Stop { handle: stolen, force: true, position: 0 },
            Request::Close { handle: stolen },
            Request::Call { handle: stolen },
            Request::RxSync { handle: stolen, release: 0, want: 1 },
            Request::TxSync { handle: stolen, commit: vec![60], want: 1 },
            Request::CountTooLong { handle: stolen, frames: 1 },
        ] {
            assert_eq!(thief.refused(&request), ErrorCode::NotFound, "{request:?}");
        }
    }
    // Nor do mappings and locks.
    let good = memfd(4096, MemfdFlags::ALLOW_SEALING);
    let reply = owner.ask_with(&Request::Map { len: 4096, writable: true, at: None }, &[good.as_fd()]);
    let Some(Reply::Mapped { iova }) = reply else { panic!("{reply:?}") };
    assert_eq!(thief.refused(&Request::Unmap { iova }), ErrorCode::NotFound);
    let component = "/mac".to_owned();
    owner.done(&Request::Lock { component: component.clone(), bits: 1 });
    assert_eq!(thief.refused(&Request::Unlock { component: component.clone(), bits: 1 }), ErrorCode::NotFound);
    assert_eq!(thief.refused(&Request::Lock { component: component.clone(), bits: 1 }), ErrorCode::Busy);
    assert_eq!(thief.refused(&Request::Lock { component, bits: 0 }), ErrorCode::Invalid);
    assert_eq!(
        thief.refused(&Request::Lock { component: "x".repeat(60_000), bits: 1 }),
        ErrorCode::Invalid,
        "no component has such a name"
    );
    assert!(matches!(owner.ask(&Request::TxSync { handle, commit: vec![], want: 1 }), Some(Reply::TxGranted { .. })));
    drop((owner, thief));
    conclude(&daemon, bystander, fds);
}

#[test]
fn mediated_requests_beyond_what_was_granted_are_refused() {
    let (daemon, bystander) = daemon();
    let fds = daemon.fds();
    for (index, per_frame) in [(1, 1), (2, 9)] {
        let sharing = Sharing::Shared(Laggard::Block);
        let (mut one, mut two) = (Peer::connect(&daemon), Peer::connect(&daemon));
        let queue = QueueId::tx(index);
        let (a, b) = (one.open(queue, Mode::Mediated, sharing), two.open(queue, Mode::Mediated, sharing));
        let mut reader = Peer::connect(&daemon);
        let rx = reader.open(QueueId::rx(index), Mode::Mediated, Sharing::Exclusive);
        let sync = |handle, commit: &[u16], want| Request::TxSync { handle, commit: commit.to_vec(), want };
        let rx_sync = |release, want| Request::RxSync { handle: rx, release, want };
        assert_eq!(one.refused(&sync(a, &[], 1)), ErrorCode::Invalid, "not started");
        assert_eq!(reader.refused(&rx_sync(0, 1)), ErrorCode::Invalid, "not started");
        for (peer, handle) in [(&mut one, a), (&mut two, b), (&mut reader, rx)] {
            assert!(matches!(peer.ask(&Request::Start { handle }), Some(Reply::Started { .. })));
        }
        // Without the lock; under it too long, too short, too many, and more than was granted.
        assert_eq!(one.refused(&sync(a, &[64], 0)), ErrorCode::Invalid);
        let Some(Reply::TxGranted { units, .. }) = one.ask(&sync(a, &[], 4 * per_frame)) else { panic!() };
        assert_eq!(units, 4 * per_frame);
        assert_eq!(two.refused(&sync(b, &[64], 0)), ErrorCode::Invalid, "the other has the lock");
        assert!(matches!(two.ask(&sync(b, &[], 1)), Some(Reply::TxGranted { units: 0, .. })));
        for commit in [&[0][..], &[65535], &[59], &[64, 64, 0], &[64, 65535], &[64; 5], &[64; 300]] {
            assert_eq!(one.refused(&sync(a, commit, 0)), ErrorCode::Invalid, "{commit:?}");
        }
        assert_eq!(one.refused(&sync(a, &[64; MAX_COMMIT + 1], 0)), ErrorCode::Invalid);
        assert!(matches!(
            one.ask(&sync(a, &[64; 3], u32::MAX)),
            Some(Reply::TxGranted { units, .. }) if units >= 4 * per_frame
        ));
        one.ask(&sync(a, &[], 0)).unwrap();
        // Exactly what was committed has been sent, and no part of what was refused.
        let begin = Instant::now();
        let units = loop {
            let Some(Reply::RxGranted { units, .. }) = reader.ask(&rx_sync(0, u32::MAX)) else { panic!() };
            if units == 3 * per_frame {
                break units;
            }
            assert!(units < 3 * per_frame && begin.elapsed() < PATIENCE);
        };
        std::thread::sleep(Duration::from_millis(5));
        // Giving back more than one has gives back what one has.
        assert!(matches!(
            reader.ask(&rx_sync(units + 1000, u32::MAX)),
            Some(Reply::RxGranted { units: 0, lost: 0, .. })
        ));
        assert!(matches!(reader.ask(&rx_sync(u32::MAX, 5)), Some(Reply::RxGranted { units: 0, lost: 0, .. })));
        // The wrong kind of request for the queue, and of mode.
        assert_eq!(one.refused(&Request::RxSync { handle: a, release: 0, want: 1 }), ErrorCode::Invalid);
        assert_eq!(reader.refused(&sync(rx, &[], 1)), ErrorCode::Invalid);
        // Frames that were too long are counted by who sends, a burst of them at once.
        assert_eq!(reader.refused(&Request::CountTooLong { handle: rx, frames: 1 }), ErrorCode::Invalid);
        for frames in [MAX_TOO_LONG + 1, u32::MAX] {
            assert_eq!(one.refused(&Request::CountTooLong { handle: a, frames }), ErrorCode::Invalid);
        }
        one.done(&Request::CountTooLong { handle: a, frames: MAX_TOO_LONG });
        let stats = daemon.device().stats().unwrap();
        let counted = stats.queues.iter().find(|counted| counted.queue == queue).unwrap();
        let too_long = counted.drops.iter().find(|drop| drop.reason == "too-long").unwrap();
        assert_eq!(too_long.count, u64::from(MAX_TOO_LONG));
        drop((one, two, reader));
        let mut direct = Peer::connect(&daemon);
        let handle = within(PATIENCE, || match direct.ask(&open(queue)) {
            Some(Reply::Opened { handle, .. }) => Ok(handle),
            other => Err(other),
        });
        let handle = handle.0;
        assert!(matches!(direct.ask(&Request::Start { handle }), Some(Reply::Started { .. })));
        assert_eq!(direct.refused(&sync(handle, &[64], 1)), ErrorCode::Invalid);
        assert_eq!(direct.refused(&Request::RxSync { handle, release: 1, want: 1 }), ErrorCode::Invalid);
        for position in [0, u64::MAX, 1 << 40, 12345] {
            direct.done(&Request::Stop { handle, force: true, position });
            assert_eq!(direct.refused(&Request::Stop { handle, force: true, position }), ErrorCode::Invalid);
            let reply = direct.ask(&Request::Start { handle });
            assert!(matches!(reply, Some(Reply::Started { .. })), "{reply:?}");
        }
    }
    conclude(&daemon, bystander, fds);
}

#[test]
fn registers_take_any_address_and_length() {
    let (daemon, bystander) = daemon();
    let fds = daemon.fds();
    let mut peer = Peer::connect(&daemon);
    let mut random = Random(11);
    for len in [MAX_REGISTER_BYTES as u32 + 1, u32::MAX] {
        assert_eq!(peer.refused(&Request::Read { address: 0, len }), ErrorCode::Invalid);
    }
    let bytes = vec![0; MAX_REGISTER_BYTES + 1];
    assert_eq!(peer.refused(&Request::Write { address: 0, bytes }), ErrorCode::Invalid);
    for address in [0, 1, 3, 0x1000_0000, u32::MAX - 3, u32::MAX] {
        for len in [0, 1, 2, 3, 5, 7, 9, 4096] {
            let reply = peer.ask(&Request::Read { address, len });
            assert!(matches!(&reply, Some(Reply::Bytes(bytes)) if bytes.len() == len as usize), "{reply:?}");
        }
    }
    // The registers of queues that nobody uses take anything: the bystander has queue 0.
    for _ in 0..3000 {
        let base = [0x0100_0000, 0x0120_0000][random.below(2) as usize] + 0x80 * (1 + random.below(3) as u32);
        let address = base + random.below(0x80) as u32;
        let bytes = (0..1 + random.below(9)).map(|_| random.next() as u8).collect();
        peer.done(&Request::Write { address, bytes });
    }
    drop(peer);
    let device: Device = daemon.device();
    for index in 1..4 {
        let mut receiver = rx(&device, index, Mode::Direct, Sharing::Exclusive);
        let mut sender = tx(&device, index, Mode::Direct, Sharing::Exclusive);
        send_all(&mut sender, 0, 10, 100);
        receive_all(&mut receiver, 0, 10);
    }
    drop(device);
    conclude(&daemon, bystander, fds);
}
