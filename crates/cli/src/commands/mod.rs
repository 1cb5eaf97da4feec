//! One file per command.

pub mod bench;
pub mod card;
pub mod clients;
pub mod completions;
pub mod demo;
pub mod explain;
pub mod flow;
pub mod forward;
pub mod generate;
pub mod info;
pub mod locks;
pub mod loopback;
pub mod loopback_hw;
pub mod man;
pub mod message;
pub mod pktgen;
pub mod ports;
pub mod rdma;
pub mod read;
pub mod receive;
pub mod regs;
pub mod stats;
pub mod transmit;
pub mod tree;
pub mod verbs;
pub mod workers;
