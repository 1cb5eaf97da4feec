//! A port as its MAC registers show it (`docs/spec/nfb-card.md` §2.4, §2.5), and the data path through its MACs.
//!
//! ```text
//! registers --> Mac: latches --> Rules, published --> Port of each lane: refreshed once per burst
//! registers <-- Mac: snapshot <-- counters, published <-- Port of each lane: plain numbers, once per burst
//! ```
//!
//! MACs are enabled from the start, so that a program that never heard of them sees packets (trap T20).
//!
//! Every frame is counted by its size and has at most one reason to be dropped, hence at every strobe
//! `total = received + dropped`, `dropped = overflow + filtered + disabled + erroneous`, `erroneous = MII + CRC +
//! length`, and the sizes add up to `total`.

mod port_queues;
mod receive;
mod rules;
mod send;

pub(crate) use receive::{Received, Receiver};
pub(crate) use rules::Rules;
pub(crate) use send::{Sender, Sent};

use crate::published::Published;
use crate::tsu::Stamper;
use millrace_abi::register::{Offset, rxmac as r, txmac as t};
use millrace_port::PortCounters;
use port_queues::PortQueues;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Nominal speed of every port.
pub(crate) const GBPS: u32 = 100;
/// All registers of one MAC, as words.
const IMAGE: usize = r::BLOCK_SIZE as usize / 4;

/// The MACs of one port: the side of the registers.
pub(crate) struct Mac {
    rules: Published<{ rules::WORDS }>,
    lanes: Vec<Arc<LaneCounts>>,
    port_queues: PortQueues,
    // There is no wire, and the card does not loop back by itself.
    unplugged: AtomicBool,
    latches: Mutex<Latches>,
}

/// What one lane of the port counts; written by its worker.
#[derive(Default)]
struct LaneCounts {
    rx: Published<{ receive::WORDS }>,
    tx: Published<{ send::WORDS }>,
}

struct Latches {
    rules: Rules,
    // As written: the error mask decides whether the filter is in force.
    error_mask: u32,
    filter: u32,
    rx_zero: Received,
    tx_zero: Sent,
    // Counters as of the last strobe, where they lie in the block.
    rx_strobed: [u32; IMAGE],
    tx_strobed: [u32; IMAGE],
}

impl Mac {
    /// The MACs of a port with so many lanes and frames up to `longest` bytes, without FCS.
    pub fn new(lanes: usize, longest: u16) -> Self {
        let mut rules = Rules::decode(&[0; rules::WORDS]);
        (rules.rx_enabled, rules.tx_enabled, rules.link_up) = (true, true, true);
        rules.length_min = r::LENGTH_MIN_DEFAULT;
        rules.length_max = u32::from(longest) + rules::FCS;
        let mut latches = Latches {
            rules,
            error_mask: r::ERROR_MASK_DEFAULT,
            filter: r::FILTER_PROMISCUOUS,
            rx_zero: Received::default(),
            tx_zero: Sent::default(),
            rx_strobed: [0; IMAGE],
            tx_strobed: [0; IMAGE],
        };
        latches.settle();
        Self {
            rules: Published::new(latches.rules.encode()),
            lanes: (0..lanes).map(|_| Arc::default()).collect(),
            port_queues: PortQueues::default(),
            unplugged: AtomicBool::new(false),
            latches: Mutex::new(latches),
        }
    }

