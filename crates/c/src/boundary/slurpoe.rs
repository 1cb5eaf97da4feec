//! SLURPoE: what `millrace_slurpoe` has, with pointers.

use super::arguments::{array, give, give_new, places, string};
use crate::failure::{self, Failure};
use crate::guard;
use ::millrace_slurpoe::{
    Access, Address, Completion, Config, Endpoint, Error, Failed, Kind, Notify, Region, Transfer,
};
use core::mem::MaybeUninit;
use core::time::Duration;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// An endpoint of SLURPoE: an address with registered memory, on a card or a port. Any number of threads may use it at once.
/// docs/slurpoe.md has the whole.
pub struct millrace_slurpoe {
    endpoint: Endpoint,
    regions: Mutex<HashMap<u32, Region>>,
}

/// What others may do in registered memory: access of millrace_slurpoe_register().
#[repr(C)]
pub enum millrace_slurpoe_access {
    /// Reads and messages of this end may be stored there. Without any access it is only sent from.
    MILLRACE_SLURPOE_LOCAL = 1,
    /// Others may write there; this end too.
    MILLRACE_SLURPOE_REMOTE_WRITE = 2,
    /// Others may read there.
    MILLRACE_SLURPOE_REMOTE_READ = 4,
}

/// How a program is told of the end of what it posts: flags of millrace_slurpoe_post() and millrace_slurpoe_receive().
/// 0: millrace_slurpoe_poll() finds it.
#[repr(C)]
pub enum millrace_slurpoe_flags {
    /// millrace_slurpoe_poll() finds it, and the descriptor of the endpoint becomes readable.
    MILLRACE_SLURPOE_DESCRIPTOR = 1,
    /// The function is called, and millrace_slurpoe_poll() does not find it.
    MILLRACE_SLURPOE_CALLBACK = 2,
    /// The end of each transfer of the list is told, with token plus its place in the list.
    MILLRACE_SLURPOE_EACH = 4,
}

/// What a transfer does, and what has ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum millrace_slurpoe_kind {
    /// Bytes from here to memory of the other end.
    MILLRACE_SLURPOE_WRITE = 0,
    /// Bytes from there to here.
    MILLRACE_SLURPOE_READ = 1,
    /// Bytes from here to the first buffer that the other end has posted.
    MILLRACE_SLURPOE_SEND = 2,
    /// Only of ends: a message came to a posted buffer.
    MILLRACE_SLURPOE_RECEIVE = 3,
}

/// Why something failed; millrace_slurpoe_failed_name() has the name.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum millrace_slurpoe_failed {
    /// It has not.
    MILLRACE_SLURPOE_DONE = 0,
    /// "remote-access": no such key, not all bytes in its memory, or not allowed.
    MILLRACE_SLURPOE_FAILED_REMOTE_ACCESS = 1,
    /// "unreachable": the other end has ended, or does not answer.
    MILLRACE_SLURPOE_FAILED_UNREACHABLE = 2,
    /// "flushed": an earlier transfer failed, or the connection was replaced.
    MILLRACE_SLURPOE_FAILED_FLUSHED = 3,
    /// "local-access": the memory of this end is not registered any more, or not for this.
    MILLRACE_SLURPOE_FAILED_LOCAL_ACCESS = 4,
    /// "length": the buffer is too short for the message.
    MILLRACE_SLURPOE_FAILED_LENGTH = 5,
    /// "remote": something else there.
    MILLRACE_SLURPOE_FAILED_REMOTE = 6,
    /// "local": something else here.
    MILLRACE_SLURPOE_FAILED_LOCAL = 7,
}

/// A transfer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millrace_slurpoe_transfer {
    /// One of enum millrace_slurpoe_kind.
    pub kind: u32,
    /// Bytes, 1 GiB at most.
    pub len: u32,
    /// Where they are, or go to: in memory registered with this endpoint, until the end is told.
    pub local: *mut c_void,
    /// Offset in the memory of the other end; for a message nothing.
    pub offset: u64,
    /// The key of that memory.
    pub key: u32,
    /// 0.
    pub reserved: u32,
}

/// The end of a transfer, or of a list of them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millrace_slurpoe_end {
    /// What was said when it was posted.
    pub token: u64,
    /// Bytes that came, of a message or a read.
    pub len: u32,
    /// One of enum millrace_slurpoe_failed.
    pub failed: u32,
    /// One of enum millrace_slurpoe_kind.
    pub kind: u32,
    /// Which transfer of the list: the last one, or the one that failed.
    pub index: u16,
    /// Address of the other end.
    pub other: [u8; 6],
}

