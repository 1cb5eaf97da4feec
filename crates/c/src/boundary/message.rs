//! Messages: what `millrace_message` has, with pointers.

use super::arguments::{array, give, give_new, string};
use super::block::millrace_message_given;
use crate::failure::Failure;
use crate::guard;
use ::millrace_message::bell::{Full, Owner, Sent};
use ::millrace_message::buffer::Buffer;
use ::millrace_message::channel::Taken;
use ::millrace_message::endpoint::{rail, Config, Ended, Endpoint, Error, Event, Peer, Request, Scope, Users};
use ::millrace_message::engine::{Cancel, Outcome, RequestError};
use ::millrace_message::{Scheme, Tag};
use core::mem::MaybeUninit;
use core::slice;
use core::time::Duration;
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;

/// An endpoint: a name, connections to other endpoints of this host and of others, messages and doorbells. Any number of threads may use it at once.
/// docs/message.md has the whole.
pub struct millrace_message(pub(super) Endpoint<Lent>);

/// How an endpoint is opened: flags of millrace_message_open().
#[repr(C)]
pub enum millrace_message_flags {
    /// Endpoints of all users may connect. Otherwise those of the same user and of root.
    MILLRACE_MESSAGE_ANYBODY = 1,
    /// Memory of messages of 64 KiB and more that is sent again becomes shared memory in place, where the system allows it, so that receivers
    /// of the same user copy it once. Only for programs that do not count on zeros behind madvise(MADV_DONTNEED) in such memory.
    MILLRACE_MESSAGE_ADOPT = 2,
    /// The same with what malloc hands out again. Only for programs that do not fork while other threads allocate.
    MILLRACE_MESSAGE_ADOPT_HEAP = 4,
}

/// Which way a message goes: way of millrace_message_send().
#[repr(C)]
pub enum millrace_message_way {
    /// The way that is the fastest on this host.
    MILLRACE_MESSAGE_FASTEST = 0,
    /// In the ring, with its envelope; what is too long for that goes by one copy.
    MILLRACE_MESSAGE_EAGER = 1,
    /// Through buffers that both ends share.
    MILLRACE_MESSAGE_ONE_COPY = 2,
    /// The receiver reads the memory of the sender; where it may not, by one copy.
    MILLRACE_MESSAGE_ZERO_COPY = 3,
}

/// What became of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum millrace_message_outcome {
    /// Its bytes are not needed here any more.
    MILLRACE_MESSAGE_SENT = 0,
    /// It is here.
    MILLRACE_MESSAGE_RECEIVED = 1,
    /// As millrace_message_cancel() wanted.
    MILLRACE_MESSAGE_CANCELLED = 2,
    /// It is longer than the room that the receiver has.
    MILLRACE_MESSAGE_TOO_LONG = 3,
    /// A copy or a move did not work.
    MILLRACE_MESSAGE_FAILED = 4,
    /// The other end is gone.
    MILLRACE_MESSAGE_LOST = 5,
    /// It is here, in memory that the other end has handed over: see given of struct millrace_message_end.
    MILLRACE_MESSAGE_HELD = 6,
}

/// What happens to others.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum millrace_message_happening {
    /// One has connected.
    MILLRACE_MESSAGE_JOINED = 0,
    /// One has gone. Short messages of it that are here can be received still.
    MILLRACE_MESSAGE_GONE = 1,
    /// One was lost because of what it did.
    MILLRACE_MESSAGE_BROKEN = 2,
}

