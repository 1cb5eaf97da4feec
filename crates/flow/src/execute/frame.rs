//! A frame, and the buffer in which it is edited.

use super::Stop;
use crate::extract::{Ingress, Tunnel};
use crate::key::Key;
use millrace_packet::parse::Layers;
use std::ops::Range;

/// Room in front of a frame, in bytes, with which every rule of usual length can push what it wants: 70 bytes are a VXLAN
/// packet over IPv6, 4 a tag, 8 a PPPoE header.
pub const HEADROOM: usize = 128;

/// A frame, without FCS: where it lies, until it is edited; then in a buffer of the worker with room in front for headers.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The frame as it came in; empty if it came in the buffer.
    original: &'a [u8],
    /// Whether `start` and `end` are places in `original`, and not in `buffer`.
    borrowed: bool,
    buffer: &'a mut [u8],
    start: usize,
    /// Of the frame as it is; `None` if nobody has it.
    key: Option<&'a Key>,
    /// Not beside `start`: both together would be read as one, right behind the write of one.
    end: usize,
    /// Where its headers are, of the frame as it came in; `None` when other headers came first since, or nobody has looked.
    known_layers: Option<&'a Layers>,
    /// The same, found here.
    layers: Option<Layers>,
    ingress: Ingress,
}

impl<'a> Frame<'a> {
    /// The frame `original`, which is copied to `buffer` before it is edited. To take any frame, the buffer has
    /// [`HEADROOM`] bytes more than the longest; edits of a frame that is too long end with [`Stop::Headroom`].
    pub fn new(original: &'a [u8], buffer: &'a mut [u8], ingress: Ingress) -> Self {
        Self {
            original,
            borrowed: true,
            buffer,
            start: 0,
            end: original.len(),
            known_layers: None,
            layers: None,
            key: None,
            ingress,
        }
    }

    /// The frame of `len` bytes that lies `headroom` bytes behind the start of `buffer`, where it may be edited at once.
    /// What of it lies behind the end of the buffer does not belong to it.
    pub fn in_place(buffer: &'a mut [u8], headroom: usize, len: usize, ingress: Ingress) -> Self {
        let start = headroom.min(buffer.len());
        let end = start + len.min(buffer.len() - start);
        Self {
            original: &[],
            borrowed: false,
            buffer,
            start,
            end,
            known_layers: None,
            layers: None,
            key: None,
            ingress,
        }
    }

    /// The same where `layers` and `key` of this frame are known already.
    #[inline(always)]
    pub fn known(
        buffer: &'a mut [u8],
        headroom: usize,
        len: usize,
        ingress: Ingress,
        layers: &'a Layers,
        key: &'a Key,
    ) -> Self {
        let start = headroom.min(buffer.len());
        let end = start + len.min(buffer.len() - start);
        let (known_layers, key) = (Some(layers), Some(key));
        Self { original: &[], borrowed: false, buffer, start, key, end, known_layers, layers: None, ingress }
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.borrowed { &self.original[self.start..self.end] } else { &self.buffer[self.start..self.end] }
    }

    /// The frame as it came in, if it came in memory of its own.
    #[inline]
    pub(super) fn original(&self) -> &[u8] {
        self.original
    }

    /// Which part of [`original`](Self::original) it is, while it has not been edited.
    #[inline]
    pub(super) fn part_of_original(&self) -> Option<Range<usize>> {
        self.borrowed.then_some(self.start..self.end)
    }

    /// Moves it to the buffer, so that it may be edited.
    #[inline]
    pub(super) fn own(&mut self) -> Result<(), Stop> {
        if self.borrowed {
            let bytes = &self.original[self.start..self.end];
            let place = self.buffer.get_mut(HEADROOM..HEADROOM + bytes.len()).ok_or(Stop::Headroom)?;
            place.copy_from_slice(bytes);
            (self.start, self.end, self.borrowed) = (HEADROOM, HEADROOM + bytes.len(), false);
        }
        Ok(())
    }

    /// Where it lies in its buffer; of a frame that has not been edited, in the bytes that came in.
    pub fn place(&self) -> Range<usize> {
        self.start..self.end
    }

    /// How many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// What the card knows of it besides its bytes. `decap_vxlan` and `set_field` change the tunnel id.
    pub fn ingress(&self) -> &Ingress {
        &self.ingress
    }

    /// Where its headers are.
    #[inline]
    pub fn layers(&mut self) -> Layers {
        match (self.known_layers, self.layers) {
            (Some(layers), _) => *layers,
            (None, Some(layers)) => layers,
            (None, None) => {
                let layers = Layers::parse(self.bytes());
                *self.layers.insert(layers)
            }
        }
    }

