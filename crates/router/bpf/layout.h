/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the program in the kernel and the daemon both see in maps. The same in Rust: ../src/engine/layout.rs; a test compares the two.
 *
 * Addresses, ports, tags, sessions and Ethernet types are as on the wire; everything else is in the order of the processor, which is
 * little-endian. */
#ifndef MILLRACE_LAYOUT_H
#define MILLRACE_LAYOUT_H

#include <linux/types.h>

/* ---- rules ---- */

/* The state of a rule is the low byte of its word; then come its flags, then a number that each claim of the slot adds one to. */
enum rule_state {
    RULE_EMPTY = 0,
    RULE_BUSY = 1,    /* being written by the processor that has claimed it */
    RULE_TRIAL = 2,   /* written; nobody has seen yet that Linux does the same */
    RULE_ACTIVE = 3,  /* in force */
    RULE_REFUSED = 4, /* the flow stays with Linux, for `reason`, until the epoch changes or a second has passed */
    RULE_DEAD = 5,    /* not there any more; the slot is claimed again two seconds after `seen` at the earliest */
};

#define RULE_STATE(word) ((word) & 0xff)
#define RULE_FLAGS(word) (((word) >> 8) & 0xff)
#define RULE_WORD(state, flags, word) ((state) | ((flags) << 8) | ((word) & 0xffff0000))
#define RULE_GENERATION 0x10000

/* Flags of a rule. */
#define RULE_CONNTRACK 1 /* conntrack has an entry for it, which is kept alive */
#define RULE_NAT 2       /* addresses or ports change */
#define RULE_BRIDGED 4   /* a frame that is bridged: nothing changes but the interface */
#define RULE_LEARNED 8   /* the DSCP to set has been learned */
#define RULE_SHOWN 16    /* of ICMP, about which conntrack cannot be asked: addresses and next hop were learned from a packet that Linux has sent */
#define RULE_AGAIN 32    /* it was made before, and has been put on trial again where it is: its counter goes on */

/* One flow of IPv4 in one direction: one cache line. */
struct rule4 {
    __u32 state;
    __u32 in; /* the interface it comes by: the one that has the address, not the card below */
    __u32 saddr;
    __u32 daddr;
    __u16 sport; /* of an ICMP echo its identifier, and type and code; of fragments what they are pieces of, and 0 */
    __u16 dport;
    __u8 proto; /* of fragments PROTO_FRAGMENT */
    __u8 dscp;
    __u8 out_dscp;
    __u8 reason;
    __u32 epoch; /* in which it was made */
    __u16 hop;   /* which next hop, and the epoch of that when this was made */
    __u16 hop_epoch;
    __u32 new_saddr; /* of a bridged frame, whose packet does not change: here and in the next three its two Ethernet addresses, as they lie in it */
    __u32 new_daddr;
    __u16 new_sport;
    __u16 new_dport;
    __u16 l3_delta; /* what the new addresses add to the checksum of IP; of a bridged frame the type of the tag that it comes with */
    __u16 l4_delta; /* what addresses and ports add to that of TCP or UDP */
    __u64 counter;  /* packets in the low 28 bits, bytes above */
    __u32 seen;     /* jiffies of the last packet; of REFUSED and DEAD: since when */
    __u16 asked;    /* the low half of the jiffies of when conntrack was asked last; on trial: packets so far */
    __u16 proved;   /* the longest packet that Linux was seen to send on: a longer one shows first whether it is too long for the route */
};

/* The same of IPv6: two cache lines. */
struct rule6 {
    __u32 state;
    __u32 in;
    __u8 saddr[16];
    __u8 daddr[16];
    __u16 sport;
    __u16 dport;
    __u8 proto;
    __u8 dscp;
    __u8 out_dscp;
    __u8 reason;
    __u32 epoch;
    __u16 hop;
    __u16 hop_epoch;
    __u64 counter;
    __u32 seen;
    __u16 asked;
    __u16 proved;
    __u8 new_saddr[16]; /* of a bridged frame in the first twelve its two Ethernet addresses */
    __u8 new_daddr[16];
    __u16 new_sport;
    __u16 new_dport;
    __u16 l3_delta; /* no packet of IPv6 has one; of a bridged frame the type of the tag that it comes with */
    __u16 l4_delta;
    __u8 reserved[16];
};

#define COUNTER_PACKETS_BITS 28
#define COUNTER_ADD(bytes) (((__u64)(bytes) << COUNTER_PACKETS_BITS) + 1)

/* ---- next hops ---- */