    fn latches(&self) -> MutexGuard<'_, Latches> {
        self.latches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came in since the card started.
    pub fn received(&self) -> Received {
        // Lanes first: what they let in was counted by the wires before.
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.rx.read()).collect();
        Received::sum(lanes.into_iter(), &self.port_queues.counts())
    }

    /// What went out since the card started.
    pub fn sent(&self) -> Sent {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.tx.read()).collect();
        Sent::sum(lanes.into_iter(), &self.port_queues.counts())
    }

    /// Other wires from now on, which may be none; those that were there must have stopped.
    pub fn plug(&self, port_queues: Vec<Arc<PortCounters>>, unplugged: bool) {
        self.port_queues.replace(port_queues);
        self.unplugged.store(unplugged, Ordering::Relaxed);
    }

    /// Whether there is somebody at the other end, as far as the wires know.
    pub fn link(&self) -> bool {
        self.port_queues.link(self.unplugged.load(Ordering::Relaxed))
    }

    /// How the wires are driven, in words.
    pub fn mode(&self) -> String {
        self.port_queues.mode()
    }

    /// What else happened to received and to sent frames.
    pub fn events(&self) -> [Vec<(&'static str, u64)>; 2] {
        self.port_queues.events()
    }

    /// Copies that the wires have made of received and of sent frames.
    pub fn copies(&self) -> (u64, u64) {
        let counts = self.port_queues.counts();
        (counts.rx_copies, counts.tx_copies)
    }

    pub fn read_rx(&self, offset: u32) -> u32 {
        let latches = self.latches();
        match Offset::new(offset) {
            r::ENABLE => u32::from(latches.rules.rx_enabled),
            r::ERROR_MASK => latches.error_mask,
            r::STATUS => {
                let overflowed = self.received().overflowed() > latches.rx_zero.overflowed();
                self.status(&latches)
                    | r::MAC_TABLE_ENTRIES << r::STATUS_TABLE_SHIFT
                    | (u32::from(overflowed) * r::STATUS_OVERFLOW)
            }
            r::LENGTH_MIN => latches.rules.length_min,
            r::LENGTH_MAX => latches.rules.length_max,
            r::FILTER => latches.filter,
            _ => match table_entry(offset) {
                Some((entry, half)) => (latches.rules.table[entry] >> (32 * half)) as u32,
                None => latches.rx_strobed.get(offset as usize / 4).copied().unwrap_or(0),
            },
        }
    }

    pub fn write_rx(&self, offset: u32, value: u32) {
        self.change(|latches| match Offset::new(offset) {
            r::ENABLE => latches.rules.rx_enabled = value & 1 != 0,
            r::ERROR_MASK => latches.error_mask = value & r::ERROR_MASK_BITS,
            r::LENGTH_MIN => latches.rules.length_min = value,
            r::LENGTH_MAX => latches.rules.length_max = value,
            r::FILTER => latches.filter = value & r::FILTER_MULTICAST,
            r::COMMAND if value == r::COMMAND_STROBE => {
                latches.rx_strobed = rx_image(&self.received().minus(&latches.rx_zero));
            }
            r::COMMAND if value == r::COMMAND_RESET => {
                (latches.rx_zero, latches.rx_strobed) = (self.received(), [0; IMAGE]);
            }
            _ => {
                if let Some((entry, half)) = table_entry(offset) {
                    let keep = !(u64::from(u32::MAX) << (32 * half));
                    let entry = &mut latches.rules.table[entry];
                    *entry = (*entry & keep | u64::from(value) << (32 * half)) & r::MAC_TABLE_BITS;
                }
            }
        });
    }

    pub fn read_tx(&self, offset: u32) -> u32 {
        let latches = self.latches();
        match Offset::new(offset) {
            t::ENABLE => u32::from(latches.rules.tx_enabled),
            t::STATUS => self.status(&latches),
            _ => latches.tx_strobed.get(offset as usize / 4).copied().unwrap_or(0),
        }
    }

    pub fn write_tx(&self, offset: u32, value: u32) {
        self.change(|latches| match Offset::new(offset) {
            t::ENABLE => latches.rules.tx_enabled = value & 1 != 0,
            t::COMMAND if value == t::COMMAND_STROBE => {
                latches.tx_strobed = tx_image(&self.sent().minus(&latches.tx_zero));
            }
            t::COMMAND if value == t::COMMAND_RESET => {
                (latches.tx_zero, latches.tx_strobed) = (self.sent(), [0; IMAGE]);
            }
            _ => {}
        });
    }

    /// Speed and link as both status registers show them.
    fn status(&self, latches: &Latches) -> u32 {
        const { assert!(r::STATUS_LINK_UP == t::STATUS_LINK_UP && r::STATUS_SPEED_SHIFT == t::STATUS_SPEED_SHIFT) };
        let link = if latches.rules.link_up && self.link() { r::STATUS_LINK_UP } else { 0 };
        link | r::speed_code(GBPS) << r::STATUS_SPEED_SHIFT
    }

    /// What the PCS and PMA say: whether there is a link, and whether what is sent comes back at the PMA.
    pub fn set_link(&self, up: bool, looped: bool) {
        self.change(|latches| (latches.rules.link_up, latches.rules.looped) = (up, looped));
    }

    /// Changes latches, and tells the lanes if that changes the rules.
    fn change(&self, change: impl FnOnce(&mut Latches)) {
        let mut latches = self.latches();
        let before = latches.rules;
        change(&mut latches);
        latches.settle();
        if latches.rules != before {
            self.rules.publish(&latches.rules.encode());
        }
    }
}

