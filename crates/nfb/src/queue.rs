//! One queue as one `ndp_open_*_queue` sees it: idle or running, with bursts that are kept until put.

use crate::errno;
use millrace::{Device, Error, IdleRx, IdleTx, Laggard, MAX_BURST, Mode, QueueId, RxQueue, Sharing, TxQueue};

/// Calls in vain after which a call lets others run: on a machine with fewer cores than programs the card may wait for
/// this very core, and there are programs that only count their polls. Far more than a round trip to a card on a core of
/// its own takes.
const CALLS_IN_VAIN: u32 = 256;

/// Flags of `ndp_queue_open` (§1.6) that ask for the queue alone.
const EXCLUSIVE: i32 = 0x02;
const USERSPACE: i32 = 0x10;
/// What libnfb makes of the user-space flag.
pub const DIRECT: i32 = EXCLUSIVE | USERSPACE;

/// Who moves the pointers of a queue opened with these flags, and whether it is shared (§3.3): by default as the
/// original driver, RX packets to every subscriber and TX writers in turns; pointers always move without the driver.
fn terms(queue: QueueId, flags: i32) -> (Mode, Sharing) {
    let shared = Sharing::Shared(Laggard::Block);
    match queue.direction {
        _ if flags & DIRECT != 0 => (Mode::Direct, Sharing::Exclusive),
        _ => (Mode::Direct, shared),
    }
}

/// What a queue can be.
enum State<I, R> {
    Idle(I),
    Running(R),
    // Could not be started, or not be stopped properly, and was closed: it is opened anew at the next start.
    Closed,
}

impl<I, R> State<I, R> {
    fn take(&mut self) -> Self {
        core::mem::replace(self, State::Closed)
    }
}

/// Calls in vain since the last that was not.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    #[cold]
    fn in_vain(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 > CALLS_IN_VAIN {
            std::thread::yield_now();
        }
    }
}

/// An RX queue.
pub struct Rx {
    id: QueueId,
    device: Device,
    flags: i32,
    state: State<IdleRx, RxQueue>,
    patience: Patience,
    reported: bool,
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
    pub fn open(device: &Device, index: u32, flags: i32) -> Result<Self, Error> {
        let (id, device) = (QueueId::rx(index), device.clone());
        let state = State::Idle(Self::open_idle(&device, id, flags)?);
        Ok(Self { id, device, flags, state, patience: Patience::default(), reported: false })
    }

    fn open_idle(device: &Device, id: QueueId, flags: i32) -> Result<IdleRx, Error> {
        let (mode, sharing) = terms(id, flags);
        device.rx(id.index).mode(mode).sharing(sharing).open()
    }

    pub fn start(&mut self) -> i32 {
        let idle = match self.state.take() {
            State::Idle(idle) => Ok(idle),
            State::Closed => Self::open_idle(&self.device, self.id, self.flags),
            running @ State::Running(_) => {
                self.state = running;
                return libc::EALREADY;
            }
        };
        match idle.and_then(IdleRx::start) {
            Ok(running) => {
                self.state = State::Running(running);
                self.reported = false;
                0
            }
            Err(error) => errno::report(&self.id.to_string(), &error),
        }
    }

    pub fn stop(&mut self) -> i32 {
        match self.state.take() {
            State::Running(running) => match running.stop() {
                Ok(idle) => self.state = State::Idle(idle),
                Err(error) => {
                    errno::report(&self.id.to_string(), &error);
                }
            },
            other => self.state = other,
        }
        0
    }

