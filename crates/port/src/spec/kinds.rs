//! The kinds of ports, as they are written.

/// How every kind is written.
pub(super) const KINDS: &[&str] = &[
    "loopback",
    "none",
    "null",
    "generator[:size=N,rate=PPS,count=N]",
    "pcap:FILE[,write=FILE][,speed=full|recorded|RATEpps][,loop=N|forever]",
    "tap:NAME[,queues=N]",
    "af_packet:IFACE[,queues=N]",
    "af_xdp:IFACE[,queues=N,mode=auto|zero-copy|copy,busy-poll=on|off]",
    "trace:FILE[,direction=both|rx|tx][,limit=N],port=(SPEC)",
    "fault:[loss=P%,duplicate=P%,reorder=P%,corrupt=P%,delay=TIME,seed=N,direction=both|rx|tx,]port=(SPEC)",
    "vhost-user:PATH[,server|client,queues=N]",
    "virtio-user:PATH[,client|server,queues=N]",
];
