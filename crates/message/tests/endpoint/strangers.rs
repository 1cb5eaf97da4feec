//! Who calls, or is called, and says and sends what nobody does.

use super::*;

fn call(what: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &address(what)).unwrap();
    socket
}

fn address(what: &str) -> SocketAddrUnix {
    let user = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("millrace-message/{user}/{}", name(what)).as_bytes()).unwrap()
}

fn hello() -> Vec<u8> {
    let mut hello = b"mrmess03\x01\x02\x04\x00\x00\x04\x00\x00".to_vec();
    hello.resize(96, 0);
    hello
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let most = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::RDHUP)], Some(&most)).unwrap() == 1
}

#[test]
fn a_flood_of_callers_does_not_make_an_endpoint_deaf() {
    let _other = open("flooded");
    for _ in 0..5 {
        let until = Instant::now() + Duration::from_millis(300);
        let flood = |_| {
            std::thread::spawn(move || {
                let address = SocketAddrUnix::new_abstract_name(
                    format!("millrace-message/{}/{}", rustix::process::geteuid().as_raw(), name("flooded")).as_bytes(),
                );
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                while Instant::now() < until {
                    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                    let _ = connect(&socket, address.as_ref().unwrap());
                }
            })
        };
        let floods: Vec<_> = (0..4).map(flood).collect();
        floods.into_iter().for_each(|flood| flood.join().unwrap());
        // It sleeps when nobody calls any more; then somebody does.
        std::thread::sleep(Duration::from_millis(50));
        let one = Endpoint::with(SLEEPY).unwrap();
        one.connect(&name("flooded"), LONG).unwrap();
    }
}

#[test]
fn who_says_what_nobody_says_is_hung_up_on() {
    let other = open("hostile");
    for nonsense in [&b"hello"[..], &[0; 96], &[1; 200]] {
        let socket = call("hostile");
        send(&socket, nonsense, SendFlags::empty()).unwrap();
        assert!(has_hung_up(&socket), "{nonsense:?}");
    }
    // Who says nothing waits, a while, and only so many do.
    let silent: Vec<OwnedFd> = (0..30).map(|_| call("hostile")).collect();
    assert!(silent.iter().all(has_hung_up));
    // After the greeting: descriptors, long records, files that are none or have wrong numbers, and rings without end.
    let file = millrace_dma::Region::allocate(1 << 20, millrace_dma::Pages::Ordinary).unwrap();
    for what in 0..7 {
        let socket = call("hostile");
        send(&socket, &hello(), SendFlags::empty()).unwrap();
        let mut welcome = [0; 96];
        recv(&socket, &mut welcome[..], RecvFlags::empty()).unwrap();
        assert_eq!(&welcome[..9], b"mrmess03\x02");
        let peer = other.accept(LONG).unwrap();
        let give = |number: u8, fd: BorrowedFd<'_>| {
            let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
            let (mut ancillary, fds) = (SendAncillaryBuffer::new(&mut space), [fd]);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&socket, &[IoSlice::new(&[number])], &mut ancillary, SendFlags::empty()).unwrap();
        };
        match what {
            0 => give(0, file.fd().unwrap()),
            1 => drop(send(&socket, b"more", SendFlags::empty()).unwrap()),
            2 => drop(send(&socket, &[1], SendFlags::empty()).unwrap()),
            3 => give(1, socket.as_fd()),
            4 => give(5, file.fd().unwrap()),
            5 => (0..2).for_each(|_| give(1, file.fd().unwrap())),
            _ => while send(&socket, &[0], SendFlags::NOSIGNAL).is_ok() {},
        }
        let breach = if what < 6 { Breach::Nonsense } else { Breach::Rings };
        assert_eq!(other.event(LONG), Some(Event::Lost(peer, Some(breach))), "{what}");
        assert!(has_hung_up(&socket));
    }
    // And whoever else comes is answered.
    let one = Endpoint::with(SLEEPY).unwrap();
    one.connect(&name("hostile"), LONG).unwrap();
    other.accept(LONG).unwrap();
}

