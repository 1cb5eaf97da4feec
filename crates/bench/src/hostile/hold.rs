//! Locks that are never given back.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millrace_driver::Client;
use millrace_tool::failure::Failure;

use super::attack::{Attack, cannot};
use super::queue::connect;

/// How long to rest when there is no more to be had.
const REST: Duration = Duration::from_millis(1);

/// All locks that one connection gets.
pub struct Locks {
    client: Arc<Client>,
    next: u32,
}

impl Locks {
    /// Connects.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        Ok(Self { client: connect(path)?, next: 0 })
    }
}

impl Attack for Locks {
    fn step(&mut self) -> Result<u64, Failure> {
        let component = format!("/component{}", self.next);
        match self.client.lock(&component, u64::MAX) {
            Ok(()) => {
                self.next += 1;
                Ok(1)
            }
            Err(error) if error.code().is_some() => {
                thread::sleep(REST);
                Ok(0)
            }
            Err(error) => Err(cannot("lock", error)),
        }
    }
}
