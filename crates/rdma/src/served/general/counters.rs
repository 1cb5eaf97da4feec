//! What happened at queue pair 1.

macro_rules! counters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// What happened at queue pair 1.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct GeneralCounters {
            $($(#[$about])* pub $name: u64,)*
        }

        impl GeneralCounters {
            /// All of them, by name.
            pub fn pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages that were given to a program.
    given,
    /// Datagrams that are not of another queue pair 1.
    foreign,
    /// Datagrams to the own number of a queue pair that stands for queue pair 1.
    evading,
    /// Datagrams that were no messages: of another length.
    malformed_length,
    /// Another version, or method.
    malformed_header,
    /// Another class of management.
    other_class,
    /// A message that is not known, or not supported.
    unknown_message,
    /// Messages about connections that no program has.
    unknown_connection,
    /// Calls of services that no program offers yet.
    early,
    /// Those that were taken back before.
    withdrawn,
    /// The same call once more.
    duplicate,
    /// Messages that are for nobody, and were answered.
    refused,
    /// Answers for which there was no room.
    no_room,
    /// Messages from the wire, beyond what may come in a time for a program or for nobody.
    flooded,
    /// Messages of a program, beyond what it may send in a time.
    throttled,
    /// Messages of a program with numbers, a queue pair or an address that are not its own, or that are no messages.
    forged,
}
