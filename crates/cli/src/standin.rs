//! STAND-IN for `crates/host`, to be deleted when that exists: the calls of `design.md` over queues of vectors, which
//! loop every frame from tx N to rx N inside this process. It shows what the commands call, nothing else.

use std::collections::{HashMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace_abi::name::{CardOptions, DeviceName};
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_abi::stats::CardStats;
use millrace_abi::tree::CardDescription;
use millrace_packet::structured::{self, Sequence};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);
pub type Result<T> = std::result::Result<T, Error>;

type Wire = Arc<Mutex<VecDeque<Vec<u8>>>>;
const DEPTH: usize = 1024;

static CARDS: LazyLock<Mutex<HashMap<String, Arc<Card>>>> = LazyLock::new(Default::default);

struct Card {
    wires: Vec<Wire>,
    counters: Mutex<Vec<(u64, u64)>>,
    options: CardOptions,
    generated: Mutex<Sequence>,
}

pub struct Device(Arc<Card>);

impl Device {
    pub fn open(name: &str) -> Result<Self> {
        crate::output::note("STAND-IN: there is no card yet; frames go through a vector, and numbers mean nothing");
        let device: DeviceName = name.parse().map_err(|error| Error(format!("{error}")))?;
        let options = match device {
            DeviceName::Embedded(options) => options,
            DeviceName::Unix(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| Error(error.to_string()))?;
                let Ok(DeviceName::Embedded(options)) = text.parse() else { return Err(Error("no card".into())) };
                options
            }
        };
        let mut cards = CARDS.lock().unwrap();
        let card = cards.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Card {
                wires: (0..options.rx_queues).map(|_| Wire::default()).collect(),
                counters: Mutex::new(vec![(0, 0); options.rx_queues as usize]),
                options,
                generated: Mutex::new(Sequence::ZERO),
            })
        });
        Ok(Self(card.clone()))
    }
    pub fn device_tree(&self) -> Result<Vec<u8>> {
        CardDescription::new(&self.0.options).to_blob().map_err(|error| Error(error.to_string()))
    }
    pub fn rx_queues(&self) -> u32 {
        self.0.wires.len() as u32
    }
    pub fn tx_queues(&self) -> u32 {
        self.0.wires.len() as u32
    }
    pub fn read(&self, _offset: u32, bytes: &mut [u8]) -> Result<()> {
        bytes.fill(0);
        Ok(())
    }
    pub fn stats(&self) -> Result<CardStats> {
        let queue = |queue, (packets, bytes): (u64, u64)| millrace_abi::stats::QueueStats {
            queue,
            engine: self.0.options.engine_of(queue),
            state: millrace_abi::control::QueueState::Stopped,
            holders: vec![],
            offered: packets,
            passed: packets,
            passed_bytes: bytes,
            drops: vec![],
            iotlb_hits: 0,
            iotlb_misses: 0,
            iotlb_faults: 0,
            fault_iova: None,
        };
        let counters = self.0.counters.lock().unwrap();
        let count = self.rx_queues();
        let of = |make: fn(u32) -> QueueId| (0..count).map(make);
        let queues = of(QueueId::rx).chain(of(QueueId::tx)).map(|id| queue(id, counters[id.index as usize])).collect();
        Ok(CardStats { queues, ports: vec![], workers: vec![] })
    }
    pub fn rx(&self, index: u32) -> RxOptions {
        RxOptions(self.0.clone(), index)
    }
    pub fn tx(&self, index: u32) -> TxOptions {
        TxOptions(self.0.clone(), index)
    }
}

pub struct RxOptions(Arc<Card>, u32);
impl RxOptions {
    pub fn mode(self, _mode: Mode) -> Self {
        self
    }
    pub fn sharing(self, _sharing: Sharing) -> Self {
        self
    }
    pub fn open(self) -> Result<IdleRx> {
        let wire = self.0.wires.get(self.1 as usize).ok_or(Error("no such queue".into()))?;
        Ok(IdleRx(self.0.clone(), wire.clone()))
    }
}
pub struct TxOptions(Arc<Card>, u32);
impl TxOptions {
    pub fn mode(self, _mode: Mode) -> Self {
        self
    }
    pub fn open(self) -> Result<IdleTx> {
        let wire = self.0.wires.get(self.1 as usize).ok_or(Error("no such queue".into()))?;
        Ok(IdleTx(self.0.clone(), self.1, wire.clone()))
    }
}
pub struct IdleRx(Arc<Card>, Wire);
impl IdleRx {
    pub fn start(self) -> Result<RxQueue> {
        Ok(RxQueue { card: self.0, wire: self.1, held: Vec::new() })
    }
}
pub struct IdleTx(Arc<Card>, u32, Wire);
impl IdleTx {
    pub fn start(self) -> Result<TxQueue> {
        Ok(TxQueue { card: self.0, index: self.1, wire: self.2, slots: Vec::new() })
    }
}

