//! Claims: a router that has an interface has bound an abstract name, which goes with its process. Any user may bind one first, or ask who has one: so a
//! claim of somebody who may run no router is passed over, and one that does not say whose it is counts for as much as there is of a router at the interface.

use std::fmt;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use super::capabilities;
use super::control::{self, address, ask};
use super::peer::Peer;
use crate::engine::pins::Signs;
use crate::kernel::socket::{Protocol, Questions};
use crate::kernel::wire::{self, Request};

/// As long as a router may take from having a claim to answering for it.
const BARELY: Duration = Duration::from_millis(20);

/// Those who may ask who has a claim before it is answered.
const QUESTIONS: i32 = 64;

/// A claim that is ours, for as long as it lives.
#[derive(Debug)]
pub struct Claim(OwnedFd);

/// Who has a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Somebody who answers.
    Peer(Peer),
    /// Somebody of a user, who does not answer: so many ask.
    User(u32),
    /// Somebody who does not answer, and whose user is not known.
    Silent,
    /// Somebody who cannot even be asked: no router has a claim like that.
    Deaf,
    /// The system, which refuses it.
    Refused(String),
    /// A router that lives, whose claim somebody else has.
    Without(Box<Holder>),
}

/// Whether a claim is a router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Yes,
    /// If there is something of a router at the interface.
    Perhaps,
    No,
}

impl Holder {
    fn trust(&self) -> Trust {
        let is_trusted = |user: u32| user == 0 || user == rustix::process::geteuid().as_raw();
        match self {
            Self::Peer(peer) if is_trusted(peer.user) => Trust::Yes,
            Self::User(user) if is_trusted(*user) => Trust::Yes,
            // Who may load programs runs a router, or was begun by who may not, and has the socket of that: `su` waits for a password for as long as one likes.
            Self::Peer(Peer { process: Some(process), .. }) => match capabilities::of(*process) {
                Some(has) if capabilities::may_load(has) => Trust::Perhaps,
                // A process that has ended is no router: a claim ends with its process.
                _ => Trust::No,
            },
            Self::Peer(_) | Self::User(_) | Self::Silent => Trust::Perhaps,
            Self::Deaf => Trust::No,
            Self::Refused(_) | Self::Without(_) => Trust::Yes,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(peer) => peer.fmt(f),
            Self::User(user) => write!(f, "a process of user {user} that does not answer"),
            Self::Silent => f.write_str("somebody of this network namespace who does not answer"),
            Self::Deaf => f.write_str("somebody of this network namespace who cannot be asked"),
            Self::Refused(why) => f.write_str(why),
            Self::Without(other) => write!(f, "its daemon is alive, and its claim is held by {other}"),
        }
    }
}

/// What a router may do with an interface.
#[derive(Debug)]
pub enum Held {
    /// It has the claim.
    Claim(Claim),
    /// Somebody has the claim who is no router's.
    PassedOver(Holder),
}

/// The name by which an interface is claimed.
fn name_of(index: u32) -> String {
    format!("{}-interface-{index}", control::NAME)
}

/// Takes an interface for this router. `signs`: what the programs there say of other routers; asked for only if somebody else has the claim.
///
/// # Errors
/// Which router has it.
pub fn hold(index: u32, signs: impl Fn() -> Signs) -> Result<Held, Holder> {
    match claim(&name_of(index)) {
        Ok(claim) => Ok(Held::Claim(claim)),
        Err(who) => match judge(who.trust(), signs) {
            Judgement::Routers => Err(who),
            Judgement::AnotherRouters => Err(Holder::Without(Box::new(who))),
            Judgement::Nobodys => Ok(Held::PassedOver(who)),
        },
    }
}

/// Takes the claim of an interface that this router has already; `None` while somebody else has it.
pub fn again(index: u32) -> Option<Claim> {
    claim(&name_of(index)).ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Routers,
    /// The holder is none, and yet there is a router.
    AnotherRouters,
    Nobodys,
}

fn judge(trust: Trust, signs: impl Fn() -> Signs) -> Judgement {
    match trust {
        Trust::Yes => Judgement::Routers,
        Trust::Perhaps if signs() != Signs::None => Judgement::Routers,
        Trust::No if signs() == Signs::Alive => Judgement::AnotherRouters,
        Trust::Perhaps | Trust::No => Judgement::Nobodys,
    }
}

