//! A card in this process that others reach through a Unix socket.
//!
//! STAND-IN: everything that touches `millrace-driver` is in this file, and until that crate exists nothing serves. It
//! is expected to offer
//!
//! ```text
//! Server::bind(path: &Path, options: &CardOptions) -> Result<Server, Error>   builds the card, starts its workers, listens
//! Server::stats(&self) -> CardStats
//! Server::stop(self) -> Result<(), Error>                                     ends all threads, removes the socket
//! ```

use std::path::Path;

use millrace_abi::name::{CardOptions, DeviceName};

use crate::failure::Failure;

/// A card that listens.
pub struct Daemon;

impl Daemon {
    /// Builds the card and listens on `path`.
    pub fn start(path: &Path, options: &CardOptions) -> Result<Self, Failure> {
        match std::fs::write(path, DeviceName::Embedded(options.clone()).to_string()) {
            Ok(()) => Ok(Self),
            Err(source) => Err(Failure::File { doing: "cannot listen on", path: path.to_owned(), source }),
        }
    }

    /// Stops the card and removes the socket.
    pub fn stop(self) -> Result<(), Failure> {
        Ok(())
    }
}
