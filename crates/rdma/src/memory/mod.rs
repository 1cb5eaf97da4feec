//! Keys, regions and windows: who may reach which bytes.
//!
//! [`Memory`] is what the transport asks for, [`Regions`] is what answers: the memory of one owner behind keys. Its parts, in
//! the order in which a request passes them: the table that finds a key's entry and checks it, the copy or the atomic
//! operation, and, besides, registration and windows, which fill the table. What needs `unsafe` is in `millrace_dma`:
//! accesses that may fail (`Place`) and the watch over memory of the program (`Watch`).

mod key;
mod reach;
mod reached;
mod regions;
mod table;
mod windows;

pub use key::MOST_SLOTS;
pub use reached::Reached;
pub use regions::{Change, Counters, Info, Limits, Regions, RegisterError, Registered, Remains, Source, Way};
pub use windows::WindowType;

use crate::local::{Connected, Far, Kept as KeptPeer, Outcome};
use crate::number::{Key, Qpn};
use crate::work::{Access, Data, Operation};

/// What belongs together: requests of a queue pair reach only regions of its own protection domain (volume 1, 10.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProtectionDomain(pub u32);

/// Why bytes cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such key, or not in this protection domain.
    #[error("there is no such key in this protection domain")]
    Key,
    /// Not all of these bytes belong to the region.
    #[error("not all of these bytes belong to the region")]
    Bounds,
    /// The region does not allow this.
    #[error("the region does not allow this")]
    Permission,
    /// An atomic operation needs an address that is a multiple of eight.
    #[error("the address is not a multiple of eight")]
    Alignment,
    /// The memory behind the region is not what was registered any more.
    #[error("the memory behind the region is gone")]
    Gone,
}

/// Who asks for bytes: a queue pair, and the protection domain that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its protection domain.
    pub domain: ProtectionDomain,
    /// Itself: windows of type 2 open for one queue pair only.
    pub qpn: Qpn,
}

/// Where WRITEs of a queue pair behind a remote key go: found out once, and looked at whether it still holds by each of them.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The key.
    pub rkey: Key,
    /// Where.
    pub to: KeptTo,
}

/// See [`Kept`].
#[derive(Clone, Copy, Debug)]
pub enum KeptTo {
    /// To another process of this host.
    Peer(KeptPeer),
    /// To a program of the same card.
    Program {
        /// Where its regions are.
        owner: usize,
        /// As whom they are asked.
        asker: Asker,
        /// How often such answers had changed.
        version: u64,
    },
}

/// What the transport asks of memory. Every call checks key, bounds, permission and that the memory is still there; what
/// is refused has moved no byte. One exception: memory that is taken away during a copy is [`Refused::Gone`], and the bytes
/// before it have been moved.
pub trait Memory {
    /// Reads bytes of the program's own, behind a local key.
    ///
    /// # Errors
    /// [`Refused`]
    fn gather(&mut self, asker: Asker, lkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused>;

    /// Writes bytes of the program's own, behind a local key. The last byte is stored last: programs look at it.
    ///
    /// # Errors
    /// [`Refused`]
    fn scatter(&mut self, asker: Asker, lkey: Key, address: u64, from: &[u8]) -> Result<(), Refused>;

    /// Whether all of a message may be written or read by the other end, before its first packet is taken.
    ///
    /// # Errors
    /// [`Refused`]
    fn allows(&mut self, asker: Asker, rkey: Key, address: u64, len: u64, wanted: Access) -> Result<(), Refused>;

    /// Reads bytes for the other end.
    ///
    /// # Errors
    /// [`Refused`]
    fn read(&mut self, asker: Asker, rkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused>;

    /// Writes bytes of the other end. The last byte is stored last: programs look at it.
    ///
    /// # Errors
    /// [`Refused`]
    fn write(&mut self, asker: Asker, rkey: Key, address: u64, from: &[u8]) -> Result<(), Refused>;

    /// Puts `swap` where `compare` is, and returns what was there; in one step for everybody else.
    ///
    /// # Errors
    /// [`Refused`]
    fn compare_swap(&mut self, asker: Asker, rkey: Key, address: u64, compare: u64, swap: u64) -> Result<u64, Refused>;

    /// Adds modulo 2^64, and returns what was there; in one step for everybody else.
    ///
    /// # Errors
    /// [`Refused`]
    fn fetch_add(&mut self, asker: Asker, rkey: Key, address: u64, add: u64) -> Result<u64, Refused>;

    /// A key does not open anything any more: asked by a request of its own, or (`remote`) by the other end's.
    ///
    /// # Errors
    /// [`Refused`]
    fn invalidate(&mut self, asker: Asker, key: Key, remote: bool) -> Result<(), Refused>;

    /// A window of type 2 opens a part of a region, for this queue pair.
    ///
    /// # Errors
    /// [`Refused`]
    fn bind(&mut self, asker: Asker, window: Binding) -> Result<(), Refused>;

    /// Does a request at the other end without packets, where that end can be reached. Everything that was asked before it
    /// has ended.
    fn reach(&mut self, far: &Far<'_>, operation: Operation, data: Data<'_>, len: u32) -> Outcome {
        let _ = (far, operation, data, len);
        Outcome::No
    }

    /// Where WRITEs behind that key go, after [`Memory::reach`] has done one.
    fn keep(&mut self, far: &Far<'_>, rkey: Key, address: u64) -> Option<Kept> {
        let _ = (far, rkey, address);
        None
    }

    /// Does a WRITE as [`Memory::reach`] would, by what was kept. False: nothing was done.
    fn write_again(&mut self, kept: &Kept, address: u64, bytes: &[u8]) -> bool {
        let _ = (kept, address, bytes);
        false
    }

    /// Whether [`Memory::reach`] would do it, as far as the other end says.
    fn may_reach(&mut self, far: &Far<'_>, operation: Operation, len: u32) -> bool {
        let _ = (far, operation, len);
        false
    }

    /// A queue pair is connected: its other end may reach what its keys open by itself. Or (`None`) it is not any more.
    fn show(&mut self, asker: Asker, connected: Option<&Connected<'_>>) {
        let _ = (asker, connected);
    }
}

/// What a window is to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window's key that is to be, whose lower eight bits its owner chose.
    pub rkey: Key,
    /// The region, by its local key.
    pub region: Key,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// What others may do there.
    pub access: Access,
}
