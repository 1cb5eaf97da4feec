use crate::clock::Clock;
use crate::error::Error;
use crate::flows::Flows;
use crate::lock::ComponentLock;
use crate::mapping::Mapping;
use crate::pool::{Pool, stride_of};
use crate::pooled::Wish;
use crate::pooled::{PoolRx, PoolTx};
use crate::rx::IdleRx;
use crate::shared;
use crate::supplied::{SuppliedRx, SuppliedTx};
use crate::tx::IdleTx;
use millrace_abi::launch::LaunchPolicy;
use millrace_abi::message::{Buffers, Change, ErrorCode, Locked};
use millrace_abi::name::DeviceName;
use millrace_abi::queue::{Joiners, Mode, QueueId, Sharing};
use millrace_abi::schedule::Schedule;
use millrace_abi::stats::CardStats;
use millrace_abi::visible::{ClientInfo, LockInfo, UserUse};
use millrace_card::Card;
use millrace_dma::{Iova, Pages, Region};
use millrace_driver::{Client, Driver};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An open card. Clones are the same card; it is closed with the last of them and the last open queue.
#[derive(Clone)]
pub struct Device {
    client: Arc<Client>,
    name: Arc<str>,
}

impl Device {
    /// Opens the card with this name: `embedded[:options]` builds one inside this process, `unix:PATH` connects to a
    /// daemon. The grammar is that of [`millrace_abi::name`].
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Card`], [`Error::Driver`], [`Error::Client`].
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_name(&name.parse()?)
    }

    /// A card that this program has made itself, such as one with ports of its own ([`Card::plug_own`]). It ends with the last
    /// clone of this device and the last of its queues.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::Client`].
    pub fn on_card(card: Card) -> Result<Self, Error> {
        let name = DeviceName::Embedded(card.options().clone());
        Self::on(&name, Arc::new(Driver::embedded(card)?))
    }

    /// Opens the card named by `MILLRACE_DEVICE`, or an embedded loopback card when that is not set.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_default() -> Result<Self, Error> {
        Self::open_name(&DeviceName::from_environment()?)
    }

    /// Opens the card with this name (the empty name is that of [`Device::open_default`]); an embedded card is the one
    /// that this process has open already under the same options, if there is one. It ends with the last of those who
    /// have it open. Each open has its own locks and its own queues, as if the card were in another process.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_shared(name: &str) -> Result<Self, Error> {
        let name = if name.is_empty() { DeviceName::from_environment()? } else { name.parse()? };
        match &name {
            DeviceName::Embedded(options) => Self::on(&name, shared::card(options)?),
            DeviceName::Unix(_) | DeviceName::Pci(_) => Self::open_name(&name),
        }
    }

    fn open_name(name: &DeviceName) -> Result<Self, Error> {
        match name {
            DeviceName::Embedded(options) => Self::on(name, Arc::new(Driver::embedded(Card::new(options)?)?)),
            DeviceName::Unix(path) => Ok(Self::new(name, Client::connect(path)?)),
            DeviceName::Pci(address) => Ok(Self::new(name, Client::function(*address)?)),
        }
    }

    fn on(name: &DeviceName, driver: Arc<Driver>) -> Result<Self, Error> {
        Ok(Self::new(name, Client::embedded(driver)?))
    }

    fn new(name: &DeviceName, client: Client) -> Self {
        Self { client: Arc::new(client), name: name.to_string().into() }
    }

    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id of the card; our own for an embedded one.
    pub fn card_pid(&self) -> u32 {
        self.client.card_pid()
    }

    /// The flattened device tree.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn device_tree(&self) -> Result<Vec<u8>, Error> {
        Ok(self.client.device_tree()?)
    }

    /// Number of RX queues.
    pub fn rx_queues(&self) -> u32 {
        self.client.rx_queues()
    }

    /// Number of TX queues.
    pub fn tx_queues(&self) -> u32 {
        self.client.tx_queues()
    }

    /// Shortest and longest frame of the card, in bytes without FCS. Shorter frames are padded with zeros when sent.
    pub fn frame_limits(&self) -> (u16, u16) {
        self.client.frame_limits()
    }

    /// Reads registers at an address of the card's bus; any length. The registers of an embedded card answer in the
    /// calling thread, without a system call.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn read(&self, address: u32, to: &mut [u8]) -> Result<(), Error> {
        Ok(self.client.read(address, to)?)
    }

    /// Writes registers at an address of the card's bus; any length.
    ///
    /// START, written to the CONTROL register of a DMA controller, starts the queue on this program's own memory, all
    /// addresses being pointers of this process (IOVA = VA), if the card is in this process; the memory must stay mapped
    /// until STATUS reads 0 or the last clone of this device and the last of its queues is dropped. A card in another
    /// process cannot reach that memory and refuses ([`Device::stats`] says so).
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn write(&self, address: u32, from: &[u8]) -> Result<(), Error> {
        Ok(self.client.write(address, from)?)
    }

    /// Reads a 32-bit register.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn read32(&self, address: u32) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a 64-bit register.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn read64(&self, address: u32) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a 32-bit register.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn write32(&self, address: u32, value: u32) -> Result<(), Error> {
        self.write(address, &value.to_le_bytes())
    }

    /// Writes a 64-bit register, as one update where the register has two halves that belong together.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn write64(&self, address: u32, value: u64) -> Result<(), Error> {
        self.write(address, &value.to_le_bytes())
    }

    /// Locks features (a bit each) of a component, across all programs; waits at most `timeout`. The lock ends when it
    /// is dropped, or with this program.
    ///
    /// # Errors
    /// [`Error::Client`], refused with [`ErrorCode::Busy`] when the time is over.
    pub fn lock(&self, component: &str, bits: u64, timeout: Duration) -> Result<ComponentLock, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.client.lock(component, bits) {
                Ok(()) => return Ok(ComponentLock::new(self.client.clone(), component, bits)),
                Err(error) if error.code() == Some(ErrorCode::Busy) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Locks features of a component if nobody has any of them, and says whether it did. The lock ends with
    /// [`Device::unlock`], or when this device is closed. Locks are not recursive: what this device itself holds is
    /// refused like what others hold.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn try_lock(&self, component: &str, bits: u64) -> Result<bool, Error> {
        match self.client.lock(component, bits) {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(ErrorCode::Busy) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives back features that [`Device::try_lock`] locked, in one call or in several.
    ///
    /// # Errors
    /// [`Error::Client`], refused with [`ErrorCode::NotFound`] when this device holds none of them.
    pub fn unlock(&self, component: &str, bits: u64) -> Result<(), Error> {
        Ok(self.client.unlock(component, bits)?)
    }

    /// All counters of the card.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn stats(&self) -> Result<CardStats, Error> {
        Ok(self.client.stats()?)
    }

    /// Plugs a wire into a port of the card, in place of what is there. `spec` is `kind:argument[,key=value...]` as for a
    /// new card; `none` unplugs. Queues run on.
    ///
    /// # Errors
    /// [`Error::Client`]; the text says what is wrong. When the wire cannot be opened, nothing is plugged in.
    pub fn plug(&self, port: u32, spec: &str) -> Result<(), Error> {
        Ok(self.client.change(Change::Plug { port, spec: spec.to_owned() })?)
    }

    /// Connects two ports inside the card, or one with itself: what comes in at one goes out at the other, and no longer
    /// to queues. What they were connected with before, they no longer are.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        Ok(self.client.change(Change::Connect { one, other })?)
    }

    /// Takes the connection of a port apart, if it has one.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn disconnect(&self, port: u32) -> Result<(), Error> {
        Ok(self.client.change(Change::Disconnect { port })?)
    }

    /// Says when the TX queues of a port may send; `None`: whenever they like. With a cycle it counts from its base on, or if that
    /// has passed from the next cycle on.
    ///
    /// # Errors
    /// [`Error::Client`]; the text says what is wrong.
    pub fn schedule(&self, port: u32, schedule: Option<Schedule>) -> Result<(), Error> {
        Ok(self.client.change(Change::Schedule { port, schedule })?)
    }

    /// Has a queue served by another worker of the card from now on, and with it what belongs to it: in loopback the queue
    /// of the other direction, otherwise the wire of the port that serves it and its other queues.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn move_queue(&self, queue: QueueId, worker: u32) -> Result<(), Error> {
        Ok(self.client.change(Change::Move { queue, worker })?)
    }

    /// The card's clock, to be read without a system call and, by who has the right `configure:clock`, steered.
    ///
    /// # Errors
    /// [`Error::Client`]; [`Error::Clock`] where it cannot be read, as in another time namespace.
    pub fn clock(&self) -> Result<Clock, Error> {
        Clock::new(self.client.clone())
    }

    /// The flow table: rules that say which frames go to which queues and ports.
    pub fn flows(&self) -> Flows {
        Flows::new(self.client.clone())
    }

    /// Waits until the card ends, or ends the connection, at most `timeout`; what it said then. For programs that have nothing to ask
    /// for meanwhile: they would not see it otherwise.
    pub fn wait_end(&self, timeout: Duration) -> Option<Error> {
        let socket = self.client.socket();
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let most = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let has_ended = poll(&mut fds, Some(&most)).is_ok_and(|count| count > 0);
        has_ended.then(|| self.client.why_gone().into())
    }

    /// Who is connected to the card, by number.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn clients(&self) -> Result<Vec<ClientInfo>, Error> {
        Ok(self.client.clients()?)
    }

    /// Ends a connection, as if its program had died: its queues stop, its memory is unmapped, its locks end. Takes the
    /// right `admin`; the program is told.
    ///
    /// # Errors
    /// [`Error::Client`], refused with [`ErrorCode::Denied`], or with [`ErrorCode::NotFound`] when there is none.
    pub fn end_client(&self, id: u64) -> Result<(), Error> {
        Ok(self.client.end_client(id)?)
    }

    /// Who holds which lock, by path of the component.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn locks(&self) -> Result<Vec<LockInfo>, Error> {
        Ok(self.client.locks()?)
    }

    /// Ends locks of programs; those of queues that run stay with the queues. Takes the right `admin`.
    ///
    /// # Errors
    /// As [`Device::end_client`].
    pub fn end_locks(&self, whose: Locked) -> Result<(), Error> {
        Ok(self.client.end_locks(whose)?)
    }

    /// What users have of what is limited, and what they may have.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn usage(&self) -> Result<Vec<UserUse>, Error> {
        Ok(self.client.usage()?)
    }

    /// Lets the card reach `region`, for queues with buffers of the program's own. `at` chooses the address.
    ///
    /// # Errors
    /// [`Error::Client`] when the address is taken or the memory cannot be shared.
    pub fn map(&self, region: &Region, writable: bool, at: Option<Iova>) -> Result<Mapping, Error> {
        let iova = self.client.map(region, writable, at.map(Iova::get))?;
        Ok(Mapping::new(self.client.clone(), Iova::new(iova)))
    }

    /// Makes a pool of `count` buffers of `size` bytes each, for DD queues that this `Device` opens. Memory is used up
    /// when it is first touched, if it is not in huge pages, which a pool of 2 MiB or more takes when there are any.
    ///
    /// # Errors
    /// [`Error::Unfit`] for a pool without buffers, or with buffers of no or more than 65535 bytes; [`Error::Client`].
    pub fn pool(&self, count: u32, size: usize) -> Result<Pool, Error> {
        const HUGE_PAGE: usize = 2 << 20;
        let size = u16::try_from(size).ok().filter(|&size| size > 0 && count > 0).ok_or_else(|| {
            let text = "a pool needs one buffer at least, and buffers of 1 to 65535 bytes";
            Error::Unfit(format!("{text}, not {count} of {size}"))
        })?;
        let len = count as usize * stride_of(size);
        let pages = if len < HUGE_PAGE { Pages::Ordinary } else { Pages::HugeIfAny };
        let region = Region::allocate(len, pages).map_err(millrace_driver::ClientError::from)?;
        let mapping = self.map(&region, true, None)?;
        Pool::new(self.client.clone(), region.window(), mapping, count, size)
            .map_err(|range| Error::Unfit(range.to_string()))
    }

    /// Begins to open RX queue `index`: direct and exclusive unless told otherwise.
    pub fn rx(&self, index: u32) -> RxOptions {
        let client = self.client.clone();
        let (mode, sharing) = (Mode::Direct, Sharing::Exclusive);
        RxOptions { client, queue: QueueId::rx(index), mode, sharing, joiners: None }
    }

    /// Begins to open TX queue `index`: direct and exclusive unless told otherwise.
    pub fn tx(&self, index: u32) -> TxOptions {
        let client = self.client.clone();
        let (mode, sharing, launch) = (Mode::Direct, Sharing::Exclusive, LaunchPolicy::default());
        TxOptions { client, queue: QueueId::tx(index), mode, sharing, launch }
    }
}

