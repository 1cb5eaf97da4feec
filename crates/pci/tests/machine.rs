//! A machine without a processor: its memory, and what its hypervisor does.

use millrace_abi::name::{CardOptions, DeviceName};
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::map::{Component, dma_base};
use millrace_card::Card;
use millrace_dma::{Ordering, Pages, Protection, Region, Word64};
use millrace_driver::Driver;
use millrace_flow::language::RuleFile;
use millrace_pci::{Counters, Functions, PciError};
use rustix::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfio_user::Client;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Where the machine's memory begins.
pub const MEMORY: u64 = 0x1_0000_0000;
pub const MEMORY_LEN: usize = 4 << 20;
pub const CONFIGURATION: u32 = 7;

pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A card with functions.
pub struct Served {
    // Before the driver, which it uses.
    pub functions: Functions,
    pub driver: Arc<Driver>,
    folder: Arc<tempfile::TempDir>,
    made_of: (String, u32, String),
}

fn options_of(text: &str) -> CardOptions {
    let Ok(DeviceName::Embedded(options)) = format!("embedded:{text}").parse() else { panic!("{text}") };
    options
}

impl Served {
    pub fn new(options: &str, functions: u32) -> Self {
        Self::with_rules(options, functions, "")
    }

    pub fn with_rules(options: &str, functions: u32, rules: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let made_of = (options.to_owned(), functions, rules.to_owned());
        let served = Functions::listen(&options_of(options), &folder.path().join("pci"), functions).unwrap();
        Self::start(served, folder, made_of).unwrap()
    }

    fn start(
        mut served: Functions,
        folder: Arc<tempfile::TempDir>,
        made_of: (String, u32, String),
    ) -> Result<Self, PciError> {
        let (options, rules) = (options_of(&made_of.0), RuleFile::parse(&made_of.2).unwrap());
        let driver = Arc::new(Driver::embedded(Card::with_rules(&options, &rules).unwrap()).unwrap());
        served.start(&driver)?;
        Ok(Self { functions: served, driver, folder, made_of })
    }

    /// Another card of the same kind takes over from this one.
    pub fn taken_over(&self) -> Result<Self, PciError> {
        let (options, functions, rules) = &self.made_of;
        self.taken_over_by(options, *functions, rules)
    }

    /// Another card, of any kind.
    pub fn taken_over_by(&self, options: &str, functions: u32, rules: &str) -> Result<Self, PciError> {
        let (next, _) = Functions::take_over(&options_of(options), &self.folder.path().join("pci"), functions, None)?;
        Self::start(next, self.folder.clone(), (options.to_owned(), functions, rules.to_owned()))
    }

    /// Where the next card calls.
    pub fn handover(&self) -> PathBuf {
        self.folder.path().join("pci.handover")
    }

    pub fn path(&self, index: usize) -> PathBuf {
        let path = self.functions.paths().nth(index).unwrap();
        assert!(path.starts_with(self.folder.path()));
        path.to_owned()
    }

    pub fn counters(&self, index: usize) -> Counters {
        self.functions.counters()[index]
    }

    /// A machine has left, or another one could not come in.
    pub fn wait_for(&self, index: usize, what: &str, happened: impl Fn(Counters) -> bool) {
        wait_until(what, || happened(self.counters(index)));
    }
}

/// A machine with a function, as its hypervisor sees it.
pub struct Machine {
    pub client: Client,
    pub memory: Region,
    pub doorbells: Region,
}

impl Machine {
    /// With memory, and as a bus master.
    pub fn new(served: &Served, index: usize) -> Self {
        let mut machine = Self::bare(served, index);
        machine.map_memory();
        machine.set_master(true);
        machine
    }

    pub fn bare(served: &Served, index: usize) -> Self {
        Self::at(&served.path(index))
    }

    /// With neither, at the socket of a function.
    pub fn at(path: &Path) -> Self {
        let mut client = None;
        // The one before may not have been noticed to have gone.
        wait_until("a function that is free", || {
            client = Client::new(path).ok();
            client.is_some()
        });
        let client = client.unwrap();
        let memory = Region::allocate(MEMORY_LEN, Pages::Ordinary).unwrap();
        let bar = client.region(pci::DOORBELLS_BAR).unwrap();
        let len: u64 = bar.sparse_areas.iter().map(|area| area.size).sum();
        let file = bar.file_offset.as_ref().unwrap();
        assert_eq!((file.start(), bar.sparse_areas.len(), bar.sparse_areas[0].offset), (0, 1, 0));
        let fd = file.file().try_clone().unwrap();
        let doorbells =
            Region::map(std::os::fd::OwnedFd::from(fd), len as usize, Protection::ReadWrite, false).unwrap();
        Self { client, memory, doorbells }
    }

    pub fn map_memory(&mut self) {
        let fd = self.memory.fd().unwrap().as_raw_fd();
        self.client.dma_map(0, MEMORY, MEMORY_LEN as u64, fd).unwrap();
    }

    pub fn set_master(&mut self, on: bool) {
        self.write_config(4, &[if on { 6 } else { 2 }, 0]);
    }

    pub fn read_config(&mut self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(CONFIGURATION, at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    pub fn write_config(&mut self, at: u64, bytes: &[u8]) {
        self.client.region_write(CONFIGURATION, at, bytes).unwrap();
    }

    pub fn read32(&mut self, at: u32) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(pci::REGISTERS_BAR, at.into(), &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    pub fn read64(&mut self, at: u32) -> u64 {
        let mut bytes = [0; 8];
        self.client.region_read(pci::REGISTERS_BAR, at.into(), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    pub fn write32(&mut self, at: u32, value: u32) {
        self.client.region_write(pci::REGISTERS_BAR, at.into(), &value.to_le_bytes()).unwrap();
    }

    pub fn write64(&mut self, at: u32, value: u64) {
        self.client.region_write(pci::REGISTERS_BAR, at.into(), &value.to_le_bytes()).unwrap();
    }

    /// A word of the machine's memory, by its offset there.
    pub fn word64(&self, offset: u64) -> Word64 {
        self.memory.window().word64(offset as usize).unwrap()
    }

    pub fn load32(&self, offset: u64) -> u32 {
        self.memory.window().word32(offset as usize).unwrap().load(Ordering::Relaxed)
    }

    pub fn put(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.memory.window().span_mut(offset as usize, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    pub fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.memory.window().span(offset as usize, len).unwrap().read_into(&mut bytes), len);
        bytes
    }

    /// Everything that it can read, but for whether workers sleep.
    pub fn seen(&mut self) -> Vec<Vec<u8>> {
        let mac = Component::RxMac(0).base().unwrap();
        let mut parts = vec![
            (CONFIGURATION, 0, 4096),
            (pci::MSIX_BAR, 0, 8192),
            (pci::REGISTERS_BAR, 0, 0x100),
            (pci::REGISTERS_BAR, mac.into(), 0x100),
        ];
        for id in [QueueId::rx(0), QueueId::tx(0), QueueId::rx(1), QueueId::tx(1)] {
            parts.push((pci::REGISTERS_BAR, dma_base(id).unwrap().into(), 0x80));
        }
        let mut read = |(region, at, len): (u32, u64, usize)| {
            let mut bytes = vec![0; len];
            self.client.region_read(region, at, &mut bytes).unwrap();
            bytes
        };
        let mut all: Vec<_> = parts.into_iter().map(&mut read).collect();
        let mut pages = self.doorbells.window().slice(0, 4 * 4096).unwrap().to_vec();
        pages.chunks_exact_mut(4096).for_each(|page| page[0x80..0x84].fill(0));
        all.push(pages);
        all
    }
}