    /// Takes at most `count` packets and hands each to `each`. None if there are none, or if the queue cannot go on.
    #[inline(always)]
    pub fn get(&mut self, count: usize, mut each: impl FnMut(usize, Received)) -> usize {
        let State::Running(queue) = &mut self.state else { return 0 };
        let burst = match queue.get(count) {
            Ok(burst) => burst,
            Err(error) => {
                let fresh = !core::mem::replace(&mut self.reported, true);
                return if fresh { report_none(self.id, &error) } else { 0 };
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
            self.patience.in_vain()
        } else {
            self.patience = Patience::default()
        }
        count
    }

    #[inline(always)]
    pub fn put(&mut self) {
        if let State::Running(queue) = &mut self.state {
            queue.release();
        }
    }
}

/// A TX queue.
pub struct Tx {
    id: QueueId,
    device: Device,
    flags: i32,
    state: State<IdleTx, TxQueue>,
    // Where headers go, which no card of ours sends: all to the same place.
    headers: Vec<u8>,
    patience: Patience,
    reported: bool,
}

/// A slot to be written, as addresses: valid until it is put or flushed.
pub struct Slot {
    pub data: *mut u8,
    pub header: *mut u8,
}

impl Tx {
    pub fn open(device: &Device, index: u32, flags: i32) -> Result<Self, Error> {
        let id = QueueId::tx(index);
        let state = State::Idle(Self::open_idle(device, id, flags)?);
        let (device, headers, patience) = (device.clone(), Vec::new(), Patience::default());
        Ok(Self { id, device, flags, state, headers, patience, reported: false })
    }

    fn open_idle(device: &Device, id: QueueId, flags: i32) -> Result<IdleTx, Error> {
        let (mode, sharing) = terms(id, flags);
        device.tx(id.index).mode(mode).sharing(sharing).open()
    }

    pub fn start(&mut self) -> i32 {
        let idle = match self.state.take() {
            State::Idle(idle) => Ok(idle),
            State::Closed => Self::open_idle(&self.device, self.id, self.flags),
            running @ State::Running(_) => {
                self.state = running;
                return libc::EALREADY;
            }
        };
        match idle.and_then(IdleTx::start) {
            Ok(running) => {
                self.state = State::Running(running);
                self.reported = false;
                0
            }
            Err(error) => errno::report(&self.id.to_string(), &error),
        }
    }

    /// Sends what is left, and drops what the card does not take within a second (its RX side may be full for ever).
    /// Either way the queue has stopped then, which is what libnfb needs to hear.
    pub fn stop(&mut self) -> i32 {
        match self.state.take() {
            State::Running(running) => match running.stop() {
                Ok(idle) => self.state = State::Idle(idle),
                Err(error) => {
                    errno::report(&self.id.to_string(), &error);
                }
            },
            other => self.state = other,
        }
        0
    }

    /// Takes `count` slots or none, and hands each to `each`. `length` and `header_length` say what the program wants.
    #[inline(always)]
    pub fn get(
        &mut self,
        count: usize,
        wanted: impl Fn(usize) -> (u32, u16),
        mut each: impl FnMut(usize, Slot),
    ) -> usize {
        let State::Running(queue) = &mut self.state else { return 0 };
        if count > MAX_BURST {
            return 0;
        }
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
                self.patience.in_vain();
                return 0;
            }
            Err(error) => {
                let fresh = !core::mem::replace(&mut self.reported, true);
                return if fresh { report_none(self.id, &error) } else { 0 };
            }
        };
        self.patience = Patience::default();
        if headers && self.headers.is_empty() {
            // As long as any header, so that it never moves under a program that still writes one.
            self.headers = vec![0; 1 << 16];
        }
        let header = self.headers.as_mut_ptr();
        for i in 0..count {
            let data = burst[i].as_mut_ptr();
            each(i, Slot { data, header: if headers { header } else { data } });
        }
        burst.keep();
        count
    }

    #[inline(always)]
    pub fn put(&mut self) {
        if let State::Running(queue) = &mut self.state
            && let Err(error) = queue.commit()
        {
            self.report_once(&error);
        }
    }

    #[inline(always)]
    pub fn flush(&mut self) {
        if let State::Running(queue) = &mut self.state
            && let Err(error) = queue.flush()
        {
            self.report_once(&error);
        }
    }

    #[cold]
    fn report_once(&mut self, error: &Error) {
        if !core::mem::replace(&mut self.reported, true) {
            errno::report(&self.id.to_string(), error);
        }
    }
}

#[cold]
fn report_none(id: QueueId, error: &Error) -> usize {
    errno::report(&id.to_string(), error);
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_choose_between_the_old_sharing_and_the_direct_path() {
        let shared = Sharing::Shared(Laggard::Block);
        for queue in [QueueId::rx(0), QueueId::tx(0)] {
            assert_eq!(terms(queue, 0), (Mode::Direct, shared));
            for flags in [0x12, 0x02, 0x10] {
                assert_eq!(terms(queue, flags), (Mode::Direct, Sharing::Exclusive));
            }
        }
    }
}
