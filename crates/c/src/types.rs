//! The types that C sees field by field. With `boundary` they make `include/millrace.h`.
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

/// What the clock of a card shows, and how it does.
#[repr(C)]
pub struct millrace_clock_status {
    /// The time, in ns, mostly since 1970.
    pub ns: u64,
    /// The clock less what it follows, in ns, when they were last compared; 0 before.
    pub offset_ns: i64,
    /// The path to what it follows, one way, in ns; 0 when it is not known.
    pub path_delay_ns: i64,
    /// How much faster than nominal it is told to go, in 2^-16 of a millionth.
    pub scaled_ppm: i64,
    /// How long its state has been what it is, in ns.
    pub state_ns: u64,
    /// How often it was set or stepped.
    pub steps: u64,
    /// 0: nobody leads it. 1: it is being led, and not there yet. 2: it goes with what it follows. 3: holdover, it has lost that
    /// and goes on at the speed that it had. 4: others follow it.
    pub state: u32,
    /// What it follows. 0: nothing. 1: the clock of the host. 2: a PTP master.
    pub source: u32,
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

/// Flags of millrace_flow_change(). 0: what it sets up belongs to the device, and goes when the device is closed or the
/// program ends.
#[repr(C)]
pub enum millrace_flow_flags {
    /// The card keeps what is set up. Filters, and MILLRACE_FLOW_REPLACE, are then about what it keeps for this user.
    MILLRACE_FLOW_KEEP = 1,
    /// What belongs to other programs and users is meant as well; takes the right `admin`.
    MILLRACE_FLOW_EVERYONE = 2,
    /// What is added is to be all that there is: what else would be meant goes; rules that are there in the same words stay.
    MILLRACE_FLOW_REPLACE = 4,
    /// Only say what would be done.
    MILLRACE_FLOW_DRY_RUN = 8,
}

/// What became of keys that millrace_flow_keys() has handed over.
#[repr(C)]
pub struct millrace_flow_keys_done {
    /// Secrets that are kept until their connection or this program goes.
    pub taken: u64,
    /// Secrets of no connection that the group knows.
    pub unknown: u64,
    /// Secrets for which there is no room.
    pub full: u64,
    /// Secrets of connections of which somebody else has handed over keys.
    pub foreign: u64,
    /// Lines with a secret that cannot be read.
    pub malformed: u64,
    /// Connections of which this program's keys are known now.
    pub connections: u64,
}

/// What millrace_flow_change() has done.
#[repr(C)]
pub struct millrace_flow_done {
    /// The version of the rules that it has made.
    pub version: u64,
    /// Rules that were added where none was with the same table, priority and match.
    pub added: u64,
    /// Rules that have other actions, or took the place of one with the same table, priority and match.
    pub modified: u64,
    /// Rules that went.
    pub removed: u64,
}

/// Which frames a tap hears: millrace_flow_tap_options.wants.
#[repr(C)]
pub enum millrace_flow_tap_wants {
    /// All.
    MILLRACE_FLOW_TAP_ALL = 0,
    /// Those that come in at port value.
    MILLRACE_FLOW_TAP_PORT = 1,
    /// Those that RX queue value gets.
    MILLRACE_FLOW_TAP_QUEUE = 2,
    /// Those that meet the rule with the number value, as millrace_flow_list_json() says it.
    MILLRACE_FLOW_TAP_RULE = 3,
    /// Those that meet a rule whose cookie has the bits of mask as value has them.
    MILLRACE_FLOW_TAP_COOKIE = 4,
    /// Those of which a rule has found the time to live at its end (dec_ttl).
    MILLRACE_FLOW_TAP_EXPIRED = 5,
}

/// What a tap hears. All zero: every frame, whole, as it came in.
#[repr(C)]
pub struct millrace_flow_tap_options {
    /// Of millrace_flow_tap_wants.
    pub wants: u32,
    /// At most so many bytes of each frame; 0 is all, up to 16384.
    pub snap: u32,
    /// A port, a queue, a rule or a cookie.
    pub value: u64,
    /// Of a cookie, the bits that count.
    pub mask: u64,
    /// At most so many frames per second; 0 is as many as may be, 100000.
    pub rate: u32,
    /// Not 0: frames as they are after all actions, not as they came in.
    pub after: u32,
}

/// Who gets a frame. There may be no room for it there.
#[repr(C)]
pub struct millrace_flow_sent {
    /// 0: an RX queue; 1: a port; 2: the host's slow path.
    pub kind: u32,
    /// Of the queue or port.
    pub number: u32,
}

/// A frame on which rules have decided. The pointers are valid until the next call with the same tap.
#[repr(C)]
pub struct millrace_flow_frame {
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The version of the rules that decided.
    pub version: u64,
    /// The port where it came in; 0xfffffffe: from a program.
    pub port: u32,
    /// The port queue where it came in, or the TX queue that has sent it.
    pub queue: u32,
    /// Its bytes, without FCS.
    pub data: *const u8,
    /// How many of them are here.
    pub data_len: u32,
    /// How many the frame has.
    pub len: u32,
    /// Numbers of the rules that it met, the first sixteen.
    pub rules: *const u64,
    /// Who gets it, the first eight.
    pub sent: *const millrace_flow_sent,
    /// How many rules there are.
    pub rule_count: u32,
    /// How many there are in sent; none: it was dropped.
    pub sent_count: u32,
}
