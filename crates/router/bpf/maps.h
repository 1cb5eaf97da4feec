/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The maps, and what is set before the program is loaded. */
#ifndef MILLRACE_MAPS_H
#define MILLRACE_MAPS_H

#include "kernel.h"
#include "layout.h"
#include "steps.h"

/* Constants for the verifier: set by the engine before loading. The mask is that of the tables of rules; the seeds keep others from
 * choosing where their flows lie. */
const volatile u32 RULES4_MASK = (1 << 18) - 1;
const volatile u32 RULES6_MASK = (1 << 16) - 1;
const volatile u64 SEED = 1;

/* Whether the kernel has the functions that ask conntrack. The engine looks, because Linux 6.1 has no way to ask for that in a program; where
 * they are missing, what calls them is never read by the verifier. */
const volatile u64 HAS_CONNTRACK = 1;

/* So that the types of what lies in rings are written down in the program, where a test of the engine looks for them. */
__attribute__((used)) const struct event *const volatile TYPE_OF_EVENTS = 0;
__attribute__((used)) const struct shadow *const volatile TYPE_OF_SHADOWS = 0;

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct globals);
} globals SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1 << 18);
    __type(key, u32);
    __type(value, struct rule4);
} rules4 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1 << 16);
    __type(key, u32);
    __type(value, struct rule6);
} rules6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, HOPS);
    __type(key, u32);
    __type(value, struct hop);
} hops SEC(".maps");

struct hop_key {
    u8 bytes[HOP_KEY_SIZE];
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, HOPS);
    __type(key, struct hop_key);
    __type(value, u32);
} hop_index SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, PORTS);
    __type(key, u32);
    __type(value, struct port);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, struct device);
} devices SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct upper_key);
    __type(value, u32);
} uppers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 262144);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct fdb_key);
    __type(value, struct fdb_value);
} fdb SEC(".maps");

/* Where XDP sends frames to: by the slot of the interface. */
struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, TARGETS);
    __type(key, u32);
    __type(value, u32);
} targets SEC(".maps");

/* By slot: nonzero if frames that were redirected to the interface were lost, so that it is left alone until it is attached anew. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, TARGETS);
    __type(key, u32);
    __type(value, u32);
} failed SEC(".maps");

/* AF_XDP sockets of the engine in user space. */
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, TARGETS * QUEUES);
    __type(key, u32);
    __type(value, u32);
} sockets SEC(".maps");

/* Associations of ESP; the value means nothing. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct sa_key);
    __type(value, u32);
} sas SEC(".maps");

/* By association: what Linux makes of the packets that it sends. The engine in user space says of which ones it wants to know. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct sa_key);
    __type(value, struct outer);
} outers SEC(".maps");

/* Packets by reason, for each processor. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 128);
    __type(key, u32);
    __type(value, u64);
} counters SEC(".maps");

/* Packets sent on by rules, by the slot of the interface that they came by. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, TARGETS);
    __type(key, u32);
    __type(value, u64);
} fast SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct expected_key);
    __type(value, struct expected);
} expected SEC(".maps");

/* Multicast routes. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct group_key);
    __type(value, struct group);
} groups SEC(".maps");

/* The interfaces that a group goes to, each with the program for its copy. */
struct set {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, SET_SIZE);
    __type(key, u32);
    __uint(value_size, sizeof(struct bpf_devmap_val));
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, SETS);
    __type(key, u32);
    __array(values, struct set);
} sets SEC(".maps");

/* Packets about which Linux is expected to say something. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 4096);
    __type(key, struct quoted_key);
    __type(value, struct quoted);
} quotes SEC(".maps");

/* What it says. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, struct said_key);
    __type(value, struct said);
} sayings SEC(".maps");

struct host {
    u8 addr[16];
};

/* How often each host may be told something. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, struct host);
    __type(value, struct patience);
} patiences SEC(".maps");

#define EVENTS_BYTES (1 << 20)
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 22);
} shadows SEC(".maps");

static __always_inline volatile struct globals *settings(void)
{
    u32 zero = 0;

    return bpf_map_lookup_elem(&globals, &zero);
}

static __always_inline u32 now(void)
{
    return (u32)bpf_jiffies64();
}

/* Of this processor only, so an ordinary addition will do: one program cannot interrupt another of its kind there. */
static __always_inline void count(u32 reason)
{
    u64 *counter = bpf_map_lookup_elem(&counters, &reason);

    if (counter)
        *counter += 1;
}

/* An interface, if it has a slot of its own in `ports`. */
static __always_inline struct port *port_of(u32 ifindex)
{
    u32 at = ifindex & (PORTS - 1);
    struct port *port = bpf_map_lookup_elem(&ports, &at);

    return port && port->ifindex == ifindex ? port : 0;
}

/* The Ethernet address and the flags of any interface, as in `struct port`; 0 if the daemon has not told of it. */
static __always_inline u64 device_word(u32 ifindex)
{
    struct port *port = port_of(ifindex);
    struct device *device;
    u64 word = 0;

    if (port)
        return *(volatile u64 *)&port->word;
    device = bpf_map_lookup_elem(&devices, &ifindex);
    if (!device)
        return 0;
    __builtin_memcpy(&word, device->mac, 6);
    return word | (u64)device->flags << 48;
}

#endif