/// How to open an RX queue.
pub struct RxOptions {
    client: Arc<Client>,
    queue: QueueId,
    mode: Mode,
    sharing: Sharing,
    joiners: Option<Joiners>,
}

impl RxOptions {
    /// Who moves the pointers.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Alone, or as one of up to sixteen subscribers that all see every packet.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// What those may choose who join the queue when this is the first to share it. Without it all but `block`, which only
    /// programs of the same user may: a reader that blocks and does not read stops the queue for all.
    #[must_use]
    pub fn joiners(mut self, joiners: Joiners) -> Self {
        self.joiners = Some(joiners);
        self
    }

    /// Opens the queue. Packets come after [`IdleRx::start`].
    ///
    /// # Errors
    /// [`Error::Client`], refused with [`ErrorCode::Busy`] and the process id of the holder when somebody has it, and with
    /// [`ErrorCode::Denied`] when this program may not use it, or not share it like that.
    pub fn open(self) -> Result<IdleRx, Error> {
        let Self { client, queue, mode, sharing, joiners } = &self;
        let opened = client.open_for(*queue, *mode, *sharing, Buffers::Driver, *joiners)?;
        IdleRx::new(self.client, self.queue, self.mode, self.sharing, opened)
    }

    /// Opens the queue (Medusa, direct, exclusive) and starts it with a ring of `entries` descriptors for buffers that
    /// this program posts itself.
    ///
    /// # Errors
    /// [`Error::Client`]; [`Error::Unfit`] when the queue has another engine.
    pub fn open_supplied(self, entries: u32) -> Result<SuppliedRx, Error> {
        let opened = self.client.open(self.queue, self.mode, self.sharing, Buffers::Program { entries })?;
        SuppliedRx::start(self.client, self.queue, opened)
    }

