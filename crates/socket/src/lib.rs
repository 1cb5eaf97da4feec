//! `libmillrace-socket.so`: TCP connections between programs of one host go through shared memory, when both have this library,
//! and through the kernel, unchanged, when one has not.
//!
//! The library is preloaded. A program's descriptor stays the kernel's TCP socket, with its addresses, options and end; only bytes
//! take the other way, and one byte through TCP wakes who sleeps (`docs/socket.md`, decision 74).
//!
//! Rooms, in the order in which a call passes them:
//! * `boundary`: the functions of the C library that are ours here.
//! * `table`: which of the program's numbers are connections.
//! * `transfer`, `poll`, `epoll`, `spin`: calls that may wait.
//! * `stream`: a connection: which way its bytes go. `pieces`: where they are in the program. `meet`, `folder`: how both ends find each other, and where. `shared`: the memory that they have.
//! * `sys`, `files`, `lock`: the kernel, past the functions that are ours.
//! * `config`, `counters`: what is wanted, and what was done.
#![deny(unsafe_code)]
// Tests are programs too, whose calls are to go to the C library.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(test))]
#[allow(unsafe_code)]
mod boundary;
mod config;
mod counters;
mod epoll;
mod files;
mod folder;
#[allow(unsafe_code)]
mod lock;
mod meet;
mod pieces;
mod poll;
mod shared;
mod spin;
mod stream;
#[allow(unsafe_code)]
mod sys;
mod table;
mod transfer;

use std::sync::OnceLock;

/// What this library knows in a process.
struct Library {
    config: config::Config,
    /// `XDG_RUNTIME_DIR`. Read once: threads of programs in C may change the environment later.
    session: Option<std::path::PathBuf>,
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let text = std::env::var(config::VARIABLE).unwrap_or_default();
        let (config, wrong) = config::Config::parse(&text);
        for text in wrong {
            eprintln!("libmillrace-socket: {}: {}", config::VARIABLE, text.escape_debug());
        }
        Library { config, session: std::env::var_os("XDG_RUNTIME_DIR").map(Into::into) }
    })
}
