use millrace_driver::Client;
use std::sync::Arc;

/// Features of a component that nobody else may use until this is dropped.
#[must_use = "the lock ends when this is dropped"]
pub struct ComponentLock {
    client: Arc<Client>,
    component: String,
    bits: u64,
}

impl ComponentLock {
    pub(crate) fn new(client: Arc<Client>, component: &str, bits: u64) -> Self {
        Self { client, component: component.to_owned(), bits }
    }
}

impl Drop for ComponentLock {
    fn drop(&mut self) {
        // A card that is gone has no locks any more.
        let _ = self.client.unlock(&self.component, self.bits);
    }
}
