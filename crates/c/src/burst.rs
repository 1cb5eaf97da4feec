//! Bursts for C: pointers into the rings, which stay valid until the burst is put.

use crate::types::millrace_packet;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use host::{Error, RxQueue, TxQueue};

/// Takes up to `packets.len()` packets and keeps them; returns how many were written to the front of `packets`.
#[inline(always)]
pub fn receive(queue: &mut RxQueue, packets: &mut [MaybeUninit<millrace_packet>]) -> Result<usize, Error> {
    let burst = queue.get(packets.len())?;
    for (packet, place) in burst.iter().zip(packets) {
        place.write(millrace_packet {
            // For reading: the memory is mapped without the right to write.
            data: packet.data.as_ptr().cast_mut(),
            header: if packet.header.is_empty() { null_mut() } else { packet.header.as_ptr().cast_mut() },
            data_len: packet.data.len() as u32,
            header_len: packet.header.len() as u16,
            flags: u16::from(packet.flags),
        });
    }
    let count = burst.len();
    burst.keep();
    Ok(count)
}

/// Takes one slot per length and keeps them, all or none: whether there was room.
#[inline(always)]
pub fn send(queue: &mut TxQueue, lengths: &[u16], packets: &mut [MaybeUninit<millrace_packet>]) -> Result<bool, Error> {
    let Some(mut burst) = queue.get(lengths)? else { return Ok(false) };
    for (i, place) in packets.iter_mut().enumerate().take(lengths.len()) {
        let slot = &mut burst[i];
        place.write(millrace_packet {
            data: slot.as_mut_ptr(),
            header: null_mut(),
            data_len: slot.len() as u32,
            header_len: 0,
            flags: 0,
        });
    }
    burst.keep();
    Ok(true)
}
