//! How endpoints of guests meet: the backend makes a queue pair on both sides and connects them. Nothing of that is left to the guests,
//! whose transfers go past it afterwards.

use crate::Address;
use crate::backend::Backend;
use crate::guest::Guest;
use crate::message::{Message, pair_words};
use millrace_rdma::number::{Moment, Psn, Qpn};
use millrace_rdma::served::{Number, ServeError, Service};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Format, Path, Service as Kind};
use millrace_rdma::work::Access;
use rustix::io::Errno;

/// Connections of one endpoint at a time, so that others cannot use up what it may have.
pub(crate) const MOST_PEERS: usize = 64;
/// Connections that may be made at once, and in each second after that: each is told to its other end, which has to read it.
const BURST: f64 = 128.0;
const EACH_SECOND: f64 = 64.0;

/// How often a guest may still connect with others, or somebody on a wire with it.
pub(crate) struct Allowance {
    left: f64,
    since: Moment,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left: BURST, since: Moment::new(0) }
    }
}

impl Allowance {
    /// Takes one, if there is one.
    pub fn take(&mut self, now: Moment) -> bool {
        let passed = now.nanoseconds().saturating_sub(self.since.nanoseconds()) as f64 / 1e9;
        (self.left, self.since) = ((self.left + passed * EACH_SECOND).min(BURST), now);
        let has_one = self.left >= 1.0;
        self.left -= if has_one { 1.0 } else { 0.0 };
        has_one
    }
}

/// Two endpoints that are connected, and the queue pair of each.
pub(crate) struct Link {
    pub ends: [(Address, Qpn); 2],
}

impl Link {
    /// The other end.
    fn other(&self, one: Address) -> Option<(Address, Qpn)> {
        let [first, second] = self.ends;
        [(first, second), (second, first)].into_iter().find(|(own, _)| own.0 == one).map(|(_, other)| other)
    }

    fn joins(&self, one: Address, other: Address) -> bool {
        self.other(one).is_some_and(|(address, _)| address == other)
    }
}

fn no(errno: Errno) -> i32 {
    errno.raw_os_error()
}

impl Backend {
    pub(crate) fn guest_of(&mut self, address: Address) -> Option<&mut Guest> {
        self.guests.iter_mut().find(|guest| guest.address == address)
    }

    /// Connects the endpoint of the guest with that address with another one.
    pub(crate) fn connect(&mut self, from: Address, to: Address) -> Result<Vec<u64>, i32> {
        if from == to {
            return Err(no(Errno::INVAL));
        }
        let one = self.end_of(from).ok_or(no(Errno::NOTCONN))?;
        let other = self.end_of(to).ok_or(no(Errno::NOENT))?;
        // Who is connected says first that this is over: otherwise one end could have the other read of new connections for ever.
        if self.links.iter().any(|link| link.joins(from, to)) {
            return Err(no(Errno::ALREADY));
        }
        let now = self.now();
        if self.guest_of(to).is_none_or(|guest| guest.is_deaf())
            || self.guest_of(from).is_none_or(|guest| !guest.connects.take(now))
        {
            return Err(no(Errno::AGAIN));
        }
        if self.peers_of(from) >= MOST_PEERS || self.peers_of(to) >= MOST_PEERS {
            return Err(no(Errno::USERS));
        }
        let refused = |error: ServeError| error.errno();
        let (qpn, granted) = self.service.create_pair(one.0, &one.1).map_err(refused)?;
        let made = self.service.create_pair(other.0, &other.1).map_err(refused);
        let (far, far_granted) = match made {
            Ok(made) => made,
            Err(errno) => {
                self.destroy(one.0, qpn);
                return Err(errno);
            }
        };
        self.psn = self.psn.wrapping_add(0x1001) & 0xff_ffff;
        let (path, psn) = (self.path(), Psn::new(self.psn));
        let connected = bring_up(&mut self.service, one.0, qpn, (far, psn, path))
            .and_then(|()| bring_up(&mut self.service, other.0, far, (qpn, psn, path)));
        if let Err(error) = connected {
            self.destroy(one.0, qpn);
            self.destroy(other.0, far);
            return Err(error.errno());
        }
        self.links.push(Link { ends: [(from, qpn), (to, far)] });
        self.tell(to, &Message::Connected(from, far, far_granted));
        Ok(pair_words(qpn, &granted).to_vec())
    }

    /// Connections of an endpoint, here and on the wire.
    pub(crate) fn peers_of(&self, address: Address) -> usize {
        self.links.iter().filter(|link| link.other(address).is_some()).count() + self.far.of(address)
    }

