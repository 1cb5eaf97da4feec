//! When the gate of a class is open, in one cycle.

use millrace_abi::schedule::{CLASSES, Schedule};

/// A time in which a gate is open, from the beginning of a cycle. It may end in the next cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    begin: u64,
    end: u64,
}

/// The windows of one class, by their begin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Class {
    Always,
    Windows(Box<[Window]>),
}

/// Those of all classes.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    base: u64,
    cycle: u64,
    classes: [Class; CLASSES as usize],
}

impl Windows {
    pub fn new(schedule: &Schedule) -> Self {
        let cycle = schedule.cycle();
        let class = |class| {
            if schedule.gates.is_empty() || schedule.always >> class & 1 != 0 {
                return Class::Always;
            }
            of_class(schedule, class, cycle)
        };
        Self { base: schedule.base, cycle, classes: core::array::from_fn(class) }
    }

    /// The earliest time from `now` on at which something that lasts so long can begin, and end before the gate closes; `None`: no
    /// window is so long.
    pub fn earliest(&self, class: u8, lasts: u64, now: u64) -> Option<u64> {
        let windows = match &self.classes[usize::from(class)] {
            Class::Always => return Some(now),
            Class::Windows(windows) => windows,
        };
        // The cycle that `now` is in, also before the base.
        let at = (i128::from(now) - i128::from(self.base)).rem_euclid(i128::from(self.cycle)) as u64;
        let cycle_began = i128::from(now) - i128::from(at);
        // The last window of the cycle before may not have ended yet.
        let before = windows.last().map(|window| (window, -i128::from(self.cycle)));
        let here = windows.iter().map(|window| (window, 0));
        let next = windows.iter().map(|window| (window, i128::from(self.cycle)));
        let mut all = before.into_iter().chain(here).chain(next);
        all.find_map(|(window, shift)| {
            let begin = (i128::from(window.begin) + shift).max(at.into());
            let fits = begin + i128::from(lasts) <= i128::from(window.end) + shift;
            fits.then(|| u64::try_from(cycle_began + begin).ok()).flatten()
        })
    }
}

/// The windows of a class: gates that follow each other are one, also from one cycle to the next.
fn of_class(schedule: &Schedule, class: usize, cycle: u64) -> Class {
    let (mut windows, mut begin): (Vec<Window>, _) = (Vec::new(), 0);
    for gate in &schedule.gates {
        let end = begin + gate.lasts;
        if gate.open >> class & 1 != 0 {
            match windows.last_mut().filter(|last| last.end == begin) {
                Some(last) => last.end = end,
                None => windows.push(Window { begin, end }),
            }
        }
        begin = end;
    }
    let (first, last) = (windows.first().copied(), windows.last().copied());
    match (first, last) {
        (Some(first), Some(_)) if first.begin == 0 && first.end == cycle => return Class::Always,
        (Some(first), Some(last)) if windows.len() > 1 && first.begin == 0 && last.end == cycle => {
            windows.remove(0);
            if let Some(last) = windows.last_mut() {
                last.end += first.end;
            }
        }
        _ => {}
    }
    Class::Windows(windows.into())
}
