//! Rates: frames or bits per second.

use std::str::FromStr;

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Frames per second.
    Frames(f64),
    /// Bits of frames per second, without FCS, preamble and gap.
    Bits(f64),
}

/// What can be read as a rate.
const EXPECTED: &str = "expected frames per second such as 500, 10k, 1e6 or 2Mpps, or bits per second such as 100Mbit or \
                        10Gbit";

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (number, is_bits) = ["bit/s", "bps", "bit"]
            .iter()
            .find_map(|unit| text.strip_suffix(unit))
            .map_or_else(|| (text.strip_suffix("pps").unwrap_or(text), false), |number| (number, true));
        // A whole number is exact; what is less than one frame per second has a fraction.
        let rate = millrace_port::spec::number(number).map(|whole| whole as f64).or_else(|| fraction(number));
        match rate.filter(|rate| (0.001..1e15).contains(rate)) {
            Some(rate) if is_bits => Ok(Rate::Bits(rate)),
            Some(rate) => Ok(Rate::Frames(rate)),
            None => Err(EXPECTED.to_owned()),
        }
    }
}

/// A number with a decimal point.
fn fraction(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

impl Rate {
    /// How many of the next frames, which have these lengths, may go out `elapsed` ns after the start, when `frames`
    /// frames of `bytes` bytes have gone.
    #[inline]
    pub fn allow(self, elapsed: u64, frames: u64, bytes: u64, lens: &[u16]) -> usize {
        let due = elapsed as f64 * 1e-9;
        match self {
            // The first frame goes at once, so one more is due than full intervals have passed.
            Rate::Frames(rate) => ((due * rate) as u64 + 1).saturating_sub(frames).min(lens.len() as u64) as usize,
            Rate::Bits(rate) => {
                let mut credit = (due * rate / 8.0) as i64 - bytes as i64;
                let goes = |len: &u16| {
                    let goes = credit >= 0;
                    credit -= i64::from(*len);
                    goes
                };
                lens.iter().copied().take_while(goes).count()
            }
        }
    }

    /// How many ns after the start the next frame is due.
    pub fn next(self, frames: u64, bytes: u64) -> u64 {
        let seconds = match self {
            Rate::Frames(rate) => frames as f64 / rate,
            Rate::Bits(rate) => bytes as f64 * 8.0 / rate,
        };
        (seconds * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_prefixes_and_units() {
        for (text, rate) in [
            ("500", Rate::Frames(500.0)),
            ("1.5M", Rate::Frames(1.5e6)),
            ("10kpps", Rate::Frames(1e4)),
            ("2Mpps", Rate::Frames(2e6)),
            ("1e6", Rate::Frames(1e6)),
            ("0.5", Rate::Frames(0.5)),
            ("10Gbit", Rate::Bits(1e10)),
            ("2.5Gbit/s", Rate::Bits(2.5e9)),
            ("100kbps", Rate::Bits(1e5)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "0", "-1", "x", "1T", "inf", "nan", "1e-9", "bit", "1 M", "1.2.3"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    /// What goes out within a second, asked for every 10 us.
    fn second(rate: Rate, lens: &[u16]) -> (u64, u64) {
        let (mut frames, mut bytes) = (0, 0);
        for elapsed in (0..1_000_000_000).step_by(10_000) {
            let allowed = rate.allow(elapsed, frames, bytes, lens);
            frames += allowed as u64;
            bytes += lens[..allowed].iter().map(|len| u64::from(*len)).sum::<u64>();
        }
        (frames, bytes)
    }

    #[test]
    fn a_rate_is_kept() {
        assert_eq!(second(Rate::Frames(1000.0), &[64; 32]).0, 1000);
        assert_eq!(second(Rate::Frames(1.0), &[64; 32]).0, 1);
        assert!(second(Rate::Frames(2.5e6), &[64; 32]).0.abs_diff(2_500_000) <= 32);
        let bits = second(Rate::Bits(1e9), &[64, 1500, 600]).1 * 8;
        assert!(bits.abs_diff(1_000_000_000) < 100_000, "{bits} bits");
        assert_eq!(Rate::Frames(1000.0).next(3, 192), 3_000_000);
        assert_eq!(Rate::Bits(1e9).next(1, 125), 1000);
    }
}