    /// The number of an open endpoint's program, and of which kind its queue pairs are.
    pub(crate) fn end_of(&mut self, address: Address) -> Option<(Number, Init)> {
        let guest = self.guest_of(address)?;
        let init = guest.open.filter(|init| init.service == Kind::ReliableConnection && !init.general)?;
        Some((guest.number?, init))
    }

    /// A guest that has no room even for the end of a connection reads nothing, and is over.
    pub(crate) fn tell(&mut self, address: Address, message: &Message) {
        if let Some(guest) = self.guest_of(address) {
            guest.is_over |= !guest.send(message);
        }
    }

    pub(crate) fn destroy(&mut self, program: Number, qpn: Qpn) {
        if let Ok(left) = self.service.destroy_pair(program, qpn) {
            self.closer.close(left);
        }
    }

    /// The connection between these two is over, if there is one: the one that did not say so is told, and its transfers end.
    pub(crate) fn disconnect(&mut self, from: Address, to: Address) {
        let Some(at) = self.links.iter().position(|link| link.joins(from, to)) else {
            return self.disconnect_outside(from, to);
        };
        let link = self.links.swap_remove(at);
        self.take_apart(&link, from);
    }

    fn take_apart(&mut self, link: &Link, from: Address) {
        for (address, qpn) in link.ends {
            let Some(number) = self.guest_of(address).and_then(|guest| guest.number) else { continue };
            if address == from {
                self.destroy(number, qpn);
            } else {
                // What was posted ends as flushed, and is told; the guest destroys the queue pair when it has read that.
                let _: Result<State, ServeError> =
                    self.service.modify_pair(number, qpn, &Attributes::state(State::Error));
                self.tell(address, &Message::Over(from));
            }
        }
    }

    /// All connections of an endpoint are over, because its program is.
    pub(crate) fn forget(&mut self, gone: Address, opening: u64) {
        self.forget_outside(gone, opening);
        while let Some(at) = self.links.iter().position(|link| link.other(gone).is_some()) {
            let link = self.links.swap_remove(at);
            self.take_apart(&link, gone);
        }
    }

    /// Tells the program of another endpoint something.
    pub(crate) fn pass(&mut self, from: Address, to: Address, bytes: Vec<u8>) -> Result<Vec<u64>, i32> {
        if self.is_outside(to) {
            self.tell_outside(from, to, &bytes);
            return Ok(Vec::new());
        }
        let guest = self.guest_of(to).filter(|guest| guest.open.is_some()).ok_or(no(Errno::NOENT))?;
        // What is told has no place that what the backend itself has to say would need.
        if guest.is_deaf() {
            return Err(no(Errno::AGAIN));
        }
        guest.send(&Message::Told(from, bytes));
        Ok(Vec::new())
    }

    fn path(&self) -> Path {
        Path {
            format: Format::RoceV2,
            source_mac: self.hosts.own.mac,
            destination_mac: self.hosts.own.mac,
            source: self.hosts.gid(),
            destination: self.hosts.gid(),
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            source_port: 0xc000,
        }
    }
}

/// Brings a queue pair up to its peer.
fn bring_up(service: &mut Service, of: Number, qpn: Qpn, (far, psn, path): (Qpn, Psn, Path)) -> Result<(), ServeError> {
    let begin = Attributes {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE_WRITE.with(Access::REMOTE_READ)),
        ..Attributes::state(State::Init)
    };
    let receive = Attributes {
        path: Some(path),
        path_mtu: Some(4096),
        remote: Some(far),
        receive_psn: Some(psn),
        max_dest_rd_atomic: Some(16),
        // 1.28 ms.
        min_rnr_timer: Some(14),
        ..Attributes::state(State::ReadyToReceive)
    };
    let send = Attributes {
        send_psn: Some(psn),
        // 67 ms.
        timeout: Some(14),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(16),
        ..Attributes::state(State::ReadyToSend)
    };
    for told in [&begin, &receive, &send] {
        service.modify_pair(of, qpn, told)?;
    }
    Ok(())
}

/// Of queue pairs that an endpoint of that depth has.
pub(crate) fn capabilities(depth: u32) -> Capabilities {
    Capabilities { send_requests: depth, receive_requests: depth, send_pieces: 1, receive_pieces: 1, inline: 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_made_at_a_rate() {
        let mut allowance = Allowance::default();
        let at = |seconds: u64| Moment::new(seconds * 1_000_000_000);
        let mut taken = |now| (0..1000).filter(|_| allowance.take(now)).count();
        assert_eq!([taken(at(5)), taken(at(6)), taken(at(6)), taken(at(100))], [128, 64, 0, 128]);
    }
}