/// A message that has ended: its memory is the program's again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millrace_message_end {
    /// What millrace_message_send() or millrace_message_receive() gave.
    pub request: u64,
    /// Of a message that was received: from whom.
    pub peer: u64,
    /// And what for.
    pub tag: u64,
    /// And how many bytes. Of one that was too long: how many it has.
    pub len: u64,
    /// The memory of the program that the message was sent from, or received into; of several pieces the first. Of MILLRACE_MESSAGE_HELD: where it
    /// is, len bytes that the other end could still change.
    pub bytes: *mut c_void,
    /// One of enum millrace_message_outcome.
    pub outcome: u32,
    /// 0.
    pub reserved: u32,
    /// Of MILLRACE_MESSAGE_HELD, for millrace_message_give_back(): until then the memory is not the other end's again. Otherwise NULL.
    pub given: *mut millrace_message_given,
}

/// Another endpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millrace_message_other {
    /// What it calls itself, "" if it has no name.
    pub name: [c_char; 65],
    /// Whose it is.
    pub user: u32,
    /// Its process; 0: it has no number in this container, or is on another host.
    pub pid: u32,
    /// Its host, if that is another one, as it is called there; otherwise "". Between hosts nobody vouches for what an endpoint says of itself.
    pub host: [c_char; 65],
}

const ANYBODY: u32 = millrace_message_flags::MILLRACE_MESSAGE_ANYBODY as u32;
const ADOPT: u32 = millrace_message_flags::MILLRACE_MESSAGE_ADOPT as u32;
const ADOPT_HEAP: u32 = millrace_message_flags::MILLRACE_MESSAGE_ADOPT_HEAP as u32;

const FASTEST: u32 = millrace_message_way::MILLRACE_MESSAGE_FASTEST as u32;
const EAGER: u32 = millrace_message_way::MILLRACE_MESSAGE_EAGER as u32;
const ONE_COPY: u32 = millrace_message_way::MILLRACE_MESSAGE_ONE_COPY as u32;
const ZERO_COPY: u32 = millrace_message_way::MILLRACE_MESSAGE_ZERO_COPY as u32;

/// A piece of the memory of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millrace_message_piece {
    /// Where it is.
    pub bytes: *mut c_void,
    /// How many.
    pub len: usize,
}

/// Memory of the program, as long as a message has not ended.
pub(super) enum Lent {
    One(millrace_message_piece),
    Several(Vec<millrace_message_piece>),
}

// SAFETY: memory of the program, which it leaves alone until the message has ended, as the header says; whatever thread
// copies meanwhile is the only one.
unsafe impl Send for Lent {}

impl Lent {
    fn pieces(&self) -> &[millrace_message_piece] {
        match self {
            Self::One(piece) => slice::from_ref(piece),
            Self::Several(pieces) => pieces,
        }
    }

    /// Where bytes from `offset` on are, and how many of `most` lie there.
    fn find(&self, mut offset: usize, most: usize) -> Option<(*mut u8, usize)> {
        for piece in self.pieces() {
            if offset < piece.len {
                return Some((piece.bytes.cast::<u8>().wrapping_add(offset), most.min(piece.len - offset)));
            }
            offset -= piece.len;
        }
        None
    }
}

impl Buffer for Lent {
    fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }

    fn piece(&self, offset: usize, most: usize) -> &[u8] {
        let Some((first, len)) = self.find(offset, most) else { return &[] };
        // SAFETY: within a piece, which is not NULL, and whose bytes nobody changes: the caller's promise.
        unsafe { slice::from_raw_parts(first, len) }
    }

    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8] {
        let Some((first, len)) = self.find(offset, most) else { return &mut [] };
        // SAFETY: within a piece, which is not NULL, and whose bytes nobody else uses: the caller's promise. Only of messages that are
        // received.
        unsafe { slice::from_raw_parts_mut(first, len) }
    }

    /// The end says how many came.
    fn shorten(&mut self, _: usize) {}
}

fn lent(bytes: *mut c_void, len: usize) -> Result<Lent, Failure> {
    let piece = millrace_message_piece { bytes, len };
    check(&[piece])?;
    Ok(Lent::One(piece))
}

