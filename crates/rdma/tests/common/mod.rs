//! What tests and measurements of the transport have in common: memory that is a few arrays, and a link.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod link;
pub mod memory;

use link::{End, PATH};
use memory::Flat;
use millrace_rdma::engine::{Engine, Options};
use millrace_rdma::memory::ProtectionDomain;
use millrace_rdma::number::{Psn, Qpn};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Path, Service};
use millrace_rdma::work::Access;

/// Everything that a queue pair is told on its way to being ready.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub service: Service,
    pub mtu: u16,
    pub psn: u32,
    pub requests: u32,
    pub buffers: u32,
    pub rd_atomic: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub cq_depth: u32,
    pub srq: Option<u32>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            service: Service::ReliableConnection,
            mtu: 1024,
            psn: 0,
            requests: 64,
            buffers: 64,
            rd_atomic: 4,
            timeout: 10,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            cq_depth: 4096,
            srq: None,
        }
    }
}

/// A queue pair and its completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub qpn: Qpn,
    pub cq: u32,
    pub domain: ProtectionDomain,
}

pub fn init(wish: &Wish, domain: ProtectionDomain, cq: u32) -> Init {
    Init {
        service: wish.service,
        general: false,
        domain,
        send_queue: cq,
        receive_queue: cq,
        shared_receive_queue: wish.srq,
        capabilities: Capabilities {
            send_requests: wish.requests,
            receive_requests: wish.buffers,
            send_pieces: 4,
            receive_pieces: 4,
            inline: 256,
        },
        signal_all: false,
        context: 0,
    }
}

/// A queue pair in the state RESET, with a domain and a completion queue of its own.
pub fn create(engine: &mut Engine<Flat>, wish: &Wish) -> Pair {
    let domain = engine.create_domain().unwrap();
    let cq = engine.create_cq(wish.cq_depth).unwrap();
    let (qpn, _) = engine.create_qp(&init(wish, domain, cq)).unwrap();
    Pair { qpn, cq, domain }
}

/// From RESET to RTS.
pub fn make_ready(engine: &mut Engine<Flat>, qpn: Qpn, wish: &Wish, path: Path, remote: Qpn) {
    let is_datagram = wish.service == Service::UnreliableDatagram;
    let is_reliable = wish.service == Service::ReliableConnection;
    let all = Access::REMOTE_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_ATOMIC);
    let told = Attributes {
        pkey_index: Some(0),
        port: Some(1),
        access: (!is_datagram).then_some(all),
        qkey: is_datagram.then_some(0x1111),
        ..Attributes::state(State::Init)
    };
    engine.modify_qp(qpn, &told).unwrap();
    let mut told = Attributes::state(State::ReadyToReceive);
    if !is_datagram {
        told.path = Some(path);
        told.path_mtu = Some(wish.mtu);
        told.remote = Some(remote);
        told.receive_psn = Some(Psn::new(wish.psn));
    }
    if is_reliable {
        told.max_dest_rd_atomic = Some(wish.rd_atomic);
        told.min_rnr_timer = Some(wish.rnr_timer);
    }
    engine.modify_qp(qpn, &told).unwrap();
    let mut told = Attributes::state(State::ReadyToSend);
    told.send_psn = Some(Psn::new(wish.psn));
    if is_reliable {
        told.timeout = Some(wish.timeout);
        told.retry_count = Some(wish.retry_count);
        told.rnr_retry = Some(wish.rnr_retry);
        told.max_rd_atomic = Some(wish.rd_atomic);
    }
    engine.modify_qp(qpn, &told).unwrap();
}

pub fn engine(options: Options) -> Engine<Flat> {
    Engine::new(options, Flat::default())
}

/// Two ends, and a queue pair at each that is connected with the other.
pub fn connected(options: [Options; 2], wish: &Wish) -> ([End; 2], [Pair; 2]) {
    let mut ends = options.map(|options| End::new(engine(options)));
    let pairs = [create(&mut ends[0].engine, wish), create(&mut ends[1].engine, wish)];
    for at in 0..2 {
        make_ready(&mut ends[at].engine, pairs[at].qpn, wish, PATH[at], pairs[1 - at].qpn);
    }
    (ends, pairs)
}
