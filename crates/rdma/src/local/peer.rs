//! Another process: what it lets us reach, and how that is reached.

use super::layout::{CHANNEL_LEN, Side};
use super::view::{Answer, Target, View, Where};
use millrace_dma::{OtherProcess, OutOfRange, Place, Presence, RegionError, Vanished, Window, Word64};
use std::os::fd::OwnedFd;

/// Files of one process that are mapped here at most.
const MOST_FILES: u32 = 4096;
/// After so many system calls that failed, with none that worked, they are not tried any more: the system forbids them.
const TRIES: u32 = 8;

/// Why there is no way to another process.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// What it has handed over cannot be mapped.
    #[error("what the other process has handed over cannot be mapped: {0}")]
    Memory(#[from] RegionError),
    /// It does not fit.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// It is of another version.
    #[error("the other process has another version of Millrace")]
    Kind,
}

/// How often requests reached its memory, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By a mapping.
    pub mapped: u64,
    /// By a system call.
    pub system: u64,
    /// It did not let us, or not any more: such a request goes as packets, and is answered there.
    pub refused: u64,
    /// Bytes copied to it and from it.
    pub bytes: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self {
            mapped: self.mapped + more.mapped,
            system: self.system + more.system,
            refused: self.refused + more.refused,
            bytes: self.bytes + more.bytes,
        }
    }
}

/// Another process.
pub struct Peer {
    view: View,
    presence: Presence,
    process: Option<OtherProcess>,
    failures: u32,
    files: Vec<Option<Place>>,
    /// What of them is mapped.
    mapped: Mapped,
    wanted: Option<u32>,
    counts: Counts,
}

/// How much of the memory of others is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Parts of files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Mapped {
    /// As much as all processes together may make this one map: mappings that the system lets it have, and addresses.
    const MOST: Self = Self { files: 8192, bytes: 1 << 44 };

    #[must_use]
    pub(super) const fn and(self, more: Self) -> Self {
        Self { files: self.files + more.files, bytes: self.bytes.saturating_add(more.bytes) }
    }

    /// Whether one that has made this much be mapped may have a part of so many bytes more, where `all` is what there is. So that
    /// nobody takes all of it, each has at most as much as is left for the others.
    pub(super) const fn may_have(self, all: Self, bytes: u64) -> bool {
        let left = Self {
            files: Self::MOST.files.saturating_sub(all.files),
            bytes: Self::MOST.bytes.saturating_sub(all.bytes),
        };
        self.files < left.files && self.bytes.saturating_add(bytes) <= left.bytes
    }
}