fn check(pieces: &[millrace_message_piece]) -> Result<(), Failure> {
    if pieces.iter().any(|piece| piece.bytes.is_null() && piece.len > 0) {
        return Err(Failure::null("bytes"));
    }
    let all = pieces.iter().try_fold(0_usize, |all, piece| all.checked_add(piece.len));
    match all.filter(|all| isize::try_from(*all).is_ok()) {
        Some(_) => Ok(()),
        None => Err(Failure::invalid("there are not so many bytes")),
    }
}

/// The pieces of a list.
unsafe fn several(list: *const millrace_message_piece, count: usize) -> Result<Lent, Failure> {
    // SAFETY: so many pieces of the caller.
    let pieces = unsafe { array(list, count, "pieces") }?.to_vec();
    check(&pieces)?;
    Ok(Lent::Several(pieces))
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        Self::new(Errno::from_raw_os_error(error.errno()), error.to_string())
    }
}

impl From<RequestError> for Failure {
    #[cold]
    fn from(error: RequestError) -> Self {
        Self::new(Errno::NOTCONN, error.to_string())
    }
}

const NAME: &str = "endpoint";

pub(super) fn opened(endpoint: Option<&millrace_message>) -> Result<&Endpoint<Lent>, Failure> {
    endpoint.map(|endpoint| &endpoint.0).ok_or_else(|| Failure::null(NAME))
}

pub(super) fn gone() -> Failure {
    Failure::new(Errno::NOTCONN, "the other endpoint is gone")
}

fn nothing() -> Failure {
    Failure::new(Errno::TIMEDOUT, "nothing has come in that time")
}

fn told(ended: Ended<Lent>) -> millrace_message_end {
    use millrace_message_outcome::*;
    let (outcome, tag, len) = match ended.outcome {
        Outcome::Sent => (MILLRACE_MESSAGE_SENT, 0, ended.buffer.len() as u64),
        Outcome::Received { tag, len, .. } => (MILLRACE_MESSAGE_RECEIVED, tag.0, len),
        Outcome::Cancelled => (MILLRACE_MESSAGE_CANCELLED, 0, 0),
        Outcome::TooLong { len } => (MILLRACE_MESSAGE_TOO_LONG, 0, len),
        Outcome::Failed => (MILLRACE_MESSAGE_FAILED, 0, 0),
        Outcome::Lost => (MILLRACE_MESSAGE_LOST, 0, 0),
        Outcome::Held { tag, len, .. } => (MILLRACE_MESSAGE_HELD, tag.0, len),
    };
    let own = ended.buffer.pieces().first().map_or(core::ptr::null_mut(), |first| first.bytes);
    let held = ended.given.as_ref().and_then(|given| given.window().span(0, given.len()));
    let bytes = held.map_or(own, |span| span.as_ptr().cast_mut().cast());
    let given = ended.given.map(|given| Box::into_raw(Box::new(millrace_message_given(given))));
    millrace_message_end {
        request: ended.request.number(),
        peer: ended.from.map_or(0, Peer::number),
        tag,
        len,
        bytes,
        outcome: outcome as u32,
        reserved: 0,
        given: given.unwrap_or(core::ptr::null_mut()),
    }
}

/// Opens an endpoint that others find by name: 1 to 64 letters, digits, '.', '_' and '-'. NULL: others do not find it, it connects. For flags
/// of enum millrace_message_flags. -EADDRINUSE: another one of this user has the name.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_open(
    name: *const c_char,
    flags: u32,
    endpoint: Option<&mut MaybeUninit<*mut millrace_message>>,
) -> c_int {
    // SAFETY: a string of the caller; no rails.
    give_new(endpoint, NAME, || unsafe { open(name, flags, &[], core::ptr::null()) })
}

