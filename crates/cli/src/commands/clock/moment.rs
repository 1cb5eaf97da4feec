//! Times and differences of times as people write them.

use millrace::Time;
use std::time::{SystemTime, UNIX_EPOCH};

const NANOSECONDS: i128 = 1_000_000_000;

/// A time to set a clock to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// What the host's clock shows then.
    Now,
    /// This time.
    At(Time),
}

/// `now`, or seconds since 1970 with a fraction.
pub fn moment(text: &str) -> Result<Moment, String> {
    if text == "now" {
        return Ok(Moment::Now);
    }
    let wrong = || format!("{text:?} is no time; expected now, or seconds since 1970 such as 1700000000.25");
    let nanoseconds = decimal(text, NANOSECONDS).ok_or_else(wrong)?;
    let seconds = u32::try_from(nanoseconds.div_euclid(NANOSECONDS)).map_err(|_| wrong())?;
    Ok(Moment::At(Time::new(seconds, nanoseconds.rem_euclid(NANOSECONDS) as u32)))
}

/// A difference, such as `-250ms` or `1.5us`, in ns.
pub fn difference(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is no time; expected a number with a unit, such as 250ns, -1.5us, 20ms, 3s");
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", NANOSECONDS)];
    let (number, unit) = units.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns))).ok_or_else(wrong)?;
    decimal(number, unit).and_then(|ns| i64::try_from(ns).ok()).ok_or_else(wrong)
}

/// Millionths, in the unit of `adjfine`.
pub fn millionths(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is no frequency; expected millionths, such as 12.5 or -100");
    decimal(text, 65_536).and_then(|scaled| i64::try_from(scaled).ok()).ok_or_else(wrong)
}

/// A decimal number times `unit`, without what rounding would do to it.
fn decimal(text: &str, unit: i128) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || digits.ends_with('.') {
        return None;
    }
    let number = |text: &str| if text.is_empty() { Some(0i128) } else { text.parse().ok() };
    let scale = 10i128.pow(fraction.len() as u32);
    Some(sign * (number(whole)? * unit + number(fraction)? * unit / scale))
}

/// What the host's clock shows.
pub fn host_time() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::new(now.as_secs() as u32, now.subsec_nanos())
}

/// A time as date and time of day, as if it were UTC.
pub fn written(time: Time) -> String {
    let (days, of_day) = (time.seconds / 86_400, time.seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:09}", time.nanoseconds())
}

/// Year, month and day of the Gregorian calendar so many days after 1970-01-01.
fn date(mut days: u32) -> (u32, u32, u32) {
    let leap = |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    // A clock wraps after 136 years.
    while days >= 365 + u32::from(leap(year)) {
        days -= 365 + u32::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u32::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u32 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        assert_eq!(moment("now"), Ok(Moment::Now));
        assert_eq!(moment("1700000000.25"), Ok(Moment::At(Time::new(1_700_000_000, 250_000_000))));
        for wrong in ["", "-1", "4294967296", "1.", ".5", "1e3", "noon"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (difference("-250ms"), difference("1.5us"), difference("+3s")),
            (Ok(-250_000_000), Ok(1_500), Ok(3_000_000_000))
        );
        assert!(difference("3").is_err() && difference("s").is_err() && difference("99999999999999s").is_err());
        assert_eq!((millionths("-100"), millionths("0.5")), (Ok(-100 * 65_536), Ok(32_768)));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(written(Time::new(0, 5)), "1970-01-01 00:00:00.000000005");
        assert_eq!(written(Time::new(951_782_400, 0)), "2000-02-29 00:00:00.000000000");
        assert_eq!(written(Time::new(1_700_000_000, 1)), "2023-11-14 22:13:20.000000001");
        assert_eq!(written(Time::new(u32::MAX, 999_999_999)), "2106-02-07 06:28:15.999999999");
    }
}
