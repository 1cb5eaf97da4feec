//! Whether the other side is there (RFC 1661 §5.8), and whether the largest packets reach it (RFC 4638 §6).

use crate::Moment;
use crate::control::{HEADER_LEN, Packet, code, protocol};
use crate::layer::Out;
use std::time::Duration;

/// How long the answer to a large request is waited for, and how often it is asked for.
const PROBE: Duration = Duration::from_secs(2);
const MOST_PROBES: u8 = 3;

/// Echo requests of a session.
#[derive(Debug)]
pub(crate) struct Echo {
    interval: Duration,
    most: u8,
    magic: u32,
    next: Moment,
    /// In a row.
    unanswered: u8,
    probe: Option<Probe>,
}

#[derive(Debug)]
struct Probe {
    /// Bytes of the packet.
    len: u16,
    left: u8,
    id: u8,
    next: Moment,
}

/// What an echo has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    /// So many requests are not answered.
    Gone(u8),
    /// Large packets do not get through.
    Small,
}

impl Echo {
    /// Asks each `interval`; packets of `probe` bytes at once, if there is a doubt about them.
    pub fn new(interval: Duration, most: u8, magic: u32, probe: Option<u16>, now: Moment) -> Self {
        let probe = probe.map(|len| Probe { len, left: MOST_PROBES, id: 0, next: now });
        Self { interval, most, magic, next: now + interval, unanswered: 0, probe }
    }

    pub fn timer(&self) -> Moment {
        self.probe.as_ref().map_or(self.next, |probe| probe.next.min(self.next))
    }

    /// `id` gives identifiers.
    pub fn tick(&mut self, now: Moment, mut id: impl FnMut() -> u8, out: &mut Out) -> Shown {
        if let Some(probe) = self.probe.as_mut().filter(|probe| now >= probe.next) {
            if probe.left == 0 {
                self.probe = None;
                return Shown::Small;
            }
            (probe.left, probe.id, probe.next) = (probe.left - 1, id(), now + PROBE);
            request(self.magic, probe.id, usize::from(probe.len), out);
        }
        if now >= self.next {
            if self.unanswered >= self.most {
                return Shown::Gone(self.unanswered);
            }
            self.unanswered += 1;
            self.next = now + self.interval;
            request(self.magic, id(), HEADER_LEN + 4, out);
        }
        Shown::Nothing
    }

    /// An Echo-Reply that is not our own.
    pub fn replied(&mut self, reply: &Packet<'_>) {
        self.unanswered = 0;
        let large = |probe: &Probe| probe.id == reply.id && reply.data.len() + HEADER_LEN >= usize::from(probe.len);
        if self.probe.as_ref().is_some_and(large) {
            self.probe = None;
        }
    }
}

fn request(magic: u32, id: u8, len: usize, out: &mut Out) {
    let mut data = magic.to_be_bytes().to_vec();
    data.resize(len.saturating_sub(HEADER_LEN).max(4), 0);
    out.push((protocol::LCP, Packet { code: code::ECHO_REQUEST, id, data: &data }.build()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_does_not_answer_is_gone() {
        let mut echo = Echo::new(SECOND, 3, 7, None, Moment::ZERO);
        let (mut out, mut id) = (Out::new(), 0);
        let mut next = || {
            id += 1;
            id
        };
        assert_eq!(echo.tick(Moment::ZERO, &mut next, &mut out), Shown::Nothing);
        assert!(out.is_empty());
        assert_eq!(echo.tick(SECOND, &mut next, &mut out), Shown::Nothing);
        assert_eq!(out, [(protocol::LCP, vec![9, 1, 0, 8, 0, 0, 0, 7])]);
        echo.replied(&Packet { code: code::ECHO_REPLY, id: 1, data: &[0, 0, 0, 9] });
        let shown: Vec<_> = (2..6).map(|second| echo.tick(SECOND * second, &mut next, &mut out)).collect();
        assert_eq!(shown, [Shown::Nothing, Shown::Nothing, Shown::Nothing, Shown::Gone(3)]);
    }

    #[test]
    fn large_packets_are_tried() {
        let mut out = Out::new();
        let mut echo = Echo::new(SECOND * 100, 3, 7, Some(1500), Moment::ZERO);
        let shown: Vec<_> = (0..4).map(|try_| echo.tick(PROBE * try_, || 5, &mut out)).collect();
        assert_eq!(shown, [Shown::Nothing, Shown::Nothing, Shown::Nothing, Shown::Small]);
        assert!(out.len() == 3 && out.iter().all(|(_, packet)| packet.len() == 1500));
        // Answered by a short one, and by what was asked for.
        let mut echo = Echo::new(SECOND * 100, 3, 7, Some(1500), Moment::ZERO);
        echo.tick(Moment::ZERO, || 5, &mut out);
        echo.replied(&Packet { code: code::ECHO_REPLY, id: 5, data: &[0; 4] });
        assert_eq!(echo.timer(), PROBE);
        echo.replied(&Packet { code: code::ECHO_REPLY, id: 5, data: &[0; 1496] });
        assert_eq!(echo.timer(), SECOND * 100);
    }
}
