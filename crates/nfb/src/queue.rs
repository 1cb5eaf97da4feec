//! One queue as one `ndp_open_*_queue` sees it: idle or running, with bursts that are kept until put.

use crate::aside::{Aside, LONGEST, NoPlace, TooLong};
use crate::errno;
use millrace::{Device, Error, ErrorCode, IdleRx, IdleTx, Laggard, MAX_BURST, QueueId, RxQueue, Sharing, TxQueue};

/// Calls in vain after which a call lets others run: on a machine with fewer cores than programs the card may wait for
/// this very core, and there are programs that only count their polls. Far more than a round trip to a card on a core of
/// its own takes.
const CALLS_IN_VAIN: u32 = 256;

/// What libnfb makes of the user-space flag (§1.6): exclusive, and from user space. Either asks for the queue alone.
pub const DIRECT: i32 = 0x02 | 0x10;

/// Who else may have a queue opened with these flags (§3.3): by default as the original driver, RX packets for every
/// subscriber and TX for several writers.
fn sharing(flags: i32) -> Sharing {
    if flags & DIRECT != 0 { Sharing::Exclusive } else { Sharing::Shared(Laggard::Block) }
}

/// A queue could not be opened: its errno, and why on standard error. A program may try again as often as it likes; the same
/// is said once.
#[cold]
pub fn refused(index: u32, direction: i32, flags: i32, error: &Error) -> i32 {
    let id = if direction == 0 { QueueId::rx(index) } else { QueueId::tx(index) };
    if error.is_retryable() {
        return errno::report_once(&id.to_string(), error);
    }
    let code = errno::report(&id.to_string(), error);
    if matches!(error, Error::Client(client) if client.code() == Some(ErrorCode::Invalid)) && flags & DIRECT == 0 {
        eprintln!("libnfb-ext-millrace: {id}: {ALONE}");
    }
    code
}

/// What becomes of frames that are too long.
const DROPPED: &str = "frames that are too long are dropped, and counted as `too-long` by `millrace stats`";

/// What becomes of frames beside the ring that the card does not take.
const LOST: &str = "frames that lay beside the ring are lost";

/// What a program does that can have a queue only alone, and opened it as NFB programs do by default.
const ALONE: &str = "an NFB program has a queue alone with the user-space flag (ndp-tool: -U), or with `direct:` before the \
                     name: libnfb-ext:/path/libnfb-ext-millrace.so:direct:unix:PATH";

/// The two directions, as far as they open, start and stop alike. All queues are in direct mode.
pub trait Half {
    type Idle;
    type Running;
    fn id(index: u32) -> QueueId;
    fn open(device: &Device, index: u32, sharing: Sharing) -> Result<Self::Idle, Error>;
    fn start(idle: Self::Idle) -> Result<Self::Running, Error>;
    fn stop(running: Self::Running) -> Result<Self::Idle, Error>;
}

/// Receiving.
pub struct RxHalf;
/// Sending.
pub struct TxHalf;

impl Half for RxHalf {
    type Idle = IdleRx;
    type Running = RxQueue;

    fn id(index: u32) -> QueueId {
        QueueId::rx(index)
    }

    fn open(device: &Device, index: u32, sharing: Sharing) -> Result<IdleRx, Error> {
        device.rx(index).sharing(sharing).open()
    }

    fn start(idle: IdleRx) -> Result<RxQueue, Error> {
        idle.start()
    }

    fn stop(running: RxQueue) -> Result<IdleRx, Error> {
        running.stop()
    }
}

impl Half for TxHalf {
    type Idle = IdleTx;
    type Running = TxQueue;

    fn id(index: u32) -> QueueId {
        QueueId::tx(index)
    }

    fn open(device: &Device, index: u32, sharing: Sharing) -> Result<IdleTx, Error> {
        device.tx(index).sharing(sharing).open()
    }

    fn start(idle: IdleTx) -> Result<TxQueue, Error> {
        idle.start()
    }

    fn stop(running: TxQueue) -> Result<IdleTx, Error> {
        running.stop()
    }
}

