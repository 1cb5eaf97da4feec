//! Why packets go to Linux: each hand-over has a step and a reason, which the program in the kernel counts.
//!
//! The list is `bpf/steps.h`, from which the program has it, too.

use crate::Step;

include!(concat!(env!("OUT_DIR"), "/reasons.rs"));

impl Reason {
    /// The reason with this number in maps of the kernel.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name, as in counters and JSON.
    pub const fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// The step that hands the packet over.
    pub const fn step(self) -> Step {
        STEPS[self as usize]
    }

    /// What an administrator is told, as the end of "it is not fast because".
    pub const fn sentence(self) -> &'static str {
        SENTENCES[self as usize]
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names_of_their_own_and_numbers_in_a_row() {
        let mut names = std::collections::HashSet::new();
        for (number, reason) in (0..).zip(Reason::ALL) {
            assert_eq!(Reason::from_number(number), Some(reason));
            assert!(names.insert(reason.name()), "{reason} is there twice");
            assert!(!reason.sentence().is_empty());
        }
        assert_eq!(Reason::Fast as u8, 0);
        assert_eq!(Reason::from_number(Reason::ALL.len() as u8), None);
    }
}