/// The same with rails, by which endpoints of other hosts are reached, and by which they find this one if it has a name: cards ("unix:PATH") and ports
/// ("virtio-user:PATH"; docs/ports.md), up to 8, which are used together. host: what this host is called by others; NULL: its own name. Names of other hosts are
/// those of millrace_message_connect() with the host before: "b:solver".
#[no_mangle]
pub unsafe extern "C" fn millrace_message_open_between(
    name: *const c_char,
    flags: u32,
    rails: *const *const c_char,
    count: usize,
    host: *const c_char,
    endpoint: Option<&mut MaybeUninit<*mut millrace_message>>,
) -> c_int {
    give_new(endpoint, NAME, || {
        // SAFETY: an array of strings of the caller, and two strings.
        unsafe { open(name, flags, array(rails, count, "rails")?, host) }
    })
}

/// # Safety
/// All are strings, or NULL where that is allowed.
unsafe fn open(
    name: *const c_char,
    flags: u32,
    rails: &[*const c_char],
    host: *const c_char,
) -> Result<millrace_message, Failure> {
    if flags & !(ANYBODY | ADOPT | ADOPT_HEAP) != 0 {
        return Err(Failure::invalid("flags of an endpoint are those of enum millrace_message_flags"));
    }
    // SAFETY: strings of the caller.
    let given = |text: *const c_char, what| unsafe { string(text, what) }.map(str::to_owned);
    let own = |text: *const c_char, what| if text.is_null() { Ok(None) } else { given(text, what).map(Some) };
    let (name, host) = (own(name, "name")?, own(host, "host")?);
    let rails = rails.iter().map(|spec| Ok(rail(&given(*spec, "rails")?))).collect::<Result<Vec<_>, Failure>>()?;
    let users = if flags & ANYBODY != 0 { Users::Anybody } else { Users::Own };
    let adopt = match flags & (ADOPT | ADOPT_HEAP) {
        0 => None,
        ADOPT => Some(Scope::Mappings),
        _ => Some(Scope::Heap),
    };
    Ok(millrace_message(Endpoint::of_buffers(Config { name, users, adopt, rails, host, ..Config::default() })?))
}

/// Closes an endpoint. What has not ended is not sent, or received, any more, and its memory is the program's again.
#[no_mangle]
pub extern "C" fn millrace_message_close(endpoint: Option<Box<millrace_message>>) -> c_int {
    guard::run(|| {
        drop(endpoint);
        Ok(0)
    })
}

/// Connects to the endpoint of that name, of this user, or of the one that stands before it ("1000/solver"). One that is not there yet is
/// waited for, for so many nanoseconds: -ECONNREFUSED. -EACCES: it does not take endpoints of this user; -EUSERS: it has as many as it may; -EPROTO: it is of
/// another version; -ETIMEDOUT: it is there, and does not answer, for which it has a second at least.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_connect(
    endpoint: Option<&millrace_message>,
    name: *const c_char,
    patience: u64,
    peer: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(peer, "peer", || {
        // SAFETY: a string of the caller.
        let name = unsafe { string(name, "name") }?;
        Ok(opened(endpoint)?.connect(name, Duration::from_nanos(patience))?.number())
    })
}

/// Waits for somebody who connects, for so many nanoseconds: -ETIMEDOUT.
#[no_mangle]
pub extern "C" fn millrace_message_accept(
    endpoint: Option<&millrace_message>,
    patience: u64,
    peer: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(peer, "peer", || Ok(opened(endpoint)?.accept(Duration::from_nanos(patience)).ok_or_else(nothing)?.number()))
}

/// Ends a connection. What waits for the other end, or it has left, is lost.
#[no_mangle]
pub extern "C" fn millrace_message_leave(endpoint: Option<&millrace_message>, peer: u64) -> c_int {
    guard::run(|| {
        opened(endpoint)?.leave(Peer::of_number(peer));
        Ok(0)
    })
}

