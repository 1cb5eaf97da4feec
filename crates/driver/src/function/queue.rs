//! A queue of a PCI function: its memory, and what its registers are told.

use super::refused;
use crate::client::ClientError;
use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, PAGE_SIZE};
use millrace_abi::message::{ErrorCode, Layout};
use millrace_abi::pci;
use millrace_abi::queue::{Direction, Engine, QueueId};
use millrace_abi::register::{Offset, dd as d, medusa as m};
use millrace_abi::tree::QueueEntry;
use millrace_dma::{Ordering, OutOfRange, Region, Word32, Word64};
use millrace_ring::dd;
use millrace_vfio::{Function, VfioError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entries of a ring, and the size of their buffers: those of a card that was not told otherwise. They are a part of a huge page without a rest, so that no
/// buffer lies across two of them.
const ENTRIES: u32 = 2048;
const BUFFER: u32 = 2048;
/// Where the headers and the addresses of buffers lie in the memory with the update word.
const HEADERS_AT: u64 = 256;
const IOVAS_AT: u64 = 64 << 10;
/// How long a queue may take to stop when it is asked once.
const PATIENCE: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_micros(200);

/// Memory that the function reaches until this is dropped.
struct Memory {
    function: Arc<Function>,
    region: Region,
    at: u64,
}

impl Memory {
    fn new(function: &Arc<Function>, len: u64) -> Result<Self, VfioError> {
        let (region, at) = function.allocate(len as usize)?;
        Ok(Self { function: function.clone(), region, at })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.function.release(self.at);
    }
}

/// A queue that is open.
pub(super) struct Queue {
    pub id: QueueId,
    engine: Engine,
    pub layout: Layout,
    pub control: Region,
    function: Arc<Function>,
    // Of the registers.
    base: u32,
    doorbell: Word64,
    sleeps: Word32,
    status: Memory,
    data: Memory,
    descriptors: Option<Memory>,
    running: bool,
}

/// What wakes the card's worker when it sleeps.
pub struct Bell {
    function: Arc<Function>,
    // SDP, or what another engine has there.
    register: u32,
    doorbell: Word64,
    sleeps: Word32,
}

impl Bell {
    /// Tells the card by a register what the doorbell says.
    pub(crate) fn ring(&self) {
        // Whoever rings has taken it down, as it is for an eventfd. The card takes it down itself when the register comes, and wakes its worker for one
        // only that it finds set.
        self.sleeps.store(1, Ordering::Relaxed);
        let pointer = self.doorbell.load(Ordering::Relaxed) as u32;
        // A function that is gone cannot be woken.
        let _ = self.function.write(self.register, &pointer.to_le_bytes());
    }
}

fn unfit(error: OutOfRange) -> ClientError {
    refused(ErrorCode::System, format!("the memory of a queue: {error}"))
}

impl Queue {
    pub fn new(function: Arc<Function>, entry: &QueueEntry) -> Result<Self, ClientError> {
        let id = entry.queue;
        let control = function.page(pci::doorbell(id))?;
        let doorbell = control.window().word64(DOORBELL_AT).map_err(unfit)?;
        let sleeps = control.window().word32(CARD_SLEEPS_AT).map_err(unfit)?;
        let (entries, size) = (ENTRIES, BUFFER);
        let data = Memory::new(&function, u64::from(entries) * u64::from(size))?;
        let rings = |function| Memory::new(function, IOVAS_AT + u64::from(entries) * 8);
        let status = rings(&function)?;
        let (layout, descriptors) = match entry.engine {
            Engine::Medusa => {
                let descriptors = rings(&function)?;
                for buffer in 0..u64::from(entries) {
                    let word = status.region.window().word64((IOVAS_AT + buffer * 8) as usize).map_err(unfit)?;
                    word.store(data.at + buffer * u64::from(size), Ordering::Relaxed);
                }
                let layout = Layout::Medusa {
                    entries,
                    status_len: status.region.len() as u64,
                    headers_at: HEADERS_AT,
                    iovas_at: IOVAS_AT,
                    data_len: data.region.len() as u64,
                    stride: size,
                    buffer_size: size,
                    descriptors_len: descriptors.region.len() as u64,
                };
                (layout, Some(descriptors))
            }
            Engine::Dd => {
                let layout = Layout::Dd {
                    entries,
                    status_len: status.region.len() as u64,
                    data_at: data.at,
                    data_len: data.region.len() as u64,
                    stride: size,
                    buffer_size: size,
                };
                (layout, None)
            }
            other => {
                let text =
                    format!("{id} is served by {other}, which has no driver for PCI functions; choose medusa or dd");
                return Err(refused(ErrorCode::Invalid, text));
            }
        };
        let (engine, base, running) = (entry.engine, entry.base, false);
        Ok(Self { id, engine, layout, control, function, base, doorbell, sleeps, status, data, descriptors, running })
    }

    /// What the program has of it.
    pub fn memory(&self) -> (Region, Region, Option<Region>) {
        let descriptors = self.descriptors.as_ref().map(|memory| memory.region.clone());
        (self.status.region.clone(), self.data.region.clone(), descriptors)
    }

    pub fn bell(&self) -> Bell {
        let register = if self.engine == Engine::Dd { d::TAIL } else { m::SDP };
        let (function, doorbell, sleeps) = (self.function.clone(), self.doorbell.clone(), self.sleeps.clone());
        Bell { function, register: register.at(self.base), doorbell, sleeps }
    }

    fn write32(&self, register: Offset, value: u32) -> Result<(), VfioError> {
        self.function.write(register.at(self.base), &value.to_le_bytes())
    }

    fn write64(&self, register: Offset, value: u64) -> Result<(), VfioError> {
        self.function.write(register.at(self.base), &value.to_le_bytes())
    }

    fn is_running(&self) -> Result<bool, VfioError> {
        let mut status = [0; 4];
        self.function.read(m::STATUS.at(self.base), &mut status)?;
        Ok(u32::from_le_bytes(status) & m::STATUS_RUNNING != 0)
    }

    /// START, on memory as it is to be then.
    pub fn start(&mut self) -> Result<(), ClientError> {
        let id = self.id;
        if self.running {
            return Err(refused(ErrorCode::Invalid, format!("{id} runs already")));
        }
        self.doorbell.store(0, Ordering::Relaxed);
        match self.layout {
            Layout::Dd { entries, .. } => self.prepare_dd(entries)?,
            Layout::Medusa { entries, .. } => self.prepare_medusa(entries)?,
            Layout::Sze { .. } | Layout::Calypte { .. } => return Err(ClientError::Unexpected),
        }
        // CONTROL and STATUS lie at the same place in the blocks of all engines.
        self.write32(m::CONTROL, m::CONTROL_START)?;
        if !self.is_running()? {
            let text = format!(
                "{id} did not start: a program of the host or another machine may have it, which `millrace stats` says there"
            );
            return Err(refused(ErrorCode::Busy, text));
        }
        self.running = true;
        Ok(())
    }

    /// `docs/spec/nfb-card.md` §3.2.2, steps 5 to 8.
    fn prepare_medusa(&self, entries: u32) -> Result<(), ClientError> {
        self.status.region.window().word64(0).map_err(unfit)?.store(0, Ordering::Relaxed);
        self.write64(m::DESC_BASE, self.descriptors.as_ref().map_or(0, |memory| memory.at))?;
        self.write64(m::UPDATE_BASE, self.status.at)?;
        if self.id.direction == Direction::Rx {
            self.write64(m::HDR_BASE, self.status.at + HEADERS_AT)?;
        }
        self.write32(m::MDP, entries - 1)?;
        self.write32(m::MHP, entries - 1)?;
        self.write64(m::SDP, 0)?;
        Ok(self.write32(m::TIMEOUT, m::TIMEOUT_DEFAULT)?)
    }

    /// `docs/spec/dd.md`, the registers; all descriptors are the software's.
    fn prepare_dd(&self, entries: u32) -> Result<(), ClientError> {
        let words = entries * dd::DESCRIPTOR as u32 / 8;
        if let Some(ring) = dd::Ring::new(self.status.region.window().slots64(0, words).map_err(unfit)?) {
            ring.clear();
        }
        self.write64(d::BASE, self.status.at)?;
        self.write32(d::SIZE, entries - 1)?;
        self.write32(d::TAIL, 0)?;
        Ok(self.write32(d::TIMEOUT, m::TIMEOUT_DEFAULT)?)
    }

    /// STOP, which a TX queue does when the card has taken everything. What the card has not taken when it is forced is lost with the memory.
    pub fn stop(&mut self, force: bool) -> Result<(), ClientError> {
        if !self.running {
            return Err(refused(ErrorCode::Invalid, format!("{} does not run", self.id)));
        }
        self.write32(m::CONTROL, m::CONTROL_STOP)?;
        let begin = Instant::now();
        while self.is_running()? {
            if begin.elapsed() > PATIENCE && !force {
                return Err(refused(
                    ErrorCode::NotDrained,
                    format!("{} has frames that the card has not taken", self.id),
                ));
            }
            if begin.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.running = false;
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.running {
            // The memory goes in any case, and the card stops a queue whose memory goes.
            let _ = self.stop(true);
        }
    }
}

const _: () = {
    // The rings of the largest queue, and headers before the addresses.
    assert!(HEADERS_AT + ENTRIES as u64 * 4 <= IOVAS_AT && ENTRIES as u64 * dd::DESCRIPTOR as u64 <= IOVAS_AT);
    assert!(PAGE_SIZE == 4096 && (2 << 20) % BUFFER == 0);
};
