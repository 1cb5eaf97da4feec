//! Memory of a program that is mapped for the card.

use crate::error::Error;
use millrace_dma::Iova;
use millrace_driver::Client;
use std::sync::Arc;

/// Memory of this program that the card can reach, until this is dropped.
pub struct Mapping {
    client: Arc<Client>,
    iova: Iova,
    mapped: bool,
}

impl Mapping {
    pub(crate) fn new(client: Arc<Client>, iova: Iova) -> Self {
        Self { client, iova, mapped: true }
    }

    /// Where the card finds the first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Takes the memory away from the card; when this returns, no worker can reach it.
    ///
    /// # Errors
    /// [`Error::Client`], refused while a queue has a ring in it.
    pub fn unmap(mut self) -> Result<(), Error> {
        self.client.unmap(self.iova.get())?;
        self.mapped = false;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped {
            // Fails only when the card is gone or a queue still needs the memory; both end with the connection.
            let _ = self.client.unmap(self.iova.get());
        }
    }
}
