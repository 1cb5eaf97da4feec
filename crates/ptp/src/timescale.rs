//! Announce messages that say what time the clock shows. statime calls every time PTP's own, which is TAI, and says no offset from
//! UTC; a clock that shows UTC would be taken for one that is wrong by half a minute.

/// In octet 7 of the header.
const FLAGS: usize = 7;
const UTC_OFFSET_VALID: u8 = 0x04;
const PTP_TIMESCALE: u8 = 0x08;
const UTC_OFFSET: core::ops::Range<usize> = 44..46;
const ANNOUNCE: u8 = 11;

/// Whether a message is an Announce.
pub fn is_announce(message: &[u8]) -> bool {
    message.first().is_some_and(|first| first & 0x0f == ANNOUNCE)
}

/// Says that the clock shows TAI, so many seconds ahead of UTC; `None`: that it shows any time.
pub fn write(message: &mut [u8], utc_offset: Option<i16>) {
    if let Some(flags) = message.get_mut(FLAGS) {
        *flags &= !(UTC_OFFSET_VALID | PTP_TIMESCALE);
        *flags |= utc_offset.map_or(0, |_| UTC_OFFSET_VALID | PTP_TIMESCALE);
    }
    if let Some(place) = message.get_mut(UTC_OFFSET) {
        place.copy_from_slice(&utc_offset.unwrap_or(0).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_the_clock_shows() {
        let mut message = [0u8; 64];
        (message[0], message[FLAGS]) = (ANNOUNCE, PTP_TIMESCALE | 0x21);
        write(&mut message, None);
        assert_eq!((is_announce(&message), message[FLAGS], &message[UTC_OFFSET]), (true, 0x21, &[0, 0][..]));
        write(&mut message, Some(37));
        assert_eq!((message[FLAGS], &message[UTC_OFFSET]), (0x2d, &[0, 37][..]));
        write(&mut [0; 3], Some(1));
    }
}
