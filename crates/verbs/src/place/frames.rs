//! Packets into frames of the card's TX queue.

use super::link::{Given, Link};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::Qpn;
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Headers, Path, Prepared};
use std::collections::VecDeque;

/// Paths that are kept ready, by queue pair.
const READY: usize = 64;
/// Frames to this end itself that wait.
const MOST_OWN: usize = 256;

/// What frames are made with.
pub(super) struct Maker {
    mac: [u8; 6],
    ready: Vec<Option<(Path, Prepared)>>,
    /// Frames to this end itself: a card need not send them back.
    pub own: VecDeque<Vec<u8>>,
    /// Packets that no frame can be made of.
    pub unbuildable: u64,
}

impl Maker {
    pub fn new(mac: [u8; 6]) -> Self {
        Self { mac, ready: (0..READY).map(|_| None).collect(), own: VecDeque::new(), unbuildable: 0 }
    }
}

/// Takes packets of the engine.
pub(super) struct Frames<'l> {
    link: &'l mut Link,
    pub maker: &'l mut Maker,
}

impl<'l> Frames<'l> {
    pub fn new(link: &'l mut Link, maker: &'l mut Maker) -> Self {
        Self { link, maker }
    }
}

impl Out for Frames<'_> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let Maker { mac, ready, own, unbuildable } = &mut *self.maker;
        let place = &mut ready[source.value() as usize % READY];
        if place.as_ref().is_none_or(|(of, _)| of != path) {
            *place = Prepared::new(path).ok().map(|prepared| (*path, prepared));
        }
        let Some((_, prepared)) = place else {
            *unbuildable += 1;
            return Sent::Taken;
        };
        let Ok(frame_len) = prepared.frame_len(headers, len) else {
            *unbuildable += 1;
            return Sent::Taken;
        };
        if path.destination_mac == *mac {
            if own.len() >= MOST_OWN {
                return Sent::Full;
            }
            let mut frame = vec![0; frame_len];
            return match write(prepared, source, headers, len, &mut frame, fill) {
                Ok(()) => {
                    own.push_back(frame);
                    Sent::Taken
                }
                Err(refused) => Sent::Refused(refused),
            };
        }
        match self.link.give(frame_len, |frame| write(prepared, source, headers, len, frame, fill)) {
            Given::Taken => Sent::Taken,
            Given::Full => Sent::Full,
            Given::Refused(refused) => Sent::Refused(refused),
        }
    }
}

#[inline]
fn write<F>(
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
    // The frame has the length that was asked for: it fits.
    let Ok(mut open) = prepared.open(source, headers, len, frame) else { return Err(Refused::Bounds) };
    fill(open.payload())?;
    open.close();
    Ok(())
}
