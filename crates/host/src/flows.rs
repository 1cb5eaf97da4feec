//! Rules of the card: which frames go to which queues and ports.

use crate::error::Error;
use millrace_abi::flow::{
    FlowChange, FlowCommitted, FlowEntry, FlowEvents, FlowExplained, FlowHeard, FlowInfo, FlowKeys, FlowNeighbour,
    FlowOptions, FlowTap,
};
use millrace_driver::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The flow table of a card: rules, RSS groups and meters, in the language of docs/classifier.md.
///
/// ```
/// use millrace::Device;
/// # fn main() -> Result<(), millrace::Error> {
/// let device = Device::open("embedded:queues=4")?;
/// let done = device
///     .flows()
///     .transaction()
///     .add("group=1,rss,queues=0-2")
///     .add("priority=100,udp,udp_dst=4789,actions=queue:3")
///     .add("priority=10,ip,actions=rss:1")
///     .commit()?;
/// assert_eq!((done.version, done.added), (1, 2));
/// assert_eq!(device.flows().list("udp")?.len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// What a transaction sets up belongs to this device: it goes when the device is closed or the program ends, in whatever way. With
/// [`Transaction::keep`] the card keeps it.
#[derive(Clone)]
pub struct Flows {
    client: Arc<Client>,
}

