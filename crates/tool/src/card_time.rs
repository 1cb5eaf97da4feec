//! What the card's clock shows, for programs that tell the card when to send.

use millrace_abi::register::map::Component;
use millrace_abi::register::tsu as t;

use crate::clock::Moment;
use crate::failure::{Failure, While};
use crate::host::{Device, Error};

/// Readings, of which the quickest counts: it says best when it was made.
const READINGS: usize = 8;

/// What the card's clock showed at a moment; from then on it goes by the clock of this program. Good for a second or so when
/// somebody steers the card's.
#[derive(Clone, Copy, Debug)]
pub struct CardTime {
    at: Moment,
    shown: u64,
}

impl CardTime {
    /// Reads the clock by its registers. Takes the right `configure:clock`, as whatever is read there is asked for first.
    ///
    /// # Errors
    /// [`Failure`] when the card refuses.
    pub fn read(device: &Device) -> Result<Self, Failure> {
        let mut best: Option<(u64, Self)> = None;
        for _ in 0..READINGS {
            let before = Moment::now();
            let shown = shown(device).doing(|| "cannot read the card's clock".to_owned())?;
            let took = Moment::now().nanos_since(before);
            if best.is_none_or(|(quickest, _)| took < quickest) {
                // The clock was asked in the first of four steps of equal length.
                best = Some((took, Self { at: before, shown: shown.saturating_sub(took / 8) }));
            }
        }
        Ok(best.map_or(Self { at: Moment::now(), shown: 0 }, |(_, time)| time))
    }

    /// What it shows now, in ns.
    pub fn now(&self) -> u64 {
        self.shown + Moment::now().nanos_since(self.at)
    }
}

fn shown(device: &Device) -> Result<u64, Error> {
    let base = Component::Tsu.base().unwrap_or_default();
    let at = |register: millrace_abi::register::Offset| base + register.bytes();
    device.write32(at(t::COMMAND), t::COMMAND_READ_TIME)?;
    let [low, middle, high] = [t::DATA_LOW, t::DATA_MIDDLE, t::DATA_HIGH].map(|register| device.read32(at(register)));
    let fraction = u128::from(low?) | u128::from(middle?) << 32;
    let nanoseconds = (fraction * 1_000_000_000) >> 64;
    Ok(u64::from(high?) * 1_000_000_000 + nanoseconds as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_as_the_cards_clock_does() {
        let device = Device::open("embedded:engine=dd,tsu").unwrap();
        let time = CardTime::read(&device).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let (ours, theirs) = (time.now(), CardTime::read(&device).unwrap().now());
        assert!(ours > 1_000_000_000 && ours.abs_diff(theirs) < 1_000_000, "{ours} {theirs}");
    }
}