impl Latches {
    /// Makes the rules follow from the registers.
    fn settle(&mut self) {
        let drops = |error| self.error_mask & error != 0;
        let filter = if drops(r::ERROR_ADDRESS) { self.filter } else { r::FILTER_PROMISCUOUS };
        let mut rules = self.rules;
        (rules.drops_short, rules.drops_long) = (drops(r::ERROR_TOO_SHORT), drops(r::ERROR_TOO_LONG));
        rules.filter = filter as u8;
        self.rules = Rules::decode(&rules.encode());
    }
}

/// The MACs of a port as one lane has them: the side of the data path, owned by a worker.
pub(crate) struct MacLane {
    mac: Arc<Mac>,
    counts: Arc<LaneCounts>,
    pub rules: Rules,
    version: u64,
    pub rx: Receiver,
    pub tx: Sender,
    /// The clock that stamps what is received.
    pub stamper: Stamper,
}

impl MacLane {
    pub fn new(mac: Arc<Mac>, lane: usize, stamper: Stamper) -> Self {
        let rules = Rules::decode(&mac.rules.read());
        let counts = mac.lanes[lane].clone();
        // No version of a publication is odd: the first refresh takes over whatever has changed since.
        Self { mac, counts, rules, version: u64::MAX, rx: Receiver::new(), tx: Sender::new(), stamper }
    }

    /// Takes over what registers have changed; once per burst.
    #[inline(always)]
    pub fn refresh(&mut self) {
        if self.mac.rules.version() != self.version {
            self.take_over();
        }
        self.stamper.begin();
    }

    #[cold]
    fn take_over(&mut self) {
        // If they are being written just now, the next burst will see them.
        if let Some((words, version)) = self.mac.rules.look() {
            (self.rules, self.version) = (Rules::decode(&words), version);
        }
    }

    /// Whether frames may leave.
    #[inline(always)]
    pub fn lets_out(&self) -> bool {
        self.rules.tx_enabled & self.rules.link_up
    }

    /// Whether nobody listens to the wire: its own loopback is on, or the link is down.
    #[inline(always)]
    pub fn is_cut_off(&self) -> bool {
        self.rules.looped | !self.rules.link_up
    }

    /// Frames came from another port, and went to the wire if this MAC is `open` and one is `plugged` in.
    #[inline(always)]
    pub fn count_sent(&mut self, open: bool, plugged: bool, frames: u64, bytes: u64) {
        if open && plugged {
            self.tx.count_sent(bytes);
        } else if open {
            self.tx.unplugged(frames, bytes);
        } else {
            self.tx.refuse(&self.rules, frames, bytes);
        }
        self.tx.publish(&self.counts.tx);
    }

    /// Makes what was counted readable; at the end of a burst.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.rx.publish(&self.counts.rx);
        self.tx.publish(&self.counts.tx);
    }
}

/// The address table entry at an offset, and which half of it.
fn table_entry(offset: u32) -> Option<(usize, u32)> {
    let within = offset.checked_sub(r::MAC_TABLE.bytes())?;
    (within < r::MAC_TABLE_ENTRIES * 8).then_some(((within / 8) as usize, within % 8 / 4))
}

fn set_pair(image: &mut [u32; IMAGE], low: Offset, high: Offset, value: u64) {
    image[low.bytes() as usize / 4] = value as u32;
    image[high.bytes() as usize / 4] = (value >> 32) as u32;
}

