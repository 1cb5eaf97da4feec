//! The body of the fuzz target `driver_message`: a driver that gets whatever bytes as messages, and must go on serving.
//!
//! Shared by the test beside it and by `fuzz/fuzz_targets/driver_message.rs`.

use millrace_abi::message::{ErrorCode, MAX_MESSAGE, Reply, Request, VERSION, decode, encode};
use millrace_card::Card;
use millrace_driver::Driver;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// One card for all inputs, as it is in life: state that one input leaves behind is there for the next.
pub struct Target {
    driver: Driver,
    socket: OwnedFd,
    memory: OwnedFd,
    reply: Vec<u8>,
}

impl Target {
    /// A driver that has been told hello.
    pub fn new() -> Self {
        let options = "embedded:queues=3,engine=sze@2,buffers=128,ring=32768,buffer=256,spin=0";
        let Ok(millrace_abi::name::DeviceName::Embedded(options)) = options.parse() else {
            unreachable!("an embedded card")
        };
        let driver = Driver::embedded(Card::new(&options).expect("a card")).expect("a driver");
        let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&memory, 1 << 16).expect("memory");
        let socket = connect(&driver);
        let mut target = Self { driver, socket, memory, reply: vec![0; MAX_MESSAGE] };
        target.hello();
        target
    }

    /// Sends one packet, with a descriptor if wanted, and reads the reply. `None` when the driver has hung up.
    pub fn ask(&mut self, bytes: &[u8], with_memory: bool) -> Option<Reply> {
        let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: [BorrowedFd<'_>; 1] = [self.memory.as_fd()];
        if with_memory {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).ok()?;
        // The fuzzer has a clock that ticks, and a wait that is limited in time is not taken up again by itself.
        let receive = || rustix::net::recv(&self.socket, &mut self.reply[..], RecvFlags::empty());
        let (len, _) = rustix::io::retry_on_intr(receive).ok()?;
        (len > 0).then(|| decode(&self.reply[..len]).expect("the driver keeps to its protocol"))
    }

    /// Closes the connection, and introduces itself on a new one.
    pub fn come_again(&mut self) {
        // Before there is a new one, or both count.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).expect("a socket");
        self.socket = connect(&self.driver);
        self.hello();
    }

    fn hello(&mut self) {
        let hello = encode(&Request::Hello { version: VERSION }).expect("a message");
        let answer = self.ask(&hello, false);
        assert!(matches!(answer, Some(Reply::Hello { .. })), "the driver serves whoever comes: {answer:?}");
    }
}

fn connect(driver: &Driver) -> OwnedFd {
    let socket = driver.connect().expect("a connection");
    // A driver that does not answer is a finding, not a reason to wait for ever.
    let patience = Some(Duration::from_secs(20));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, patience).expect("a limit");
    socket
}

/// Messages, one after the other: a byte of flags (bit 0: a descriptor comes along; bit 1: hang up before), two bytes of
/// length, and the bytes of the message.
pub fn driver_message(data: &[u8]) {
    static TARGET: OnceLock<Mutex<Target>> = OnceLock::new();
    let target = TARGET.get_or_init(|| Mutex::new(Target::new()));
    let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rest = data;
    while let [flags, low, high, more @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, after) = more.split_at(len);
        rest = after;
        if flags & 2 != 0 {
            target.come_again();
        }
        // What is no message is answered with the reason, and then the driver hangs up.
        let answer = target.ask(bytes, flags & 1 != 0);
        if matches!(answer, None | Some(Reply::Error { code: ErrorCode::Protocol, .. })) {
            target.come_again();
        }
    }
    // Whatever came, the driver answers, and what was counted adds up.
    let stats = encode(&Request::Stats).expect("a message");
    let stats = match target.ask(&stats, false) {
        Some(Reply::Stats(stats)) => stats,
        other => panic!("no statistics: {other:?}"),
    };
    for queue in &stats.queues {
        let dropped: u64 = queue.drops.iter().map(|drop| drop.count).sum();
        assert_eq!(queue.offered, queue.passed + dropped, "{queue:?}");
    }
}
