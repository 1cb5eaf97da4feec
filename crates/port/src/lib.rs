//! Network ports in software: how frames enter and leave the card, by interfaces, virtual machines, captures, a generator.
//!
//! A port is opened as one or more port queues. The card gives a [`PortQueue`] frames with [`PortQueue::transmit`] and
//! asks it for frames with [`PortQueue::receive`]; it knows nothing of the card's queues, rings or registers. Kinds of
//! ports:
//!
//! | Specification | Frames to the card | Frames from the card |
//! |---|---|---|
//! | `none` | none: nothing is plugged in | none |
//! | `null` | none | fetched and forgotten ([`null`]) |
//! | `generator[:size=N,rate=PPS,count=N]` | structured test frames ([`generator`]) | as `null` |
//! | `pcap:FILE[,write=FILE][,speed=full\|recorded\|RATEpps][,loop=N\|forever]` | a capture ([`pcap`]) | a capture with ns stamps, or as `null` |
//! | `tap:NAME[,queues=N]` | whatever Linux sends to the interface ([`tap`]) | whatever Linux shall receive from it |
//! | `af_packet:IFACE[,queues=N]` | what arrives at the interface ([`af_packet`]) | sent by Linux |
//! | `af_xdp:IFACE[,queues=N,mode=auto\|zero-copy\|copy,busy-poll=on\|off]` | what arrives at the interface, before Linux sees it ([`af_xdp`]) | sent by its driver |
//! | `trace:FILE[,direction=both\|rx\|tx][,limit=N],port=(SPEC)` | those of the port inside, written to a file ([`trace`]) | likewise |
//! | `fault:[loss=P%,...,]port=(SPEC)` | those of the port inside, with faults ([`fault`]) | likewise |
//! | `vhost-user:PATH[,server\|client,queues=N]` | what a virtio driver sends ([`vhost_user`]) | what it shall receive |
//! | `virtio-user:PATH[,client\|server,queues=N]` | what a vhost-user back end sends ([`virtio_user`]) | what it shall receive |
//! | `loopback` | no port at all: the card copies TX to RX itself | |
//!
//! Beside these, for protocols that Millrace itself speaks: frames of one Ethernet type ([`ether`]), and interfaces of IP packets ([`tun`]).
//!
//! A specification is parsed into a [`PortSpec`] and opened with [`open`]. Everything that can be known to be wrong
//! then is an [`OpenError`]; what shows up later is a named counter ([`DropReason`]), a warning in the log and, when
//! nothing sensible can follow, the end of the stream. Nothing here panics on what a file or the kernel delivers, and
//! nothing allocates per frame.
//!
//! ```
//! use millrace_dma::Span;
//! use millrace_port::{Accept, PortSpec, open};
//!
//! let spec: PortSpec = "generator:size=64,count=3".parse()?;
//! let mut port = open(&spec)?.remove(0);
//! let mut seen = 0;
//! port.receive(32, &mut |frame: Span<'_>| {
//!     seen += frame.len();
//!     Accept::Taken
//! });
//! assert_eq!(seen, 3 * 64);
//! assert_eq!(port.counters().rx_frames(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod af_packet;
pub mod af_xdp;
mod bell;
pub mod counters;
pub mod ether;
pub mod fault;
pub mod generator;
mod lend;
mod link;
#[cfg(test)]
mod namespace;
pub mod notice;
pub mod null;
mod pacing;
pub mod pcap;
mod peer;
mod port_queue;
mod sink;
pub mod spec;
pub mod tap;
pub mod trace;
pub mod tun;
mod unfinished;
pub mod vhost_user;
pub mod virtio_user;

pub use bell::{Bell, Whose, slow_wakes};
pub use counters::{DropReason, Event, PortCounters};
pub use lend::{LendError, Lendable, LentSender, Pool};
pub use millrace_ring::Accept;
pub use peer::{Bound, SocketError, check_event, only_event, signal, try_signal};
pub use port_queue::{Burst, MAX_FRAME_LEN, MIN_FRAME_LEN, PortQueue, TxOutcome};
pub use sink::{Lent, Sink};
pub use spec::{PortSpec, SpecError};

/// Why a port could not be opened; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The card serves `loopback` itself.
    #[error("`loopback` is not opened as a port: the card copies TX to RX itself; match on PortSpec::Loopback first")]
    Loopback,
    /// A capture file.
    #[error(transparent)]
    Pcap(#[from] pcap::PortError),
    /// An interface by way of a packet socket.
    #[error(transparent)]
    AfPacket(#[from] af_packet::AfPacketError),
    /// A file to trace to.
    #[error(transparent)]
    Trace(#[from] pcap::WriteError),
    /// A tap interface.
    #[error(transparent)]
    Tap(#[from] tap::TapError),
    /// An interface driven by AF_XDP.
    #[error(transparent)]
    AfXdp(#[from] af_xdp::AfXdpError),
    /// A vhost-user socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Opens the wire that `spec` describes: one port for each queue of the wire; none for [`PortSpec::None`].
///
/// # Errors
/// [`OpenError`]; always for [`PortSpec::Loopback`], which the card serves itself.
pub fn open(spec: &PortSpec) -> Result<Vec<Box<dyn PortQueue>>, OpenError> {
    Ok(match spec {
        PortSpec::Loopback => return Err(OpenError::Loopback),
        PortSpec::None => Vec::new(),
        PortSpec::Null => vec![Box::new(null::NullPort::new())],
        PortSpec::Generator(spec) => vec![Box::new(generator::GeneratorPort::new(spec))],
        PortSpec::Pcap(spec) => vec![Box::new(pcap::PcapPort::open(spec)?)],
        PortSpec::Trace(spec) => boxed(trace::TracePort::wrap(spec, open(&spec.port)?)?),
        PortSpec::Fault(spec) => boxed(fault::FaultPort::wrap(spec, open(&spec.port)?)),
        PortSpec::Tap(spec) => boxed(tap::TapPort::open(spec)?),
        PortSpec::AfPacket(spec) => boxed(af_packet::AfPacketPort::open(spec)?),
        PortSpec::AfXdp(spec) => boxed(af_xdp::open(spec)?),
        PortSpec::VhostUser(spec) => boxed(vhost_user::open(spec)?),
        PortSpec::VirtioUser(spec) => boxed(virtio_user::open(spec)?),
    })
}

/// The queues of a wire.
fn boxed<P: PortQueue + 'static>(queues: Vec<P>) -> Vec<Box<dyn PortQueue>> {
    queues.into_iter().map(|port| Box::new(port) as Box<dyn PortQueue>).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_left_to_the_card() {
        let error = open(&PortSpec::Loopback).err().expect("an error");
        assert!(error.to_string().contains("PortSpec::Loopback"), "{error}");
    }

    #[test]
    fn every_other_kind_opens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        pcap::Writer::create(file.path()).unwrap().flush().unwrap();
        for spec in ["null", "generator", &format!("pcap:{}", file.path().display())] {
            open(&spec.parse().unwrap()).unwrap_or_else(|error| panic!("{spec}: {error}"));
        }
    }
}
