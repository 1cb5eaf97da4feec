//! Packets into frames of a link.

use crate::{Given, Link};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::Qpn;
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Headers, Path, Prepared};

/// Paths that are kept ready, by queue pair.
const READY: usize = 64;

/// Paths, and the fronts of their frames.
pub struct Maker {
    ready: Vec<Option<(Path, Prepared)>>,
    /// Bytes of the longest frame.
    longest: usize,
    /// Packets that no frame can be made of.
    pub unbuildable: u64,
}

impl Maker {
    /// For frames of at most so many bytes.
    pub fn new(longest: usize) -> Self {
        Self { ready: (0..READY).map(|_| None).collect(), longest, unbuildable: 0 }
    }
}

/// Takes packets of an engine.
pub struct Frames<'l> {
    /// Where the frames go.
    pub link: &'l mut Link,
    /// What makes them.
    pub maker: &'l mut Maker,
    /// Frames were given to the link: it is to be [flushed](Link::flush).
    pub has_framed: bool,
}

impl<'l> Frames<'l> {
    /// To that link.
    pub fn new(link: &'l mut Link, maker: &'l mut Maker) -> Self {
        Self { link, maker, has_framed: false }
    }
}

impl Out for Frames<'_> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let Maker { ready, longest, unbuildable } = &mut *self.maker;
        let place = &mut ready[source.value() as usize % READY];
        if place.as_ref().is_none_or(|(prepared, _)| prepared != path) {
            *place = Prepared::new(path).ok().map(|prepared| (*path, prepared));
        }
        let prepared = place.as_ref().map(|(_, prepared)| prepared);
        let frame_len = prepared.and_then(|prepared| prepared.frame_len(headers, len).ok());
        let (Some(prepared), Some(frame_len)) = (prepared, frame_len.filter(|len| *len <= *longest)) else {
            *unbuildable += 1;
            return Sent::Taken;
        };
        let given = self.link.give(frame_len, |frame| write(prepared, source, headers, len, frame, fill));
        match given {
            Given::Taken => {
                self.has_framed = true;
                Sent::Taken
            }
            Given::Full => Sent::Full,
            Given::Refused(refused) => Sent::Refused(refused),
        }
    }
}

/// Writes the frame of a packet, which has the length that its path says for it; `fill` writes the payload.
///
/// # Errors
/// The payload could not be had.
#[inline]
pub fn write<F>(
    prepared: &Prepared,
    source: Qpn,
    headers: &Headers,
    len: usize,
    frame: &mut [u8],
    fill: F,
) -> Result<(), Refused>
where
    F: FnOnce(&mut [u8]) -> Result<(), Refused>,
{
    let Ok(mut open) = prepared.open(source, headers, len, frame) else { return Err(Refused::Bounds) };
    fill(open.payload())?;
    open.close();
    Ok(())
}
