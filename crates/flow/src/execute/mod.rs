//! What actions do to a frame, and who gets it.
//!
//! ```text
//! actions of a verdict --+
//! frame, with headroom --+--> execute --> the frame, edited where it lies
//! groups, meters, ...  --+           +--> emissions in order: target, and which bytes
//! ```
//!
//! - [`Frame`]: the bytes, where its headers are, and what is done to them. `fields`, `tags`, `pppoe` and `vxlan` have the
//!   actions; `delta` and `sctp` keep checksums right without adding up the payload.
//! - [`Emissions`]: who gets the frame. It is copied only when it changes after somebody was to get it.
//! - [`Environment`]: what comes from outside: meters, RSS groups, random numbers, neighbours.
//!
//! Nothing allocates, and no action takes longer than the frame is long. A frame is parsed when an action asks for its
//! headers, and again only when other headers came first since.
//!
//! The fields that an action finds are those that [`Key::extract`](crate::Key::extract) finds. An action on a field that the
//! frame does not have, such as a port of a later fragment, does nothing.

mod delta;
mod emission;
mod environment;
mod fields;
mod frame;
mod pppoe;
mod sctp;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod vxlan;

pub use emission::{Bytes, Emission, Emissions, Target};
pub use environment::{Alone, Environment};
pub use frame::{Frame, HEADROOM};

use crate::action::{Action, Reason, VxlanPort};
use crate::field::Field;
use crate::quic::Path;
use crate::vni_map::{Receiver, VniMap};

/// Why the actions behind the one at fault were not done. What was emitted before stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stop {
    /// A meter did not admit the frame; it is dropped.
    #[error("meter {0} does not admit the frame")]
    Meter(u32),
    /// The time to live is at its end; the host got the frame, with [`Reason::Ttl`].
    #[error("the time to live is at its end")]
    Ttl,
    /// Nobody knows the MAC address of a tunnel's other end; the host got the frame, with [`Reason::Neighbour`].
    #[error("the neighbour of the outer address is not known")]
    Neighbour,
    /// With another header the frame is longer than its lengths can say; the host got it, with [`Reason::Mtu`].
    #[error("the frame is too long for another header")]
    Mtu,
    /// There is not enough headroom for another header; the frame is dropped.
    #[error("there is no headroom for another header")]
    Headroom,
    /// It is no VXLAN packet, or a damaged one; the frame is dropped.
    #[error("decap_vxlan met no valid VXLAN packet")]
    NotVxlan,
    /// The way through the tunnel was congested, and the packet knows of no marks for that; it is dropped (RFC 6040).
    #[error("decap_vxlan met a mark of congestion that the inner packet cannot have")]
    Congested,
    /// A map has said who gets the frame; what is behind it is not done. Nothing is wrong.
    #[error("vni_map has said who gets the frame")]
    Mapped,
    /// The PPPoE packet has something else in it than IP, for which there is no EtherType; the frame is dropped.
    #[error("pop_pppoe met no IP packet")]
    NotIp,
}

impl Stop {
    /// The reason with which the host gets the frame; without one, nobody gets it.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Self::Ttl => Some(Reason::Ttl),
            Self::Neighbour => Some(Reason::Neighbour),
            Self::Mtu => Some(Reason::Mtu),
            _ => None,
        }
    }
}

/// Does actions to a frame, one after the other, and adds to `out` who gets it.
///
/// With a verdict that has an [`again`](crate::table::Verdict::again), the next lookup is with [`Frame::key`].
///
/// # Errors
/// An action that ends the way of the frame: nothing behind it is done, and no other table is to be looked into.
pub fn execute<E: Environment + ?Sized>(
    actions: &[Action],
    frame: &mut Frame<'_>,
    environment: &mut E,
    out: &mut Emissions,
) -> Result<(), Stop> {
    let done = actions.iter().try_for_each(|action| one(action, frame, environment, out));
    if let Err(stop) = done
        && let Some(reason) = stop.reason()
    {
        out.add(Target::Punt(reason));
    }
    done
}

