//! The engine that START makes of what software wrote: one function for each protocol and direction.

use super::error::StartError;
use super::{Attached, Latches};
use crate::buffers::TxBuffers;
use crate::engine::TxEngine;
use crate::tsu::Tsu;
use millrace_abi::queue::Engine;
use millrace_abi::register::{calypte as c, dd as d, medusa as m};
use millrace_dma::{Access, Iotlb, Iova, Pinned, Window, Word64};
use millrace_ring::{FrameLimits, calypte, dd, medusa, sze};
use std::sync::Arc;

/// What one more ring of a TX queue is made of: the registers that START would look at.
#[derive(Clone, Default)]
pub struct RingProgram {
    /// DESC_BASE.
    pub desc_base: u64,
    /// UPDATE_BASE.
    pub update_base: u64,
    /// MDP, or the size of the ring in bytes less one. Calypte: not looked at.
    pub mask: u32,
    /// Calypte: the buffers of the device, which this ring has to itself.
    pub buffers: Option<TxBuffers>,
}

/// What START makes of the latches.
pub(super) struct Build<'a> {
    pub latches: &'a Latches,
    pub attached: &'a Attached,
    pub limits: FrameLimits,
    pub tsu: &'a Arc<Tsu>,
    pub pins: &'a mut Vec<Pinned>,
}

