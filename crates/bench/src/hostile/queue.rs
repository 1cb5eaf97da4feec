//! An open queue with everything in our hands: doorbell, rings, restarts.

use std::path::Path;
use std::sync::Arc;

use millrace_abi::control::{CARD_SLEEPS_AT, DOORBELL_AT, QueueState, STATE_AT};
use millrace_abi::message::Buffers;
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_dma::{Ordering, OutOfRange, Pages, Region, Slots64, Word64, fence};
use millrace_driver::{Client, Opened};
use millrace_tool::failure::Failure;

use super::attack::cannot;

/// Connects as a program with good intentions does.
pub fn connect(path: &Path) -> Result<Arc<Client>, Failure> {
    Client::connect(path).map(Arc::new).map_err(|error| cannot("connect", error))
}

/// An open queue that has been started.
pub struct Queue {
    /// Its memory and descriptors.
    pub opened: Opened,
    client: Arc<Client>,
    id: QueueId,
}

impl Queue {
    /// Opens a queue, direct and exclusive, and starts it.
    pub fn open(client: &Arc<Client>, id: QueueId, buffers: Buffers) -> Result<Self, Failure> {
        let refused = |error| cannot(&format!("open {id}"), error);
        let opened = client.open(id, Mode::Direct, Sharing::Exclusive, buffers).map_err(refused)?;
        let queue = Self { opened, client: client.clone(), id };
        queue.client.start(queue.opened.handle).map_err(refused)?;
        Ok(queue)
    }

    /// Moves the doorbell word and wakes the worker, if it sleeps.
    pub fn ring(&self, word: u64) -> Result<(), Failure> {
        // Release, as of a program that keeps the rules: the descriptors before it are visible.
        self.word(&self.opened.control, DOORBELL_AT)?.store(word, Ordering::Release);
        // The sleep protocol: pairs with the fence of the worker between its flag and its last look.
        fence(Ordering::SeqCst);
        let sleeps = self.opened.control.window().word32(CARD_SLEEPS_AT).map_err(|error| self.no(error))?;
        if sleeps.load(Ordering::Relaxed) != 0 {
            self.opened.kick.kick();
        }
        Ok(())
    }

    /// The card's update word.
    pub fn update(&self) -> Result<u64, Failure> {
        // Acquire pairs with the Release of the card's update word.
        Ok(self.word(&self.opened.status, 0)?.load(Ordering::Acquire))
    }

    /// The descriptor ring of a Medusa queue, the header ring of a Calypte TX queue.
    pub fn descriptors(&self, entries: u32) -> Result<Slots64, Failure> {
        let region = self.opened.descriptors.as_ref().ok_or_else(|| self.no("it has no descriptor ring"))?;
        region.window().slots64(0, entries).map_err(|error| self.no(error))
    }

    /// Starts the queue again if the card has stopped it; says whether it had.
    pub fn revive(&self) -> Result<bool, Failure> {
        let state = self.opened.control.window().word32(STATE_AT).map_err(|error| self.no(error))?;
        if QueueState::from_word(state.load(Ordering::Acquire)) == Some(QueueState::Running) {
            return Ok(false);
        }
        self.restart()?;
        Ok(true)
    }

    /// Stops the queue by force and starts it.
    pub fn restart(&self) -> Result<(), Failure> {
        let handle = self.opened.handle;
        // A queue that the card has stopped already may be refused its stop; the start decides.
        let _ = self.client.stop(handle, true, 0);
        self.client.start(handle).map(drop).map_err(|error| self.no(error))
    }

    fn word(&self, region: &Region, at: usize) -> Result<Word64, Failure> {
        region.window().word64(at).map_err(|error: OutOfRange| self.no(error))
    }

    /// An error of this queue.
    pub fn no(&self, why: impl std::fmt::Display) -> Failure {
        cannot(&format!("use {}", self.id), why)
    }
}

/// Memory that the card may read and write.
pub struct Shared {
    /// Where the card finds it.
    pub iova: u64,
    _region: Region,
}

impl Shared {
    /// Maps `len` bytes for a connection.
    pub fn new(client: &Client, len: usize) -> Result<Self, Failure> {
        let region = Region::allocate(len, Pages::Ordinary).map_err(|error| cannot("allocate", error))?;
        let iova = client.map(&region, true, None).map_err(|error| cannot("map memory", error))?;
        Ok(Self { iova, _region: region })
    }
}