/// Who that is. -ENOTCONN: nobody, or it is gone and forgotten.
#[no_mangle]
pub extern "C" fn millrace_message_who(
    endpoint: Option<&millrace_message>,
    peer: u64,
    who: Option<&mut MaybeUninit<millrace_message_other>>,
) -> c_int {
    give(who, "who", || {
        let found = opened(endpoint)?.who(Peer::of_number(peer)).ok_or_else(gone)?;
        let letters = |text: &str| {
            let mut letters = [0; 65];
            // Names have 64 letters at most.
            letters.iter_mut().zip(text.bytes().take(64)).for_each(|(to, byte)| *to = byte as c_char);
            letters
        };
        let (name, host) = (letters(&found.name), letters(found.host.as_deref().unwrap_or_default()));
        Ok(millrace_message_other { name, user: found.user, pid: found.pid.unwrap_or(0), host })
    })
}

/// Waits for what happens to others: one of enum millrace_message_happening, and to whom. -ETIMEDOUT: nothing in so many nanoseconds.
#[no_mangle]
pub extern "C" fn millrace_message_event(
    endpoint: Option<&millrace_message>,
    patience: u64,
    peer: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard::run(|| {
        use millrace_message_happening::*;
        let place = peer.ok_or_else(|| Failure::null("peer"))?;
        let event = opened(endpoint)?.event(Duration::from_nanos(patience)).ok_or_else(nothing)?;
        place.write(event.peer().number());
        Ok(match event {
            Event::Joined(_) => MILLRACE_MESSAGE_JOINED as c_int,
            Event::Lost(_, None) => MILLRACE_MESSAGE_GONE as c_int,
            Event::Lost(_, Some(_)) => MILLRACE_MESSAGE_BROKEN as c_int,
        })
    })
}

/// Sends a message, by a way of enum millrace_message_way. Its memory is not to be changed until it has ended. -ENOTCONN: the other end is
/// gone.
#[no_mangle]
pub extern "C" fn millrace_message_send(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    bytes: *const c_void,
    len: usize,
    way: u32,
    request: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(request, "request", || sent(opened(endpoint)?, (peer, tag, way), lent(bytes.cast_mut(), len)?))
}

fn sent(endpoint: &Endpoint<Lent>, (peer, tag, way): (u64, u64, u32), buffer: Lent) -> Result<u64, Failure> {
    let peer = Peer::of_number(peer);
    let scheme = match way {
        FASTEST => return Ok(endpoint.send(peer, Tag(tag), buffer)?.number()),
        EAGER => Scheme::Eager,
        ONE_COPY => Scheme::OneCopy,
        ZERO_COPY => Scheme::ZeroCopy,
        _ => return Err(Failure::invalid("ways of a message are 0 to 3")),
    };
    Ok(endpoint.send_by(peer, Tag(tag), buffer, scheme)?.number())
}

/// The same with a message in several pieces. The list is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_send_pieces(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    pieces: *const millrace_message_piece,
    count: usize,
    way: u32,
    request: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(request, "request", || {
        // SAFETY: so many pieces of the caller.
        let buffer = unsafe { several(pieces, count) }?;
        sent(opened(endpoint)?, (peer, tag, way), buffer)
    })
}

/// Waits for a message of len bytes or fewer from peer, or from anybody (0), with those bits of tag that are set in mask. Its memory is not
/// to be used until it has ended.
#[no_mangle]
pub extern "C" fn millrace_message_receive(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    mask: u64,
    bytes: *mut c_void,
    len: usize,
    request: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(request, "request", || {
        let from = (peer != 0).then(|| Peer::of_number(peer));
        Ok(opened(endpoint)?.receive(from, Tag(tag), mask, lent(bytes, len)?)?.number())
    })
}

/// The same, of a message that may have been handed over (millrace_message_give()): that is not copied, but ends as MILLRACE_MESSAGE_HELD. Others
/// come to bytes.
#[no_mangle]
pub extern "C" fn millrace_message_receive_held(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    mask: u64,
    bytes: *mut c_void,
    len: usize,
    request: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(request, "request", || {
        let from = (peer != 0).then(|| Peer::of_number(peer));
        Ok(opened(endpoint)?.receive_held(from, Tag(tag), mask, lent(bytes, len)?)?.number())
    })
}

