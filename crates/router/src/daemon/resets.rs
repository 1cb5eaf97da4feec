//! Connections of TCP that somebody has reset. Conntrack believes an RST whose number is the last one that it saw acknowledged, and it has not seen what went
//! without Linux: it would keep the connection for days. Nor may any RST end it, for who knows addresses and ports could send one (RFC 5961). So
//! conntrack keeps it as long as one whose data nobody acknowledges; a packet of either end, if there still is one, makes it live on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::sight::Sight;
use crate::kernel::conntrack::Tuple;
use crate::kernel::settings;

/// By then Linux has seen the packet that has ended the rule.
const LATER: Duration = Duration::from_millis(20);

/// Connections that conntrack is asked about in one turn.
const TURN: usize = 64;

/// Those that may wait; others stay as long as conntrack keeps them.
const MOST: usize = 1 << 16;

/// Connections whose rule a flag of TCP has ended.
#[derive(Debug, Default)]
pub struct Resets {
    waiting: VecDeque<(Tuple, Instant)>,
    /// For which there was no room.
    pub left_out: u64,
}

impl Resets {
    /// Takes in one.
    pub fn add(&mut self, tuple: Tuple, now: Instant) {
        if self.waiting.len() < MOST {
            self.waiting.push_back((tuple, now));
        } else {
            self.left_out += 1;
        }
    }

    /// Until the first of them is to be asked about.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        self.waiting.front().map(|(_, since)| LATER.saturating_sub(now.saturating_duration_since(*since)))
    }

    /// Has conntrack forget those sooner that it still takes for established.
    pub fn turn(&mut self, sight: &mut Sight, now: Instant) {
        if self.due(now).is_none_or(|left| !left.is_zero()) {
            return;
        }
        let seconds = settings::number("netfilter/nf_conntrack_tcp_timeout_unacknowledged").unwrap_or(300);
        let seconds = u32::try_from(seconds).unwrap_or(300);
        for _ in 0..TURN {
            if self.due(now).is_none_or(|left| !left.is_zero()) {
                return;
            }
            if let Some((tuple, _)) = self.waiting.pop_front() {
                sight.forget_sooner(&tuple, seconds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_wait_until_linux_has_seen_the_packet_and_there_are_not_too_many() {
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let tuple = Tuple { source: address, destination: address, protocol: 6, source_port: 1, destination_port: 2 };
        let (mut resets, now) = (Resets::default(), Instant::now());
        assert_eq!(resets.due(now), None);
        for _ in 0..MOST + 1 {
            resets.add(tuple, now);
        }
        assert_eq!((resets.due(now), resets.due(now + LATER), resets.left_out), (Some(LATER), Some(Duration::ZERO), 1));
    }
}