struct tag {
    __u16 proto; /* 0: none */
    __u16 tci;
};

#define HOP_BRIDGED 1  /* a port of a bridge: Ethernet addresses stay, and have to be those of the rule */
#define HOP_USER 2     /* the engine in user space does it */
#define HOP_TAGGED 4   /* a port of a bridge that filters VLANs: frames leave with a tag, */
#define HOP_UNTAGGED 8 /* or without one. Of another bridge they leave as they came */

/* What a packet gets in front of it, and where it goes. All before `epoch` is the key by which equal ones are found. */
struct hop {
    __u32 out;     /* the interface of the frame */
    __u32 logical; /* the interface of the route */
    __u16 slot;    /* of `out`, in `ports` and in `targets` */
    __u16 flags;
    __u8 dmac[6];
    __u8 smac[6];
    struct tag tags[2]; /* the outer first */
    __u16 session;      /* of PPPoE; 0: none */
    __u16 mtu;
    __u32 nothing;
    __u32 epoch;
    __u8 reserved[20];
};
#define HOP_KEY_SIZE 40

/* ---- interfaces ---- */

#define DEVICE_ON 0x0001          /* packets that come by it are looked at */
#define DEVICE_TC 0x0002          /* by the program at tc, not by XDP */
#define DEVICE_PORT 0x0004        /* of the bridge `master` */
#define DEVICE_BRIDGE 0x0008
#define DEVICE_VLAN 0x0010        /* on top of `lower` */
#define DEVICE_PPPOE 0x0020       /* a session on top of `lower` */
#define DEVICE_RP_STRICT 0x0040
#define DEVICE_RP_LOOSE 0x0080
#define DEVICE_FORWARD4 0x0100
#define DEVICE_FORWARD6 0x0200
#define DEVICE_UP 0x0400
#define DEVICE_VLAN_AWARE 0x0800  /* a bridge that filters VLANs */
#define DEVICE_L3 0x1000          /* packets of it begin with IP: a TUN, a session of PPP */
#define DEVICE_USER 0x2000        /* what leaves by it is done by the engine in user space: frames go to its AF_XDP socket */
#define DEVICE_SHAPED 0x4000      /* a qdisc of it tells packets apart by what Linux writes beside them */

/* An interface, by its number. */
struct device {
    __u32 flags;
    __u32 lower;
    __u32 master;
    __u32 mtu;
    __u16 vlan_proto; /* of a VLAN interface; as on the wire */
    __u16 vlan_id;    /* as on the wire */
    __u16 session;    /* of PPPoE; as on the wire */
    __u16 slot;       /* 0xffff: the engine is not attached to it */
    __u8 mac[6];
    __u8 peer[6];     /* of PPPoE: the concentrator */
    __u16 pvid;       /* of a port of a bridge that filters VLANs; in the processor's order; 0: none */
    __u16 reserved;
};

/* The same for those that the engine is attached to, found without a search: in slot `ifindex % PORTS`, or `devices` if two want one slot.
 * `word` has the address in its low 48 bits, in the order of the wire, and the flags above, so that one load sees both. */
struct port {
    __u64 word;
    __u32 ifindex;
    __u32 master;
    __u32 mtu;
    __u16 slot;
    __u16 pvid;
    __u32 reserved[2];
};
#define PORTS 4096
#define TARGETS 1024
#define HOPS 4096
#define QUEUES 16 /* of each slot in `sockets`, the map of AF_XDP sockets: slot * QUEUES + queue */
#define NO_SLOT 0xffff

enum upper_kind {
    UPPER_VLAN = 1,  /* id: proto << 16 | VLAN, as on the wire */
    UPPER_PPPOE = 2, /* id: the session, as on the wire */
};

/* Which interface lies on another one for a tag or a session. */
struct upper_key {
    __u32 lower;
    __u32 kind;
    __u32 id;
};

struct fdb_key {
    __u32 bridge;
    __u16 vlan; /* in the processor's order; 0: the bridge does not filter VLANs */
    __u8 mac[6];
};

#define FDB_LOCAL 1  /* an address of the bridge itself */
#define FDB_TAGGED 2 /* the port sends this VLAN with its tag */

struct fdb_value {
    __u32 port;
    __u32 flags;
    __u32 refreshed; /* jiffies of when Linux last saw a frame from it; 0: never since the entry was written */
};

/* An association of ESP that the engine in user space decrypts. */
struct sa_key {
    __u8 daddr[16]; /* IPv4 in the first four bytes */
    __u32 spi;      /* as on the wire */
};

