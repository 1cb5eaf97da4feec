//! Packets from controllers: what actions make of them goes out of TX queues of the ports.

use std::collections::HashMap;

use millrace::{Device, Error, Laggard, Mode, Sharing, TxQueue};
use millrace_flow::execute::{Alone, Emissions, Frame, HEADROOM, Target, execute};
use millrace_flow::{Action, Ingress};

/// Longest packet of a controller: it came in a message of 64 KiB.
const LONGEST: usize = 64 << 10;
/// Most who get one.
const MOST: usize = 64;

/// TX queues of ports, opened when the first packet goes there.
#[derive(Default)]
pub struct Sender {
    queues: HashMap<u32, TxQueue>,
    /// Packets for which a port had no room.
    unsent: u64,
}

impl Sender {
    /// Does actions to a frame that came in at `port`, and sends what is for ports. How many got it.
    pub fn send(
        &mut self,
        device: &Device,
        ports: u32,
        frame: &[u8],
        port: u32,
        actions: &[Action],
    ) -> Result<usize, Error> {
        let mut buffer = vec![0; HEADROOM + LONGEST];
        let ingress = Ingress { port, ..Ingress::default() };
        let mut frame = Frame::new(frame, &mut buffer, ingress);
        let mut out = Emissions::new(MOST, MOST * LONGEST / 8);
        // Packets of controllers meet no meters and groups; into tunnels the card sends them. An action that ends the way of the frame leaves what was
        // emitted before.
        let _ = execute(actions, &mut frame, &mut Alone::default(), &mut out);
        let mut sent = 0;
        for emission in out.list() {
            if let Target::Port(to) = emission.target {
                let bytes = out.bytes(emission, &frame);
                match emission.waits {
                    true => device.flows().send_in_tunnel(to, bytes)?,
                    false => self.send_to(device, ports, to, bytes)?,
                }
                sent += 1;
            }
        }
        Ok(sent)
    }

    /// Packets for which a port had no room.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    fn send_to(&mut self, device: &Device, ports: u32, port: u32, bytes: &[u8]) -> Result<(), Error> {
        let queue = match self.queues.entry(port) {
            std::collections::hash_map::Entry::Occupied(queue) => queue.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(open(device, ports, port)?),
        };
        let done = put(queue, bytes);
        if done.is_err() {
            // Opened again with the next packet.
            self.queues.remove(&port);
        }
        self.unsent += u64::from(!*done.as_ref().unwrap_or(&false));
        done.map(|_| ())
    }
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
