//! Calypte (`docs/spec/calypte.md`).

use super::queue_protocol::QueueProtocol;
use crate::engine::{RxEngine, TxEngine};
use crate::queue::build::Build;
use crate::queue::error::StartError;
use millrace_abi::queue::Direction;
use millrace_abi::register::calypte as c;
use millrace_dma::{Access, Iova};
use millrace_ring::calypte;

pub(super) struct Calypte;

impl QueueProtocol for Calypte {
    fn has_buffers(&self, direction: Direction) -> bool {
        direction == Direction::Tx
    }

    fn tx(&self, mut build: Build<'_>) -> Result<TxEngine, StartError> {
        let update = build.update()?;
        let buffers = build.attached.buffers.clone().ok_or(StartError::Size(0))?;
        buffers.clear_headers();
        let rings = calypte::TxRings { data: buffers.data, headers: buffers.headers, update };
        calypte::CardTx::new(rings, build.limits).ok_or(StartError::Size(c::TX_RING.into())).map(TxEngine::Calypte)
    }

    fn rx(&self, mut build: Build<'_>) -> Result<RxEngine, StartError> {
        let (blocks, headers) = (Build::entries(build.latches.masks[0])?, Build::entries(build.latches.masks[1])?);
        let (at, headers_at) = (build.latches.desc_base, build.latches.hdr_base);
        let (bytes, align) = (blocks as usize * c::RX_BLOCK as usize, c::RX_BLOCK.into());
        let data = build.ring(at, bytes, align, Access::ReadWrite)?;
        let headers = build
            .ring(headers_at, headers as usize * 8, 8, Access::ReadWrite)?
            .slots64(0, headers)
            .map_err(|_| StartError::Unaligned(Iova::new(headers_at)))?;
        let (doorbell, update) = (build.attached.doorbell.clone(), build.update()?);
        let rings = calypte::RxRings { data, headers, doorbell, update };
        calypte::CardRx::new(rings, build.limits).ok_or(StartError::Size(blocks.into())).map(RxEngine::Calypte)
    }
}
