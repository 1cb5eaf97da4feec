//! What happened, in numbers.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened, in numbers. Every packet that came and did nothing is in one of them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Names and values.
            pub fn pairs(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets that came.
    received,
    /// Packets that went.
    sent,
    /// Bytes of payload that went.
    sent_bytes,
    /// Bytes given with requests that were copied: into a queue, and from there or at once into packets.
    inline_copied,
    /// Packets for a queue pair that does not exist.
    no_queue_pair,
    /// Packets for a queue pair that receives nothing in its state.
    wrong_state,
    /// Packets of another kind of queue pair.
    wrong_service,
    /// Packets of another partition.
    wrong_pkey,
    /// Packets that did not come from the other end of the connection.
    wrong_address,
    /// Datagrams with another queue key.
    wrong_qkey,
    /// Packets that are no requests of a datagram queue pair.
    wrong_opcode,
    /// Datagrams, and messages of unreliable connections, that found no buffer.
    no_buffer,
    /// Datagrams, and messages of unreliable connections, longer than their buffer.
    too_long,
    /// Datagrams, and messages of unreliable connections, that memory did not take.
    not_stored,
    /// Packets of unreliable connections in a message whose beginning is missing, or that is refused.
    incomplete_message,
    /// Requests that came again.
    duplicate,
    /// Requests to read or of atomic operations that came again, and that nobody can answer any more.
    duplicate_forgotten,
    /// Requests that came too early, and were dropped.
    out_of_sequence,
    /// Requests that came too early, and were kept.
    kept,
    /// Answers to what was answered already.
    duplicate_answer,
    /// Answers to what was not asked.
    unexpected_answer,
    /// Answers before which one is missing.
    early_answer,
    /// Requests refused: not one that the queue pair takes.
    invalid_request_sent,
    /// Requests refused: the key does not open those bytes.
    remote_access_sent,
    /// Requests refused: it could not be done.
    remote_operation_sent,
    /// Requests that were kept, and then dropped: they are behind what came meanwhile, or the queue pair failed.
    kept_dropped,
    /// Acknowledgements that say that a packet is missing.
    sequence_errors_received,
    /// The same, sent.
    sequence_errors_sent,
    /// Acknowledgements that say that there is no buffer.
    rnr_received,
    /// The same, sent.
    rnr_sent,
    /// Times without an answer.
    timeouts,
    /// Requests sent again.
    repeated,
    /// Requests done in the other end's memory, without packets.
    reached,
    /// Completions for which there was no room.
    completions_lost,
    /// Frames that were marked by routers.
    congested,
    /// Congestion notifications that came.
    notifications_received,
    /// The same, sent.
    notifications_sent,
}
