//! Messages that are handed over instead of being copied.

use super::arguments::give_new;
use super::message::{gone, millrace_message, opened};
use crate::failure::Failure;
use crate::guard;
use ::millrace_message::block::{AllocateError, Block, GiveError, Given};
use ::millrace_message::{Peer, Tag};
use core::mem::MaybeUninit;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// Memory that is filled, and then handed over to another endpoint of this host.
pub struct millrace_message_block(pub(super) Block);

/// Memory of a message that another endpoint has handed over.
pub struct millrace_message_given(pub(super) Given);

impl From<AllocateError> for Failure {
    #[cold]
    fn from(error: AllocateError) -> Self {
        let errno = match &error {
            AllocateError::Lost => Errno::NOTCONN,
            AllocateError::Elsewhere => Errno::OPNOTSUPP,
            AllocateError::Full => Errno::AGAIN,
            AllocateError::TooLong(_) => Errno::MSGSIZE,
            AllocateError::Memory(_) => Errno::NOMEM,
        };
        Self::new(errno, error.to_string())
    }
}

/// Allocates a block for a message to peer, which has to be on this host: 16 MiB at most. If what was handed over before has not been given
/// back, it waits for so many nanoseconds: -EAGAIN. *bytes is its memory, which peer can see from now on.
#[no_mangle]
pub extern "C" fn millrace_message_allocate(
    endpoint: Option<&millrace_message>,
    peer: u64,
    len: usize,
    patience: u64,
    block: Option<&mut MaybeUninit<*mut millrace_message_block>>,
    bytes: Option<&mut MaybeUninit<*mut c_void>>,
) -> c_int {
    give_new(block, "block", || {
        let bytes = bytes.ok_or_else(|| Failure::null("bytes"))?;
        let found = opened(endpoint)?.allocate(Peer::of_number(peer), len, Duration::from_nanos(patience))?;
        let span = found.window().span(0, len);
        bytes.write(span.map_or(core::ptr::null_mut(), |span| span.as_ptr().cast_mut().cast()));
        Ok(millrace_message_block(found))
    })
}

/// Hands a block over to the peer that it was allocated for, as a message. It is gone for this program, also when this fails. -ENOTCONN: the
/// other end is gone; -EINVAL: it was allocated for another one.
#[no_mangle]
pub extern "C" fn millrace_message_give(
    endpoint: Option<&millrace_message>,
    peer: u64,
    tag: u64,
    block: Option<Box<millrace_message_block>>,
) -> c_int {
    guard::run(|| {
        let block = block.ok_or_else(|| Failure::null("block"))?;
        let given = opened(endpoint)?.give(Peer::of_number(peer), Tag(tag), block.0);
        given.map(|()| 0).map_err(|error| match error {
            GiveError::Lost => gone(),
            GiveError::Elsewhere => Failure::invalid("the block was allocated for another endpoint"),
        })
    })
}

/// Frees a block that is not handed over.
#[no_mangle]
pub extern "C" fn millrace_message_block_free(block: Option<Box<millrace_message_block>>) -> c_int {
    guard::run(|| {
        drop(block);
        Ok(0)
    })
}

/// Gives back what another endpoint has handed over (given of struct millrace_message_end). Its memory is not to be used any more.
#[no_mangle]
pub extern "C" fn millrace_message_give_back(given: Option<Box<millrace_message_given>>) -> c_int {
    guard::run(|| {
        drop(given.map(|given| given.0));
        Ok(0)
    })
}
