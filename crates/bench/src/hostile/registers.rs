//! Writes to the registers of queues that somebody else holds.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millrace_abi::queue::QueueId;
use millrace_abi::register::map::Component;
use millrace_abi::register::medusa;
use millrace_driver::Client;
use millrace_tool::failure::Failure;

use super::attack::{Attack, cannot};
use super::queue::connect;

/// How long to rest between two rounds.
const REST: Duration = Duration::from_millis(1);

/// Both directions of some queues. What it counts is what the card let it write.
pub struct Registers {
    client: Arc<Client>,
    addresses: Vec<u32>,
}

impl Registers {
    /// Connects.
    pub fn new(path: &Path, indices: &[u32]) -> Result<Self, Failure> {
        let both = |&index: &u32| [QueueId::rx(index), QueueId::tx(index)];
        let addresses = indices.iter().flat_map(both).filter_map(|id| Component::Dma(id).base()).collect();
        Ok(Self { client: connect(path)?, addresses })
    }
}

impl Attack for Registers {
    fn step(&mut self) -> Result<u64, Failure> {
        let mut written = 0;
        for address in &self.addresses {
            // The doorbell of a mediated queue, its rings, and the switch: the registers that lie alike in all engines.
            for (offset, value) in [(medusa::SDP, u32::MAX), (medusa::DESC_BASE, 0), (medusa::CONTROL, 0)] {
                match self.client.write(address + offset.bytes(), &value.to_le_bytes()) {
                    Ok(()) => written += 1,
                    Err(error) if error.code().is_some() => {}
                    Err(error) => return Err(cannot("write", error)),
                }
            }
        }
        thread::sleep(REST);
        Ok(written)
    }
}
