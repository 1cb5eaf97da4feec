//! Everything of one address together: queue pairs, their queues, timers, events. What a program calls.
//!
//! The engine knows no threads, no clock and no sockets. Its owner gives it packets and the time, and takes packets:
//!
//! ```text
//! post_send, post_receive ... -> [ engine ] -> poll, take_event
//!                 receive(packet) -> [ .. ] -> transmit(out)
//! ```
//!
//! After anything was posted or received, or [`Engine::next_deadline`] has come, [`Engine::transmit`] is to be called until it
//! has nothing more to send.

mod counters;
mod error;
mod event;
mod options;

pub use counters::Counters;
pub use error::Error;
pub use event::Event;
pub(crate) use event::Events;
pub use options::Options;

// The contract of `Engine`, whose body follows in the next commits:
//
// impl<M: Memory> Engine<M> {
//     pub fn new(options: Options, memory: M) -> Self;
//     pub fn memory(&mut self) -> &mut M;                    // the key tables, to register
//     pub fn counters(&self) -> &Counters;
//
//     pub fn create_domain(&mut self) -> Result<ProtectionDomain, Error>;
//     pub fn destroy_domain(&mut self, domain: ProtectionDomain) -> Result<(), Error>;      // busy while queue pairs use it
//
//     pub fn create_cq(&mut self, depth: u32) -> Result<u32, Error>;
//     pub fn poll(&mut self, cq: u32, to: &mut [Completion]) -> Result<usize, Error>;
//     pub fn arm(&mut self, cq: u32, solicited_only: bool) -> Result<(), Error>;            // then poll once more
//     pub fn resize_cq(&mut self, cq: u32, depth: u32) -> Result<(), Error>;
//     pub fn destroy_cq(&mut self, cq: u32) -> Result<(), Error>;
//
//     pub fn create_srq(&mut self, domain: ProtectionDomain, depth: u32, pieces: u32) -> Result<u32, Error>;
//     pub fn set_srq_limit(&mut self, srq: u32, limit: u32) -> Result<(), Error>;
//     pub fn query_srq(&self, srq: u32) -> Result<SharedReceiveQuery, Error>;               // depth, pieces, limit
//     pub fn post_srq_receive(&mut self, srq: u32, id: u64, pieces: &[Piece]) -> Result<(), Error>;
//     pub fn destroy_srq(&mut self, srq: u32) -> Result<(), Error>;
//
//     pub fn create_qp(&mut self, init: &Init) -> Result<(Qpn, Capabilities), Error>;       // capabilities: what was granted
//     pub fn modify_qp(&mut self, qpn: Qpn, attributes: &Attributes) -> Result<State, Error>;  // the state it is in now
//     pub fn query_qp(&self, qpn: Qpn) -> Result<Query, Error>;
//     pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Error>;
//     pub fn post_send(&mut self, qpn: Qpn, request: &Request<'_>) -> Result<(), Error>;
//     pub fn post_receive(&mut self, qpn: Qpn, id: u64, pieces: &[Piece]) -> Result<(), Error>;
//
//     pub fn receive(&mut self, now: Moment, packet: &Packet<'_>, from: &Origin);
//     pub fn transmit<O: Out>(&mut self, now: Moment, budget: usize, out: &mut O) -> usize; // packets sent; less than budget: nothing more to send, or `out` is full
//     pub fn next_deadline(&self) -> Option<Moment>;         // transmit is to be called then
//     pub fn take_event(&mut self) -> Option<Event>;
// }
