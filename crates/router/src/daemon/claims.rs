//! Claims: a router that has an interface has bound an abstract name, which goes with its process. Any user may bind one first, or ask who has one: so a
//! claim of somebody who may run no router is passed over, and one that does not say whose it is counts for as much as there is of a router at the interface.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

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

/// In each of these times, finding out who has claims may take so long: who holds many of them, or listens at half a million of names, would otherwise have the
/// only thread for himself.
const TURN: Duration = Duration::from_secs(10);
const SPENT_AT_MOST: Duration = Duration::from_millis(100);

/// A daemon that has beaten within that time lives: it beats several times a second.
const LIVELY: Duration = Duration::from_secs(5);

/// The same of one that has no claim, though nobody else has it. One that was killed has its place taken that much later.
const LIVELY_WITHOUT: Duration = Duration::from_secs(2);

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
    /// A router that lives, and has not taken its claim yet since somebody else has let it go.
    Unclaimed,
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
            Self::Refused(_) | Self::Without(_) | Self::Unclaimed => Trust::Yes,
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
            Self::Unclaimed => f.write_str("its daemon is alive, or was a moment ago"),
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

/// Takes an interface for this router. `signs`: what the programs there say of other routers that have beaten within a time.
///
/// # Errors
/// Which router has it.
pub fn hold(index: u32, signs: impl Fn(Duration) -> Signs) -> Result<Held, Holder> {
    match hold_left(index, &signs)? {
        // Who has had it until now may have been in the way of a router, which asks for it, too, each second.
        Held::Claim(_) if signs(LIVELY_WITHOUT) == Signs::Alive => Err(Holder::Unclaimed),
        held => Ok(held),
    }
}

/// The same for the time in which what was left there is taken away, once, at the start: also of who was killed just now.
///
/// # Errors
/// Which router has it.
pub fn hold_left(index: u32, signs: impl Fn(Duration) -> Signs) -> Result<Held, Holder> {
    let who = match claim(&name_of(index)) {
        Ok(claim) => return Ok(Held::Claim(claim)),
        Err(who) => who,
    };
    match judge(who.trust(), || signs(LIVELY)) {
        Judgement::Routers => Err(who),
        Judgement::AnotherRouters => Err(Holder::Without(Box::new(who))),
        Judgement::Nobodys => Ok(Held::PassedOver(who)),
    }
}

/// Takes the claim of an interface that this router has already; `None` while somebody else has it, whoever that is.
pub fn again(index: u32) -> Option<Claim> {
    bound(&name_of(index)).ok()
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
    bound(name).map_err(|error| match (error, address(name)) {
        (Errno::ADDRINUSE, Ok(address)) => who_has(name, &address),
        _ => Holder::Refused(error.to_string()),
    })
}

/// Binds a claim's name, and asks nobody.
fn bound(name: &str) -> Result<Claim, Errno> {
    let address = address(name).map_err(|_| Errno::INVAL)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &address)?;
    listen(&socket, QUESTIONS).map(|()| Claim(socket))
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
    if answer == Err(Errno::CONNREFUSED) && patience(|| std::thread::sleep(BARELY)).is_some() {
        answer = ask(address);
    }
    match answer {
        Ok(peer) => Holder::Peer(peer),
        Err(Errno::CONNREFUSED) => Holder::Deaf,
        Err(_) => patience(|| user_of(name)).flatten().map_or(Holder::Silent, Holder::User),
    }
}

/// Does what somebody else may make last, if there is time for that.
fn patience<T>(act: impl FnOnce() -> T) -> Option<T> {
    thread_local! {
        static SPENT: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    let (since, spent) = SPENT.get().filter(|(since, _)| now - *since < TURN).unwrap_or((now, Duration::ZERO));
    if spent >= SPENT_AT_MOST {
        return None;
    }
    let done = act();
    SPENT.set(Some((since, spent + now.elapsed())));
    Some(done)
}

/// The user of the socket that listens at an abstract name, of which the kernel tells everybody (`linux/unix_diag.h`): so many may ask its owner at
/// once that nobody is answered any more.
fn user_of(name: &str) -> Option<u32> {
    const BY_FAMILY: u16 = 20;
    const UNIX: u8 = 1;
    const LISTENING: u32 = 1 << 10;
    const SHOW: u32 = 1 | 1 << 6;
    const HEADER: usize = 16;
    /// Of a name there may be a socket of each type (`AF_UNIX`, type, state).
    const TYPE: usize = 1;
    const RECORDS: u8 = 5;
    const NAME: u16 = 0;
    const USER: u16 = 7;
    let mut question = [0; 24];
    question[0] = UNIX;
    question[4..8].copy_from_slice(&LISTENING.to_ne_bytes());
    question[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    let user = |body: &[u8]| {
        let all = wire::attributes(body, HEADER);
        let is_it = body.get(TYPE) == Some(&RECORDS)
            && all.clone().find(NAME).and_then(|bytes| bytes.strip_prefix(b"\0")) == Some(name.as_bytes());
        all.find(USER).and_then(wire::u32_of).filter(|_| is_it)
    };
    let mut questions = Questions::open(Protocol::Sockets).ok()?;
    questions.one(Request::new(BY_FAMILY, wire::DUMP, &question), user).ok()?
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
        // Another type of socket may have the same name.
        let datagrams = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        let streams = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&datagrams, &to).unwrap();
        bind(&streams, &to).unwrap();
        listen(&streams, 1).unwrap();
        let who = claim(&name).unwrap_err();
        assert_eq!((who.trust(), who), (Trust::Yes, Holder::User(me.user)));
        own.answer();
        assert_eq!(claim(&name).unwrap_err(), Holder::Peer(me), "there is room again");
        drop((crowd, own));
        claim(&name).unwrap();
    }

    #[test]
    fn who_lives_without_a_claim_keeps_its_interface_and_many_who_cannot_be_asked_take_no_time() {
        // Numbers that no interface has.
        let (free, first) = (u32::MAX, u32::MAX - 1000);
        assert_eq!(hold(free, |_| Signs::Alive).unwrap_err(), Holder::Unclaimed);
        assert!(matches!(hold(free, |_| Signs::Hidden), Ok(Held::Claim(_))), "it was given back");
        assert!(matches!(hold_left(free, |_| Signs::Alive), Ok(Held::Claim(_))));
        let flags = SocketFlags::CLOEXEC;
        let deaf: Vec<OwnedFd> = (first..first + 500)
            .map(|index| {
                let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                bind(&socket, &address(&name_of(index)).unwrap()).unwrap();
                socket
            })
            .collect();
        let begin = Instant::now();
        assert!((first..first + 500).all(|index| matches!(hold(index, |_| Signs::None), Ok(Held::PassedOver(_)))));
        assert!((first..first + 500).all(|index| again(index).is_none()));
        assert!(begin.elapsed() < 400 * BARELY, "{:?}", begin.elapsed());
        drop(deaf);
        assert!(again(first).is_some());
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
