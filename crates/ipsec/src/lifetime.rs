//! How long an association may be used: in bytes, packets and time, with a soft end before the hard one (RFC 4301 §4.4.2.1).
//!
//! Times are seconds since 1970, which is how Linux has them; the caller says what time it is.

/// When an association is to be renewed, and when it is over. For counts `u64::MAX` is never, for times 0, as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of protected packets until it should be renewed.
    pub soft_bytes: u64,
    /// Bytes after which it is over.
    pub hard_bytes: u64,
    /// Packets until it should be renewed.
    pub soft_packets: u64,
    /// Packets after which it is over.
    pub hard_packets: u64,
    /// Seconds after it was made until it should be renewed.
    pub soft_added: u64,
    /// Seconds after it was made when it is over.
    pub hard_added: u64,
    /// Seconds after its first packet until it should be renewed.
    pub soft_used: u64,
    /// Seconds after its first packet when it is over.
    pub hard_used: u64,
}

impl Limits {
    /// It lasts for ever.
    pub const NONE: Self = Self {
        soft_bytes: u64::MAX,
        hard_bytes: u64::MAX,
        soft_packets: u64::MAX,
        hard_packets: u64::MAX,
        soft_added: 0,
        hard_added: 0,
        soft_used: 0,
        hard_used: 0,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::NONE
    }
}

/// What was used of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of protected packets, without what ESP adds.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was made.
    pub added: u64,
    /// When its first packet came; 0 before.
    pub used: u64,
}

/// How far an association's life has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It can be used.
    #[default]
    Open,
    /// It can be used, and IKE should make another.
    Soft,
    /// It must not be used any more.
    Hard,
}

/// Limits, what was used of them, and what was reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// When it ends.
    pub limits: Limits,
    /// What was used.
    pub usage: Usage,
    /// Its last packet; 0 before the first.
    pub last_used: u64,
    reported: End,
}

impl Lifetime {
    /// A life with these limits of which this much was used.
    pub fn new(limits: Limits, usage: Usage) -> Self {
        Self { limits, usage, last_used: usage.used, reported: End::Open }
    }

    /// How far it has gone.
    #[inline]
    pub fn end(&self, now: u64) -> End {
        let Self { limits, usage, .. } = self;
        let is_past = |since: u64, seconds: u64| seconds != 0 && since != 0 && now.saturating_sub(since) >= seconds;
        if usage.bytes >= limits.hard_bytes
            || usage.packets >= limits.hard_packets
            || is_past(usage.added, limits.hard_added)
            || is_past(usage.used, limits.hard_used)
        {
            return End::Hard;
        }
        let is_soft = usage.bytes >= limits.soft_bytes
            || usage.packets >= limits.soft_packets
            || is_past(usage.added, limits.soft_added)
            || is_past(usage.used, limits.soft_used);
        if is_soft { End::Soft } else { End::Open }
    }

    /// A packet of so many bytes was protected or opened.
    #[inline]
    pub fn count(&mut self, bytes: usize, now: u64) {
        // What the kernel hands over may be anything.
        self.usage.bytes = self.usage.bytes.saturating_add(bytes as u64);
        self.usage.packets = self.usage.packets.saturating_add(1);
        self.last_used = now;
        if self.usage.used == 0 {
            self.usage.used = now;
        }
    }

    /// What has to be reported: an end that was not reported before.
    #[inline]
    pub fn report(&mut self, end: End) -> Option<End> {
        if end <= self.reported {
            return None;
        }
        self.reported = end;
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_by_bytes_packets_and_time() {
        let life = |limits: Limits| Lifetime::new(limits, Usage { added: 1000, ..Usage::default() });
        let mut bytes = life(Limits { soft_bytes: 100, hard_bytes: 200, ..Limits::NONE });
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.push(bytes.end(1000));
            bytes.count(100, 1000);
        }
        assert_eq!(ends, [End::Open, End::Soft, End::Hard]);
        let mut packets = life(Limits { soft_packets: 1, hard_packets: 2, ..Limits::NONE });
        packets.count(1, 1001);
        assert_eq!((packets.end(1001), packets.usage.used, packets.last_used), (End::Soft, 1001, 1001));
        let added = life(Limits { soft_added: 10, hard_added: 20, ..Limits::NONE });
        assert_eq!([1009, 1010, 1020].map(|now| added.end(now)), [End::Open, End::Soft, End::Hard]);
        assert_eq!(added.end(0), End::Open, "a clock that was set back is no end");
        let mut used = life(Limits { soft_used: 10, hard_used: 20, ..Limits::NONE });
        assert_eq!(used.end(9999), End::Open, "nothing was used yet");
        used.count(1, 2000);
        assert_eq!([2009, 2010, 2020].map(|now| used.end(now)), [End::Open, End::Soft, End::Hard]);
        assert_eq!(life(Limits::NONE).end(u64::MAX), End::Open);
    }

    #[test]
    fn each_end_is_reported_once() {
        let mut life = Lifetime::default();
        let said: Vec<_> =
            [End::Open, End::Soft, End::Soft, End::Hard, End::Hard].into_iter().map(|end| life.report(end)).collect();
        assert_eq!(said, [None, Some(End::Soft), None, Some(End::Hard), None]);
    }
}