/* ---- to the engine in user space and back ---- */

#define NOTE_OPEN 1 /* ESP, to be decrypted */
#define NOTE_SEAL 2 /* changed by its rule already, to be encrypted */

/* In front of each frame that goes to the engine in user space (XDP's metadata). */
struct note {
    __u32 rule; /* its number, of what is to be encrypted */
    __u16 l3;   /* where IP begins */
    __u16 size; /* of the packet of IP */
    __u8 version;
    __u8 what;
    __u16 reserved;
    __u32 in; /* the interface that it has come by for IP */
};

/* What Linux makes of the packets that an association sends: the first bytes of the last frame. By what Linux has shown, the engine in user space
 * sends the next ones itself. The key is a `struct sa_key`. */
#define OUTER_HEAD 64
struct outer {
    __u32 out;
    __u32 sequence; /* of ESP; as on the wire */
    __u32 l3;
    __u16 tag_proto; /* of a tag that Linux keeps beside the frame */
    __u16 tag;
    __u8 head[OUTER_HEAD];
};

/* ---- what is set for all ---- */

enum mode {
    MODE_OFF = 0,
    MODE_ROUTE = 1,     /* no hook of netfilter: conntrack is not asked */
    MODE_CONNTRACK = 2, /* what conntrack has no entry for stays with Linux */
};

#define PART_FDB 1
#define PART_VLAN 2
#define PART_PPPOE 4
#define PART_IPV4 8
#define PART_IPV6 16
#define PART_NAT 32
#define PART_TOS 64
#define PART_FRAGMENT 128
#define PART_ICMP 256
#define PART_MULTICAST 512

/* Nothing of netfilter looks at packets of this version of IP anywhere, those of the router itself included: nobody puts fragments together,
 * and nobody filters what the router says. */
#define BARE4 1
#define BARE6 2

struct globals {
    /* Written by the daemon, read for each packet. */
    __u64 epochs; /* low half: the epoch; high half: the epoch of the last change of the ruleset. One word, so that both are seen together. */
    __u32 parts;
    __u32 mode; /* of IPv4; that of IPv6 is below */
    __u32 heartbeat;       /* jiffies */
    __u32 heartbeat_limit; /* jiffies without one after which everything goes to Linux; 0: for ever */
    __u32 shadow;          /* one in so many packets is compared; 0: none */
    __u32 keep;            /* jiffies between two questions to conntrack about a flow */
    __u32 tcp_ms;          /* what conntrack's timeouts are set to */
    __u32 udp_ms;
    __u32 trial_packets;
    __u32 hz;
    __u32 jiffies; /* written by the program `clock` */
    __u32 bridge_netfilter; /* nonzero: bridged packets go through hooks of netfilter */
    __u32 mode6;
    __u32 targets; /* the number of the map of that name, by which failures are known to be ours */
    /* Written by the program. */
    __u32 trial_until;  /* jiffies until which the program at the egress has something to look for */
    /* Written by the daemon again: grows before the epoch of any next hop does. */
    __u32 moved;
    /* Written by the program again. */
    __u32 hops;         /* how many next hops have been given out */
    __u32 shadow_lost;  /* copies that found no room */
    __u32 events_lost;
    __u32 tickets;      /* of comparisons */
    /* Written by the daemon again. */
    __u32 sas; /* associations of ESP in `sas`; 0: nobody looks there */
    __u32 route_mtus; /* nonzero: routes may have MTUs of their own, of which bpf_fib_lookup says nothing */
    __u32 bare; /* BARE4, BARE6 */
    __u32 error_limits;   /* which errors of ICMP are limited: ERROR_LIMIT */
    __u32 error_interval; /* jiffies between two errors to one host, for IPv4 in the long run */
    __u32 error_interval6;
    __u32 error_rate;  /* of all together: a second, and at once */
    __u32 error_burst;
    __u64 error_tokens; /* written by the program: jiffies above, and what is left of the burst */
    __u32 groups; /* multicast routes in `groups`; 0: nobody looks there */
    __u32 changes; /* of anything that a rule may have been made of */
    __u32 outer_until; /* jiffies until which packets of ESP are looked at when Linux sends them */
    __u32 made_room;   /* written by the program: rules that have ended because a newcomer found no room */
    __u32 reserved2[12];
};

/* ---- what the egress waits for ---- */