fn one<E: Environment + ?Sized>(
    action: &Action,
    frame: &mut Frame<'_>,
    environment: &mut E,
    out: &mut Emissions,
) -> Result<(), Stop> {
    if changes_bytes(action) {
        out.keep(frame);
    }
    match action {
        Action::Queue(queue) => out.add(Target::Queue { queue: *queue, hash: None }),
        Action::Rss(group) => spread(*group, frame, environment, out),
        Action::Balance(group) => balance(*group, frame, environment, out),
        Action::Quic(group) => steer(*group, frame, environment, out),
        // To send a frame back takes `in_port`, so that rules cannot make a loop by accident (OpenFlow 1.3, section A.2.1).
        Action::Output(port) if *port == frame.ingress().in_port() => out.count_reflected(),
        Action::Output(port) => out.add(Target::Port(*port)),
        Action::InPort => out.add(Target::Port(frame.ingress().in_port())),
        Action::VxlanPort(port) if port.number == frame.ingress().in_port() => out.count_reflected(),
        Action::VxlanPort(port) => send_in_tunnel(port, frame, environment, out)?,
        Action::VniMap(map) => map_vni(map, frame, out)?,
        Action::Mirror(port) => out.add(Target::Mirror(*port)),
        Action::Sample { probability, port } => {
            // The probability is in 65,535ths: the random number is brought below that.
            if (u64::from(environment.random()) * 0xffff) >> 32 < u64::from(*probability) {
                out.add(Target::Sample(*port));
            }
        }
        Action::Punt(reason) => out.add(Target::Punt(*reason)),
        Action::Meter(meter) if !environment.admit(*meter, frame.len()) => {
            let steps = environment.remark(*meter).ok_or(Stop::Meter(*meter))?;
            out.keep(frame);
            frame.remark(steps)?;
        }
        Action::Meter(_) => {}
        Action::EncapVxlan(_) => {
            change_one(action, frame, environment)?;
            if environment.is_waiting() {
                out.begin_waiting();
            }
        }
        other => change_one(other, frame, environment)?,
    }
    Ok(())
}

/// Does actions to a frame none of which [`emits`] it. For a frame that one party gets at most, this is quicker than [`execute`].
///
/// # Errors
/// As with [`execute`]; if the [reason](Stop::reason) says that the host gets the frame, the caller gives it.
#[inline]
pub fn change<E: Environment + ?Sized>(
    actions: &[Action],
    frame: &mut Frame<'_>,
    environment: &mut E,
) -> Result<(), Stop> {
    actions.iter().try_for_each(|action| change_one(action, frame, environment))
}

/// Whether an action may give the frame to somebody.
pub fn emits(action: &Action) -> bool {
    use Action::{Balance, InPort, Mirror, Output, Punt, Queue, Quic, Rss, Sample, VniMap, VxlanPort};
    matches!(
        action,
        Queue(_)
            | Rss(_)
            | Balance(_)
            | Quic(_)
            | Output(_)
            | InPort
            | Mirror(_)
            | Sample { .. }
            | Punt(_)
            | VniMap(_)
            | VxlanPort(_)
    )
}

#[inline]
fn change_one<E: Environment + ?Sized>(
    action: &Action,
    frame: &mut Frame<'_>,
    environment: &mut E,
) -> Result<(), Stop> {
    match action {
        Action::SetField { field, value, mask } => frame.set(*field, *value, *mask)?,
        Action::PushVlan(tpid) => frame.push_vlan(*tpid)?,
        Action::PopVlan => frame.pop_vlan()?,
        Action::PushPppoe(session) => frame.push_pppoe(*session)?,
        Action::PopPppoe => frame.pop_pppoe()?,
        Action::DecTtl => frame.dec_ttl()?,
        Action::EncapVxlan(outer) => frame.encap_vxlan(outer, environment)?,
        Action::DecapVxlan { port } => frame.decap_vxlan(*port)?,
        Action::Meter(meter) if !environment.admit(*meter, frame.len()) => {
            frame.remark(environment.remark(*meter).ok_or(Stop::Meter(*meter))?)?;
        }
        // The rest changes nothing, or emits.
        _ => {}
    }
    Ok(())
}