/// A function that is told of an end: by the thread that posts or polls, or by a thread of the library. It may post; it must not close the
/// endpoint.
pub type millrace_slurpoe_callback =
    Option<unsafe extern "C" fn(end: *const millrace_slurpoe_end, context: *mut c_void)>;

const DESCRIPTOR: u32 = millrace_slurpoe_flags::MILLRACE_SLURPOE_DESCRIPTOR as u32;
const CALLBACK: u32 = millrace_slurpoe_flags::MILLRACE_SLURPOE_CALLBACK as u32;
const EACH: u32 = millrace_slurpoe_flags::MILLRACE_SLURPOE_EACH as u32;
const LOCAL: u32 = millrace_slurpoe_access::MILLRACE_SLURPOE_LOCAL as u32;
const REMOTE_WRITE: u32 = millrace_slurpoe_access::MILLRACE_SLURPOE_REMOTE_WRITE as u32;
const REMOTE_READ: u32 = millrace_slurpoe_access::MILLRACE_SLURPOE_REMOTE_READ as u32;
const WRITE: u32 = millrace_slurpoe_kind::MILLRACE_SLURPOE_WRITE as u32;
const READ: u32 = millrace_slurpoe_kind::MILLRACE_SLURPOE_READ as u32;
const SEND: u32 = millrace_slurpoe_kind::MILLRACE_SLURPOE_SEND as u32;

struct Context(*mut c_void);
// SAFETY: it is only handed back to the function of the program, which the header says any thread may call.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        Self::new(Errno::from_raw_os_error(error.errno()), error.to_string())
    }
}

const NAME: &str = "endpoint";

fn opened(endpoint: Option<&millrace_slurpoe>) -> Result<&millrace_slurpoe, Failure> {
    endpoint.ok_or_else(|| Failure::null(NAME))
}

unsafe fn address(bytes: *const u8) -> Result<Address, Failure> {
    // SAFETY: 6 bytes of the caller.
    let bytes = unsafe { array(bytes, 6, "address") }?;
    Ok(Address(bytes.try_into().map_err(|_| Failure::invalid("an address has 6 bytes"))?))
}

fn told(end: &Completion) -> millrace_slurpoe_end {
    use millrace_slurpoe_failed::*;
    let failed = match end.failed {
        None => MILLRACE_SLURPOE_DONE,
        Some(Failed::RemoteAccess) => MILLRACE_SLURPOE_FAILED_REMOTE_ACCESS,
        Some(Failed::Unreachable) => MILLRACE_SLURPOE_FAILED_UNREACHABLE,
        Some(Failed::Flushed) => MILLRACE_SLURPOE_FAILED_FLUSHED,
        Some(Failed::LocalAccess) => MILLRACE_SLURPOE_FAILED_LOCAL_ACCESS,
        Some(Failed::Length) => MILLRACE_SLURPOE_FAILED_LENGTH,
        Some(Failed::Remote) => MILLRACE_SLURPOE_FAILED_REMOTE,
        Some(Failed::Local) => MILLRACE_SLURPOE_FAILED_LOCAL,
    };
    use millrace_slurpoe_kind::*;
    let kind = match end.kind {
        Kind::Write => MILLRACE_SLURPOE_WRITE,
        Kind::Read => MILLRACE_SLURPOE_READ,
        Kind::Send => MILLRACE_SLURPOE_SEND,
        // The other one is told only who asks for it.
        Kind::Receive | Kind::Over => MILLRACE_SLURPOE_RECEIVE,
    };
    let (failed, kind) = (failed as u32, kind as u32);
    millrace_slurpoe_end { token: end.token, len: end.len, failed, kind, index: end.index, other: end.other.0 }
}

fn notify(flags: u32, callback: millrace_slurpoe_callback, context: *mut c_void) -> Result<Notify, Failure> {
    match flags & (DESCRIPTOR | CALLBACK) {
        _ if flags > (DESCRIPTOR | CALLBACK | EACH) => Err(Failure::invalid("flags of SLURPoE are 0 to 7")),
        0 => Ok(Notify::Poll),
        DESCRIPTOR => Ok(Notify::Descriptor),
        CALLBACK => {
            let function = callback.ok_or_else(|| Failure::null("callback"))?;
            let context = Context(context);
            Ok(Notify::Callback(Arc::new(move |end: &Completion| {
                let Context(context) = &context;
                // SAFETY: the caller's promise: the function takes these, from any thread, until the endpoint is closed.
                unsafe { function(&told(end), *context) }
            })))
        }
        _ => Err(Failure::invalid("an end is told by a callback or by the descriptor, not by both")),
    }
}

