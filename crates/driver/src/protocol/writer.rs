//! The driver's half of a TX ring.

/// The software half of a TX ring that the driver drives for mediated writers.
pub(crate) trait Writer: Send {
    /// Units that a frame takes.
    fn units(&self, len: u16) -> u32;

    /// Gives the next frame to the card, whose bytes are there. `false`: there is no room.
    fn commit(&mut self, len: u16) -> bool;

    /// Shows the card what was committed.
    fn flush(&mut self);

    /// Free units.
    fn available(&mut self) -> u32;

    /// Where the next frame goes, in units, in a ring that begins at `base`.
    fn position(&self, base: u64) -> u64;
}
