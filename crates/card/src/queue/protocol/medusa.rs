//! Medusa (`docs/spec/medusa.md`).

use super::queue_protocol::QueueProtocol;
use crate::engine::{RxEngine, TxEngine};
use crate::queue::build::Build;
use crate::queue::error::StartError;
use millrace_dma::{Access, Iova};
use millrace_ring::medusa;

pub(super) struct Medusa;

impl QueueProtocol for Medusa {
    fn tx(&self, mut build: Build<'_>) -> Result<TxEngine, StartError> {
        let entries = Build::entries(build.latches.masks[0])?;
        let at = build.latches.desc_base;
        let unaligned = |_| StartError::Unaligned(Iova::new(at));
        let descriptors =
            build.ring(at, entries as usize * 8, 8, Access::Read)?.slots64(0, entries).map_err(unaligned)?;
        let update = build.update()?;
        let doorbell = build.attached.doorbell.clone();
        let rings = medusa::TxRings { descriptors, descriptors_at: Iova::new(at), doorbell, update };
        let ring = medusa::CardTx::new(rings, build.limits, build.iotlb()).ok_or(StartError::Size(entries.into()))?;
        Ok(TxEngine::Medusa(ring.noted(build.note())))
    }

    fn rx(&self, mut build: Build<'_>) -> Result<RxEngine, StartError> {
        let (entries, headers) = (Build::entries(build.latches.masks[0])?, Build::entries(build.latches.masks[1])?);
        let (at, headers_at) = (build.latches.desc_base, build.latches.hdr_base);
        let unaligned = |_| StartError::Unaligned(Iova::new(at));
        let descriptors =
            build.ring(at, entries as usize * 8, 8, Access::Read)?.slots64(0, entries).map_err(unaligned)?;
        let headers = build
            .ring(headers_at, headers as usize * 4, 4, Access::ReadWrite)?
            .slots32(0, headers)
            .map_err(|_| StartError::Unaligned(Iova::new(headers_at)))?;
        let update = build.update()?;
        let doorbell = build.attached.doorbell.clone();
        let rings = medusa::RxRings { descriptors, descriptors_at: Iova::new(at), headers, doorbell, update };
        let ring = medusa::CardRx::new(rings, build.limits, build.iotlb()).ok_or(StartError::Size(entries.into()))?;
        Ok(RxEngine::Medusa(ring.noted(build.note())))
    }
}
