//! `posix_spawn`: programs that are started with a copy of a connection have its memory too, and no others.
//!
//! `adddup2` only writes down what is to happen. So it is written down here, too, whose memory that needs; the memory can be inherited while
//! the program is started, and not before or afterwards. What else is asked for is done by the C library in the new process, past this library.

use super::{guarded, real};
use crate::lock::Local;
use crate::stream::{Stream, inherit};
use crate::table;
use core::ffi::{c_char, c_int};
use libc::{pid_t, posix_spawn_file_actions_t as Actions, posix_spawnattr_t as Attributes};
use std::sync::Arc;

/// Which connections are copied by which lists of actions, by their addresses.
static COPIED: Local<Vec<(usize, Arc<Stream>)>> = Local::new(Vec::new());

/// # Safety
/// As `posix_spawn_file_actions_adddup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut Actions,
    fd: c_int,
    copy: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let done = unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, copy) };
    if done == 0
        && let Some(stream) = table::stream_of(fd)
    {
        guarded(|| {
            COPIED.lock().push((actions.addr(), stream));
            0
        });
    }
    done
}

/// # Safety
/// As `posix_spawn_file_actions_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_destroy(actions: *mut Actions) -> c_int {
    forget(actions);
    // SAFETY: as the caller promises.
    unsafe { real::posix_spawn_file_actions_destroy(actions) }
}

/// # Safety
/// As `posix_spawn_file_actions_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_init(actions: *mut Actions) -> c_int {
    // One that lay here may not have been destroyed.
    forget(actions);
    // SAFETY: as the caller promises.
    unsafe { real::posix_spawn_file_actions_init(actions) }
}

fn forget(actions: *mut Actions) {
    guarded(|| {
        let (gone, left) = std::mem::take(&mut *COPIED.lock()).into_iter().partition(|(at, _)| *at == actions.addr());
        *COPIED.lock() = left;
        drop::<Vec<_>>(gone);
        0
    });
}

/// The memory of what those actions copy can be inherited meanwhile.
fn lent<R: From<i8>>(actions: *const Actions, start: impl FnOnce() -> R) -> R {
    let copied =
        || COPIED.lock().iter().filter(|(at, _)| *at == actions.addr()).map(|(_, stream)| stream.clone()).collect();
    let streams: Vec<Arc<Stream>> = if actions.is_null() { Vec::new() } else { copied() };
    let memory = || streams.iter().filter_map(|stream| stream.memory());
    memory().for_each(|shared| inherit(shared, true));
    let done = start();
    memory().for_each(|shared| inherit(shared, false));
    done
}

/// # Safety
/// As `posix_spawn`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    guarded(|| {
        lent(actions, || {
            // SAFETY: as the caller promises.
            unsafe { real::posix_spawn(process, path, actions, attributes, arguments, environment) }
        })
    })
}

/// # Safety
/// As `posix_spawnp`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    guarded(|| {
        lent(actions, || {
            // SAFETY: as the caller promises.
            unsafe { real::posix_spawnp(process, file, actions, attributes, arguments, environment) }
        })
    })
}