/// The same into several pieces. The list is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_receive_pieces(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    mask: u64,
    pieces: *const millrace_message_piece,
    count: usize,
    request: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(request, "request", || {
        // SAFETY: so many pieces of the caller.
        let buffer = unsafe { several(pieces, count) }?;
        let from = (peer != 0).then(|| Peer::of_number(peer));
        Ok(opened(endpoint)?.receive(from, Tag(tag), mask, buffer)?.number())
    })
}

/// Waits until that message has ended, or any (0), for so many nanoseconds: -ETIMEDOUT. 0 nanoseconds: only looks, and moves everything on. An end
/// is told once.
#[no_mangle]
pub extern "C" fn millrace_message_wait(
    endpoint: Option<&millrace_message>,
    request: u64,
    patience: u64,
    end: Option<&mut MaybeUninit<millrace_message_end>>,
) -> c_int {
    give(end, "end", || {
        let (endpoint, patience) = (opened(endpoint)?, Duration::from_nanos(patience));
        let ended = match request {
            0 => endpoint.next(patience),
            number => endpoint.wait(Request::of_number(number), patience),
        };
        Ok(told(ended.ok_or_else(nothing)?))
    })
}

/// A function that is told of the end of a message, by a thread of the library. It may begin other messages; it must not close the endpoint.
pub type millrace_message_callback =
    Option<unsafe extern "C" fn(end: *const millrace_message_end, context: *mut c_void)>;

/// What a program wants to be handed back.
struct Context(*mut c_void);

// SAFETY: the program has said, by giving it, that its function takes it on any thread.
unsafe impl Send for Context {}

/// Has a function called when that message has ended, instead of waiting for it. -ENOENT: there is no such message, or its end was told already.
/// Functions that were not called when the endpoint is closed are not called.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_then(
    endpoint: Option<&millrace_message>,
    request: u64,
    callback: millrace_message_callback,
    context: *mut c_void,
) -> c_int {
    guard::run(|| {
        let function = callback.ok_or_else(|| Failure::null("callback"))?;
        let context = Context(context);
        let waits = opened(endpoint)?.then(Request::of_number(request), move |ended| {
            let Context(context) = &context;
            let end = told(ended);
            // SAFETY: the caller's promise: the function takes these, from any thread, until the endpoint is closed.
            unsafe { function(&end, *context) }
        });
        if waits {
            Ok(0)
        } else {
            Err(Failure::new(Errno::NOENT, "there is no such message any more"))
        }
    })
}

/// Ends a message before its time, if that is possible; its end says what came of it. 1: it is too late.
#[no_mangle]
pub extern "C" fn millrace_message_cancel(endpoint: Option<&millrace_message>, request: u64) -> c_int {
    guard::run(|| {
        let cancelled = opened(endpoint)?.cancel(Request::of_number(request));
        let cancelled = cancelled.map_err(|_| Failure::new(Errno::NOENT, "there is no such message any more"))?;
        Ok(c_int::from(cancelled == Cancel::TooLate))
    })
}

/// Sends a short message that is not waited for, and whose memory is the program's at once. -EAGAIN: it cannot go now, and
/// millrace_message_send() takes it.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_send_short(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    guard::run(|| {
        let (endpoint, peer, bytes) = (opened(endpoint)?, Peer::of_number(peer), lent(bytes.cast_mut(), len)?);
        if endpoint.send_short(peer, Tag(tag), bytes.piece(0, len)) {
            return Ok(0);
        }
        let full = || Failure::new(Errno::AGAIN, "it cannot go at once: send it, or try again later");
        Err(endpoint.who(peer).map_or_else(gone, |_| full()))
    })
}