    /// The same, if somebody has looked: without a copy.
    #[inline]
    pub(super) fn known_layers(&self) -> Option<&'a Layers> {
        self.known_layers
    }

    /// Its key, as it is now.
    pub fn key(&mut self) -> Key {
        if let Some(key) = self.key {
            return *key;
        }
        let layers = self.layers();
        Key::extract(self.bytes(), &layers, &self.ingress)
    }

    /// Its key, if somebody has it.
    #[inline]
    pub(super) fn known_key(&self) -> Option<&'a Key> {
        self.key
    }

    /// The key of what is within its tunnel, if it has one.
    pub(super) fn inner_key(&mut self) -> Option<Key> {
        let inner = self.layers().parse_inner(self.bytes())?;
        Some(Key::extract(self.bytes(), &inner, &self.ingress))
    }

    /// Its bytes, to be edited: none before [`own`](Self::own).
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.key = None;
        if self.borrowed { &mut [] } else { &mut self.buffer[self.start..self.end] }
    }

    /// The identifier of its tunnel: what has been taken off or set, otherwise that of the header that comes next.
    pub(super) fn tunnel_id(&mut self) -> u32 {
        let layers = self.layers();
        let tunnel = self.ingress.tunnel;
        tunnel.map_or_else(|| layers.tunnel_id(self.bytes()).unwrap_or(0), |tunnel| tunnel.id)
    }

    pub(super) fn set_tunnel_id(&mut self, id: u32) {
        self.set_tunnel(Tunnel { id, ..self.ingress.tunnel.unwrap_or_default() });
    }

    pub(super) fn set_tunnel(&mut self, tunnel: Tunnel) {
        self.key = None;
        self.ingress.tunnel = Some(tunnel);
    }

    /// Does something that only puts headers in front, shows the result, and takes them away again.
    pub(super) fn in_front<T>(
        &mut self,
        put: impl FnOnce(&mut Self) -> Result<T, Stop>,
        show: impl FnOnce(T, &[u8]),
    ) -> Result<(), Stop> {
        // What it is put in front of stays where it is then.
        self.own()?;
        let (place, known, ingress) = (self.place(), (self.known_layers, self.layers, self.key), self.ingress);
        let done = put(self).map(|done| show(done, self.bytes()));
        (self.start, self.end, self.ingress) = (place.start, place.end, ingress);
        (self.known_layers, self.layers, self.key) = known;
        done
    }

    /// Other headers come first from now on, or the same ones say something else.
    pub(super) fn forget_layers(&mut self) {
        (self.known_layers, self.layers, self.key) = (None, None, None);
    }

    /// Two bytes of it, big-endian.
    #[inline]
    pub(super) fn be16(&self, at: usize) -> Option<u16> {
        self.bytes().get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Overwrites bytes from `at` on. What would be behind the end is left out.
    #[inline]
    pub(super) fn write(&mut self, at: usize, new: &[u8]) {
        if let Some(place) = self.bytes_mut().get_mut(at..at + new.len()) {
            place.copy_from_slice(new);
        }
    }

    /// Puts `new` before the byte at `at`, which is at most the length. What is before it moves into the headroom.
    pub(super) fn insert(&mut self, at: usize, new: &[u8]) -> Result<(), Stop> {
        self.own()?;
        let start = self.start.checked_sub(new.len()).ok_or(Stop::Headroom)?;
        self.buffer.copy_within(self.start..self.start + at, start);
        self.start = start;
        self.write(at, new);
        self.forget_layers();
        Ok(())
    }

    /// `N` bytes more at its front. They are whatever they were: the caller writes all of them.
    pub(super) fn grow<const N: usize>(&mut self) -> Result<&mut [u8; N], Stop> {
        self.own()?;
        self.start = self.start.checked_sub(N).ok_or(Stop::Headroom)?;
        self.forget_layers();
        self.bytes_mut().first_chunk_mut().ok_or(Stop::Headroom)
    }

    /// Takes `count` bytes away from `at` on; both together are at most the length. What is before them moves up.
    pub(super) fn remove(&mut self, at: usize, count: usize) -> Result<(), Stop> {
        self.own()?;
        self.buffer.copy_within(self.start..self.start + at, self.start + count);
        self.start += count;
        self.forget_layers();
        Ok(())
    }

    /// Only this part of it goes on: `at` to `end`, which is at most the length. It stays where it lies.
    pub(super) fn narrow(&mut self, at: usize, end: usize) {
        (self.start, self.end) = (self.start + at, self.start + end);
        self.forget_layers();
    }
}
