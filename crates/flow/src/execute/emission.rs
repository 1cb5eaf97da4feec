//! Who gets a frame, and which bytes.

use super::Frame;
use crate::action::Reason;
use std::ops::Range;

/// Who gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An RX queue of the card.
    Queue {
        /// Which one.
        queue: u16,
        /// The hash by which a group chose it; `None` if a rule named it, or nothing of the frame counts.
        hash: Option<u32>,
    },
    /// A port, by `output` or `in_port`.
    Port(u32),
    /// A port, by `mirror`.
    Mirror(u32),
    /// A port, by `sample`.
    Sample(u32),
    /// The host's slow path.
    Punt(Reason),
}

/// Which bytes somebody gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Those of the frame, as it is after all actions.
    Frame,
    /// A part of the frame as it came in, where it came in.
    Original(Range<usize>),
    /// Those of the frame as it was between two changes: a copy, which [`Emissions::bytes`] has.
    Copy(Range<usize>),
}

/// A frame for somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// Who gets it.
    pub target: Target,
    /// Which bytes.
    pub bytes: Bytes,
    /// Whether somebody has to fill in its addresses first, as [`Environment::waits`](super::Environment::waits) says.
    pub waits: bool,
}

/// Who gets a frame, in the order of the actions. A worker has one, made once and used for every frame.
///
/// An emission refers to the frame itself as long as it can. When an action is about to change the frame, emissions that came
/// since the last change refer to the frame as it came in, if that is what they are to get; otherwise one copy is made for all
/// of them. So `output:1,dec_ttl,output:2` copies nothing besides what `dec_ttl` is done to.
#[derive(Debug)]
pub struct Emissions {
    list: Vec<Emission>,
    most: usize,
    /// From here on, emissions refer to the frame.
    pending: usize,
    /// From here on, addresses of the frame have to be filled in.
    waits: bool,
    copies: Box<[u8]>,
    used: usize,
    lost: u64,
    reflected: u64,
}

impl Emissions {
    /// With room for `most` emissions of one frame, and for `bytes` of copies.
    pub fn new(most: usize, bytes: usize) -> Self {
        Self {
            list: Vec::with_capacity(most),
            most,
            pending: 0,
            waits: false,
            copies: vec![0; bytes].into(),
            used: 0,
            lost: 0,
            reflected: 0,
        }
    }

    /// Makes room for the next frame. What was counted stays.
    pub fn clear(&mut self) {
        self.list.clear();
        (self.pending, self.waits, self.used) = (0, false, 0);
    }

    /// The emissions, in order.
    pub fn list(&self) -> &[Emission] {
        &self.list
    }

    /// The bytes of an emission of this list; `frame` is the one that it is about, after all actions.
    pub fn bytes<'a>(&'a self, emission: &Emission, frame: &'a Frame<'_>) -> &'a [u8] {
        match &emission.bytes {
            Bytes::Frame => frame.bytes(),
            Bytes::Original(range) => frame.original().get(range.clone()).unwrap_or_default(),
            Bytes::Copy(range) => self.copies.get(range.clone()).unwrap_or_default(),
        }
    }

    /// The copies that [`Bytes::Copy`] speaks of.
    pub fn copies(&self) -> &[u8] {
        &self.copies
    }

    /// Emissions for which there was no room, or whose group was not there.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn begin_waiting(&mut self) {
        self.waits = true;
    }

    /// Outputs to the port at which the frame had come in: they are left out, as OpenFlow has it.
    pub fn reflected(&self) -> u64 {
        self.reflected
    }

    /// Somebody gets the frame as it is now.
    pub(super) fn add(&mut self, target: Target) {
        if self.list.len() < self.most {
            self.list.push(Emission { target, bytes: Bytes::Frame, waits: self.waits });
        } else {
            self.lost += 1;
        }
    }

    /// Somebody gets these bytes, whatever the frame is.
    pub(super) fn add_copy(&mut self, target: Target, bytes: &[u8], waits: bool) {
        let has_room = self.list.len() < self.most;
        match if has_room { self.copied(bytes) } else { None } {
            Some(bytes) => self.list.push(Emission { target, bytes, waits }),
            None => self.lost += 1,
        }
    }

    pub(super) fn count_lost(&mut self) {
        self.lost += 1;
    }

    pub(super) fn count_reflected(&mut self) {
        self.reflected += 1;
    }

    /// The frame is about to change: keeps it for those who are to get it as it is.
    #[inline]
    pub(super) fn keep(&mut self, frame: &Frame<'_>) {
        if self.pending < self.list.len() {
            match frame.part_of_original() {
                Some(range) => self.refer(&Bytes::Original(range)),
                None => self.copy(frame.bytes()),
            }
            self.pending = self.list.len();
        }
    }

    fn refer(&mut self, bytes: &Bytes) {
        for emission in self.list[self.pending..].iter_mut().filter(|emission| emission.bytes == Bytes::Frame) {
            emission.bytes = bytes.clone();
        }
    }

    fn copy(&mut self, frame: &[u8]) {
        if !self.list[self.pending..].iter().any(|emission| emission.bytes == Bytes::Frame) {
            return;
        }
        if let Some(copy) = self.copied(frame) {
            self.refer(&copy);
        } else {
            let all = self.list.len();
            self.list.retain(|emission| emission.bytes != Bytes::Frame);
            self.lost += (all - self.list.len()) as u64;
        }
    }

    /// A copy, if there is room for it.
    fn copied(&mut self, bytes: &[u8]) -> Option<Bytes> {
        let range = self.used..self.used + bytes.len();
        self.copies.get_mut(range.clone())?.copy_from_slice(bytes);
        self.used = range.end;
        Some(Bytes::Copy(range))
    }
}