/// Whether bytes of the frame may be others afterwards.
fn changes_bytes(action: &Action) -> bool {
    match action {
        Action::SetField { field, .. } => {
            !matches!(field, Field::TunId | Field::Metadata | Field::Reg0 | Field::Reg1 | Field::Reg2 | Field::Reg3)
        }
        Action::PushVlan(_) | Action::PopVlan | Action::DecTtl => true,
        other => other.changes_layers(),
    }
}

/// Sends a copy of the frame in a VXLAN packet. The frame goes on as it is.
fn send_in_tunnel<E: Environment + ?Sized>(
    port: &VxlanPort,
    frame: &mut Frame<'_>,
    environment: &mut E,
    out: &mut Emissions,
) -> Result<(), Stop> {
    let before = environment.is_waiting();
    frame.in_front(
        |frame| {
            frame.encap_vxlan(&port.outer, environment)?;
            let waits = environment.is_waiting();
            if !before {
                environment.stop_waiting();
            }
            Ok(waits)
        },
        |waits, bytes| out.add_copy(Target::Port(port.output), bytes, waits),
    )
}

/// Gives the frame to whom a map has for its network.
fn map_vni(map: &VniMap, frame: &Frame<'_>, out: &mut Emissions) -> Result<(), Stop> {
    match map.get(u64::from(frame.ingress().tunnel.unwrap_or_default().id)) {
        None => return Ok(()),
        Some(Receiver::Queue(queue)) => out.add(Target::Queue { queue, hash: None }),
        Some(Receiver::Port(port)) if u32::from(port) == frame.ingress().in_port() => out.count_reflected(),
        Some(Receiver::Port(port)) => out.add(Target::Port(port.into())),
    }
    Err(Stop::Mapped)
}

/// What a group chooses, and by which hash.
fn chosen<E: Environment + ?Sized>(group: u32, frame: &mut Frame<'_>, environment: &E) -> Option<(u16, Option<u32>)> {
    let group = environment.group(group)?;
    let inner = if group.wants_inner() { frame.inner_key() } else { None };
    let hash = group.hash(&inner.unwrap_or_else(|| frame.key()));
    Some((group.queue(hash), hash))
}

/// Gives the frame to the queue that a group chooses.
fn spread<E: Environment + ?Sized>(group: u32, frame: &mut Frame<'_>, environment: &E, out: &mut Emissions) {
    match chosen(group, frame, environment) {
        Some((queue, hash)) => out.add(Target::Queue { queue, hash }),
        None => out.count_lost(),
    }
}

/// Sends the frame out of the port that a group chooses.
fn balance<E: Environment + ?Sized>(group: u32, frame: &mut Frame<'_>, environment: &E, out: &mut Emissions) {
    match chosen(group, frame, environment) {
        Some((port, _)) if u32::from(port) == frame.ingress().in_port() => out.count_reflected(),
        Some((port, _)) => out.add(Target::Port(port.into())),
        None => out.count_lost(),
    }
}

/// Gives the frame to the queue of the instance whose QUIC connection it belongs to. Who is nobody's counts in the group.
fn steer<E: Environment + ?Sized>(number: u32, frame: &mut Frame<'_>, environment: &mut E, out: &mut Emissions) {
    let Some(group) = environment.quic(number) else { return out.count_lost() };
    let layers = frame.layers();
    let Some((path, datagram)) = Path::received(&layers, frame.bytes()) else { return };
    let (queue, why) = group.queue(environment.now_ns(), &path, datagram);
    environment.steered(number, queue, why);
    if let Some(queue) = queue {
        out.add(Target::Queue { queue, hash: None });
    }
}
