//! The thread that looks for a vhost-user back end, and brings its queues up whenever there is one.

use super::device::{Device, DeviceError, Wishes, address_of, own_queue};
use super::loans::{Loan, Loans};
use super::memory::{Buffers, Shared};
use super::pair::{Pair, Rx};
use crate::peer::{Connector, ControlThread, SocketError, plural};
use crate::spec::VirtioUserSpec;
use millrace_ring::virtio::driver::{Agreed, LentPlace, LentRxQueue, Place, Size};
use millrace_ring::virtio::{RingsError, feature};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a connection ends: the other side has gone, or the pools that it knows of have changed.
const GONE: usize = 0;
const CHANGED: usize = 1;

/// Descriptors of a queue: what QEMU has by default.
pub(super) const SIZE: Size = Size::new(256).unwrap();

/// Opens the socket, or begins to look for it. Both the socket and its thread end with the last port of the wire.
pub(super) fn start(
    spec: &VirtioUserSpec,
    pairs: Arc<[Arc<Pair>]>,
    loans: Arc<Loans>,
) -> Result<ControlThread, SocketError> {
    let path = PathBuf::from(&spec.path);
    let talk = Talk { role: spec.role(), pairs, loans, path: path.clone(), warned: false };
    talk.show("", "no peer");
    ControlThread::start(&path, !spec.server, move |connector| talk.run(&connector))
}

/// What the thread has.
struct Talk {
    pairs: Arc<[Arc<Pair>]>,
    loans: Arc<Loans>,
    role: &'static str,
    path: PathBuf,
    /// A back end has been complained about; the next is only mentioned at debug level, until one is right.
    warned: bool,
}

impl Talk {
    fn run(mut self, connector: &Connector) {
        while let Some(stream) = connector.next() {
            let stay = connector.begin(&stream);
            if stay && let Err(error) = self.serve(connector, stream) {
                self.explain(&error);
                self.show("", &format!("refused: {error}"));
            }
            self.loans.disconnected();
            connector.end();
        }
    }

    /// Has the queues of one back end served until it goes.
    fn serve(&mut self, connector: &Connector, stream: UnixStream) -> Result<(), DeviceError> {
        let ours = stream.try_clone().map_err(DeviceError::Connect)?;
        self.show("", "peer connected");
        let loans = self.loans.connect();
        let mut device = self.bring_up(stream, &loans)?;
        let plugged = self.plug(&mut device);
        if plugged.is_ok() {
            self.loans.queues_run();
        }
        // Nothing is to be said in this direction: what can be read is the end, or as good as that.
        let ended = plugged.is_ok().then(|| connector.wait_for([&ours, self.loans.changed()])).flatten();
        if ended != Some(CHANGED) {
            // Nobody waits for answers any more.
            let _ = ours.shutdown(Shutdown::Both);
        }
        let unplugged: Vec<_> = self.pairs.iter().map(|pair| pair.unplug()).collect();
        // Here the other side is asked to stop, if it still listens. The next connection is a new one.
        drop(device);
        self.pairs.iter().zip(unplugged).for_each(|(pair, queues)| pair.settle(queues));
        let _ = ours.shutdown(Shutdown::Both);
        if ended == Some(GONE) {
            tracing::debug!("virtio-user:{}: the peer has gone", self.path.display());
        }
        self.show("", "no peer");
        plugged
    }

    /// Brings up the queues of the other side, each over the memory that it shall work on.
    fn bring_up(&self, stream: UnixStream, loans: &[Option<Arc<Loan>>]) -> Result<Device<Rx>, DeviceError> {
        let pools: Vec<&Shared> = loans.iter().flatten().map(|loan| &*loan.memory).collect();
        let wishes = Wishes {
            pairs: self.pairs.len() as u16,
            size: SIZE,
            // A frame in several buffers, or one on which something is left to do, would have to be copied.
            mergeable: pools.is_empty(),
            event_index: true,
            in_order: false,
            offloads: true,
        };
        let receive = |pair: usize, place: &Place, size, agreed| match &loans[pair] {
            None => own_queue(place, size, agreed).map(Rx::Own),
            Some(loan) => {
                let number = loans[..pair].iter().flatten().count();
                lent_queue(place, loan, address_of(number), size, agreed)
            }
        };
        Device::start_with(stream, wishes, Buffers::allocate, &pools, receive)
    }

    fn plug(&mut self, device: &mut Device<Rx>) -> Result<(), DeviceError> {
        let features = device.features();
        let has = |bits, name| if features & bits != 0 { name } else { "" };
        let words = [
            has(feature::MRG_RXBUF, ", mergeable"),
            has(feature::RING_EVENT_IDX, ", event index"),
            has(feature::CSUM | feature::GUEST_CSUM, ", offloads"),
        ];
        let few = device.pairs.len() < self.pairs.len();
        self.show(&words.concat(), "back end ready");
        for (number, pair) in self.pairs.iter().enumerate().skip(device.pairs.len()) {
            pair.counters.set_mode(format!("{}, not used by the back end", self.mode("")));
            if few && number == device.pairs.len() {
                tracing::warn!("virtio-user:{}: the back end has only {number} of them", self.mode(""));
            }
        }
        let memory = (device.buffers.clone(), device.rings.clone());
        for (pair, queues) in self.pairs.iter().zip(device.pairs.drain(..)) {
            if matches!(queues.rx, Rx::Lent(..)) {
                pair.counters.set_mode(format!("{}, in memory of the application", pair.counters.mode()));
            }
            pair.plug(queues, memory.clone(), features).map_err(|errno| DeviceError::Event(errno.into()))?;
        }
        self.warned = false;
        Ok(())
    }

    fn mode(&self, features: &str) -> String {
        format!("virtio-user {}, {}{features}", self.role, plural(self.pairs.len()))
    }

    /// Says in the counters of every pair how it stands.
    fn show(&self, features: &str, state: &str) {
        for pair in self.pairs.iter() {
            pair.counters.set_mode(format!("{}, {state}", self.mode(features)));
        }
    }

    fn explain(&mut self, error: &DeviceError) {
        let path = self.path.display();
        if self.warned {
            tracing::debug!("virtio-user:{path}: connection closed: {error}");
        } else {
            self.warned = true;
            tracing::warn!("virtio-user:{path}: connection closed: {error}; further errors at debug level");
        }
    }
}

fn lent_queue(place: &Place, loan: &Arc<Loan>, at: u64, size: Size, agreed: Agreed) -> Result<Rx, RingsError> {
    let (ring, memory) = (place.ring.clone(), loan.memory.window().clone());
    let place = LentPlace { ring, memory, memory_at: at, buffer: loan.buffer };
    let mut queue = LentRxQueue::new(&place, size, agreed)?;
    queue.want_signal(false);
    Ok(Rx::Lent(queue, loan.clone()))
}