pub struct RxQueue {
    card: Arc<Card>,
    wire: Wire,
    held: Vec<Vec<u8>>,
}
pub struct RxBurst<'q>(MutexGuard<'q, VecDeque<Vec<u8>>>, &'q mut Vec<Vec<u8>>);
pub struct RxPacket<'b> {
    pub data: &'b [u8],
}
impl RxQueue {
    pub fn get(&mut self, max: usize) -> Result<RxBurst<'_>> {
        let mut wire = self.wire.lock().unwrap();
        if let Some(size) = self.card.options.ports[0].strip_prefix("generator:size=") {
            let mut next = self.card.generated.lock().unwrap();
            while wire.len() < max {
                let mut frame = vec![0; size.parse().unwrap()];
                structured::fill(&mut frame, *next);
                *next = next.next();
                wire.push_back(frame);
            }
        }
        let count = max.min(wire.len());
        self.held.clear();
        self.held.extend(wire.drain(..count));
        Ok(RxBurst(wire, &mut self.held))
    }
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < timeout {
            if !self.wire.lock().unwrap().is_empty() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(false)
    }
}
impl RxBurst<'_> {
    pub fn len(&self) -> usize {
        self.1.len()
    }
    pub fn is_empty(&self) -> bool {
        self.1.is_empty()
    }
    pub fn iter(&self) -> impl Iterator<Item = RxPacket<'_>> {
        self.1.iter().map(|data| RxPacket { data })
    }
}
impl Index<usize> for RxBurst<'_> {
    type Output = [u8];
    fn index(&self, at: usize) -> &[u8] {
        &self.1[at]
    }
}
impl Drop for RxBurst<'_> {
    fn drop(&mut self) {
        self.0.shrink_to(0);
    }
}

pub struct TxQueue {
    card: Arc<Card>,
    index: u32,
    wire: Wire,
    slots: Vec<Vec<u8>>,
}
pub struct TxBurst<'q>(&'q mut TxQueue);
impl TxQueue {
    pub fn get(&mut self, lens: &[u16]) -> Result<Option<TxBurst<'_>>> {
        if self.wire.lock().unwrap().len() + lens.len() > DEPTH {
            return Ok(None);
        }
        self.slots = lens.iter().map(|len| vec![0; usize::from(*len)]).collect();
        Ok(Some(TxBurst(self)))
    }
    pub fn flush(&mut self) -> Result<()> {
        Ok(())
    }
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        std::thread::sleep(timeout.min(Duration::from_micros(50)));
        Ok(true)
    }
    pub fn stop(self) -> Result<IdleTx> {
        Ok(IdleTx(self.card, self.index, self.wire))
    }
}
impl TxBurst<'_> {
    pub fn put(self) {
        let bytes: usize = self.0.slots.iter().map(Vec::len).sum();
        let mut counters = self.0.card.counters.lock().unwrap();
        let counter = &mut counters[self.0.index as usize];
        *counter = (counter.0 + self.0.slots.len() as u64, counter.1 + bytes as u64);
        if self.0.card.options.ports[0] != "null" {
            self.0.wire.lock().unwrap().extend(self.0.slots.drain(..));
        }
    }
}
impl Index<usize> for TxBurst<'_> {
    type Output = [u8];
    fn index(&self, at: usize) -> &[u8] {
        &self.0.slots[at]
    }
}
impl IndexMut<usize> for TxBurst<'_> {
    fn index_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.0.slots[at]
    }
}
impl Drop for TxBurst<'_> {
    fn drop(&mut self) {
        self.0.slots.clear();
    }
}
