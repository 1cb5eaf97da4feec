//! How far an association is: what the kernel hands over with it, and what it is told later.

use crate::lifetime::Usage;
use crate::window::Window;

/// Sequence numbers, and what was used of a lifetime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last sequence number that was sent.
    pub sent: u64,
    /// The highest sequence number that came.
    pub received: u64,
    /// Which came before it: bit 0 of the first word is the highest one itself, and so on downwards.
    pub came: Vec<u64>,
    /// What was used.
    pub usage: Usage,
}

impl Progress {
    pub(super) fn window(&self, size: u32, is_extended: bool) -> Window {
        Window::resumed(size, is_extended, self.received, |number| self.has_come(number))
    }

    /// A window that knows what both know: another one has received packets of the same association meanwhile.
    pub(super) fn joined(&self, own: &Window) -> Window {
        Window::resumed(own.size(), own.is_extended(), self.received, |number| {
            self.has_come(number)
                || number <= own.highest() && (!own.numbers().contains(&number) || own.has_come(number))
        })
    }

    /// Whether a number up to the highest one has come. What is not known to be new may be old.
    fn has_come(&self, number: u64) -> bool {
        let back = self.received - number;
        self.came.get((back / 64) as usize).is_none_or(|word| word & (1 << (back % 64)) != 0)
    }

    pub(super) fn of(sent: u64, window: &Window, usage: Usage) -> Self {
        let received = window.highest();
        let mut came = vec![0u64; (window.size() as usize).div_ceil(64)];
        for number in window.numbers().filter(|number| window.has_come(*number)) {
            let back = received - number;
            if let Some(word) = came.get_mut((back / 64) as usize) {
                *word |= 1 << (back % 64);
            }
        }
        Self { sent, received, came, usage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_handed_over() {
        let mut window = Window::new(100, true);
        for low in [1, 2, 90, 150, 152] {
            let number = window.judge(low).unwrap();
            window.note(number);
        }
        let progress = Progress::of(7, &window, Usage::default());
        assert_eq!((progress.sent, progress.received, progress.came[0]), (7, 152, 0b101 | 1 << 62));
        assert_eq!(Progress::of(7, &progress.window(100, true), Usage::default()), progress);
        let unknown = Progress { came: Vec::new(), ..progress };
        assert!(unknown.window(100, true).judge(100).is_err(), "what is not known to be new may be old");
        let further = Progress { received: 160, came: vec![1, 0], ..Progress::default() }.joined(&window);
        let judged: Vec<_> = [153, 152, 151, 150, 160].into_iter().map(|low| further.judge(low).is_ok()).collect();
        assert_eq!(judged, [true, false, true, false, false], "what either has received is old");
    }
}
