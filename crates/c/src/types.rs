//! The types that C sees field by field. With `boundary.rs` they make `include/millrace.h`.
#![allow(non_camel_case_types)]

/// Flags of millrace_rx_open() and millrace_tx_open(). 0 is direct mode, and the queue for this opener alone: all that a
/// DD queue has.
#[repr(C)]
pub enum millrace_open_flags {
    /// Mediated mode: the driver moves the pointers, with a request per burst. Slow, and there to be compared with.
    MILLRACE_OPEN_MEDIATED = 1,
    /// Up to 16 openers. RX: each sees every packet, and the queue waits for the slowest. TX: each direct writer has a
    /// ring of its own, mediated ones take turns; the packets of one stay in order.
    MILLRACE_OPEN_SHARED_BLOCK = 2,
    /// RX: as above, but an opener that falls a whole ring behind loses the oldest packets; millrace_rx_lost() counts.
    MILLRACE_OPEN_SHARED_DROP = 4,
    /// RX: as above, but an opener that falls a whole ring behind is thrown out: its next call returns -ESTALE, and the
    /// packets in its hands may have been overwritten.
    MILLRACE_OPEN_SHARED_EVICT = 8,
    /// RX, with one of MILLRACE_OPEN_SHARED_..., of the first who opens the queue: those who join it may choose
    /// MILLRACE_OPEN_SHARED_BLOCK, and so make others wait for them. Without any MILLRACE_OPEN_JOINERS_... they may choose
    /// anything else, and programs of the same user this too.
    MILLRACE_OPEN_JOINERS_BLOCK = 16,
    /// RX, as above: those who join may choose MILLRACE_OPEN_SHARED_DROP.
    MILLRACE_OPEN_JOINERS_DROP = 32,
    /// RX, as above: those who join may choose MILLRACE_OPEN_SHARED_EVICT.
    MILLRACE_OPEN_JOINERS_EVICT = 64,
}

/// One packet of a burst. The pointers are valid until the burst is put.
#[repr(C)]
pub struct millrace_packet {
    /// The frame, without FCS. TX: a place for data_len bytes, to be written. RX: data_len bytes, to be read only;
    /// writing to them is a segmentation fault.
    pub data: *mut u8,
    /// RX: metadata that the card gives with the frame, NULL if there is none. TX: NULL.
    pub header: *mut u8,
    /// Bytes of data.
    pub data_len: u32,
    /// Bytes of header.
    pub header_len: u16,
    /// RX: bits 1:0 say which kind of metadata it is. TX: 0.
    pub flags: u16,
}

/// One packet in a buffer of the program; see millrace_supplied_rx_peek().
#[repr(C)]
pub struct millrace_received {
    /// Bytes in the buffer: metadata, then the frame without FCS.
    pub len: u16,
    /// Bytes of metadata before the frame, 0 if there are none.
    pub header_len: u8,
    /// Bits 1:0 say which kind of metadata it is.
    pub flags: u8,
}