/// Opens an endpoint: on a card (NULL: the one that commands would find), or on a port, which this process works on itself
/// ("vhost-user:PATH", "virtio-user:PATH", "af_xdp:INTERFACE"; docs/ports.md). One of both is NULL.
/// address: 6 bytes, NULL: a random one. mtu: bytes of payload of a packet, 256 to 8192, a power of two; 0: what is usual.
/// depth: transfers to one other end that have not ended, 1 to 8192; 0: 256.
#[no_mangle]
pub unsafe extern "C" fn millrace_slurpoe_open(
    card: *const c_char,
    port: *const c_char,
    address: *const u8,
    mtu: u32,
    depth: u32,
    endpoint: Option<&mut MaybeUninit<*mut millrace_slurpoe>>,
) -> c_int {
    give_new(endpoint, NAME, || {
        let text = |text: *const c_char, name: &str| {
            if text.is_null() {
                return Ok(None);
            }
            // SAFETY: a string of the caller.
            unsafe { string(text, name) }.map(|text| Some(text.to_owned()))
        };
        let (card, port) = (text(card, "card")?, text(port, "port")?);
        if card.is_some() && port.is_some() {
            return Err(Failure::invalid("an endpoint is on a card or on a port, not on both"));
        }
        let usual = Config::default();
        let mtu = u16::try_from(mtu).map_err(|_| Failure::invalid("the mtu is at most 8192"))?;
        // SAFETY: NULL, or 6 bytes of the caller.
        let address = if address.is_null() { None } else { Some(unsafe { self::address(address) }?) };
        let config = Config {
            card,
            port,
            address,
            mtu: (mtu > 0).then_some(mtu),
            depth: if depth > 0 { depth } else { usual.depth },
            ..usual
        };
        Ok(millrace_slurpoe { endpoint: Endpoint::open(&config)?, regions: Mutex::default() })
    })
}

/// Closes an endpoint. Other ends are told, its memory is deregistered, and what has not ended is not told of any more.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_close(endpoint: Option<Box<millrace_slurpoe>>) -> c_int {
    guard::run(|| {
        drop(endpoint);
        Ok(0)
    })
}

/// Its address: 6 bytes.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_address(
    endpoint: Option<&millrace_slurpoe>,
    address: Option<&mut MaybeUninit<[u8; 6]>>,
) -> c_int {
    give(address, "address", || Ok(opened(endpoint)?.endpoint.address().0))
}

/// Registers memory, for flags of enum millrace_slurpoe_access. Others who are given the key reach it, byte 0 being its first.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_register(
    endpoint: Option<&millrace_slurpoe>,
    memory: *mut c_void,
    len: usize,
    access: u32,
    key: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    give(key, "key", || {
        let endpoint = opened(endpoint)?;
        if access > (LOCAL | REMOTE_WRITE | REMOTE_READ) {
            return Err(Failure::invalid("access of SLURPoE is 0 to 7"));
        }
        let access =
            Access { local: access & LOCAL != 0, write: access & REMOTE_WRITE != 0, read: access & REMOTE_READ != 0 };
        let region = endpoint.endpoint.register(memory as usize as u64, len as u64, access)?;
        let key = region.key();
        endpoint.regions.lock().unwrap_or_else(PoisonError::into_inner).insert(key, region);
        Ok(key)
    })
}

/// Deregisters memory: when this returns nobody reaches it any more.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_deregister(endpoint: Option<&millrace_slurpoe>, key: u32) -> c_int {
    guard::run(|| {
        let mut regions = opened(endpoint)?.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || Failure::new(Errno::NOENT, format!("no memory is registered with the key {key:#010x}"));
        regions.remove(&key).ok_or_else(none)?.deregister()?;
        Ok(0)
    })
}

/// Makes a connection to another endpoint (6 bytes), unless there is one; after a failure a new one. One of both has to do it.
/// -ETIMEDOUT when it has not answered for so many nanoseconds, -ECONNREFUSED when it does not want it.
#[no_mangle]
pub unsafe extern "C" fn millrace_slurpoe_connect(
    endpoint: Option<&millrace_slurpoe>,
    other: *const u8,
    patience: u64,
) -> c_int {
    guard::run(|| {
        // SAFETY: 6 bytes of the caller.
        let other = unsafe { address(other) }?;
        opened(endpoint)?.endpoint.connect(other, Duration::from_nanos(patience))?;
        Ok(0)
    })
}

