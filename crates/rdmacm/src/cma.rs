//! The structures of `rdma/rdma_cma.h` (rdma-core 44). Names of types are those of the header without the prefix.

use crate::abi::{AhAttr, CompChannel, Context, Cq, Pd, Qp, Srq, layout};
use core::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};

/// `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct SockAddr(pub [u8; 128]);

impl SockAddr {
    pub const NONE: Self = Self([0; 128]);

    /// As C has it.
    pub fn new(address: SocketAddr) -> Self {
        let mut bytes = [0; 128];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = match address.ip() {
            IpAddr::V4(ip) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                libc::AF_INET
            }
            IpAddr::V6(ip) => {
                bytes[8..24].copy_from_slice(&ip.octets());
                libc::AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self(bytes)
    }

    /// The address, if it is one of IP. Addresses of IPv4 in those of IPv6 become such.
    pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
        let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        let ip = match i32::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?])) {
            libc::AF_INET => IpAddr::from(*bytes.get(4..)?.first_chunk::<4>()?),
            libc::AF_INET6 => IpAddr::from(*bytes.get(8..)?.first_chunk::<16>()?),
            _ => return None,
        };
        Some(SocketAddr::new(ip.to_canonical(), port))
    }

    /// The port, in the order of the network; 0 where there is none.
    pub fn port(&self) -> u16 {
        u16::from_ne_bytes([self.0[2], self.0[3]])
    }
}

/// `struct rdma_addr`.
#[repr(C)]
pub(crate) struct Addr {
    pub src: SockAddr,
    pub dst: SockAddr,
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub pkey: u16,
    pub rest: [u16; 3],
}

/// `struct ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PathRec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub life_selector: u8,
    pub life: u8,
    pub preference: u8,
}

/// `struct rdma_route`.
#[repr(C)]
pub(crate) struct Route {
    pub addr: Addr,
    pub path_rec: *mut PathRec,
    pub num_paths: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub(crate) struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: u32,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// What belongs to an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union EventParam {
    pub conn: ConnParam,
    pub ud: UdParam,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub(crate) struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: u32,
    pub status: c_int,
    pub param: EventParam,
}

/// `struct rdma_addrinfo`.
#[repr(C)]
pub(crate) struct AddrInfo {
    pub flags: c_int,
    pub family: c_int,
    pub qp_type: c_int,
    pub port_space: c_int,
    pub src_len: u32,
    pub dst_len: u32,
    pub src_addr: *mut u8,
    pub dst_addr: *mut u8,
    pub src_name: *mut c_char,
    pub dst_name: *mut c_char,
    pub route_len: usize,
    pub route: *mut c_void,
    pub connect_len: usize,
    pub connect: *mut c_void,
    pub next: *mut AddrInfo,
}

layout!(Addr: 296 { dst: 128, sgid: 256, dgid: 272, pkey: 288 });
layout!(PathRec: 64 { sgid: 16, dlid: 32, raw_traffic: 36, flow_label: 40, reversible: 48, pkey: 54, preference: 63 });
layout!(Route: 312 { path_rec: 296, num_paths: 304 });
layout!(CmId: 416 { channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348, event: 352, send_cq_channel: 360, recv_cq: 384, srq: 392,
    pd: 400, qp_type: 408 });
layout!(ConnParam: 24 { private_data_len: 8, rnr_retry_count: 13, srq: 14, qp_num: 16 });
layout!(UdParam: 56 { ah_attr: 16, qp_num: 48, qkey: 52 });
layout!(CmEvent: 80 { listen_id: 8, event: 16, status: 20, param: 24 });
layout!(AddrInfo: 96 { src_len: 16, src_addr: 24, route_len: 56, next: 88 });

/// `enum rdma_cm_event_type`.
pub(crate) mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// `enum rdma_port_space`.
pub(crate) mod space {
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// The key of datagrams in the port space of UDP.
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_c() {
        for text in ["198.18.0.1:7471", "[2001:db8::1]:80", "[::]:0", "0.0.0.0:5"] {
            let address: SocketAddr = text.parse().unwrap();
            let there = SockAddr::new(address);
            assert_eq!(SockAddr::parse(&there.0), Some(address));
            assert_eq!(SockAddr::parse(&there.0[..if address.is_ipv4() { 16 } else { 28 }]), Some(address));
            assert_eq!(there.port(), address.port().to_be());
        }
        let mapped = SockAddr::new("[::ffff:198.18.0.1]:9".parse().unwrap());
        assert_eq!(SockAddr::parse(&mapped.0), Some("198.18.0.1:9".parse().unwrap()));
        assert_eq!(SockAddr::parse(&SockAddr::NONE.0), None);
        assert_eq!(SockAddr::parse(&[2, 0, 1]), None);
    }
}