/// What a queue can be.
enum State<H: Half> {
    Idle(H::Idle),
    Running(H::Running),
    // Could not be started, or not be stopped properly, and was closed: it is opened anew at the next start.
    Closed,
}

/// How a queue behaves when there is nothing to be had.
struct Manners {
    id: QueueId,
    // Calls in vain since the last that was not.
    in_vain: u32,
    reported: bool,
    // Whether it was said that a frame is too long, and that one is no length at all.
    warned: [bool; 2],
    // Whether the card could not be told of frames that were too long: it is not asked again.
    uncounted: bool,
}

impl Manners {
    fn of(id: QueueId) -> Self {
        Self { id, in_vain: 0, reported: false, warned: [false; 2], uncounted: false }
    }

    fn report(&self, error: &Error) -> i32 {
        errno::report(&self.id.to_string(), error)
    }

    /// The queue cannot go on, which no burst call can say: it is said once where somebody may read it.
    #[cold]
    fn cannot(&mut self, error: &Error) {
        if !core::mem::replace(&mut self.reported, true) {
            self.report(error);
        }
    }

    /// As [`Manners::cannot`], with what is lost of that which lay aside.
    #[cold]
    fn lost(&mut self, error: &Error, frames: u64) {
        if frames == 0 {
            return self.cannot(error);
        }
        self.reported = true;
        eprintln!("libnfb-ext-millrace: {}: {error}; {frames} {LOST}", self.id);
    }

    /// Frames were dropped because the queue holds none that long.
    #[cold]
    fn too_long(&mut self, queue: &TxQueue, dropped: TooLong) {
        let mut left = dropped.frames;
        while left > 0 && !self.uncounted {
            // As many as one request may count, which is what a burst may have.
            let part = left.min(MAX_BURST as u64);
            // A card that is gone counts nothing any more.
            self.uncounted = queue.count_too_long(part as u32).is_err();
            left -= part;
        }
        if dropped.frames > 0 && !core::mem::replace(&mut self.warned[0], true) {
            self.report(&queue.frame_too_long(dropped.len as usize));
            eprintln!("libnfb-ext-millrace: {}: {DROPPED}", self.id);
        }
    }

    /// A burst gets no place beside the ring.
    #[cold]
    fn no_place(&mut self, why: &NoPlace) {
        if let NoPlace::NoLength(len) = why
            && !core::mem::replace(&mut self.warned[1], true)
        {
            eprintln!(
                "libnfb-ext-millrace: {}: a frame of {len} bytes: bursts with frames longer than {LONGEST} bytes are not \
                 handed out at all",
                self.id
            );
        }
        self.nothing();
    }

    /// A call found nothing.
    #[cold]
    fn nothing(&mut self) {
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain > CALLS_IN_VAIN {
            std::thread::yield_now();
        }
    }
}

/// A queue of either direction.
pub struct Queue<H: Half> {
    device: Device,
    index: u32,
    flags: i32,
    state: State<H>,
    manners: Manners,
    // TX: where headers go, which no card of ours sends: all to the same place.
    headers: Vec<u8>,
    // TX: a burst that does not fit into the ring at once.
    aside: Aside,
}

/// A queue that receives.
pub type Rx = Queue<RxHalf>;
/// A queue that sends.
pub type Tx = Queue<TxHalf>;

impl<H: Half> Queue<H> {
    pub fn open(device: &Device, index: u32, flags: i32) -> Result<Self, Error> {
        let state = State::Idle(H::open(device, index, sharing(flags))?);
        let manners = Manners::of(H::id(index));
        Ok(Self { device: device.clone(), index, flags, state, manners, headers: Vec::new(), aside: Aside::default() })
    }

    fn take(&mut self) -> State<H> {
        core::mem::replace(&mut self.state, State::Closed)
    }

    /// Starts the queue; 0 or an errno.
    pub fn start(&mut self) -> i32 {
        let idle = match self.take() {
            State::Idle(idle) => Ok(idle),
            State::Closed => H::open(&self.device, self.index, sharing(self.flags)),
            running @ State::Running(_) => {
                self.state = running;
                return libc::EALREADY;
            }
        };
        match idle.and_then(H::start) {
            Ok(running) => {
                self.state = State::Running(running);
                self.manners = Manners::of(self.manners.id);
                self.aside.forget();
                0
            }
            Err(error) => self.manners.report(&error),
        }
    }