/// Ends a connection: what is on its way fails.
#[no_mangle]
pub unsafe extern "C" fn millrace_slurpoe_disconnect(endpoint: Option<&millrace_slurpoe>, other: *const u8) -> c_int {
    guard::run(|| {
        // SAFETY: 6 bytes of the caller.
        opened(endpoint)?.endpoint.disconnect(unsafe { address(other) }?);
        Ok(0)
    })
}

/// Posts a list of transfers with one doorbell; they are done in their order. One end is told, when all are done or one has failed;
/// with MILLRACE_SLURPOE_EACH one for each. -EAGAIN: there is no room, poll first. -ENOTCONN: connect first.
#[no_mangle]
pub unsafe extern "C" fn millrace_slurpoe_post(
    endpoint: Option<&millrace_slurpoe>,
    other: *const u8,
    list: *const millrace_slurpoe_transfer,
    count: usize,
    token: u64,
    flags: u32,
    callback: millrace_slurpoe_callback,
    context: *mut c_void,
) -> c_int {
    guard::run(|| {
        let endpoint = &opened(endpoint)?.endpoint;
        // SAFETY: 6 bytes, and so many transfers, of the caller.
        let (other, list) = unsafe { (address(other)?, array(list, count, "list")?) };
        let notify = notify(flags, callback, context)?;
        let transfer = |said: &millrace_slurpoe_transfer| {
            let local = endpoint.part_at(said.local as usize as u64, said.len)?;
            match said.kind {
                WRITE => Ok(Transfer::write(local, said.key, said.offset)),
                READ => Ok(Transfer::read(local, said.key, said.offset)),
                SEND => Ok(Transfer::send(local)),
                _ => Err(Failure::invalid("a transfer writes, reads or sends")),
            }
        };
        let post = if flags & EACH == 0 { Endpoint::post } else { Endpoint::post_each };
        if let [one] = list {
            post(endpoint, other, &[transfer(one)?], token, notify)?;
        } else {
            let list = list.iter().map(transfer).collect::<Result<Vec<_>, _>>()?;
            post(endpoint, other, &list, token, notify)?;
        }
        Ok(0)
    })
}

/// Posts a buffer for a message of any other end. Buffers are used in their order.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_receive(
    endpoint: Option<&millrace_slurpoe>,
    buffer: *mut c_void,
    len: u32,
    token: u64,
    flags: u32,
    callback: millrace_slurpoe_callback,
    context: *mut c_void,
) -> c_int {
    guard::run(|| {
        let endpoint = &opened(endpoint)?.endpoint;
        let part = endpoint.part_at(buffer as usize as u64, len)?;
        endpoint.receive(part, token, notify(flags, callback, context)?)?;
        Ok(0)
    })
}

/// Takes up to count ends, the oldest first; how many. It never waits, and moves everything on.
#[no_mangle]
pub unsafe extern "C" fn millrace_slurpoe_poll(
    endpoint: Option<&millrace_slurpoe>,
    ends: *mut millrace_slurpoe_end,
    count: usize,
) -> c_int {
    guard::run(|| {
        let endpoint = &opened(endpoint)?.endpoint;
        // SAFETY: so many places of the caller.
        let places = unsafe { places(ends, count, "ends") }?;
        let mut found = [Completion::default(); 64];
        let room = places.len().min(found.len());
        let count = endpoint.poll(&mut found[..room]);
        for (place, end) in places.iter_mut().zip(&found[..count]) {
            place.write(told(end));
        }
        Ok(count as c_int)
    })
}

/// An eventfd that becomes readable by ends with MILLRACE_SLURPOE_DESCRIPTOR: read its 8 bytes, then poll until there is nothing. It is the
/// endpoint's, and closed with it.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_descriptor(endpoint: Option<&millrace_slurpoe>) -> c_int {
    guard::run(|| Ok(opened(endpoint)?.endpoint.descriptor().as_raw_fd()))
}

/// How often this end has refused another one because of a key, of bounds and of a missing permission, in this order.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_refused(
    endpoint: Option<&millrace_slurpoe>,
    counts: Option<&mut MaybeUninit<[u64; 3]>>,
) -> c_int {
    give(counts, "counts", || Ok(opened(endpoint)?.endpoint.refused()))
}

/// The name of one of enum millrace_slurpoe_failed, such as "remote-access"; "done" for 0, "unknown" for others.
#[no_mangle]
pub extern "C" fn millrace_slurpoe_failed_name(failed: u32) -> *const c_char {
    failure::of_transfer(failed).as_ptr()
}