/// Has the thread of an endpoint stand still, by a function that it calls, until what comes back is dropped.
fn stopped(other: &Endpoint, one: &Endpoint, to: Peer) -> std::sync::mpsc::Sender<()> {
    let ((gate, opens), (told, stands)) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel());
    let request = other.receive(None, Tag(99), u64::MAX, vec![]).unwrap();
    assert!(other.then(request, move |_| {
        told.send(()).unwrap();
        let _ = opens.recv();
    }));
    one.send(to, Tag(99), vec![]).unwrap();
    stands.recv_timeout(LONG).unwrap();
    gate
}

/// A socket that takes a minute to close: it lingers, and nobody reads what was sent.
fn slow_to_close() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (deaf, _) = listener.accept().unwrap();
    slow.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &slow, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&slow, Some(Duration::from_secs(60))).unwrap();
    (slow, deaf)
}

#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let other = open("slow");
    let mut deaf = Vec::new();
    let one = Endpoint::with(SLEEPY).unwrap();
    let to = one.connect(&name("slow"), LONG).unwrap();
    // In a greeting, after one, and in a socket that is closed before it was read.
    for what in 0..3 {
        let (slow, end) = slow_to_close();
        deaf.push(end);
        let socket = call("slow");
        let can_refuse = take_descriptors(&socket).is_ok();
        if what > 0 {
            send(&socket, &hello(), SendFlags::empty()).unwrap();
            // It is let in.
            let most = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&most)), Ok(1));
        }
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let (mut ancillary, fds) = (SendAncillaryBuffer::new(&mut space), [slow.as_fd()]);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let record = if what == 0 { hello() } else { vec![0] };
        if what == 0 && can_refuse {
            // It is not sent at all, so that there is nothing to close.
            let sent = sendmsg(&socket, &[IoSlice::new(&record)], &mut ancillary, SendFlags::empty());
            assert_eq!(sent, Err(Errno::PERM));
            // Which this thread would wait for.
            deaf.pop();
            continue;
        }
        // So that it is the last to close it, and not this thread.
        let gate = stopped(&other, &one, to);
        for _ in 0..if what == 2 { 2 } else { 1 } {
            sendmsg(&socket, &[IoSlice::new(&record)], &mut ancillary, SendFlags::empty()).unwrap();
        }
        drop(slow);
        drop(gate);
        assert!(has_hung_up(&socket));
    }
    one.send(to, Tag(0), vec![1; 10]).unwrap();
    let request = other.receive(None, Tag(0), 0, vec![0; 10]).unwrap();
    assert_eq!(other.wait(request, LONG).unwrap().buffer, [1; 10]);
    drop(deaf);
}

/// Who calls somebody that answers with what is no memory, and slow to close, is told so, and does not wait for it.
#[test]
fn what_is_slow_to_close_in_an_answer_is_not_waited_for() {
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &address("liar")).unwrap();
    listen(&listener, 1).unwrap();
    let (slow, _deaf) = slow_to_close();
    let answers = std::thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        recv(&socket, &mut [0; 96][..], RecvFlags::empty()).unwrap();
        let mut welcome = hello();
        welcome[8] = 2;
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let (mut ancillary, fds) = (SendAncillaryBuffer::new(&mut space), [slow.as_fd()]);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        // Once where it is heard, and once where it lies in the socket until that is closed.
        let mut send = || sendmsg(&socket, &[IoSlice::new(&welcome)], &mut ancillary, SendFlags::NOSIGNAL);
        send().unwrap();
        match send() {
            Ok(_) => drop(slow),
            // Who has called has hung up already, and this thread is not to be the one that waits.
            Err(_) => std::mem::forget(slow),
        }
        socket
    });
    let one = Endpoint::with(SLEEPY).unwrap();
    // The last one that has it is whoever has called.
    let called = std::thread::spawn(move || {
        let begin = Instant::now();
        (one.connect(&name("liar"), LONG).map(drop), begin.elapsed())
    });
    let _socket = answers.join().unwrap();
    let (called, took) = called.join().unwrap();
    assert!(matches!(called, Err(Error::Memory(_))), "{called:?}");
    assert!(took < LONG, "{took:?}");
}
