//! An Ethernet cable made of two endpoints: each end has a tap interface of Linux, and each frame is a message, as rionet does it over the messages
//! of RapidIO.
//!
//! Frames arrive in order. One that comes when Linux has no room for it is dropped, and counted; those that Linux sends wait in the interface's own
//! queue while there are `FLYING` on their way.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

use millrace_dma::Span;
use millrace_message::buffer::Buffer;
use millrace_message::endpoint::{Ended, Endpoint, Event, Peer};
use millrace_message::engine::Outcome;
use millrace_message::{Request, Tag};
use millrace_port::tap::TapPort;
use millrace_port::{Accept, MAX_FRAME_LEN, PortQueue, TxOutcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stop;

/// Receives that wait for frames.
const POSTED: usize = 64;
/// Frames on their way to the other end. Linux hands over up to 64 KiB at once, which are more frames; then there may be as many more.
const FLYING: usize = 64;
/// What has come that is looked at in one turn.
const TURN: usize = 64;
/// How long one sleep is at most: after it Ctrl-C is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
const NOT_AT_ALL: Duration = Duration::ZERO;
const FRAME: Tag = Tag(0);

/// Memory for one frame.
#[derive(Debug)]
pub struct Frame {
    bytes: Box<[u8]>,
    len: usize,
}

impl Frame {
    fn new() -> Self {
        Self { bytes: vec![0; MAX_FRAME_LEN].into(), len: MAX_FRAME_LEN }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn range(&self, offset: usize, most: usize) -> std::ops::Range<usize> {
        let from = offset.min(self.len);
        from..self.len.min(from.saturating_add(most))
    }
}

impl Buffer for Frame {
    fn len(&self) -> usize {
        self.len
    }

    fn piece(&self, offset: usize, most: usize) -> &[u8] {
        &self.bytes[self.range(offset, most)]
    }

    fn piece_mut(&mut self, offset: usize, most: usize) -> &mut [u8] {
        let range = self.range(offset, most);
        &mut self.bytes[range]
    }

    fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

/// Frames that went over a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// From the interface to the other end.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// From the other end to the interface.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// From the other end: Linux had no room for them, its interface is down, or they were longer than a frame may be.
    pub dropped: u64,
}

struct Cable<'a> {
    endpoint: &'a Endpoint<Frame>,
    peer: Peer,
    tap: &'a mut TapPort,
    /// Receives in the order of their messages, with those that have ended before their turn.
    posted: VecDeque<(Request, Option<Frame>)>,
    flying: usize,
    free: Vec<Frame>,
    carried: Carried,
    is_gone: bool,
}

/// Carries frames between an interface and another end until that is gone, or Ctrl-C. Whether the end is gone is for the caller to ask.
pub fn carry(endpoint: &Endpoint<Frame>, peer: Peer, tap: &mut TapPort) -> Result<Carried, String> {
    let descriptor = endpoint.descriptor().map_err(|error| error.to_string())?;
    let (posted, free) = (VecDeque::new(), Vec::new());
    let mut cable = Cable { endpoint, peer, tap, posted, flying: 0, free, carried: Carried::default(), is_gone: false };
    (0..POSTED).for_each(|_| cable.post());
    while !cable.is_gone && !stop::asked() {
        // Both, each time.
        if cable.deliver() | cable.collect() {
            continue;
        }
        cable.hear_who_is_gone();
        let mut fds = vec![PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
        if cable.flying < FLYING {
            fds.extend(cable.tap.wake_fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        // What ends it early is looked at as well.
        let _ = poll(&mut fds, Some(&LOOK));
    }
    Ok(cable.carried)
}

impl Cable<'_> {
    fn frame(&mut self, len: usize) -> Frame {
        let mut frame = self.free.pop().unwrap_or_else(Frame::new);
        frame.len = len;
        frame
    }

    fn post(&mut self) {
        let frame = self.frame(MAX_FRAME_LEN);
        match self.endpoint.receive(Some(self.peer), FRAME, u64::MAX, frame) {
            Ok(request) => self.posted.push_back((request, None)),
            Err(_) => self.is_gone = true,
        }
    }

    /// Gives Linux what has come. Whether something has ended.
    fn deliver(&mut self) -> bool {
        let mut has_moved = false;
        for _ in 0..TURN {
            let Some(ended) = self.endpoint.next(NOT_AT_ALL) else { break };
            has_moved = true;
            self.ended(ended);
        }
        has_moved
    }

    fn ended(&mut self, ended: Ended<Frame>) {
        let Some(at) = self.posted.iter().position(|posted| posted.0 == ended.request) else {
            self.flying -= 1;
            self.is_gone |= ended.outcome == Outcome::Lost;
            self.free.push(ended.buffer);
            return;
        };
        match ended.outcome {
            Outcome::Received { .. } => self.posted[at].1 = Some(ended.buffer),
            Outcome::Lost => self.is_gone = true,
            _ => {
                self.carried.dropped += 1;
                self.posted[at].1 = Some(Frame { len: 0, ..ended.buffer });
            }
        }
        while let Some((_, Some(_))) = self.posted.front()
            && let Some((_, Some(frame))) = self.posted.pop_front()
        {
            self.give(&frame);
            self.free.push(frame);
            self.post();
        }
    }

    fn give(&mut self, frame: &Frame) {
        if frame.is_empty() {
            return;
        }
        match self.tap.transmit(Span::from_slice(frame.bytes())) {
            TxOutcome::Sent => {
                self.carried.received += 1;
                self.carried.received_bytes += frame.len() as u64;
            }
            TxOutcome::Full | TxOutcome::Dropped(_) => self.carried.dropped += 1,
        }
    }

    /// Sends what Linux has sent. Whether there was something.
    fn collect(&mut self) -> bool {
        let Self { endpoint, peer, tap, flying, free, carried, is_gone, .. } = self;
        let mut has_moved = false;
        while *flying < FLYING && !*is_gone {
            let taken = tap.receive(1, &mut |span: Span<'_>| {
                let mut frame = free.pop().unwrap_or_else(Frame::new);
                frame.len = span.len().min(MAX_FRAME_LEN);
                span.read_into(&mut frame.bytes[..]);
                match endpoint.send(*peer, FRAME, frame) {
                    Ok(_) => {
                        *flying += 1;
                        carried.sent += 1;
                        carried.sent_bytes += span.len() as u64;
                    }
                    Err(_) => *is_gone = true,
                }
                Accept::Taken
            });
            if taken == 0 {
                break;
            }
            has_moved = true;
        }
        has_moved
    }

    fn hear_who_is_gone(&mut self) {
        while let Some(event) = self.endpoint.event(NOT_AT_ALL) {
            self.is_gone |= matches!(event, Event::Lost(peer, _) if peer == self.peer);
        }
    }
}