impl Flows {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { client }
    }

    /// A transaction, to which changes are added. Takes the right `configure:rules`.
    pub fn transaction(&self) -> Transaction {
        Transaction { client: self.client.clone(), options: FlowOptions::default(), changes: Vec::new() }
    }

    /// Adds one rule, group or meter.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn add(&self, line: &str) -> Result<FlowCommitted, Error> {
        self.transaction().add(line).commit()
    }

    /// Removes the rules of this device that a filter means; empty is all.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn delete(&self, filter: &str) -> Result<FlowCommitted, Error> {
        self.transaction().delete(filter).commit()
    }

    /// The rules that a filter means, whosever they are, with what they have had: table after table, the one that wins first. If the
    /// filter is empty, miss, groups and meters come before them.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn list(&self, filter: &str) -> Result<Vec<FlowEntry>, Error> {
        Ok(self.list_at(filter, None)?.1)
    }

    /// The same as of a version, and which version it is; `None` is the newest. The last 4,096 versions can be had.
    ///
    /// # Errors
    /// [`Error::Client`], refused with [`ErrorCode::NotFound`](crate::ErrorCode::NotFound) where the version is not kept.
    pub fn list_at(&self, filter: &str, version: Option<u64>) -> Result<(u64, Vec<FlowEntry>), Error> {
        let mut all = (0, Vec::new());
        self.client.list_flows(filter, version, |version, entries| {
            all.0 = version;
            all.1.extend(entries);
        })?;
        Ok(all)
    }

    /// How much there is, and how much of it is one's own.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn info(&self) -> Result<FlowInfo, Error> {
        Ok(self.client.flow_info()?)
    }

    /// Watches what happens from now on. Of one device, the last watch alone is woken.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn watch(&self) -> Result<FlowWatch, Error> {
        self.watch_these(false)
    }

    /// The same, but of rules that go only, in whatever way: for a program that makes many changes itself.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn watch_removed(&self) -> Result<FlowWatch, Error> {
        self.watch_these(true)
    }

    fn watch_these(&self, removed: bool) -> Result<FlowWatch, Error> {
        let (fd, last) = self.client.watch_flows(removed)?;
        Ok(FlowWatch { client: self.client.clone(), fd, next: last })
    }

    /// Listens to frames on which rules decide, from now on. Takes the right `capture`. Of one device, the last tap alone hears
    /// something.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn tap(&self, wanted: FlowTap) -> Result<FlowListener, Error> {
        self.client.tap_flows(wanted)?;
        Ok(FlowListener { client: self.client.clone() })
    }

    /// What becomes of a frame that comes in at `port`, and why, under a version; `None` is the newest. Of each table, `better` rules
    /// (at most 100) are named that would have won and did not match.
    ///
    /// # Errors
    /// [`Error::Client`], as [`Flows::list_at`].
    pub fn explain(&self, frame: &[u8], port: u32, version: Option<u64>, better: u32) -> Result<FlowExplained, Error> {
        Ok(self.client.explain_flow(version, port, frame, better)?)
    }

    /// Neighbours of tunnels, in the order of their addresses: found by ARP and ND, or said by somebody.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn neighbours(&self) -> Result<Vec<FlowNeighbour>, Error> {
        Ok(self.client.neighbours()?)
    }

    /// Says that frames for an outer address go to this MAC address, at this port of the card, until somebody says otherwise. Takes
    /// the right `configure:rules`, as [`Flows::delete_neighbour`] does.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn add_neighbour(&self, address: IpAddr, mac: [u8; 6], port: u32) -> Result<(), Error> {
        Ok(self.client.set_neighbour(address, Some((mac, port)))?)
    }

    /// Forgets a neighbour; one that frames go to is asked for again.
    ///
    /// # Errors
    /// [`Error::Client`], refused with [`ErrorCode::NotFound`](crate::ErrorCode::NotFound) where there is none of that address.
    pub fn delete_neighbour(&self, address: IpAddr) -> Result<(), Error> {
        Ok(self.client.set_neighbour(address, None)?)
    }

    /// Sends a frame within a VXLAN tunnel out of a port, once the card knows the neighbour of its outer address. The MAC addresses of its outer
    /// headers are zeros, which the card fills in; its outer source address is that of a tunnel of some rule, or it is dropped and counted
    /// (`neighbour`), as is one for which nobody answers. Takes the right `configure:rules`.
    ///
    /// # Errors
    /// [`Error::Client`]: there is no such port, or the frame is longer than 64,000 bytes.
    pub fn send_in_tunnel(&self, port: u32, frame: &[u8]) -> Result<(), Error> {
        Ok(self.client.send_in_tunnel(port, frame)?)
    }

    /// Hands over keys of QUIC connections, so that a group with `keys` can steer by their streams: lines of `SSLKEYLOGFILE`, of which
    /// the secrets behind the handshake are taken and others passed over. Takes the right `configure:rules`, and a group of the
    /// same user, or root or the card's user. Each connection with keys counts as a rule in the quota. The card forgets them with
    /// their connection, with the group, and when this device is closed or the program ends; nobody can read them from it.
    ///
    /// # Errors
    /// [`Error::Client`]; a secret that is not taken is none, but counted in what is returned.
    pub fn hand_over_keys(&self, group: u32, log: &str) -> Result<FlowKeys, Error> {
        Ok(self.client.hand_over_keys(group, log)?)
    }
}

/// A transaction: all of it is done, or nothing. Nothing is done before [`Transaction::commit`].
#[must_use]
pub struct Transaction {
    client: Arc<Client>,
    options: FlowOptions,
    changes: Vec<FlowChange>,
}

impl Transaction {
    /// The card keeps what is set up when this device is closed. Filters and [`Transaction::replace`] are about what it keeps for this
    /// user then.
    pub fn keep(mut self) -> Self {
        self.options.keep = true;
        self
    }

    /// The answer has numbers only: [`FlowCommitted::changed`](crate::flow::FlowCommitted::changed) is empty. For many transactions a second.
    pub fn brief(mut self) -> Self {
        self.options.brief = true;
        self
    }

    /// What belongs to others is meant as well. Takes the right `admin`.
    pub fn everyone(mut self) -> Self {
        self.options.everyone = true;
        self
    }

    /// What is added is to be all that there is: what else would be meant goes, and rules that are there in the same words stay, with
    /// their counters.
    pub fn replace(mut self) -> Self {
        self.options.replace = true;
        self
    }

