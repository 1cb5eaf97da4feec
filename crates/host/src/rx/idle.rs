//! A queue that is open and not started.

use super::RxQueue;
use super::parts::Parts;
use super::place::{Geometry, Place};
use super::source::{Mediated, Source};
use crate::MAX_BURST;
use crate::error::Error;
use crate::handle::QueueHandle;
use millrace_abi::header::{self};
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_driver::{Client, Opened};
use std::sync::Arc;

/// An RX queue that is open and not started.
pub struct IdleRx {
    pub(super) handle: QueueHandle,
    pub(super) opened: Parts,
    pub(super) mode: Mode,
    pub(super) sharing: Sharing,
}

impl IdleRx {
    pub(crate) fn new(
        client: Arc<Client>,
        queue: QueueId,
        mode: Mode,
        sharing: Sharing,
        opened: Opened,
    ) -> Result<Self, Error> {
        let Opened { handle, layout, control, kick, status, data, descriptors, .. } = opened;
        let handle = QueueHandle::new(client, queue, handle, control, kick)?;
        let data = data.ok_or_else(|| handle.bad("the driver sent no memory for packets"))?;
        Ok(Self { handle, opened: Parts { layout, status, data, descriptors }, mode, sharing })
    }

    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.handle.queue
    }

    /// Starts the queue: from now on packets arrive.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn start(self) -> Result<RxQueue, Error> {
        let Self { handle, opened, mode, sharing } = self;
        let (position, base) = handle.client.start(handle.handle)?;
        let source = match (mode, sharing) {
            (Mode::Direct, Sharing::Exclusive) => Source::own(&handle, &opened, base)?,
            (Mode::Direct, Sharing::Shared(_)) => Source::shared(&handle, &opened, base)?,
            (Mode::Mediated, _) => Source::Mediated(Mediated::new(&handle, &opened, position, base)?),
        };
        let geometry = Geometry::of(&opened.layout);
        let data = opened.data.window().clone();
        let packets = vec![Place::default(); MAX_BURST].into_boxed_slice();
        let stamps = if let Source::Dd(_) = source { geometry.mask as usize + 1 } else { 0 };
        let stamps = vec![[0; header::LEN]; stamps].into_boxed_slice();
        Ok(RxQueue {
            source,
            geometry,
            data,
            packets,
            stamps,
            kept: 0,
            is_lone: false,
            was_empty: false,
            lost: 0,
            base,
            handle,
            opened,
            mode,
            sharing,
        })
    }

    /// Closes the queue. Dropping it does the same and ignores errors.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}
