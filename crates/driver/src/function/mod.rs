//! The driver of a card that is a PCI function of this machine: in the process of the one program that has it, without a server (decision 117).
//!
//! A program in a virtual machine talks to it by the calls of a [`Client`](crate::Client), as it would talk to a card over a socket. Queues are direct
//! and exclusive, for nobody else has the function; what only the card itself knows has to be asked where the card runs.
//!
//! * here: requests. `queue`: memory, START and STOP of a queue. `statistics`: what its registers count.

mod queue;
mod statistics;

use crate::client::{ClientError, Kick, Opened};
use crate::locks::{Locks, Owner};
use millrace_abi::message::{Buffers, ErrorCode, Handle, MAX_REGISTER_BYTES, Reply, Request, VERSION};
use millrace_abi::pci::{self, PciAddress};
use millrace_abi::queue::{Direction, Mode, QueueId, Sharing};
use millrace_abi::tree::{QueueEntry, Tree, TreeError};
use millrace_dma::{Pages, Region};
use millrace_vfio::{Function, VfioError};
pub use queue::Bell;
use queue::Queue;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// This program, among those that hold locks: the only one.
const SELF: Owner = Owner::Client(0);
/// What frames of a card are like whose tree does not say.
const USUAL_FRAMES: (u16, u16) = (60, 1514);

/// A card by its PCI function.
pub(crate) struct ByFunction {
    function: Arc<Function>,
    entries: HashMap<QueueId, QueueEntry>,
    limits: (u16, u16),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: HashMap<Handle, Queue>,
    next: u32,
    locks: Locks,
}

/// What a request comes to.
type Answer = Result<(Reply, Vec<OwnedFd>), ClientError>;

impl From<VfioError> for ClientError {
    fn from(error: VfioError) -> Self {
        match error {
            VfioError::Region(error) => Self::Region(error),
            error => {
                let code = match error {
                    VfioError::Nothing(_) | VfioError::NoCard(..) => ErrorCode::NotFound,
                    VfioError::Busy(_) => ErrorCode::Busy,
                    VfioError::Denied { .. } => ErrorCode::Denied,
                    _ => ErrorCode::System,
                };
                Self::Refused { code, text: error.to_string() }
            }
        }
    }
}

impl From<TreeError> for ClientError {
    fn from(error: TreeError) -> Self {
        Self::from(VfioError::Tree(error.to_string()))
    }
}

/// A refusal.
pub(super) fn refused(code: ErrorCode, text: impl Into<String>) -> ClientError {
    ClientError::Refused { code, text: text.into() }
}

impl ByFunction {
    pub fn open(address: PciAddress) -> Result<Self, ClientError> {
        let function = Arc::new(Function::open(address)?);
        let tree = Tree::parse(function.tree())?;
        let mut entries = HashMap::new();
        for direction in [Direction::Rx, Direction::Tx] {
            entries.extend(tree.queues(direction)?.into_iter().map(|entry| (entry.queue, entry)));
        }
        let limits = limits(&tree);
        Ok(Self { entries, limits, state: Mutex::default(), function })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, direction: Direction) -> u32 {
        self.entries.keys().filter(|queue| queue.direction == direction).count() as u32
    }

    fn entry(&self, queue: QueueId) -> Result<&QueueEntry, ClientError> {
        let unknown = || refused(ErrorCode::NotFound, format!("the PCI function has no queue {queue}"));
        self.entries.get(&queue).ok_or_else(unknown)
    }

    /// Opens a queue.
    pub fn open_queue(
        &self,
        id: QueueId,
        mode: Mode,
        sharing: Sharing,
        buffers: Buffers,
    ) -> Result<Opened, ClientError> {
        if mode != Mode::Direct || sharing != Sharing::Exclusive {
            let text = "queues of a PCI function are direct and exclusive: no other program has the function";
            return Err(refused(ErrorCode::Invalid, text));
        }
        if buffers != Buffers::Driver {
            return Err(refused(
                ErrorCode::Invalid,
                "queues of a PCI function have buffers of their own, and no pools",
            ));
        }
        let entry = self.entry(id)?;
        let mut state = self.state();
        if state.queues.values().any(|queue| queue.id == id) {
            return Err(refused(ErrorCode::Busy, format!("this program has {id} open already")));
        }
        let queue = Queue::new(self.function.clone(), entry)?;
        let handle = Handle(state.next);
        state.next += 1;
        let (status, data, descriptors) = queue.memory();
        let opened = Opened {
            handle,
            engine: entry.engine,
            layout: queue.layout,
            control: queue.control.clone(),
            kick: Kick::Register(queue.bell()),
            status,
            data: Some(data),
            descriptors,
        };
        state.queues.insert(handle, queue);
        Ok(opened)
    }