/// What is to be done where a target is.
pub(super) enum Job<'a> {
    /// Bytes of a place of ours go there.
    Write { from: &'a Place, at: usize, len: usize, around: bool },
    /// Bytes given with a request go there.
    WriteBytes(&'a [u8]),
    /// Its bytes come to a place of ours.
    Read { to: &'a Place, at: usize, len: usize, around: bool },
    /// An atomic operation.
    CompareSwap { compare: u64, swap: u64 },
    /// The other one.
    FetchAdd(u64),
}

impl Job<'_> {
    /// Bytes that it copies.
    #[inline]
    fn bytes(&self) -> u64 {
        match *self {
            Job::Write { len, .. } | Job::Read { len, .. } => len as u64,
            Job::WriteBytes(bytes) => bytes.len() as u64,
            Job::CompareSwap { .. } | Job::FetchAdd(_) => 8,
        }
    }
}

impl Peer {
    /// The process whose directory is in `directory`. `channel`: what is shared with it, of which we are `side`.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn new(
        directory: OwnedFd,
        channel: &Window,
        side: Side,
        process: Option<OtherProcess>,
    ) -> Result<Self, PeerError> {
        if channel.len() < CHANNEL_LEN {
            return Err(PeerError::Kind);
        }
        let (view, presence) = (View::new(directory)?, Presence::new(channel.word64(side.presence())?));
        Ok(Self {
            view,
            presence,
            process,
            failures: 0,
            files: Vec::new(),
            mapped: Mapped::default(),
            wanted: None,
            counts: Counts::default(),
        })
    }

    /// The word by which it says that it is inside of our memory.
    ///
    /// # Errors
    /// The window is shorter than a channel.
    pub fn word_of_other(channel: &Window, side: Side) -> Result<Word64, OutOfRange> {
        channel.word64(side.other().presence())
    }

    /// A file of it that a request has met and that is not mapped yet.
    pub fn take_wanted(&mut self) -> Option<u32> {
        self.wanted.take()
    }

    /// What of its memory is mapped here.
    pub(super) fn mapped(&self) -> Mapped {
        self.mapped
    }

    /// Whether it is known of that file that it is mapped, or cannot be.
    #[must_use]
    pub fn knows_file(&self, number: u32) -> bool {
        number >= MOST_FILES || matches!(self.files.get(number as usize), Some(Some(_)))
    }

    /// A file of it is mapped from now on; or (`None`) it cannot be, and is not asked for again.
    pub fn add_file(&mut self, number: u32, window: Option<&Window>) {
        if number < MOST_FILES {
            let missing = (number as usize + 1).saturating_sub(self.files.len());
            self.files.extend((0..missing).map(|_| None));
            self.files[number as usize] = Some(match window {
                Some(window) => {
                    self.mapped = self.mapped.and(Mapped { files: 1, bytes: window.len() as u64 });
                    Place::window(window)
                }
                // A place with nothing in it reaches nothing.
                None => match Place::own(0, 0, false) {
                    Ok(place) => place,
                    Err(_) => return,
                },
            });
        }
    }

    /// How often its memory was reached.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Does it, if the other process lets us. What an atomic operation found, or 0.
    #[inline]
    pub(super) fn reach(&mut self, target: &Target, job: &Job<'_>) -> Option<u64> {
        self.presence.enter();
        let done = match self.view.find(target) {
            None => None,
            Some(Where::System(address)) => self.by_system(address, job),
            Some(Where::File { file, offset, address }) => match self.files.get(file as usize) {
                Some(Some(place)) if !place.is_empty() => {
                    self.counts.mapped += 1;
                    in_place(place, offset, job).ok()
                }
                Some(Some(_)) => self.by_system(address, job),
                _ => {
                    self.wanted = (file < MOST_FILES).then_some(file);
                    self.by_system(address, job)
                }
            },
        };
        self.presence.leave();
        self.counts.refused += u64::from(done.is_none());
        self.counts.bytes += if done.is_some() { job.bytes() } else { 0 };
        done
    }

    /// Where WRITEs behind that key go, as long as the other process says nothing else.
    pub(super) fn keep(&mut self, target: &Target) -> Option<Answer> {
        self.presence.enter();
        let answer = self.view.keep(target);
        self.presence.leave();
        answer
    }

    /// Writes bytes by an answer that was kept. False: it does not hold any more, or they do not belong there.
    #[inline(always)]
    pub(super) fn write_again(&mut self, answer: &Answer, address: u64, bytes: &[u8]) -> bool {
        self.presence.enter();
        let mut is_done = false;
        if self.view.holds(answer)
            && let Some(at) = answer.place(address, bytes.len() as u64)
            && let Some(Some(place)) = self.files.get(answer.file as usize)
        {
            is_done = place.write(at as usize, bytes, false).is_ok();
        }
        self.presence.leave();
        self.counts.mapped += u64::from(is_done);
        self.counts.bytes += if is_done { bytes.len() as u64 } else { 0 };
        is_done
    }

    /// Whether it would be done.
    pub(super) fn may_reach(&mut self, target: &Target, is_atomic: bool) -> bool {
        self.presence.enter();
        let found = self.view.find(target);
        self.presence.leave();
        let is_mapped = |file: u32| matches!(self.files.get(file as usize), Some(Some(place)) if !place.is_empty());
        match found {
            Some(Where::File { file, .. }) if is_mapped(file) => true,
            Some(_) => self.process.is_some() && !is_atomic,
            None => false,
        }
    }

    fn by_system(&mut self, address: u64, job: &Job<'_>) -> Option<u64> {
        let process = self.process.as_ref()?;
        let done = match *job {
            Job::Write { from, at, len, .. } => process.write(from, at, address, len),
            Job::WriteBytes(bytes) => process.write_bytes(bytes, address),
            Job::Read { to, at, len, .. } => process.read(address, to, at, len),
            // The system has none.
            Job::CompareSwap { .. } | Job::FetchAdd(_) => return None,
        };
        match done {
            Ok(()) => {
                self.counts.system += 1;
                self.failures = 0;
            }
            Err(_) if self.counts.system == 0 => {
                self.failures += 1;
                if self.failures >= TRIES {
                    self.process = None;
                }
            }
            Err(_) => {}
        }
        done.ok().map(|()| 0)
    }
}

#[inline(always)]
fn in_place(place: &Place, offset: u64, job: &Job<'_>) -> Result<u64, Vanished> {
    let there = usize::try_from(offset).map_err(|_| Vanished)?;
    match *job {
        Job::Write { from, at, len, around } => from.copy_to(at, place, there, len, around).map(|()| 0),
        Job::WriteBytes(bytes) => place.write(there, bytes, false).map(|()| 0),
        Job::Read { to, at, len, around } => place.copy_to(there, to, at, len, around).map(|()| 0),
        Job::CompareSwap { compare, swap } => place.compare_swap(there, compare, swap),
        Job::FetchAdd(add) => place.fetch_add(there, add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_makes_this_process_map_all_that_may_be_mapped() {
        let mut all = Mapped::default();
        let mut had = Vec::new();
        for _ in 0..4 {
            let mut own = Mapped::default();
            while own.may_have(all, 4096) {
                let more = Mapped { files: 1, bytes: 4096 };
                (own, all) = (own.and(more), all.and(more));
            }
            had.push(own.files);
        }
        assert_eq!(had, [4096, 2048, 1024, 512]);
        let none = Mapped::default();
        assert!(none.may_have(none, 1 << 43) && !none.may_have(none, (1 << 44) + 1) && !none.may_have(none, u64::MAX));
    }
}
