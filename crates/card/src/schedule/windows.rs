//! When the gate of a class is open, in one cycle. A time is looked up for each frame, in a number of steps that grows with the logarithm of the
//! number of windows.

use millrace_abi::schedule::{CLASSES, Schedule};

/// A time in which a gate is open, from the beginning of a cycle. It may end in the next cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    begin: u64,
    end: u64,
}

/// When the gate of one class is open.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Class {
    Always,
    Windows(Sorted),
}

/// The windows of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sorted {
    /// By their begin, and so by their end: they do not overlap.
    windows: Box<[Window]>,
    /// How long the longest window below each node of a binary tree is: node 1 is the root, 2n and 2n + 1 are below n, and the last
    /// half are the windows themselves.
    longest: Box<[u64]>,
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
        let begin = windows.earliest(self.cycle, lasts, at)?;
        u64::try_from(cycle_began + i128::from(begin)).ok()
    }
}

impl Sorted {
    fn new(windows: Vec<Window>) -> Self {
        let leaves = windows.len().next_power_of_two();
        let mut longest = vec![0; 2 * leaves];
        longest[leaves..].iter_mut().zip(&windows).for_each(|(longest, window)| *longest = window.end - window.begin);
        for node in (1..leaves).rev() {
            longest[node] = longest[2 * node].max(longest[2 * node + 1]);
        }
        Self { windows: windows.into(), longest: longest.into() }
    }

    /// The earliest time from `at` on, both from the beginning of a cycle, at which something that lasts so long can begin.
    fn earliest(&self, cycle: u64, lasts: u64, at: u64) -> Option<u64> {
        let fits = |begin: u64, end: u64| begin.checked_add(lasts).is_some_and(|through| through <= end);
        // The last window of the cycle before may not have ended yet.
        if self.windows.last().is_some_and(|last| fits(at, last.end.saturating_sub(cycle))) {
            return Some(at);
        }
        let next = self.windows.partition_point(|window| window.end <= at);
        if let Some(window) = self.windows.get(next)
            && fits(window.begin.max(at), window.end)
        {
            return Some(window.begin.max(at));
        }
        // A window that has not begun, in this cycle or the next.
        let begin = |(place, shift): (usize, u64)| self.windows[place].begin + shift;
        let here = self.first_as_long(next + 1, lasts).map(|place| (place, 0));
        here.or_else(|| Some((self.first_as_long(0, lasts)?, cycle))).map(begin)
    }

    /// The first window from this place on that is as long as that, or longer.
    fn first_as_long(&self, from: usize, lasts: u64) -> Option<usize> {
        let leaves = self.longest.len() / 2;
        let mut node = Some(from).filter(|&from| from < self.windows.len())? + leaves;
        while self.longest[node] < lasts {
            // Up as long as it comes from the right, and then over to what is on the right.
            node >>= node.trailing_ones();
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < leaves {
            node = if self.longest[2 * node] < lasts { 2 * node + 1 } else { 2 * node };
        }
        Some(node - leaves)
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
    Class::Windows(Sorted::new(windows))
}