fn claim(name: &str) -> Result<Claim, Holder> {
    let failed = |error: Errno| Holder::Refused(error.to_string());
    let address = address(name).map_err(|error| Holder::Refused(error.to_string()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
    match bind(&socket, &address) {
        Ok(()) => listen(&socket, QUESTIONS).map(|()| Claim(socket)).map_err(failed),
        Err(Errno::ADDRINUSE) => Err(who_has(name, &address)),
        Err(error) => Err(failed(error)),
    }
}

impl Claim {
    /// Takes in those who have asked whose it is, whom the system has told: without, no more would be told.
    pub fn answer(&self) {
        for _ in 0..QUESTIONS {
            if rustix::net::accept(&self.0).is_err() {
                break;
            }
        }
    }
}

fn who_has(name: &str, address: &SocketAddrUnix) -> Holder {
    let mut answer = ask(address);
    // Between a router's bind and its listen.
    if answer == Err(Errno::CONNREFUSED) {
        std::thread::sleep(BARELY);
        answer = ask(address);
    }
    match answer {
        Ok(peer) => Holder::Peer(peer),
        Err(Errno::CONNREFUSED) => Holder::Deaf,
        Err(_) => user_of(name).map_or(Holder::Silent, Holder::User),
    }
}

/// The user of the socket that listens at an abstract name, of which the kernel tells everybody (`linux/unix_diag.h`): so many may ask its owner at
/// once that nobody is answered any more.
fn user_of(name: &str) -> Option<u32> {
    const BY_FAMILY: u16 = 20;
    const UNIX: u8 = 1;
    const LISTENING: u32 = 1 << 10;
    const SHOW: u32 = 1 | 1 << 6;
    const HEADER: usize = 16;
    const NAME: u16 = 0;
    const USER: u16 = 7;
    let mut question = [0; 24];
    question[0] = UNIX;
    question[4..8].copy_from_slice(&LISTENING.to_ne_bytes());
    question[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    let mut found = None;
    let keep = |message: wire::Message<'_>| {
        let all = wire::attributes(message.body, HEADER);
        let is_it = all.clone().find(NAME).and_then(|bytes| bytes.strip_prefix(b"\0")) == Some(name.as_bytes());
        if message.kind == BY_FAMILY && is_it {
            found = all.clone().find(USER).and_then(wire::u32_of);
        }
    };
    let mut questions = Questions::open(Protocol::Sockets).ok()?;
    questions.ask(Request::new(BY_FAMILY, wire::DUMP, &question), || (), keep).ok()?;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_a_claim_is_is_known_also_when_nobody_is_answered_any_more() {
        let name = format!("millrace-test-claim-{}", std::process::id());
        let own = claim(&name).unwrap();
        let me = Peer {
            process: Some(std::process::id() as i32),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        };
        assert_eq!(claim(&name).unwrap_err(), Holder::Peer(me));
        let flags = SocketFlags::NONBLOCK;
        let to = address(&name).unwrap();
        let crowd: Vec<OwnedFd> = (0..2 * QUESTIONS)
            .map(|_| {
                let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                let _ = rustix::net::connect(&socket, &to);
                socket
            })
            .collect();
        let who = claim(&name).unwrap_err();
        assert_eq!((who.trust(), who), (Trust::Yes, Holder::User(me.user)));
        own.answer();
        assert_eq!(claim(&name).unwrap_err(), Holder::Peer(me), "there is room again");
        drop((crowd, own));
        claim(&name).unwrap();
    }

    #[test]
    fn a_claim_counts_for_what_its_holder_is_and_for_what_is_at_the_interface() {
        let of = |trust| [Signs::Alive, Signs::Hidden, Signs::None].map(|signs| judge(trust, || signs));
        use Judgement::{AnotherRouters, Nobodys, Routers};
        assert_eq!(of(Trust::Yes), [Routers; 3]);
        assert_eq!(of(Trust::Perhaps), [Routers, Routers, Nobodys]);
        assert_eq!(of(Trust::No), [AnotherRouters, Nobodys, Nobodys]);
        let peer = |process| Holder::Peer(Peer { process, user: 65_534, group: 65_534 });
        assert_eq!(peer(None).trust(), Trust::Perhaps, "it may be root's of another namespace of users");
        assert_eq!(peer(Some(i32::MAX)).trust(), Trust::No, "it is gone");
        assert_eq!((Holder::User(65_534).trust(), Holder::Deaf.trust()), (Trust::Perhaps, Trust::No));
    }
}
