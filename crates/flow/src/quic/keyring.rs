//! Keys that a thread has used: it finds them again without the table of connections.

use super::directory::Tag;
use super::one_rtt::Direction;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Places; as many connections of a group may have keys.
const PLACES: usize = 1024;

thread_local! {
    static KEYRING: RefCell<Keyring> = const { RefCell::new(Keyring { places: Vec::new() }) };
}

/// By the tag of an id; what meets in a place exchanges what is there. It keeps no keys: what the table has forgotten cannot be
/// found any more.
struct Keyring {
    places: Vec<(u64, Weak<Direction>)>,
}

/// Remembers the keys of packets to an id.
pub fn remember(id: Tag, keys: &Arc<Direction>) {
    KEYRING.with_borrow_mut(|ring| {
        if ring.places.is_empty() {
            ring.places = vec![(0, Weak::new()); PLACES];
        }
        ring.places[id.number() as usize % PLACES] = (id.number(), Arc::downgrade(keys));
    });
}

/// The keys of packets to an id, if this thread has used them and they are still there.
#[inline]
pub fn find(id: Tag) -> Option<Arc<Direction>> {
    KEYRING.with_borrow(|ring| {
        let (tag, keys) = ring.places.get(id.number() as usize % PLACES)?;
        if *tag == id.number() { keys.upgrade() } else { None }
    })
}
