//! The card's way through the pages of an SZE ring.

use super::layout::{Descriptor, PAGE_LEN};
use crate::EngineFault;
use crate::budget::MAX_CHAIN;
use millrace_abi::control::FaultKind;
use millrace_abi::handover::PageRun;
use millrace_dma::{Iotlb, Iova, Span};

/// The place of the card in the stream: the run of pages it is in, and the descriptor that comes after.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub at: Iova,
    /// Bytes left of the run.
    pub left: u32,
    next: Iova,
    /// Descriptors of the list that were read for the packet at hand.
    pub looked: u32,
}

impl Place {
    pub fn start(descriptors_at: Iova) -> Self {
        Self { at: Iova::default(), left: 0, next: descriptors_at, looked: 0 }
    }

    /// The same place in words.
    pub fn save(&self) -> PageRun {
        PageRun { at: self.at.get(), left: self.left, next: self.next.get() }
    }

    /// The place that these words say.
    pub fn restore(run: PageRun) -> Self {
        Self { at: Iova::new(run.at), left: run.left, next: Iova::new(run.next), looked: 0 }
    }

    /// This place, where a packet begins.
    #[inline(always)]
    pub fn of_packet(self) -> Self {
        Self { looked: 0, ..self }
    }

    /// Makes sure that at least one byte of a run is left.
    #[inline(always)]
    pub fn enter(&mut self, iotlb: &Iotlb) -> Result<(), EngineFault> {
        if self.left == 0 { self.next_run(iotlb) } else { Ok(()) }
    }

    #[cold]
    fn next_run(&mut self, iotlb: &Iotlb) -> Result<(), EngineFault> {
        while self.looked < MAX_CHAIN {
            self.looked += 1;
            match Descriptor::decode(iotlb.read_u64(self.next)?) {
                Descriptor::Next(at) => self.next = at,
                Descriptor::Pages { at, count } => {
                    (self.at, self.left, self.next) = (at, count * PAGE_LEN, self.next.plus(8));
                    return Ok(());
                }
                Descriptor::Reserved => {
                    return Err(EngineFault { kind: FaultKind::ReservedDescriptor, iova: self.next });
                }
            }
        }
        Err(EngineFault { kind: FaultKind::EndlessDescriptors, iova: self.next })
    }

    #[inline(always)]
    pub fn step(&mut self, bytes: u32) {
        self.at = self.at.plus(u64::from(bytes));
        self.left -= bytes;
    }

    /// Goes on by `bytes`, into as many runs as that takes.
    #[inline(always)]
    pub fn skip(&mut self, mut bytes: u32, iotlb: &Iotlb) -> Result<(), EngineFault> {
        while bytes > 0 {
            self.enter(iotlb)?;
            let piece = bytes.min(self.left);
            self.step(piece);
            bytes -= piece;
        }
        Ok(())
    }

    /// As [`Place::skip`] by the length of `to`, with the bytes copied there.
    #[cold]
    pub fn gather(&mut self, to: &mut [u8], iotlb: &Iotlb) -> Result<(), EngineFault> {
        let mut done = 0;
        while done < to.len() {
            self.enter(iotlb)?;
            let piece = (to.len() - done).min(self.left as usize);
            iotlb.read(self.at, piece)?.read_into(&mut to[done..done + piece]);
            self.step(piece as u32);
            done += piece;
        }
        Ok(())
    }

    /// As [`Place::skip`] by the length of `from`, which is copied to there.
    #[cold]
    pub fn scatter(&mut self, mut from: Span<'_>, iotlb: &Iotlb) -> Result<(), EngineFault> {
        while !from.is_empty() {
            self.enter(iotlb)?;
            let piece = from.len().min(self.left as usize);
            let (now, rest) = from.split_at(piece);
            now.copy_to(iotlb.write(self.at, piece)?);
            self.step(piece as u32);
            from = rest;
        }
        Ok(())
    }
}
