//! DD queues over a [`Pool`]: frames arrive in its buffers and leave from them.

use crate::error::{Error, FrameLimit};
use crate::handle::QueueHandle;
use crate::pool::{Buffer, Inner, Pool, Sender};
use crate::rx::dd_ring;
use crate::verdict::Verdict;
use core::cell::RefCell;
use millrace_abi::launch::LaunchPolicy;
use millrace_abi::message::Layout;
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_abi::register::dd;
use millrace_abi::register::map::Component;
use millrace_dma::Region;
use millrace_driver::{Client, Opened};
use millrace_ring::dd::{HostRx, HostTx, Ring};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// RX descriptors are filled again this many at a time, or a quarter of the ring where that is less.
const REFILL: u32 = 64;
/// Frames on their way from which on a TX ring is looked at for those that have come back.
const RECLAIM: u32 = 32;

struct Parts {
    handle: QueueHandle,
    ring: Ring,
    // The ring stays mapped through `ring`; this is what its views are made of.
    _status: Region,
}

/// How to open a queue, and whose it will be.
pub(crate) struct Wish {
    pub client: Arc<Client>,
    pub queue: QueueId,
    pub mode: Mode,
    pub sharing: Sharing,
    /// TX: what becomes of frames with launch times.
    pub launch: LaunchPolicy,
}

fn start(wish: Wish, pool: &Pool, entries: u32) -> Result<Parts, Error> {
    let Wish { client, queue, mode, sharing, launch } = wish;
    if !pool.inner.belongs_to(&client) {
        let text =
            format!("the pool was made by another open of the card than {queue}; make it with the same `Device`");
        return Err(Error::Unfit(text));
    }
    let Opened { handle, layout, control, kick, status, .. } =
        client.open(queue, mode, sharing, pool.inner.buffers(entries))?;
    let handle = QueueHandle::new(client, queue, handle, control, kick)?;
    let Layout::Dd { entries, .. } = layout else { return Err(handle.bad("a ring that is none of DD")) };
    let ring = dd_ring(&handle, &status, entries)?;
    if launch != LaunchPolicy::default()
        && let Some(base) = Component::Dma(queue).base()
    {
        for (register, value) in [dd::LAUNCH, dd::SLACK].iter().zip(launch.to_registers()) {
            handle.client.write(base + register.bytes(), &value.to_le_bytes())?;
        }
    }
    handle.client.start(handle.handle)?;
    Ok(Parts { handle, ring, _status: status })
}

/// An RX queue that runs over a pool.
pub struct PoolRx {
    host: HostRx,
    // What buffers lent to this queue are known by.
    lender: u32,
    refill: u32,
    refused: u64,
    handle: QueueHandle,
    pool: Rc<Inner>,
}

impl PoolRx {
    pub(crate) fn start(wish: Wish, pool: &Pool, entries: u32) -> Result<Self, Error> {
        let Parts { handle, ring, .. } = start(wish, pool, entries)?;
        let host = HostRx::new(ring, handle.doorbell()?);
        let (inner, refill) = (pool.inner.clone(), REFILL.min(host.entries() / 4).max(1));
        let mut queue = Self { host, lender: inner.next_receiver(), refill, refused: 0, handle, pool: inner };
        queue.fill();
        Ok(queue)
    }

    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.handle.queue
    }

    /// Moves up to `max` received frames to the end of `to`, in order, and returns how many. Never waits. Each has its
    /// buffer with it: nothing is copied. Does not allocate as long as `to` has the capacity.
    ///
    /// # Errors
    /// [`Error::Faulted`], [`Error::Gone`] when the queue cannot go on.
    #[inline]
    pub fn receive(&mut self, to: &mut Vec<Buffer>, max: usize) -> Result<usize, Error> {
        let ready = self.host.ready(max.min(self.host.entries() as usize) as u32);
        let before = to.len();
        for ahead in 0..ready {
            let received = self.host.received(ahead);
            match self.pool.claim(self.lender, received.iova, received.len) {
                Some(mut buffer) => {
                    buffer.stamp(received.time, received.port);
                    to.push(buffer);
                }
                None => self.refused += 1,
            }
        }
        self.host.release(ready);
        if self.host.room() >= self.refill {
            self.fill();
        }
        if ready == 0
            && let Err(error) = self.handle.check()
        {
            // Once more: the card writes what it had before it says that it has stopped.
            return if self.host.ready(1) > 0 { Ok(0) } else { Err(error) };
        }
        Ok(to.len() - before)
    }

    /// Gives the card free buffers for all empty descriptors.
    fn fill(&mut self) {
        let Self { host, pool, lender, handle, .. } = self;
        let given = pool.lend(*lender, host.room(), |iova, size, number| {
            // As many as there is room for.
            host.post(iova, size, number.into());
        });
        if given > 0 {
            host.show_tail();
            // The worker may sleep because this ring was empty.
            handle.ring();
        }
    }

    /// Descriptors in which the card has handed back what it does not owe. Their buffers come back when the queue is
    /// closed. Not 0: the card is broken.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Waits until frames are there, at most `timeout`; sleeps without missing one. `false`: none came.
    ///
    /// # Errors
    /// As [`PoolRx::receive`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        if self.host.ready(1) > 0 {
            return Ok(true);
        }
        // What is empty may be all the room that the card waits for.
        self.fill();
        let Self { host, handle, .. } = self;
        handle.wait(timeout, || Ok(host.ready(1) > 0))
    }

    /// Stops and closes the queue; frames that were not received are lost with it, and their buffers are free.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}

impl Drop for PoolRx {
    fn drop(&mut self) {
        // Nobody is left who could be told. After this the card is done with the ring.
        let _ = self.handle.close();
        self.pool.take_back(self.lender);
    }
}