    /// Stops the queue. What a TX queue has left is sent; what the card does not take within a second (its RX side may be
    /// full for ever) is dropped. Either way the queue has stopped then, which is what libnfb needs to hear.
    pub fn stop(&mut self) {
        match self.take() {
            State::Running(running) => match H::stop(running) {
                Ok(idle) => self.state = State::Idle(idle),
                Err(error) => {
                    self.manners.report(&error);
                }
            },
            other => self.state = other,
        }
    }
}

/// A packet of a burst, as addresses: valid until the burst is put.
pub struct Received {
    pub data: *const u8,
    pub header: *const u8,
    pub data_len: usize,
    pub header_len: usize,
    pub flags: u8,
}

/// What the header of a packet without one points to: there are programs that read it unasked (trap T18).
static NO_HEADER: [u8; 64] = [0; 64];

impl Rx {
    /// Takes at most `count` packets and hands each to `each`. None if there are none, or if the queue cannot go on.
    #[inline(always)]
    pub fn get(&mut self, count: usize, mut each: impl FnMut(usize, Received)) -> usize {
        let State::Running(queue) = &mut self.state else { return 0 };
        let burst = match queue.get(count) {
            Ok(burst) => burst,
            Err(error) => {
                self.manners.cannot(&error);
                return 0;
            }
        };
        let count = burst.len();
        for (i, packet) in burst.iter().enumerate() {
            let header = if packet.header.is_empty() { NO_HEADER.as_ptr() } else { packet.header.as_ptr() };
            let (data, data_len, header_len) = (packet.data.as_ptr(), packet.data.len(), packet.header.len());
            each(i, Received { data, header, data_len, header_len, flags: packet.flags });
        }
        burst.keep();
        if count == 0 {
            self.manners.nothing()
        } else {
            self.manners.in_vain = 0
        }
        count
    }

    /// Gives back everything that was got.
    #[inline(always)]
    pub fn put(&mut self) {
        if let State::Running(queue) = &mut self.state {
            queue.release();
        }
    }
}

/// A slot to be written, as addresses: valid until it is put or flushed.
pub struct Slot {
    pub data: *mut u8,
    pub header: *mut u8,
}

impl Tx {
    /// Takes `count` slots or none, and hands each to `each`. `wanted` says how long packet and header are to be.
    #[inline(always)]
    pub fn get(
        &mut self,
        count: usize,
        wanted: impl Fn(usize) -> (u32, u16),
        mut each: impl FnMut(usize, Slot),
    ) -> usize {
        if !self.aside.is_empty() {
            if !self.aside.is_written() {
                return self.get_behind(count, &wanted, &mut each);
            }
            if !self.catch_up() {
                return 0;
            }
        }
        let State::Running(queue) = &mut self.state else { return 0 };
        let longest = queue.longest();
        let mut headers = false;
        let length = |i| {
            let (data_len, header_len) = wanted(i);
            headers |= header_len > 0;
            // Too long for a frame stays too long.
            u16::try_from(data_len).unwrap_or(u16::MAX)
        };
        let mut burst = match queue.get_each(count, length) {
            Ok(Some(burst)) => burst,
            Ok(None) => {
                self.manners.nothing();
                return 0;
            }
            Err(Error::BurstTooLong { .. } | Error::FrameTooLong { .. }) if count <= MAX_BURST => {
                let Self { aside, headers, manners, .. } = self;
                let lengths: Vec<u32> = (0..count).map(|i| wanted(i).0).collect();
                return hand_out(aside, headers, manners, (&lengths, longest), &mut each);
            }
            Err(error) => {
                self.manners.cannot(&error);
                return 0;
            }
        };
        self.manners.in_vain = 0;
        if headers && self.headers.is_empty() {
            self.headers = room_for_headers();
        }
        let header = self.headers.as_mut_ptr();
        for i in 0..count {
            let data = burst[i].as_mut_ptr();
            each(i, Slot { data, header: if headers { header } else { data } });
        }
        burst.keep();
        count
    }

