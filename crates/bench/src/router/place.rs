//! A thread in a network namespace.

use std::fs::File;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::peers::namespace::Namespace;

/// Moves this thread into the namespace. It does not leave it again: use [`inside`] where something comes back.
pub fn enter(namespace: &Namespace) -> Result<(), String> {
    use std::os::fd::AsFd;
    let path = namespace.path();
    let file = File::open(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|why| format!("cannot enter {}: {why}", path.display()))
}

/// What a thread in the namespace says.
pub fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| enter(namespace).and_then(|()| work()));
        thread.join().unwrap_or_else(|_| Err("a thread of the benchmark has panicked".to_owned()))
    })
}
