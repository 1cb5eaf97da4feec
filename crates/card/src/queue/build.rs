//! What an engine is made of that START makes of what software wrote; which one it is, `protocol` says.

use super::error::StartError;
use super::latches::{Attached, Latches};
use crate::buffers::TxBuffers;
use crate::tsu::Tsu;
use millrace_abi::register::medusa as m;
use millrace_dma::{Access, Iotlb, Iova, Pinned, Window, Word64};
use millrace_ring::FrameLimits;
use millrace_ring::dd::LaunchCounts;
use millrace_ring::medusa::{Note, Pointers};
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
    /// Where verdicts on frames with launch times are counted.
    pub launches: Option<&'a Arc<LaunchCounts>>,
    pub pins: &'a mut Vec<Pinned>,
}

impl Build<'_> {
    pub fn ring(&mut self, at: u64, len: usize, align: u64, access: Access) -> Result<Window, StartError> {
        let iova = Iova::new(at);
        if !at.is_multiple_of(align) {
            return Err(StartError::Unaligned(iova));
        }
        let pinned = self.attached.domain.resolve(iova, len, access)?;
        let window = pinned.window().clone();
        self.pins.push(pinned);
        Ok(window)
    }

    pub fn entries(mask: u32) -> Result<u32, StartError> {
        let entries = u64::from(mask) + 1;
        let fits = entries.is_power_of_two() && entries >= 2 && entries <= u64::from(m::MAX_ENTRIES);
        if fits { Ok(entries as u32) } else { Err(StartError::Size(entries)) }
    }

    /// Where it is to be noted how far a Medusa ring is, if it is. Of one that goes on where another card was, what stands there counts until it does.
    pub fn note(&self) -> Option<Note> {
        let mut note = self.attached.rung_notes.as_ref().and_then(|_| Note::new(&self.attached.control))?;
        if self.latches.resume.is_none() {
            note.begin(Pointers::default(), None);
            self.attached.begin_notes();
        }
        Some(note)
    }

    pub fn iotlb(&self) -> Iotlb {
        Iotlb::new(self.attached.domain.clone())
    }

    pub fn update(&mut self) -> Result<Word64, StartError> {
        let at = self.latches.update_base;
        let window = self.ring(at, 8, 8, Access::ReadWrite)?;
        window.word64(0).map_err(|_| StartError::Unaligned(Iova::new(at)))
    }
}
