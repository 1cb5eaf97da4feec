//! What the engine in the kernel and the one in user space have to do with each other: sockets, notes in front of frames, and how Linux sends what user
//! space has encrypted.

use super::layout::global;
use super::{Engine, EngineError};
use libbpf_rs::{MapCore, MapFlags};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

/// Queues of an interface that the engine in user space serves.
pub const QUEUES: u32 = 16;

/// Bytes of a [`Note`] in front of a frame.
pub const NOTE: usize = 16;

/// Bytes of `struct outer`, and where its parts are.
const OUTER: usize = 80;
const HEAD: usize = 16;

/// What is to be done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// There is ESP in it, of an association that was told with [`Engine::set_sa`].
    Open,
    /// Its packet is as Linux would give it to the tunnel interface.
    Seal,
}

/// What the program has found out about a frame that it gives to user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// What to do.
    pub work: Work,
    /// Where IP begins in the frame.
    pub l3: usize,
    /// Bytes of the packet of IP.
    pub size: usize,
    /// The interface that it has come by, for IP.
    pub input: u32,
}

impl Note {
    /// From its bytes. `None` for what is none.
    pub fn from_bytes(bytes: &[u8; NOTE]) -> Option<Self> {
        let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let work = match bytes[9] {
            1 => Work::Open,
            2 => Work::Seal,
            _ => return None,
        };
        let input = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        Some(Self { work, l3: half(4), size: half(6), input })
    }
}

/// How Linux has sent the last packet of an association.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outer {
    /// By which interface.
    pub out: u32,
    /// The low half of its sequence number.
    pub sequence: u32,
    /// What stood in front of IP, a tag that Linux keeps apart included.
    pub front: Vec<u8>,
    /// The header of IP, and a few bytes behind it.
    pub head: Vec<u8>,
}

impl Outer {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (out, l3) = (word(0)?, word(8)? as usize);
        let frame = bytes.get(HEAD..OUTER)?;
        if out == 0 || l3 < 14 || l3 > frame.len() - 20 {
            return None;
        }
        let mut front = frame[..l3].to_vec();
        if bytes[12..14] != [0, 0] {
            front.splice(12..12, bytes[12..16].iter().copied());
        }
        let sequence = u32::from_be_bytes(*bytes[4..].first_chunk()?);
        Some(Self { out, sequence, front, head: frame[l3..].to_vec() })
    }
}

fn key(destination: IpAddr, spi: u32) -> [u8; 20] {
    super::mirror::sa_key(destination, spi)
}

impl Engine {
    /// Frames of a queue of the interface in `slot` go to this socket of AF_XDP from now on.
    ///
    /// # Errors
    /// [`EngineError::Update`].
    pub fn set_socket(&self, slot: u16, queue: u32, socket: BorrowedFd<'_>) -> Result<(), EngineError> {
        let key = u32::from(slot) * QUEUES + queue;
        let what = "a socket of AF_XDP cannot be told to the router's program";
        let value = socket.as_raw_fd().to_le_bytes();
        let told = self.maps.sockets.update(&key.to_le_bytes(), &value, MapFlags::ANY);
        told.map_err(|source| EngineError::Update { what, source })
    }

    /// Asks to be told how Linux sends packets of an association from now on.
    ///
    /// # Errors
    /// [`EngineError::Update`]: there is no room for another.
    pub fn watch_outer(&self, destination: IpAddr, spi: u32) -> Result<(), EngineError> {
        let what = "an association cannot be told to the router's program";
        let told = self.maps.outers.update(&key(destination, spi), &[0; OUTER], MapFlags::ANY);
        told.map_err(|source| EngineError::Update { what, source })
    }

    /// Asks no more.
    pub fn forget_outer(&self, destination: IpAddr, spi: u32) {
        // One that is not there is not missed.
        let _ = self.maps.outers.delete(&key(destination, spi));
    }

    /// How Linux has sent the last packet of an association, if it has sent one.
    pub fn outer(&self, destination: IpAddr, spi: u32) -> Option<Outer> {
        let bytes = self.maps.outers.lookup(&key(destination, spi), MapFlags::ANY).ok()??;
        Outer::from_bytes(&bytes)
    }

    /// What Linux sends is looked at until those jiffies.
    pub fn look_at_outers(&self, until: u32) {
        self.globals.word(global::OUTER_UNTIL).store(until, Relaxed);
    }

    /// A number that is another one when anything has changed that packets may have been sent by.
    pub fn changes(&self) -> u32 {
        self.globals.word(global::CHANGES).load(Relaxed)
    }

    /// The interfaces that the engine is attached to as XDP, and their slots.
    pub fn xdp_interfaces(&self) -> Vec<(u32, u16)> {
        let attached = self.attached.lock().expect("no holder panics");
        attached.iter().filter(|(_, one)| one.is_xdp()).map(|(ifindex, one)| (*ifindex, one.slot)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_linux_is_a_front_and_a_head() {
        let mut bytes = [0; OUTER];
        bytes[..12].copy_from_slice(&[7, 0, 0, 0, 0, 0, 1, 2, 14, 0, 0, 0]);
        bytes[HEAD..HEAD + 14].copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0]);
        bytes[HEAD + 14] = 0x45;
        let outer = Outer::from_bytes(&bytes).unwrap();
        assert_eq!((outer.out, outer.sequence, outer.front.len(), outer.head[0]), (7, 0x102, 14, 0x45));
        bytes[12..16].copy_from_slice(&[0x81, 0, 0, 42]);
        assert_eq!(Outer::from_bytes(&bytes).unwrap().front[10..], [2, 2, 0x81, 0, 0, 42, 8, 0]);
        bytes[0] = 0;
        assert!(Outer::from_bytes(&bytes).is_none());
        bytes[..12].copy_from_slice(&[7, 0, 0, 0, 0, 0, 1, 2, 50, 0, 0, 0]);
        assert!(Outer::from_bytes(&bytes).is_none());
    }
}