impl Build<'_> {
    fn ring(&mut self, at: u64, len: usize, align: u64, access: Access) -> Result<Window, StartError> {
        let iova = Iova::new(at);
        if !at.is_multiple_of(align) {
            return Err(StartError::Unaligned(iova));
        }
        let pinned = self.attached.domain.resolve(iova, len, access)?;
        let window = pinned.window().clone();
        self.pins.push(pinned);
        Ok(window)
    }

    fn entries(mask: u32) -> Result<u32, StartError> {
        let entries = u64::from(mask) + 1;
        let fits = entries.is_power_of_two() && entries >= 2 && entries <= u64::from(m::MAX_ENTRIES);
        if fits { Ok(entries as u32) } else { Err(StartError::Size(entries)) }
    }

    fn iotlb(&self) -> Iotlb {
        Iotlb::new(self.attached.domain.clone())
    }

    fn update(&mut self) -> Result<Word64, StartError> {
        let at = self.latches.update_base;
        let window = self.ring(at, 8, 8, Access::ReadWrite)?;
        window.word64(0).map_err(|_| StartError::Unaligned(Iova::new(at)))
    }

    pub fn tx(self, engine: Engine) -> Result<TxEngine, StartError> {
        let limits = self.limits;
        Ok(match engine {
            Engine::Medusa => TxEngine::Medusa(self.medusa_tx()?),
            Engine::Calypte => TxEngine::Calypte(self.calypte_tx()?),
            Engine::Dd => TxEngine::Dd(self.dd_tx()?),
            Engine::Sze => {
                let (rings, iotlb) = self.sze()?;
                TxEngine::Sze(sze::CardTx::new(rings, limits, iotlb).ok_or(StartError::Size(0))?)
            }
        })
    }

    fn medusa_tx(mut self) -> Result<medusa::CardTx, StartError> {
        let entries = Self::entries(self.latches.masks[0])?;
        let at = self.latches.desc_base;
        let unaligned = |_| StartError::Unaligned(Iova::new(at));
        let descriptors =
            self.ring(at, entries as usize * 8, 8, Access::Read)?.slots64(0, entries).map_err(unaligned)?;
        let update = self.update()?;
        let doorbell = self.attached.doorbell.clone();
        let rings = medusa::TxRings { descriptors, descriptors_at: Iova::new(at), doorbell, update };
        medusa::CardTx::new(rings, self.limits, self.iotlb()).ok_or(StartError::Size(entries.into()))
    }

    pub fn medusa_rx(mut self) -> Result<medusa::CardRx, StartError> {
        let (entries, headers) = (Self::entries(self.latches.masks[0])?, Self::entries(self.latches.masks[1])?);
        let (at, headers_at) = (self.latches.desc_base, self.latches.hdr_base);
        let unaligned = |_| StartError::Unaligned(Iova::new(at));
        let descriptors =
            self.ring(at, entries as usize * 8, 8, Access::Read)?.slots64(0, entries).map_err(unaligned)?;
        let headers = self
            .ring(headers_at, headers as usize * 4, 4, Access::ReadWrite)?
            .slots32(0, headers)
            .map_err(|_| StartError::Unaligned(Iova::new(headers_at)))?;
        let update = self.update()?;
        let doorbell = self.attached.doorbell.clone();
        let rings = medusa::RxRings { descriptors, descriptors_at: Iova::new(at), headers, doorbell, update };
        medusa::CardRx::new(rings, self.limits, self.iotlb()).ok_or(StartError::Size(entries.into()))
    }

    fn calypte_tx(mut self) -> Result<calypte::CardTx, StartError> {
        let update = self.update()?;
        let buffers = self.attached.buffers.clone().ok_or(StartError::Size(0))?;
        buffers.clear_headers();
        let rings = calypte::TxRings { data: buffers.data, headers: buffers.headers, update };
        calypte::CardTx::new(rings, self.limits).ok_or(StartError::Size(c::TX_RING.into()))
    }

    pub fn calypte_rx(mut self) -> Result<calypte::CardRx, StartError> {
        let (blocks, headers) = (Self::entries(self.latches.masks[0])?, Self::entries(self.latches.masks[1])?);
        let (at, headers_at) = (self.latches.desc_base, self.latches.hdr_base);
        let (bytes, align) = (blocks as usize * c::RX_BLOCK as usize, c::RX_BLOCK.into());
        let data = self.ring(at, bytes, align, Access::ReadWrite)?;
        let headers = self
            .ring(headers_at, headers as usize * 8, 8, Access::ReadWrite)?
            .slots64(0, headers)
            .map_err(|_| StartError::Unaligned(Iova::new(headers_at)))?;
        let (doorbell, update) = (self.attached.doorbell.clone(), self.update()?);
        let rings = calypte::RxRings { data, headers, doorbell, update };
        calypte::CardRx::new(rings, self.limits).ok_or(StartError::Size(blocks.into()))
    }

    /// The descriptor ring, which both sides write.
    fn dd_ring(&mut self) -> Result<(dd::Ring, Iova), StartError> {
        let entries = Self::entries(self.latches.masks[0])?;
        let (at, bytes) = (self.latches.desc_base, entries as usize * dd::DESCRIPTOR);
        let words = self.ring(at, bytes, d::RING_ALIGN.into(), Access::ReadWrite)?.slots64(0, bytes as u32 / 8);
        let words = words.map_err(|_| StartError::Unaligned(Iova::new(at)))?;
        Ok((dd::Ring::new(words).ok_or(StartError::Size(entries.into()))?, Iova::new(at)))
    }

    fn dd_tx(mut self) -> Result<dd::CardTx, StartError> {
        let (ring, at) = self.dd_ring()?;
        Ok(dd::CardTx::new(ring, at, self.limits, self.iotlb(), self.tsu.nanoseconds()))
    }

    pub fn dd_rx(mut self) -> Result<dd::CardRx, StartError> {
        let (ring, at) = self.dd_ring()?;
        Ok(dd::CardRx::new(ring, at, self.limits, self.iotlb()))
    }

    pub fn sze(mut self) -> Result<(sze::Rings, Iotlb), StartError> {
        let size = u64::from(self.latches.ring_mask) + 1;
        let fits = size.is_power_of_two() && (4096..=1 << 30).contains(&size);
        if !fits {
            return Err(StartError::Size(size));
        }
        let descriptors_at = Iova::new(self.latches.desc_base);
        // The list is read as the card goes along; that it begins somewhere is checked here.
        self.ring(self.latches.desc_base, 8, 8, Access::Read)?;
        let update = self.update()?;
        let doorbell = self.attached.doorbell.clone();
        Ok((sze::Rings { descriptors_at, size: size as u32, doorbell, update }, self.iotlb()))
    }
}
