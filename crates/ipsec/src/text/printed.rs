//! Lines that `ip -s xfrm state` prints and nobody types.

use super::Entry;
use super::words::number;
use crate::association::Progress;
use crate::lifetime::Limits;

/// What was in them.
#[derive(Default)]
pub(super) struct Printed {
    /// Which lines they are.
    pub lines: Vec<usize>,
    /// The window, where it is not where the others are.
    pub window: Option<u32>,
}

impl Printed {
    /// Reads all such lines of an entry.
    pub(super) fn of(entry: &Entry<'_>, limits: &mut Limits, progress: &mut Progress) -> Self {
        let mut printed = Self::default();
        let mut section = "";
        let mut ring: Vec<u32> = Vec::new();
        for (line, text) in entry {
            let text = text.trim();
            let is_head = text.starts_with("anti-replay") || text.starts_with("lifetime ") || text == "stats:";
            if is_head {
                section = text;
            }
            let is_of_section = match section {
                "lifetime config:" => limit(text, limits),
                "lifetime current:" => usage(text, progress),
                "stats:" => text.starts_with("replay-window"),
                _ if section.starts_with("anti-replay context:") => is_head,
                _ if section.starts_with("anti-replay esn context:") => {
                    is_head || text.starts_with("seq-hi") || text.starts_with("replay_window") || words(text, &mut ring)
                }
                _ => false,
            };
            if !(is_head || is_of_section) {
                section = "";
                continue;
            }
            printed.lines.push(*line);
            if section.starts_with("anti-replay") {
                printed.numbers(text, progress);
            }
        }
        if let Some(window) = printed.window {
            came(&ring, window, progress);
        }
        printed
    }

    /// `seq 0x1, oseq 0x2, bitmap 0x3` and the like.
    fn numbers(&mut self, text: &str, progress: &mut Progress) {
        let words: Vec<&str> = text.split([' ', ',', '\t']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Some(value) = number(pair[1]) else { continue };
            match pair[0] {
                "seq" => progress.received |= value & 0xffff_ffff,
                "seq-hi" => progress.received |= value << 32,
                "oseq" => progress.sent |= value & 0xffff_ffff,
                "oseq-hi" => progress.sent |= value << 32,
                "bitmap" => progress.came = vec![value],
                "replay_window" => self.window = u32::try_from(value).ok(),
                _ => {}
            }
        }
    }
}

/// Words of the ring: nothing but groups of eight digits.
fn words(text: &str, ring: &mut Vec<u32>) -> bool {
    let groups: Option<Vec<u32>> = text
        .split_whitespace()
        .map(|group| (group.len() == 8).then(|| u32::from_str_radix(group, 16).ok()).flatten())
        .collect();
    groups.is_some_and(|groups| {
        ring.extend(groups);
        true
    })
}

fn came(ring: &[u32], window: u32, progress: &mut Progress) {
    let window = window.min(crate::window::MAX_WINDOW);
    progress.came = vec![0; (window as usize).div_ceil(64)];
    for back in 0..u64::from(window).min(progress.received) {
        let bit = crate::netlink::ring_bit(progress.received, progress.received - back, window);
        if ring.get(bit / 32).is_none_or(|word| word & (1 << (bit % 32)) != 0) {
            progress.came[(back / 64) as usize] |= 1 << (back % 64);
        }
    }
}

/// `limit: soft (INF)(bytes), hard 5(bytes)`, `expire add: soft 0(sec), hard 5(sec)`.
fn limit(text: &str, limits: &mut Limits) -> bool {
    let value = |name: &str| {
        let (_, behind) = text.split_once(name)?;
        let value = behind.trim_start();
        if value.starts_with("(INF)") {
            return Some(u64::MAX);
        }
        value.split('(').next()?.parse().ok()
    };
    let (Some(soft), Some(hard)) = (value("soft "), value("hard ")) else { return text.starts_with("lifetime") };
    let places = if text.starts_with("expire add") {
        (&mut limits.soft_added, &mut limits.hard_added)
    } else if text.starts_with("expire use") {
        (&mut limits.soft_used, &mut limits.hard_used)
    } else if text.contains("(bytes)") {
        (&mut limits.soft_bytes, &mut limits.hard_bytes)
    } else {
        (&mut limits.soft_packets, &mut limits.hard_packets)
    };
    (*places.0, *places.1) = (soft, hard);
    true
}

/// `5(bytes), 1(packets)`; and times, which say nothing that is needed.
fn usage(text: &str, progress: &mut Progress) -> bool {
    let mut parts = text.split(", ");
    let mut count = |unit: &str| parts.next()?.strip_suffix(unit)?.parse().ok();
    if let (Some(bytes), Some(packets)) = (count("(bytes)"), count("(packets)")) {
        (progress.usage.bytes, progress.usage.packets) = (bytes, packets);
        return true;
    }
    text.starts_with("add ") || text.starts_with("lifetime")
}