    /// Adds a rule, a group, a meter or miss, as a line of text or JSON.
    #[expect(clippy::should_implement_trait, reason = "the word of the command, and of ovs-ofctl")]
    pub fn add(mut self, line: &str) -> Self {
        self.changes.push(FlowChange::Add(line.to_owned()));
        self
    }

    /// Removes the rules that a filter means.
    pub fn delete(mut self, filter: &str) -> Self {
        self.changes.push(FlowChange::Delete(filter.to_owned()));
        self
    }

    /// Gives the rules that a filter means other actions: `FILTER,actions=...`. Their counters go on.
    pub fn modify(mut self, line: &str) -> Self {
        self.changes.push(FlowChange::Modify(line.to_owned()));
        self
    }

    /// Adds changes.
    pub fn changes(mut self, changes: impl IntoIterator<Item = FlowChange>) -> Self {
        self.changes.extend(changes);
        self
    }

    /// Does it. Frames that come in after this returns meet the new version.
    ///
    /// # Errors
    /// [`Error::Client`]; the text names the change that cannot be, from 1 on. Nothing was done then.
    pub fn commit(self) -> Result<FlowCommitted, Error> {
        Ok(self.client.change_flows(self.options, self.changes, false)?)
    }

    /// What [`Transaction::commit`] would do at this moment. Nothing is done.
    ///
    /// # Errors
    /// As there.
    pub fn try_out(self) -> Result<FlowCommitted, Error> {
        Ok(self.client.change_flows(self.options, self.changes, true)?)
    }
}

/// Frames on which rules decide, until it is dropped.
pub struct FlowListener {
    client: Arc<Client>,
}

/// How often is asked whether something was heard.
const LISTEN_INTERVAL: Duration = Duration::from_millis(10);

impl FlowListener {
    /// What was heard since the last call; waits at most `timeout` for something. What this program was too slow for, and what was beyond the
    /// rate, is told as a sum since the beginning.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn next(&mut self, timeout: Duration) -> Result<FlowHeard, Error> {
        let begin = Instant::now();
        loop {
            let heard = self.client.heard_flows()?;
            let left = timeout.saturating_sub(begin.elapsed());
            if !heard.frames.is_empty() || left.is_zero() {
                return Ok(heard);
            }
            // Workers make no system call to say that they have something.
            std::thread::sleep(LISTEN_INTERVAL.min(left));
        }
    }
}

impl Drop for FlowListener {
    fn drop(&mut self) {
        // If the card is gone, so is the tap.
        let _ = self.client.untap_flows();
    }
}

/// What happens to the flow table of a card.
pub struct FlowWatch {
    client: Arc<Client>,
    fd: OwnedFd,
    next: u64,
}

impl AsFd for FlowWatch {
    /// Can be read when there is something to be had.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl FlowWatch {
    /// What has happened since the last call, and how much of it is lost because this program was too slow. Waits at most `timeout`
    /// for something.
    ///
    /// # Errors
    /// [`Error::Client`], [`Error::Gone`], [`Error::Wait`].
    pub fn next(&mut self, timeout: Duration) -> Result<FlowEvents, Error> {
        let begin = Instant::now();
        loop {
            // Before the look: what comes after it is told again.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            let events = self.client.flow_events(self.next)?;
            self.next = events.next;
            let left = timeout.saturating_sub(begin.elapsed());
            if !events.events.is_empty() || events.lost > 0 || left.is_zero() {
                return Ok(events);
            }
            let socket = self.client.socket();
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(&socket, PollFlags::RDHUP)];
            let most = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut fds, Some(&most)) {
                // Whoever is asked to end looks at it now.
                Err(rustix::io::Errno::INTR) => return Ok(events),
                Err(error) => return Err(Error::Wait(error.into())),
                Ok(_) if !fds[1].revents().is_empty() => return Err(self.client.why_gone().into()),
                Ok(_) => {}
            }
        }
    }
}
