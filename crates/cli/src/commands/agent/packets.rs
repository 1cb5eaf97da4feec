//! Packets from controllers: what actions make of them goes out of TX queues of the ports.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use millrace::{Device, Error, Laggard, Mode, Sharing, TxQueue};
use millrace_flow::execute::{Alone, Emissions, Frame, HEADROOM, Target, execute};
use millrace_flow::{Action, Ingress};

/// Longest packet of a controller: it came in a message of 64 KiB.
const LONGEST: usize = 64 << 10;
/// Most who get one.
const MOST: usize = 64;

/// How long a port without a TX queue to be had is not asked for one again: each attempt asks the card for all that it has.
const AGAIN: Duration = Duration::from_millis(500);

/// TX queues of ports, opened when the first packet goes there.
pub struct Sender {
    queues: HashMap<u32, TxQueue>,
    /// Ports that had none to be had, and when they are asked again.
    closed: HashMap<u32, Instant>,
    /// For changes of a packet, and for what is sent of it.
    buffer: Vec<u8>,
    out: Emissions,
    /// Packets that a port did not get.
    unsent: u64,
}

impl Default for Sender {
    fn default() -> Self {
        let (queues, closed) = (HashMap::new(), HashMap::new());
        let (buffer, out) = (vec![0; HEADROOM + LONGEST], Emissions::new(MOST, MOST * LONGEST / 8));
        Self { queues, closed, buffer, out, unsent: 0 }
    }
}

impl Sender {
    /// Does actions to a frame that came in at `port`, and sends what is for ports. How many got it: a port that does not keeps it from no other.
    ///
    /// # Errors
    /// Nobody got it, and that is why the first did not.
    pub fn send(
        &mut self,
        device: &Device,
        ports: u32,
        frame: &[u8],
        port: u32,
        actions: &[Action],
    ) -> Result<usize, Error> {
        let ingress = Ingress { port, ..Ingress::default() };
        let mut frame = Frame::new(frame, &mut self.buffer, ingress);
        self.out.clear();
        let lost = self.out.lost();
        // Packets of controllers meet no meters and groups; into tunnels the card sends them. An action that ends the way of the frame leaves what was
        // emitted before.
        let _ = execute(actions, &mut frame, &mut Alone::default(), &mut self.out);
        self.unsent += self.out.lost() - lost;
        let (mut sent, mut failed) = (0, None);
        for emission in self.out.list() {
            let Target::Port(to) = emission.target else { continue };
            let bytes = self.out.bytes(emission, &frame);
            let done = match emission.waits {
                true => device.flows().send_in_tunnel(to, bytes).map(|()| true),
                false => send_to(&mut self.queues, &mut self.closed, to, bytes, || open(device, ports, to)),
            };
            self.unsent += u64::from(!*done.as_ref().unwrap_or(&false));
            match done {
                Ok(_) => sent += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.filter(|_| sent == 0).map_or(Ok(sent), Err)
    }

    /// Packets that a port did not get, or that went to more ports than one packet may.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }
}

/// Whether a port had room for it.
fn send_to(
    queues: &mut HashMap<u32, TxQueue>,
    closed: &mut HashMap<u32, Instant>,
    port: u32,
    bytes: &[u8],
    open: impl FnOnce() -> Result<TxQueue, Error>,
) -> Result<bool, Error> {
    let queue = match queues.entry(port) {
        Entry::Occupied(queue) => queue.into_mut(),
        Entry::Vacant(place) => {
            let now = Instant::now();
            if closed.get(&port).is_some_and(|until| now < *until) {
                return Err(Error::Gone);
            }
            let queue = open().inspect_err(|_| {
                closed.insert(port, now + AGAIN);
            })?;
            closed.remove(&port);
            place.insert(queue)
        }
    };
    let done = put(queue, bytes);
    if done.is_err() {
        // Opened again with the next packet.
        queues.remove(&port);
    }
    done
}

/// Whether there was room for it.
fn put(queue: &mut TxQueue, bytes: &[u8]) -> Result<bool, Error> {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    // Without room it is lost, as on a wire.
    let Some(mut burst) = queue.get(&[len])? else { return Ok(false) };
    burst[0].copy_from_slice(bytes);
    burst.send()?;
    Ok(true)
}

/// The last TX queue of a port, shared with programs that share it, too; or the last that nobody has.
fn open(device: &Device, ports: u32, port: u32) -> Result<TxQueue, Error> {
    let count = u64::from(device.tx_queues());
    // Queue i is of port i * ports / count.
    let first = |port: u32| (u64::from(port) * count).div_ceil(u64::from(ports.max(1))) as u32;
    let mut failed = Error::Gone;
    for index in (first(port)..first(port + 1)).rev() {
        let shared = || device.tx(index).mode(Mode::Mediated).sharing(Sharing::Shared(Laggard::Block)).open();
        match shared().or_else(|_| device.tx(index).open()).and_then(|queue| queue.start()) {
            Ok(queue) => return Ok(queue),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [u8; 60] = [2; 60];

    fn device() -> Device {
        Device::open("embedded:tx=2,port=null,port=null").unwrap()
    }

    #[test]
    fn a_port_without_a_queue_keeps_a_packet_from_no_other() {
        let device = device();
        let held = device.tx(0).open().unwrap();
        let mut sender = Sender::default();
        let both = [Action::Output(0), Action::Output(1)];
        assert_eq!(sender.send(&device, 2, &FRAME, 5, &both).unwrap(), 1);
        assert_eq!(sender.unsent(), 1);
        assert!(sender.send(&device, 2, &FRAME, 5, &both[..1]).is_err());
        assert_eq!(sender.unsent(), 2);
        drop(held);
    }

    #[test]
    fn what_goes_to_more_ports_than_one_packet_may_is_counted() {
        let device = device();
        let mut sender = Sender::default();
        let actions = vec![Action::Output(1); MOST + 1];
        for packets in 1..3 {
            let sent = sender.send(&device, 2, &FRAME, 5, &actions).unwrap();
            assert!(sent <= MOST && sender.unsent() >= packets, "{sent}, {}", sender.unsent());
        }
    }
}
