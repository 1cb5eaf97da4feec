//! The host library: a program sends and receives packets through a Millrace card, with the kernel off the data path.
//!
//! Eight steps, as with libnfb: open the device, open a queue, start it, get a burst, put it back, stop, close the
//! queue, close the device. The types see to it that they come in this order: only a started queue has `get`, a burst
//! borrows its queue, and what was put back cannot be touched any more.
//!
//! ```
//! use millrace::Device;
//! # fn main() -> Result<(), millrace::Error> {
//! let device = Device::open("embedded:port=loopback")?;
//! let mut tx = device.tx(0).open()?.start()?;
//! let mut rx = device.rx(0).open()?.start()?;
//!
//! let mut burst = tx.get(&[64, 64])?.expect("room in a new ring");
//! burst[0].fill(1);
//! burst[1].fill(2);
//! burst.send()?;
//!
//! while rx.wait(std::time::Duration::from_secs(1))? {
//!     for packet in rx.get(32)?.iter() {
//!         println!("{} bytes, all {}", packet.data.len(), packet.data[0]);
//!     }
//! #   break;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The same calls serve all engines, both modes ([`Mode::Direct`], [`Mode::Mediated`]; DD has direct mode only) and
//! both placements (a card in this process, a card in the daemon `millrace card`).
//!
//! On DD queues there is a second way, without any copy: frames arrive in buffers of a [`Pool`] and leave from them. A
//! [`Buffer`] is owned like a `Box`; a program that forwards moves it from one queue to another, and no byte of it.
//!
//! ```
//! use millrace::Device;
//! # fn main() -> Result<(), millrace::Error> {
//! let device = Device::open("embedded:engine=dd")?;
//! let pool = device.pool(1024, 2048)?;
//! let mut rx = device.rx(0).open_on(&pool, 256)?;
//! let mut tx = device.tx(0).open_on(&pool, 256)?;
//!
//! let mut frame = pool.take().expect("a new pool has buffers");
//! frame.set_len(64);
//! frame.fill(7);
//! let mut frames = vec![frame];
//! tx.send(&mut frames)?;
//!
//! while rx.wait(std::time::Duration::from_secs(1))? {
//!     rx.receive(&mut frames, 64)?;
//!     assert!(frames.iter().all(|frame| frame.len() == 64 && frame[0] == 7));
//!     tx.send(&mut frames)?; // the same buffers go out again
//! #   break;
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod clock;
mod device;
mod error;
mod flows;
mod handle;
mod lock;
mod mapping;
mod pool;
mod pooled;
mod rx;
mod shared;
mod supplied;
mod tx;
mod verdict;

pub use clock::{Clock, Leader};
pub use device::{Device, RxOptions, TxOptions};
pub use error::{Error, FrameLimit};
pub use flows::{FlowListener, FlowWatch, Flows, Transaction};
pub use lock::ComponentLock;
pub use mapping::Mapping;
pub use millrace_abi::clock::{Report as ClockReport, Source as ClockSource, State as ClockState};
pub use millrace_abi::control::{FaultKind, QueueState};
pub use millrace_abi::launch::{FarPolicy, LatePolicy, LaunchPolicy, Reason};
pub use millrace_abi::message::{ErrorCode, Locked};
pub use millrace_abi::queue::{Direction, Engine, Joiners, Laggard, Mode, QueueId, Sharing};
pub use millrace_abi::{flow, schedule, stats, visible};
pub use millrace_clock::{PageError, Snapshot as ClockSnapshot, Ticks, Time, Timebase};
pub use millrace_dma::{Iova, Pages, Region};
pub use millrace_ring::dd::Outcome;
pub use millrace_ring::medusa::RxHeader;
pub use pool::{Buffer, Pool};
pub use pooled::{PoolRx, PoolTx};
pub use rx::{IdleRx, RxBurst, RxPacket, RxQueue};
pub use supplied::{SuppliedRx, SuppliedTx};
pub use tx::{Departure, Departures, IdleTx, TxBurst, TxQueue};
pub use verdict::Verdict;

/// Most packets that one burst hands out.
pub const MAX_BURST: usize = 1024;