fn set_wide(image: &mut [u32; IMAGE], register: Offset, value: u64) {
    set_pair(image, register, Offset::new(register.bytes() + 4), value);
}

/// The counters of the receiving half where their registers are.
fn rx_image(counts: &Received) -> [u32; IMAGE] {
    let mut image = [0; IMAGE];
    let sizes = counts.sizes();
    let pairs = [
        (r::TOTAL_LOW, r::TOTAL_HIGH, counts.total()),
        (r::RECEIVED_LOW, r::RECEIVED_HIGH, counts.passed()),
        (r::DROPPED_LOW, r::DROPPED_HIGH, counts.dropped()),
        (r::OVERFLOWED_LOW, r::OVERFLOWED_HIGH, counts.overflowed()),
        (r::CRC_ERRORS_LOW, r::CRC_ERRORS_HIGH, counts.fragments()),
        (r::OVER_MAX_LOW, r::OVER_MAX_HIGH, counts.over_max()),
        (r::UNDER_MIN_LOW, r::UNDER_MIN_HIGH, counts.under_min()),
        (r::BROADCAST_LOW, r::BROADCAST_HIGH, counts.broadcast()),
        (r::MULTICAST_LOW, r::MULTICAST_HIGH, counts.multicast()),
        (r::FRAGMENTS_LOW, r::FRAGMENTS_HIGH, counts.fragments()),
        (r::OCTETS_LOW, r::OCTETS_HIGH, counts.octets()),
        (r::SIZE_64_LOW, r::SIZE_64_HIGH, sizes[1]),
        (r::SIZE_65_127_LOW, r::SIZE_65_127_HIGH, sizes[2]),
        (r::SIZE_128_255_LOW, r::SIZE_128_255_HIGH, sizes[3]),
        (r::SIZE_256_511_LOW, r::SIZE_256_511_HIGH, sizes[4]),
        (r::SIZE_512_1023_LOW, r::SIZE_512_1023_HIGH, sizes[5]),
        (r::SIZE_1024_1518_LOW, r::SIZE_1024_1518_HIGH, sizes[6]),
    ];
    pairs.into_iter().for_each(|(low, high, value)| set_pair(&mut image, low, high, value));
    let wide = [
        (r::RECEIVED_OCTETS, counts.passed_octets()),
        (r::SIZE_OVER_1518, sizes[7..].iter().sum()),
        (r::SIZE_UNDER_64, sizes[0]),
        (r::SIZE_1519_2047, sizes[7]),
        (r::SIZE_2048_4095, sizes[8]),
        (r::SIZE_4096_8191, sizes[9]),
        (r::SIZE_OVER_8191, sizes[10]),
        (r::DROPPED_FILTER, counts.filtered()),
        (r::DROPPED_ERROR, counts.errors()),
        (r::DROPPED_DISABLED, counts.disabled()),
        (r::DROPPED_MII, counts.mii_errors()),
        (r::DROPPED_CRC, counts.fragments()),
        (r::DROPPED_LENGTH, counts.length_errors()),
    ];
    wide.into_iter().for_each(|(register, value)| set_wide(&mut image, register, value));
    image
}

/// The counters of the sending half where their registers are.
fn tx_image(counts: &Sent) -> [u32; IMAGE] {
    let mut image = [0; IMAGE];
    let pairs = [
        (t::TOTAL_LOW, t::TOTAL_HIGH, counts.total()),
        (t::SENT_OCTETS_LOW, t::SENT_OCTETS_HIGH, counts.sent_octets()),
        (t::DROPPED_LOW, t::DROPPED_HIGH, counts.dropped()),
        (t::SENT_LOW, t::SENT_HIGH, counts.sent()),
    ];
    pairs.into_iter().for_each(|(low, high, value)| set_pair(&mut image, low, high, value));
    let wide = [
        (t::TOTAL_OCTETS, counts.octets()),
        (t::DROPPED_LINK_DOWN, counts.link_down()),
        (t::DROPPED_LENGTH, counts.length_errors()),
        (t::DROPPED_DISABLED, counts.disabled()),
    ];
    wide.into_iter().for_each(|(register, value)| set_wide(&mut image, register, value));
    image
}
