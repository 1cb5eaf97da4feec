//! The numbers of peers. One that has become free is given again last of all, and not while somebody who knew its owner has not read
//! that it has gone: he might take the new peer for the old one.

use std::collections::VecDeque;

/// Numbers that nobody has.
pub(super) struct Ids {
    free: VecDeque<u16>,
}

impl Ids {
    pub fn new(count: u16) -> Self {
        Self { free: (0..count).collect() }
    }

    /// A number that is free, and of which nobody believes that it is not.
    pub fn take(&mut self, is_believed: impl Fn(u16) -> bool) -> Option<u16> {
        let at = self.free.iter().position(|id| !is_believed(*id))?;
        self.free.remove(at)
    }

    pub fn give_back(&mut self, id: u16) {
        self.free.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_free_for_longest_comes_first() {
        let mut ids = Ids::new(3);
        assert_eq!([ids.take(|_| false), ids.take(|_| false)], [Some(0), Some(1)]);
        ids.give_back(0);
        assert_eq!(ids.take(|_| false), Some(2));
        assert_eq!(ids.take(|id| id == 0), None);
        ids.give_back(2);
        assert_eq!([ids.take(|id| id == 0), ids.take(|_| false), ids.take(|_| false)], [Some(2), Some(0), None]);
    }
}
