//! What became of frames that were sent: a card takes them also where nobody is at the other end.

use std::thread;
use std::time::Duration;

use millrace_abi::queue::Direction;
use millrace_abi::stats::{CardStats, Count};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::session::Session;
use millrace_tool::stop;

/// How long counters may take to show what has been sent, in seconds.
const PATIENCE: f64 = 2.0;

/// What a card had counted before.
pub struct Watch<'s, 'a> {
    session: &'s Session<'a>,
    queues: &'s [u32],
    before: CardStats,
}

impl<'s, 'a> Watch<'s, 'a> {
    /// From here on: what goes out of these queues.
    pub fn begin(session: &'s Session<'a>, queues: &'s [u32]) -> Result<Self, Failure> {
        Ok(Self { session, queues, before: session.stats()? })
    }

    /// Fails if all of `sent` frames were dropped: at a port where nobody is, or at a queue that nobody has open.
    pub fn judge(&self, sent: u64) -> Result<(), Failure> {
        let start = Moment::now();
        loop {
            let after = self.session.stats()?;
            let fate = Fate::between(&self.before, &after, self.queues);
            // A PCI function does not know what is plugged in.
            if after.ports.is_empty() || fate.arrived > 0 || sent == 0 {
                return Ok(());
            }
            if fate.dropped() >= sent {
                return Err(Failure::Found(fate.in_words()));
            }
            if start.seconds() > PATIENCE || stop::asked() {
                // On their way, at an interface that is slow to say so.
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What happened on a card between two looks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fate {
    /// Left through a port, or were taken by a receive queue of the same index.
    arrived: u64,
    /// Where and why frames were dropped.
    drops: Vec<(String, Count)>,
}

impl Fate {
    fn between(before: &CardStats, after: &CardStats, queues: &[u32]) -> Self {
        let mut fate = Self::default();
        for queue in after.queues.iter().filter(|queue| queues.contains(&queue.queue.index)) {
            let Some(old) = before.queues.iter().find(|old| old.queue == queue.queue) else { continue };
            if queue.queue.direction == Direction::Rx {
                fate.arrived += queue.passed.saturating_sub(old.passed);
            }
            fate.add(&queue.queue.to_string(), &old.drops, &queue.drops);
        }
        for port in &after.ports {
            let Some(old) = before.ports.iter().find(|old| old.port == port.port) else { continue };
            // What comes back inside the card has to be taken by a receive queue.
            if port.spec != "loopback" {
                fate.arrived += port.tx_frames.saturating_sub(old.tx_frames);
            }
            fate.add(&format!("port {}", port.port), &old.tx_drops, &port.tx_drops);
        }
        fate
    }

    fn add(&mut self, place: &str, before: &[Count], after: &[Count]) {
        for drop in after {
            let old = before.iter().find(|old| old.reason == drop.reason).map_or(0, |old| old.count);
            let count = drop.count.saturating_sub(old);
            if count > 0 {
                self.drops.push((place.to_owned(), Count { reason: drop.reason.clone(), count }));
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.drops.iter().map(|(_, drop)| drop.count).sum()
    }

    fn in_words(&self) -> String {
        let drops = self.drops.iter().map(|(place, drop)| format!("{} {} at {place}", drop.count, drop.reason));
        let drops: Vec<_> = drops.collect();
        format!(
            "the card took the frames and dropped all of them: {}; `millrace ports` shows what is plugged in, and \
             `millrace stats` which queues are open",
            drops.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::stats::PortStats;

    fn port(tx_frames: u64, dropped: u64) -> CardStats {
        let port = PortStats {
            port: 0,
            spec: "tap:x".into(),
            link: false,
            mode: String::new(),
            connected: None,
            schedule: None,
            rx_frames: 0,
            rx_bytes: 0,
            rx_copies: 0,
            tx_frames,
            tx_bytes: 64 * tx_frames,
            tx_copies: 0,
            rx_drops: vec![],
            tx_drops: vec![Count { reason: "link-down".into(), count: dropped }],
            rx_events: vec![],
            tx_events: vec![],
        };
        CardStats { ports: vec![port], ..CardStats::default() }
    }

    #[test]
    fn what_is_dropped_meanwhile_is_told_with_its_place() {
        let fate = Fate::between(&port(5, 2), &port(5, 12), &[0]);
        assert_eq!((fate.arrived, fate.dropped()), (0, 10));
        assert!(fate.in_words().contains("10 link-down at port 0"), "{}", fate.in_words());
        assert_eq!(Fate::between(&port(5, 2), &port(15, 2), &[0]), Fate { arrived: 10, drops: vec![] });
    }
}
