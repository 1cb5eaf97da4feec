//! Packets into frames.

use millrace_link::{Given, Link};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::Qpn;
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Headers, Path, Prepared};

/// Paths that are kept ready, by queue pair.
const READY: usize = 64;

/// Paths, and the fronts of their frames.
pub(crate) struct Maker {
    ready: Vec<Option<(Path, Prepared)>>,
    /// Packets that no frame can be made of.
    pub unbuildable: u64,
}

impl Maker {
    pub fn new() -> Self {
        Self { ready: (0..READY).map(|_| None).collect(), unbuildable: 0 }
    }
}

/// Takes packets of the engine.
pub(crate) struct Frames<'l> {
    pub link: &'l mut Link,
    pub maker: &'l mut Maker,
}

impl Out for Frames<'_> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let Maker { ready, unbuildable } = &mut *self.maker;
        let place = &mut ready[source.value() as usize % READY];
        if place.as_ref().is_none_or(|(prepared, _)| prepared != path) {
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
        let given = self.link.give(frame_len, |frame| {
            // The frame has the length that was asked for: it fits.
            let Ok(mut open) = prepared.open(source, headers, len, frame) else { return Err(Refused::Bounds) };
            fill(open.payload())?;
            open.close();
            Ok(())
        });
        match given {
            Given::Taken => Sent::Taken,
            Given::Full => Sent::Full,
            Given::Refused(refused) => Sent::Refused(refused),
        }
    }
}