/* What no router changes of a packet, and what a rule will have made of the rest: by this the packet is known again when Linux sends it. */
struct expected_key {
    __u8 saddr[16]; /* IPv4 in the first four bytes */
    __u8 daddr[16];
    __u16 sport;
    __u16 dport;
    __u32 print; /* of TCP the sequence number, of UDP its length, of ICMP the number of the echo, of both the first bytes that they carry, of a
                    fragment its place */
    __u16 id;    /* of IPv4 */
    __u8 proto;
    __u8 version;
    __u32 in;    /* the interface that Linux will say it has come by: that of the rule; 0 of what leaves in a session */
};

struct expected {
    __u32 rule;
    __u32 state; /* the word of the rule when it was written here */
    __u32 since; /* jiffies */
    __u8 ttl;    /* that Linux will have set */
    __u8 dscp;   /* that it came with */
    __u8 shadow; /* nonzero: to be copied for a comparison */
    __u8 reserved;
    __u32 ticket; /* of the comparison */
    __u32 moved; /* that of the globals then */
    struct tag tag; /* of a bridged frame, that it came with */
};

/* ---- multicast ---- */

#define SETS 256   /* of interfaces that groups go to */
#define SET_SIZE 32 /* as many as the kernel has */

struct group_key {
    __u32 in;
    __u8 saddr[16]; /* IPv4 in the first four bytes */
    __u8 daddr[16];
};

struct group {
    __u32 set; /* in `sets` */
    __u16 mtu; /* the least of all interfaces */
    __u8 ttl;  /* the hop limit has to be higher */
    __u8 reserved;
    __u32 refreshed; /* jiffies of when Linux last saw a packet; 0: never since this was written */
};

/* ---- what the router says to senders ---- */

enum error_kind {
    ERROR_TTL = 1,  /* time exceeded */
    ERROR_SIZE = 2, /* fragmentation needed, packet too big */
};

/* Whether errors of a kind are limited: its bit in `error_limits`. */
#define ERROR_LIMIT(version, kind) (1 << ((kind) + ((version) == 6 ? 8 : 0)))

/* A packet that cannot go on, as Linux will quote it, and as it may find it in a translated flow. */
struct quoted_key {
    __u8 saddr[16]; /* IPv4 in the first four bytes */
    __u8 daddr[16];
    __u16 sport;
    __u16 dport;
    __u32 print; /* what comes behind the ports */
    __u16 id;    /* of IPv4 */
    __u8 proto;
    __u8 version;
};

struct quoted {
    __u32 rule;
    __u32 state; /* the word of the rule then */
    __u32 epoch;
    __u16 size; /* of the packet */
    __u8 kind;
    __u8 ecn;
};

/* What Linux was seen to say about packets of a flow. */
struct said_key {
    __u32 rule;
    __u32 state;
    __u8 kind;
    __u8 ecn; /* of the packet, part of which may be in the answer */
    __u16 reserved;
};

struct said {
    __u32 epoch; /* in which the packet was handed to Linux */
    __u32 since; /* jiffies */
    __u16 hop;   /* by which it goes back */
    __u16 hop_epoch;
    __u32 rest;   /* the second word of ICMP: the MTU */
    __u8 head[40]; /* the header of IP */
};

/* What a host may still be told: in jiffies, as Linux counts it. */
struct patience {
    __u32 tokens;
    __u32 since;
};

/* ---- events and copies ---- */

enum event_kind {
    EVENT_MADE = 1,
    EVENT_ACTIVE = 2,
    EVENT_REFUSED = 3,
    EVENT_MISMATCH = 4,
    EVENT_ENDED = 5,
};

struct event {
    __u64 time; /* CLOCK_MONOTONIC, ns */
    __u32 rule; /* its number in the table */
    __u32 in;
    __u8 kind;
    __u8 version;
    __u8 reason;
    __u8 proto;
    __u16 sport;
    __u16 dport;
    __u8 saddr[16];
    __u8 daddr[16];
    __u8 dscp;
    __u8 reserved[7];
};

#define SHADOW_BYTES 2048
enum shadow_side {
    SHADOW_OURS = 1,
    SHADOW_LINUX = 2,
};

struct shadow {
    __u32 ticket; /* the same for both sides of a pair */
    __u32 rule;
    __u32 state; /* the word of the rule then */
    __u32 out;   /* the interface that the frame left by, or would have */
    __u32 changes; /* how often Linux had changed then */
    __u32 len;   /* of the frame, which may be longer than what is here */
    __u8 side;
    __u8 version;
    __u16 tag_proto; /* of a tag that Linux keeps beside the frame; as on the wire; 0: none */
    __u16 tag;
    __u16 reserved;
    __u8 frame[SHADOW_BYTES];
};

#endif
