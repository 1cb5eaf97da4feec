//! The messages, field by field: byte and bit of the beginning, and how many bits (volume 1, 12.6.5 to 12.6.11, 12.11.2).

use super::DATA;
use super::field::{get, set};
use crate::number::{Gid, Psn, Qpn};

macro_rules! messages {
    ($(
        $(#[$about:meta])*
        $name:ident = $number:literal {
            $($(#[$field_about:meta])* $field:ident: $type:ty = $byte:literal + $bit:literal, $width:literal;)*
            $(@ $(#[$array_about:meta])* $array:ident = $array_at:literal, $array_len:literal;)*
        }
    )*) => {
        /// What a message says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "all have nearly the same size")]
        pub enum Message {
            $($(#[$about])* $name($name),)*
        }

        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name {
                $($(#[$field_about])* pub $field: $type,)*
                $($(#[$array_about])* pub $array: [u8; $array_len],)*
            }

            impl $name {
                /// Everything zero.
                pub fn empty() -> Self {
                    Self::read(&[0; DATA])
                }

                fn read(data: &[u8; DATA]) -> Self {
                    Self {
                        $($field: get(data, $byte * 8 + $bit, $width),)*
                        $($array: core::array::from_fn(|index| data[$array_at + index]),)*
                    }
                }

                fn write(&self, data: &mut [u8; DATA]) {
                    $(set(data, $byte * 8 + $bit, $width, self.$field);)*
                    $(data[$array_at..$array_at + $array_len].copy_from_slice(&self.$array);)*
                }
            }

            impl From<$name> for Message {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*

        impl Message {
            pub(super) fn read(attribute: u16, data: &[u8; DATA]) -> Option<Self> {
                Some(match attribute {
                    $($number => Self::$name($name::read(data)),)*
                    _ => return None,
                })
            }

            /// Writes it, and says its number.
            pub(super) fn write(&self, data: &mut [u8; DATA]) -> u16 {
                match self {
                    $(Self::$name(message) => {
                        message.write(data);
                        $number
                    })*
                }
            }
        }

        /// First bit behind each field, and behind each array: for a test that none is behind the end.
        #[cfg(test)]
        pub(super) const ENDS: &[usize] = &[$($($byte * 8 + $bit + $width,)* $(($array_at + $array_len) * 8,)*)*];
    };
}

messages! {
    /// REQ: asks for a connection (12.6.5).
    Request = 0x0010 {
        /// Number of the connection at the sender.
        local_id: u32 = 0 + 0, 32;
        /// The service.
        service: u64 = 8 + 0, 64;
        /// The sender's channel adapter.
        local_guid: u64 = 16 + 0, 64;
        /// Of datagrams, and 0.
        qkey: u32 = 28 + 0, 32;
        /// Queue pair of the sender.
        local_qpn: Qpn = 32 + 0, 24;
        /// READs and atomic operations that the sender answers at once.
        responder_resources: u8 = 35 + 0, 8;
        /// READs and atomic operations that the sender has on the way at once.
        initiator_depth: u8 = 39 + 0, 8;
        /// How soon the receiver has to answer, as a time of five bits.
        remote_response_timeout: u8 = 43 + 0, 5;
        /// Service: 0 RC, 1 UC, 2 RD, 3 see `extended_transport`.
        transport: u8 = 43 + 5, 2;
        /// Whether credits are told in acknowledgements.
        flow_control: bool = 43 + 7, 1;
        /// Packet sequence number with which the receiver begins to send (12.7.31): the sender expects it first.
        starting_psn: Psn = 44 + 0, 24;
        /// How soon the sender answers, as a time of five bits.
        local_response_timeout: u8 = 47 + 0, 5;
        /// Retries of the queue pair of the receiver.
        retry_count: u8 = 47 + 5, 3;
        /// The partition.
        pkey: u16 = 48 + 0, 16;
        /// Payload of packets: 1 to 5, 256 to 4096 bytes.
        path_mtu: u8 = 50 + 0, 4;
        /// Of reliable datagrams.
        rdc_exists: bool = 50 + 4, 1;
        /// Retries after a receiver was not ready.
        rnr_retry_count: u8 = 50 + 5, 3;
        /// How many times messages are sent again.
        max_retries: u8 = 51 + 0, 4;
        /// Whether the sender's queue pair has a shared receive queue.
        shared_receive: bool = 51 + 4, 1;
        /// With `transport` 3: 1 XRC.
        extended_transport: u8 = 51 + 5, 3;
        /// LID of the sender; 0xffff where there are none.
        primary_local_lid: u16 = 52 + 0, 16;
        /// LID of the receiver.
        primary_remote_lid: u16 = 54 + 0, 16;
        /// GID of the sender.
        primary_local_gid: Gid = 56 + 0, 128;
        /// GID of the receiver.
        primary_remote_gid: Gid = 72 + 0, 128;
        /// Flow label of the path.
        primary_flow_label: u32 = 88 + 0, 20;
        /// Rate of the path.
        primary_rate: u8 = 91 + 2, 6;
        /// Traffic class of the path.
        primary_traffic_class: u8 = 92 + 0, 8;
        /// Hop limit of the path.
        primary_hop_limit: u8 = 93 + 0, 8;
        /// Service level of the path.
        primary_service_level: u8 = 94 + 0, 4;
        /// Whether it does not leave the subnet.
        primary_subnet_local: bool = 94 + 4, 1;
        /// Timeout of acknowledgements for the receiver's queue pair, as a time of five bits.
        primary_ack_timeout: u8 = 95 + 0, 5;
        @
        /// The consumers' own.
        private = 140, 92;
    }
    /// MRA: it takes longer (12.6.6).
    Postponement = 0x0011 {
        /// Number of the connection at the sender.
        local_id: u32 = 0 + 0, 32;
        /// And at the receiver.
        remote_id: u32 = 4 + 0, 32;
        /// Which message it is about: 0 REQ, 1 REP.
        about: u8 = 8 + 0, 2;
        /// How much longer, as a time of five bits.
        service_timeout: u8 = 9 + 0, 5;
        @
        /// The consumers' own.
        private = 10, 222;
    }
    /// REJ: there will be no connection (12.6.7).
    Rejection = 0x0012 {
        /// Number of the connection at the sender; 0 where it has none.
        local_id: u32 = 0 + 0, 32;
        /// And at the receiver; 0 where the sender does not know it.
        remote_id: u32 = 4 + 0, 32;
        /// Which message is rejected: 0 REQ, 1 REP, 2 none in particular.
        about: u8 = 8 + 0, 2;
        /// Bytes of `information`.
        information_len: u8 = 9 + 0, 7;
        /// See [`reason`].
        reason: u16 = 10 + 0, 16;
        @
        /// What would have been right, by reason.
        information = 12, 72;
        @
        /// The consumers' own.
        private = 84, 148;
    }
    /// REP: the connection is accepted (12.6.8).
    Reply = 0x0013 {
        /// Number of the connection at the sender.
        local_id: u32 = 0 + 0, 32;
        /// And at the receiver.
        remote_id: u32 = 4 + 0, 32;
        /// Of datagrams, and 0.
        qkey: u32 = 8 + 0, 32;
        /// Queue pair of the sender.
        local_qpn: Qpn = 12 + 0, 24;
        /// Packet sequence number with which the receiver begins to send (12.7.31): the sender expects it first.
        starting_psn: Psn = 20 + 0, 24;
        /// READs and atomic operations that the sender answers at once.
        responder_resources: u8 = 24 + 0, 8;
        /// READs and atomic operations that the sender has on the way at once.
        initiator_depth: u8 = 25 + 0, 8;
        /// How long the sender's acknowledgements take, as a time of five bits.
        ack_delay: u8 = 26 + 0, 5;
        /// Whether the alternate path is accepted: 1 there is none.
        failover: u8 = 26 + 5, 2;
        /// Whether credits are told in acknowledgements.
        flow_control: bool = 26 + 7, 1;
        /// Retries after a receiver was not ready.
        rnr_retry_count: u8 = 27 + 0, 3;
        /// Whether the sender's queue pair has a shared receive queue.
        shared_receive: bool = 27 + 3, 1;
        /// The sender's channel adapter.
        local_guid: u64 = 28 + 0, 64;
        @
        /// The consumers' own.
        private = 36, 196;
    }
    /// RTU: ready to use (12.6.9).
    Ready = 0x0014 {
        /// Number of the connection at the sender.
        local_id: u32 = 0 + 0, 32;
        /// And at the receiver.
        remote_id: u32 = 4 + 0, 32;
        @
        /// The consumers' own.
        private = 8, 224;
    }
    /// DREQ: it is over (12.6.10).
    DisconnectRequest = 0x0015 {
        /// Number of the connection at the sender.
        local_id: u32 = 0 + 0, 32;
        /// And at the receiver.
        remote_id: u32 = 4 + 0, 32;
        /// Queue pair of the receiver.
        remote_qpn: Qpn = 8 + 0, 24;
        @
        /// The consumers' own.
        private = 12, 220;
    }
    /// DREP: here, too (12.6.11).
    DisconnectReply = 0x0016 {
        /// Number of the connection at the sender.
        local_id: u32 = 0 + 0, 32;
        /// And at the receiver.
        remote_id: u32 = 4 + 0, 32;
        @
        /// The consumers' own.
        private = 8, 224;
    }
    /// SIDR_REQ: asks for the queue pair of a datagram service (12.11.2.1).
    ServiceRequest = 0x0017 {
        /// Number of the request at the sender.
        request_id: u32 = 0 + 0, 32;
        /// The partition.
        pkey: u16 = 4 + 0, 16;
        /// The service.
        service: u64 = 8 + 0, 64;
        @
        /// The consumers' own.
        private = 16, 216;
    }
    /// SIDR_REP: tells it (12.11.2.2).
    ServiceReply = 0x0018 {
        /// Number of the request at the receiver.
        request_id: u32 = 0 + 0, 32;
        /// See [`service_status`].
        status: u8 = 4 + 0, 8;
        /// Bytes of `information`.
        information_len: u8 = 5 + 0, 8;
        /// Queue pair.
        qpn: Qpn = 8 + 0, 24;
        /// The service.
        service: u64 = 12 + 0, 64;
        /// Key of its datagrams.
        qkey: u32 = 20 + 0, 32;
        @
        /// What would have been right, by status.
        information = 24, 72;
        @
        /// The consumers' own.
        private = 96, 136;
    }
}

/// Why there is no connection (12.6.7.2).
pub mod reason {
    /// No memory, or more than there may be.
    pub const NO_RESOURCES: u16 = 3;
    /// No answer has come.
    pub const TIMEOUT: u16 = 4;
    /// No connection has this number.
    pub const INVALID_ID: u16 = 6;
    /// Nobody offers this service.
    pub const INVALID_SERVICE: u16 = 8;
    /// Neither reliable nor unreliable connection.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The queue pair is connected already, as far as is known here.
    pub const STALE: u16 = 10;
    /// The GID of the path is not that of the sender.
    pub const INVALID_GID: u16 = 12;
    /// Packets of this length are too long here.
    pub const INVALID_MTU: u16 = 26;
    /// The consumer does not want to.
    pub const CONSUMER: u16 = 28;
}

/// What became of a request for a datagram service (12.11.2.2.1).
pub mod service_status {
    /// The queue pair is there.
    pub const VALID: u8 = 0;
    /// Nobody offers this service.
    pub const UNSUPPORTED: u8 = 1;
    /// The consumer does not want to.
    pub const REJECTED: u8 = 2;
    /// There is no queue pair, now.
    pub const NO_QUEUE_PAIR: u8 = 3;
}