    /// Carries a request out.
    pub fn ask(&self, request: &Request) -> Answer {
        let (frame_min, frame_max) = self.limits;
        let reply = match *request {
            Request::Hello { .. } => Reply::Hello {
                version: VERSION,
                pid: std::process::id(),
                rx_queues: self.count(Direction::Rx),
                tx_queues: self.count(Direction::Tx),
                frame_min,
                frame_max,
            },
            Request::DeviceTree => return self.tree(),
            Request::Read { address, len } => {
                let mut bytes = vec![0; (len as usize).min(MAX_REGISTER_BYTES)];
                self.function.read(address, &mut bytes)?;
                Reply::Bytes(bytes)
            }
            Request::Write { address, ref bytes } => {
                self.function.write(address, bytes)?;
                Reply::Done
            }
            Request::Lock { ref component, bits } => {
                let busy = |_| refused(ErrorCode::Busy, format!("{component} is locked by this program"));
                self.state().locks.lock(component, bits, SELF).map_err(busy)?;
                Reply::Done
            }
            Request::Unlock { ref component, bits } => {
                self.state().locks.unlock(component, bits, SELF);
                Reply::Done
            }
            Request::Start { handle } => {
                self.with(handle, Queue::start)?;
                Reply::Started { position: 0, base: 0 }
            }
            Request::Stop { handle, force, .. } => {
                self.with(handle, |queue| queue.stop(force))?;
                Reply::Done
            }
            Request::Close { handle } => {
                drop(self.state().queues.remove(&handle));
                Reply::Done
            }
            Request::Call { handle } => {
                let event = self.with(handle, |queue| Ok(self.function.signalled_by(pci::vector(queue.id))?))?;
                return Ok((Reply::Call, vec![event]));
            }
            // Nobody else has the function.
            Request::Use { .. } => Reply::Use(Vec::new()),
            Request::Clients { .. } => Reply::Clients(Vec::new()),
            Request::Stats => Reply::Stats(Box::new(self.statistics()?)),
            _ => return Err(not_here()),
        };
        Ok((reply, Vec::new()))
    }

    fn with<T>(
        &self,
        handle: Handle,
        work: impl FnOnce(&mut Queue) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut state = self.state();
        work(state.queues.get_mut(&handle).ok_or_else(|| refused(ErrorCode::NotFound, "this queue is not open"))?)
    }

    /// The device tree, in a file as a card sends it.
    fn tree(&self) -> Answer {
        let tree = self.function.tree();
        let region = Region::allocate(tree.len().max(1), Pages::Ordinary)?;
        let fd = region.fd().ok_or(ClientError::Unexpected)?;
        let fd = fd.as_fd().try_clone_to_owned().map_err(|error| ClientError::Wire(error.to_string()))?;
        if let Some(all) = region.window().span_mut(0, tree.len()) {
            all.write_from(tree);
        }
        Ok((Reply::DeviceTree { len: tree.len() as u64 }, vec![fd]))
    }
}

/// What only a card can do that knows its programs.
fn not_here() -> ClientError {
    let text = "a PCI function has its queues and registers, and nothing else; ask the card where it runs, on the machine's host";
    refused(ErrorCode::Invalid, text)
}

/// The shortest and the longest frame, as the tree says.
fn limits(tree: &Tree<'_>) -> (u16, u16) {
    let of = |name: &str| {
        let said = tree.nodes().filter_map(|node| node.u32(name).ok());
        said.map(|len| len.min(u16::MAX.into()) as u16).collect::<Vec<_>>()
    };
    let (shortest, longest) = (of("frame_size_min"), of("frame_size_max"));
    (shortest.into_iter().max().unwrap_or(USUAL_FRAMES.0), longest.into_iter().min().unwrap_or(USUAL_FRAMES.1))
}