    /// Takes a burst behind one that lies aside and was not put.
    #[cold]
    fn get_behind(
        &mut self,
        count: usize,
        wanted: &dyn Fn(usize) -> (u32, u16),
        each: &mut dyn FnMut(usize, Slot),
    ) -> usize {
        let Self { state: State::Running(queue), aside, headers, manners, .. } = self else { return 0 };
        if count > MAX_BURST {
            manners.cannot(&Error::BurstTooLong { queue: manners.id, count, fits: MAX_BURST });
            return 0;
        }
        let lengths: Vec<u32> = (0..count).map(|i| wanted(i).0).collect();
        hand_out(aside, headers, manners, (&lengths, queue.longest()), each)
    }

    /// Sends what was put aside, and says whether nothing is left of it.
    #[cold]
    fn catch_up(&mut self) -> bool {
        let Self { state: State::Running(queue), aside, manners, .. } = self else { return false };
        let gone = aside.send(queue).unwrap_or_else(|error| {
            manners.lost(&error, aside.forget());
            false
        });
        if !gone {
            manners.nothing();
        }
        gone
    }

    /// Everything that was got has been written, and may be sent.
    #[inline(always)]
    pub fn put(&mut self) {
        if let State::Running(queue) = &mut self.state
            && let Err(error) = queue.commit()
        {
            self.manners.cannot(&error);
        }
        if !self.aside.is_empty() {
            self.put_aside();
            self.catch_up();
        }
    }

    /// Sends everything that was got.
    #[inline(always)]
    pub fn flush(&mut self) {
        if !self.aside.is_empty() {
            self.send_aside();
        }
        if let State::Running(queue) = &mut self.state
            && let Err(error) = queue.flush()
        {
            self.manners.cannot(&error);
        }
    }

    /// What lies aside has been written.
    #[cold]
    fn put_aside(&mut self) {
        let dropped = self.aside.put();
        if let State::Running(queue) = &self.state {
            self.manners.too_long(queue, dropped);
        }
    }

    /// Sends all that was put aside, if the card takes it.
    #[cold]
    fn send_aside(&mut self) {
        self.put_aside();
        let Self { state: State::Running(queue), aside, manners, .. } = self else { return };
        let sent = queue.commit().and_then(|()| aside.send_all(queue));
        if let Err(error) = sent {
            manners.lost(&error, aside.forget());
        }
    }

    /// As [`Queue::stop`], with what was put aside.
    pub fn finish(&mut self) {
        if !self.aside.is_empty() {
            self.send_aside();
            let left = self.aside.forget();
            if left > 0 {
                eprintln!(
                    "libnfb-ext-millrace: {}: stopped although the card takes nothing; {left} {LOST}",
                    self.manners.id
                );
            }
        }
        self.stop();
    }
}

/// Hands out the places of a burst that the ring will never hold at once, or that is behind such a burst: of frames of these
/// lengths, for a queue whose longest frame is the second.
#[cold]
fn hand_out(
    aside: &mut Aside,
    headers: &mut Vec<u8>,
    manners: &mut Manners,
    (lengths, longest): (&[u32], usize),
    each: &mut dyn FnMut(usize, Slot),
) -> usize {
    let places = match aside.add(lengths, longest) {
        Ok(places) => places,
        Err(why) => {
            manners.no_place(&why);
            return 0;
        }
    };
    manners.in_vain = 0;
    if headers.is_empty() {
        *headers = room_for_headers();
    }
    let header = headers.as_mut_ptr();
    for (i, data) in places.into_iter().enumerate() {
        each(i, Slot { data, header });
    }
    lengths.len()
}

/// As long as any header, so that it never moves under a program that still writes one.
fn room_for_headers() -> Vec<u8> {
    vec![0; 1 << 16]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_choose_between_the_old_sharing_and_a_queue_of_ones_own() {
        assert_eq!(sharing(0), Sharing::Shared(Laggard::Block));
        for flags in [0x12, 0x02, 0x10] {
            assert_eq!(sharing(flags), Sharing::Exclusive);
        }
    }
}
