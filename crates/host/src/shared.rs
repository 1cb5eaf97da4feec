//! Embedded cards that all opens of one name share within this process (trap T16 of `docs/spec/nfb-card.md`).

use crate::error::Error;
use millrace_abi::name::CardOptions;
use millrace_card::Card;
use millrace_driver::Driver;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

struct Entry {
    // A fork has the memory of a card, but not its threads.
    process: u32,
    options: CardOptions,
    driver: Weak<Driver>,
    alive: Weak<()>,
}

static CARDS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// The card with these options that somebody in this process has open, or a new one.
///
/// One caller at a time: two that come together get the same card.
pub(crate) fn card(options: &CardOptions) -> Result<Arc<Driver>, Error> {
    let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    cards.retain(|entry| entry.process == process && entry.alive.strong_count() > 0);
    if let Some(entry) = cards.iter().find(|entry| entry.options == *options) {
        if let Some(driver) = entry.driver.upgrade() {
            return Ok(driver);
        }
        // Its last user has just left, and its ports may still be open: a new one could not open them.
        while entry.alive.strong_count() > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let driver = Arc::new(Driver::embedded(Card::new(options)?)?);
    let (weak, alive) = (Arc::downgrade(&driver), driver.alive());
    cards.push(Entry { process, options: options.clone(), driver: weak, alive });
    Ok(driver)
}
