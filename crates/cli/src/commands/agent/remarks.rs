//! Remarks that strangers can bring about: some are made, the others counted.

use std::time::{Duration, Instant};

/// How long is between two of them.
const PAUSE: Duration = Duration::from_secs(1);

/// Which are made.
pub struct Remarks {
    next: Instant,
    left_out: u64,
}

impl Remarks {
    /// The first is made at once.
    pub fn new(now: Instant) -> Self {
        Self { next: now, left_out: 0 }
    }

    /// The remark as it is made, if it is.
    pub fn made(&mut self, text: String, now: Instant) -> Option<String> {
        if now < self.next {
            self.left_out += 1;
            return None;
        }
        self.next = now + PAUSE;
        match std::mem::take(&mut self.left_out) {
            0 => Some(text),
            more => Some(format!("{text}; and {more} more since the last remark")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_made_and_the_others_counted() {
        let now = Instant::now();
        let mut remarks = Remarks::new(now);
        assert_eq!(remarks.made("one".to_owned(), now).as_deref(), Some("one"));
        for _ in 0..3 {
            assert_eq!(remarks.made("two".to_owned(), now), None);
        }
        let later = now + PAUSE;
        assert_eq!(remarks.made("three".to_owned(), later).as_deref(), Some("three; and 3 more since the last remark"));
        assert_eq!(remarks.made("four".to_owned(), later + PAUSE).as_deref(), Some("four"));
    }
}
