//! VXLAN (RFC 7348): `encap` puts a frame into a packet, `decap` takes it out.

mod decap;
mod encap;

// Bytes of headers.
const ETHERNET: usize = 14;
const UDP: usize = 8;
const VXLAN: usize = 8;
