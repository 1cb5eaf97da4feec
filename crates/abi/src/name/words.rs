//! What a device name may say: the words of its options, and its limits.

/// The environment variable that names the device when nothing else does.
pub const VARIABLE: &str = "MILLRACE_DEVICE";

/// Longest path of a Unix socket, in bytes: `sun_path` holds 108 with the zero at the end.
pub const MAX_PATH: usize = 107;

/// One line of help for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHelp {
    /// The word, also the name of the flag of `millrace card`.
    pub word: &'static str,
    /// What its value looks like; empty for a switch.
    pub value: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// The options of a card.
pub const OPTIONS: [OptionHelp; 20] = [
    OptionHelp { word: "rx", value: "N", meaning: "receive queues" },
    OptionHelp { word: "tx", value: "N", meaning: "transmit queues" },
    OptionHelp { word: "queues", value: "N", meaning: "both at once" },
    OptionHelp {
        word: "engine",
        value: "sze|medusa|calypte|dd[@QUEUES]",
        meaning: "engine of all or some queues; may be repeated",
    },
    OptionHelp { word: "buffers", value: "N", meaning: "buffers of a Medusa queue, a power of two" },
    OptionHelp { word: "buffer", value: "BYTES", meaning: "size of each of these buffers, and of those of a DD queue" },
    OptionHelp { word: "ring", value: "BYTES", meaning: "size of the ring of an SZE queue, a power of two" },
    OptionHelp { word: "blocks", value: "N", meaning: "128-byte blocks of a Calypte receive queue, a power of two" },
    OptionHelp { word: "descriptors", value: "N", meaning: "descriptors and buffers of a DD queue, a power of two" },
    OptionHelp {
        word: "port",
        value: "SPEC",
        meaning: "a port, such as loopback or (pcap:FILE,speed=full); repeat for more",
    },
    OptionHelp {
        word: "connect",
        value: "PORT-PORT",
        meaning: "what comes in at one port goes out at the other; PORT-PORT with one port twice: back where it came from",
    },
    OptionHelp {
        word: "workers",
        value: "N",
        meaning: "worker threads; otherwise as many as queue pairs, but not more than cores",
    },
    OptionHelp {
        word: "priority",
        value: "QUEUES",
        meaning: "queues whose worker serves no others, such as 0 or 0-3 or tx7; may be repeated",
    },
    OptionHelp {
        word: "cpu",
        value: "LIST",
        meaning: "cores to pin the workers to, such as 1 or 2-5; may be repeated",
    },
    OptionHelp { word: "poll", value: "", meaning: "workers never sleep" },
    OptionHelp { word: "spin", value: "MICROSECONDS", meaning: "how long a worker spins before it sleeps" },
    OptionHelp { word: "frame-min", value: "BYTES", meaning: "shortest frame, without FCS" },
    OptionHelp { word: "frame-max", value: "BYTES", meaning: "longest frame, without FCS" },
    OptionHelp {
        word: "discard",
        value: "",
        meaning: "a full receive queue drops frames instead of holding the source back",
    },
    OptionHelp {
        word: "tsu",
        value: "",
        meaning: "received frames carry time stamps; the card's clock starts with the time of day",
    },
];