/// A TX queue that runs over a pool.
pub struct PoolTx {
    sender: Rc<RefCell<Sender>>,
    shortest: u16,
    longest: u16,
    handle: QueueHandle,
    pool: Rc<Inner>,
}

impl PoolTx {
    pub(crate) fn start(wish: Wish, pool: &Pool, entries: u32) -> Result<Self, Error> {
        let Parts { handle, ring, .. } = start(wish, pool, entries)?;
        let sender = Rc::new(RefCell::new(Sender::new(HostTx::new(ring, handle.doorbell()?))));
        pool.inner.add_sender(&sender);
        let (shortest, longest) = handle.client.frame_limits();
        Ok(Self { sender, shortest, longest, handle, pool: pool.inner.clone() })
    }

    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.handle.queue
    }

    /// Sends frames from the front of `from`, as many as the ring has room for, and returns how many; the others stay.
    /// Their buffers go with them and are free again when the card is done. A frame shorter than the card sends is
    /// padded with zeros.
    ///
    /// # Errors
    /// [`Error::FrameTooLong`], [`Error::Unfit`] when the first frame cannot be sent; [`Error::Faulted`],
    /// [`Error::Gone`] when the queue cannot go on.
    #[inline]
    pub fn send(&mut self, from: &mut Vec<Buffer>) -> Result<usize, Error> {
        let sender = &mut *self.sender.borrow_mut();
        let wanted = from.len().min(sender.host.entries() as usize);
        if sender.host.in_flight() >= RECLAIM || (sender.host.room() as usize) < wanted {
            self.pool.reclaim(sender);
        }
        let most = wanted.min(sender.host.room() as usize);
        let mut unfit = None;
        let fits = |buffer: &mut Buffer| {
            unfit = self.unfit(buffer);
            unfit.is_none()
        };
        let count = from[..most].iter_mut().map(fits).position(|fits| !fits).unwrap_or(most);
        for buffer in from.drain(..count) {
            self.pool.post(sender, buffer);
        }
        if sender.host.flush() {
            self.handle.ring();
        }
        self.handle.check()?;
        match unfit {
            Some(error) if count == 0 => Err(error),
            _ => Ok(count),
        }
    }

    /// Why a frame cannot be sent; pads it if it is only too short.
    #[inline(always)]
    fn unfit(&self, buffer: &mut Buffer) -> Option<Error> {
        let len = buffer.len();
        if (usize::from(self.shortest)..=usize::from(self.longest)).contains(&len)
            && Rc::ptr_eq(buffer.pool(), &self.pool)
        {
            return None;
        }
        self.unfit_or_short(buffer)
    }

    #[cold]
    fn unfit_or_short(&self, buffer: &mut Buffer) -> Option<Error> {
        let (queue, len, shortest) = (self.id(), buffer.len(), usize::from(self.shortest));
        if !Rc::ptr_eq(buffer.pool(), &self.pool) {
            return Some(Error::Unfit(format!("a buffer of another pool than that of {queue}; copy the frame")));
        }
        if len > usize::from(self.longest) {
            return Some(Error::FrameTooLong { queue, len, max: self.longest.into(), limit: FrameLimit::Card });
        }
        if buffer.capacity() < shortest {
            let text = format!("the card sends no frame below {shortest} bytes, and a buffer of this pool holds fewer");
            return Some(Error::Unfit(text));
        }
        buffer.set_len(shortest);
        buffer[len..].fill(0);
        None
    }

    /// Puts the buffers of frames that the card has sent back to the pool, and returns how many. [`PoolTx::send`] does
    /// so by itself, and so does a pool that has no more.
    pub fn reclaim(&mut self) -> usize {
        self.pool.reclaim(&mut self.sender.borrow_mut()) as usize
    }

    /// Keeps the verdicts on up to `most` frames with launch times from now on, for [`PoolTx::verdicts`]. Without this none is
    /// kept.
    pub fn keep_verdicts(&mut self, most: usize) {
        self.sender.borrow_mut().keep_verdicts(most);
    }

    /// Moves the verdicts on frames with launch times whose buffers have come back to the end of `to`, in the order in which
    /// the frames were sent, and returns how many.
    pub fn verdicts(&mut self, to: &mut Vec<Verdict>) -> usize {
        self.reclaim();
        self.sender.borrow_mut().verdicts().map_or(0, |verdicts| verdicts.take(to))
    }

    /// Verdicts that were lost because nobody read them, and more came than were to be kept.
    pub fn lost_verdicts(&self) -> u64 {
        self.sender.borrow_mut().verdicts().map_or(0, |verdicts| verdicts.lost())
    }

    /// Frames given to the card whose buffers have not come back, as far as is known without looking.
    pub fn in_flight(&self) -> usize {
        self.sender.borrow().host.in_flight() as usize
    }

    /// Waits until a quarter of the ring is free, at most `timeout`; sleeps without missing it.
    ///
    /// # Errors
    /// As [`PoolTx::send`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let Self { sender, pool, handle, .. } = self;
        handle.wait(timeout, || {
            let sender = &mut *sender.borrow_mut();
            pool.reclaim(sender);
            Ok(sender.host.room() > sender.host.entries() / 4)
        })
    }

    /// Stops the queue once the card has taken everything, and closes it. Dropping it closes it at once, drained or
    /// not.
    ///
    /// # Errors
    /// [`Error::NotDrained`] when the card did not take everything within a second; the queue is closed then.
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.drain(0)?;
        self.handle.close()
    }
}

impl Drop for PoolTx {
    fn drop(&mut self) {
        // Nobody is left who could be told. After this the card is done with the ring.
        let _ = self.handle.close();
        self.pool.empty(&mut self.sender.borrow_mut());
    }
}