/// Takes the first short message of peer with those bits of tag that nobody waits for; how many bytes it has. -EAGAIN: there is none.
/// -EMSGSIZE: it has more than len, and is gone.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_receive_short(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    mask: u64,
    bytes: *mut c_void,
    len: usize,
) -> c_int {
    guard::run(|| {
        let (endpoint, mut to) = (opened(endpoint)?, lent(bytes, len)?);
        match endpoint.receive_short(Peer::of_number(peer), Tag(tag), mask, to.piece_mut(0, len)) {
            // Not more than a ring has room for.
            Ok(Some(Taken::Message { len, .. })) => Ok(len as c_int),
            Ok(Some(Taken::TooLong { len })) => {
                Err(Failure::new(Errno::MSGSIZE, format!("the message has {len} bytes, more than there is room for")))
            }
            Ok(None) => Err(Failure::new(Errno::AGAIN, "no short message has come")),
            Err(breach) => Err(Failure::new(Errno::NOTCONN, breach.to_string())),
        }
    })
}

/// This program wants the doorbells first to last, for one of its parts, which it calls owner. -EBUSY: some of them are wanted already.
#[no_mangle]
pub extern "C" fn millrace_message_claim(
    endpoint: Option<&millrace_message>,
    first: u16,
    last: u16,
    owner: u32,
) -> c_int {
    guard::run(|| {
        let claimed = opened(endpoint)?.claim(first..=last, Owner(owner));
        claimed.map_err(|error| Failure::new(Errno::BUSY, error.to_string()))?;
        Ok(0)
    })
}

/// It does not want those of that owner any more.
#[no_mangle]
pub extern "C" fn millrace_message_release(endpoint: Option<&millrace_message>, owner: u32) -> c_int {
    guard::run(|| {
        opened(endpoint)?.release(Owner(owner));
        Ok(0)
    })
}

/// Rings a doorbell of peer. once: unless the last one was the same, was rung so too, and waits; 1 then. -EAGAIN: as many wait as may.
/// -ENXIO: nobody there wants it.
#[no_mangle]
pub extern "C" fn millrace_message_ring(
    endpoint: Option<&millrace_message>,
    peer: u64,
    number: u16,
    once: c_int,
) -> c_int {
    guard::run(|| {
        let (endpoint, peer) = (opened(endpoint)?, Peer::of_number(peer));
        let rung = match once {
            0 => endpoint.ring(peer, number).map(|rung| rung.map(|()| Sent::Rung)),
            _ => endpoint.ring_once(peer, number),
        };
        match rung.ok_or_else(gone)? {
            Ok(sent) => Ok(c_int::from(sent == Sent::Coalesced)),
            Err(full @ Full::Queue) => Err(Failure::new(Errno::AGAIN, full.to_string())),
            Err(full @ Full::Lent) => Err(Failure::new(Errno::BUSY, full.to_string())),
            Err(full @ Full::Unwanted) => Err(Failure::new(Errno::NXIO, full.to_string())),
        }
    })
}

/// Waits for a doorbell of anybody, for so many nanoseconds: -ETIMEDOUT. Its number; who has rung goes to peer.
#[no_mangle]
pub extern "C" fn millrace_message_bell(
    endpoint: Option<&millrace_message>,
    patience: u64,
    peer: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard::run(|| {
        let place = peer.ok_or_else(|| Failure::null("peer"))?;
        let heard = opened(endpoint)?.any_bell(Duration::from_nanos(patience));
        let (from, bell) = heard.ok_or_else(nothing)?;
        place.write(from.number());
        Ok(c_int::from(bell.number))
    })
}

/// A descriptor for poll(): readable as long as a message has ended, something has happened or a doorbell waits that was not taken. It is not to
/// be read, and is closed with the endpoint.
#[no_mangle]
pub extern "C" fn millrace_message_descriptor(endpoint: Option<&millrace_message>) -> c_int {
    guard::run(|| Ok(opened(endpoint)?.descriptor()?.as_raw_fd()))
}