    /// Opens the queue (DD, direct, exclusive) and starts it with a ring of `entries` descriptors over buffers of `pool`.
    ///
    /// # Errors
    /// [`Error::Client`]; [`Error::Unfit`] when the queue has another engine, or the pool another card.
    pub fn open_on(self, pool: &Pool, entries: u32) -> Result<PoolRx, Error> {
        let Self { client, queue, mode, sharing, .. } = self;
        let launch = LaunchPolicy::default();
        PoolRx::start(Wish { client, queue, mode, sharing, launch }, pool, entries)
    }
}

/// How to open a TX queue.
pub struct TxOptions {
    client: Arc<Client>,
    queue: QueueId,
    mode: Mode,
    sharing: Sharing,
    launch: LaunchPolicy,
}

impl TxOptions {
    /// Who moves the pointers.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Alone, or as one of up to sixteen writers: direct ones have a ring each, mediated ones take turns with one.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// What becomes of frames whose launch time cannot be kept; for queues over a pool ([`TxOptions::open_on`]).
    #[must_use]
    pub fn launch(mut self, launch: LaunchPolicy) -> Self {
        self.launch = launch;
        self
    }

    /// Opens the queue. Packets go after [`IdleTx::start`].
    ///
    /// # Errors
    /// As [`RxOptions::open`].
    pub fn open(self) -> Result<IdleTx, Error> {
        let opened = self.client.open(self.queue, self.mode, self.sharing, Buffers::Driver)?;
        IdleTx::new(self.client, self.queue, self.mode, opened)
    }

    /// Opens the queue (Medusa, direct, exclusive) and starts it with a ring of `entries` descriptors for buffers that
    /// this program posts itself.
    ///
    /// # Errors
    /// [`Error::Client`]; [`Error::Unfit`] when the queue has another engine.
    pub fn open_supplied(self, entries: u32) -> Result<SuppliedTx, Error> {
        let opened = self.client.open(self.queue, self.mode, self.sharing, Buffers::Program { entries })?;
        SuppliedTx::start(self.client, self.queue, opened)
    }

    /// Opens the queue (DD, direct, exclusive) and starts it with a ring of `entries` descriptors for buffers of `pool`.
    ///
    /// # Errors
    /// As [`RxOptions::open_on`].
    pub fn open_on(self, pool: &Pool, entries: u32) -> Result<PoolTx, Error> {
        let Self { client, queue, mode, sharing, launch } = self;
        PoolTx::start(Wish { client, queue, mode, sharing, launch }, pool, entries)
    }
}
