/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What Linux would do with a packet, asked of Linux: conntrack about addresses and ports, the routing tables about where it goes, the
 * mirrored interfaces about what comes in front of it. Once per flow and after each change, so short rather than fast. */
#ifndef MILLRACE_COMPILE_H
#define MILLRACE_COMPILE_H

#include "table.h"

#define AF_INET 2
#define AF_INET6 10


/* What is asked. Addresses of IPv4 are in the first word. */
struct question {
    u32 saddr[4];
    u32 daddr[4];
    u16 sport;
    u16 dport;
    u32 in;
    u32 bridge;
    u32 flags; /* of `in` */
    u64 dmac;
    u64 smac;
    u16 vlan;
    u16 tag;
    u16 tag_proto;
    u16 size;
    u8 proto;
    u8 tos;
    u8 version;
    u8 has_conntrack;
};

/* What the rule will do. */
struct answer {
    u32 saddr[4];
    u32 daddr[4];
    u16 sport;
    u16 dport;
    u16 hop;
    u16 hop_epoch;
    u32 flags;
    u16 tag_proto;    /* of a bridged frame, that it comes with */
    u32 number;       /* of the rule that was made of it; NO_RULE where there was no room for one */
    bool has_windows; /* conntrack looks at windows of TCP: what it does not see makes the next packet that it sees invalid */
};

/* A rule as it was at one moment. */
struct action {
    u32 saddr[4];
    u32 daddr[4];
    u16 sport;
    u16 dport;
    u16 l3_delta;
    u16 l4_delta;
    u8 dscp;
    u8 flags;
};

/* What one packet is compiled with; too much for the stack. One for XDP and one for tc, of each processor: both run with interrupts of the
 * network off, so that none finds itself at work already. */
struct work {
    struct question q;
    struct answer a;
    struct hop hop;
    struct bpf_fib_lookup fib;
    struct expected_key expected;
    struct key4 key4;
    struct key6 key6;
    struct quoted_key quoted;
    struct said said;
    u32 inner[12];
    struct action action;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, u32);
    __type(value, struct work);
} works SEC(".maps");

static __always_inline struct work *clean_work(const bool skb)
{
    u32 at = skb;
    struct work *work = bpf_map_lookup_elem(&works, &at);

    if (work)
        __builtin_memset(work, 0, sizeof(*work));
    return work;
}

#define COPY_ADDRESS(to, from) \
    do { \
        (to)[0] = (from)[0]; \
        (to)[1] = (from)[1]; \
        (to)[2] = (from)[2]; \
        (to)[3] = (from)[3]; \
    } while (0)

/* The other direction's tuple, turned round, is what this direction's packets look like when they leave. */
#define TURN(ct, other, a) \
    do { \
        COPY_ADDRESS((a)->saddr, (ct)->tuplehash[other].tuple.dst.u3.all); \
        COPY_ADDRESS((a)->daddr, (ct)->tuplehash[other].tuple.src.u3.all); \
        (a)->sport = (ct)->tuplehash[other].tuple.dst.u.all; \
        (a)->dport = (ct)->tuplehash[other].tuple.src.u.all; \
    } while (0)

static __always_inline bool has_extension(struct nf_conn *ct, u32 id)
{
    struct nf_ct_ext *extensions = ct->ext;
    u8 offset = 0;

    if (!extensions || id > 15)
        return false;
    bpf_probe_read_kernel(&offset, 1, (u8 *)extensions + id);
    return offset;
}

/* Step 10: whether conntrack's entry is of a kind that may be done without it, and what it says. `refresh`: and keeps it alive. */
static __always_inline int read_conntrack(struct nf_conn *ct, u8 dir, const struct question *q, struct answer *a, bool refresh)
{
    unsigned long status = ct->status;
    volatile struct globals *g = settings();

    if (!(status & IPS_CONFIRMED) || (status & (IPS_DYING | IPS_TEMPLATE | IPS_UNTRACKED)))
        return REASON_NO_CONNTRACK;
    if (!(status & IPS_SEEN_REPLY) || (q->proto == PROTO_TCP && ct->proto.tcp.state != TCP_CONNTRACK_ESTABLISHED))
        return REASON_NOT_ESTABLISHED;
    if (status & IPS_SEQ_ADJUST)
        return REASON_SEQUENCE_ADJUST;
    if ((status & IPS_HELPER) || has_extension(ct, bpf_core_enum_value(enum nf_ct_ext_id, NF_CT_EXT_HELPER)))
        return REASON_HELPER;
    if (bpf_core_enum_value_exists(enum nf_ct_ext_id, NF_CT_EXT_TIMEOUT) &&
        has_extension(ct, bpf_core_enum_value(enum nf_ct_ext_id, NF_CT_EXT_TIMEOUT)))
        return REASON_TIMEOUT_POLICY;
    if (dir)
        TURN(ct, 0, a);
    else
        TURN(ct, 1, a);
    a->flags |= RULE_CONNTRACK;
    a->has_windows = q->proto == PROTO_TCP &&
                     !(ct->proto.tcp.seen[0].flags & ct->proto.tcp.seen[1].flags & IP_CT_TCP_FLAG_BE_LIBERAL);
    if (refresh && g)
        bpf_ct_change_timeout(ct, q->proto == PROTO_TCP ? g->tcp_ms : g->udp_ms);
    return 0;
}

static __always_inline int ask_conntrack_of(void *ctx, const bool skb, const struct question *q, struct answer *a, bool refresh)
{
    struct bpf_sock_tuple tuple = {};
    struct ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = q->proto };
    struct nf_conn *ct;
    int reason;

    if (q->proto != PROTO_TCP && q->proto != PROTO_UDP)
        return REASON_CONNTRACK_ICMP;
    if (!HAS_CONNTRACK)
        return REASON_CONNTRACK_MISSING;
    if (q->version == 4) {
        tuple.ipv4.saddr = q->saddr[0];
        tuple.ipv4.daddr = q->daddr[0];
        tuple.ipv4.sport = q->sport;
        tuple.ipv4.dport = q->dport;
        ct = skb ? bpf_skb_ct_lookup(ctx, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts))
                 : bpf_xdp_ct_lookup(ctx, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts));
    } else {
        COPY_ADDRESS(tuple.ipv6.saddr, q->saddr);
        COPY_ADDRESS(tuple.ipv6.daddr, q->daddr);
        tuple.ipv6.sport = q->sport;
        tuple.ipv6.dport = q->dport;
        ct = skb ? bpf_skb_ct_lookup(ctx, &tuple, sizeof(tuple.ipv6), &opts, sizeof(opts))
                 : bpf_xdp_ct_lookup(ctx, &tuple, sizeof(tuple.ipv6), &opts, sizeof(opts));
    }
    if (!ct)
        return REASON_NO_CONNTRACK;
    reason = read_conntrack(ct, opts.dir, q, a, refresh);
    bpf_ct_release(ct);
    return reason;
}

/* The verifier wants to know which kind of program it reads; so there is one of each. */
static __noinline int ask_conntrack_xdp(void *ctx, const struct question *q, struct answer *a, bool refresh)
{
    return ask_conntrack_of(ctx, false, q, a, refresh);
}

static __noinline int ask_conntrack_skb(void *ctx, const struct question *q, struct answer *a, bool refresh)
{
    return ask_conntrack_of(ctx, true, q, a, refresh);
}

static __always_inline int ask_conntrack(void *ctx, const bool skb, const struct question *q, struct answer *a, bool refresh)
{
    return skb ? ask_conntrack_skb(ctx, q, a, refresh) : ask_conntrack_xdp(ctx, q, a, refresh);
}

/* The number of the next hop with this content, which gets one if it is new. */
static __noinline int intern(const struct hop *hop, struct answer *a)
{
    const void *key = hop; /* its first HOP_KEY_SIZE bytes */
    volatile struct globals *g = settings();
    struct hop *place;
    u32 *known, at;

    known = bpf_map_lookup_elem(&hop_index, key);
    if (!known) {
        if (!g || g->hops >= HOPS)
            return REASON_HOPS_FULL;
        at = __sync_fetch_and_add(&g->hops, 1);
        place = bpf_map_lookup_elem(&hops, &at);
        if (!place)
            return REASON_HOPS_FULL;
        __builtin_memcpy(place, hop, HOP_KEY_SIZE);
        /* If another processor was faster, its number is taken, and this one is lost until the engine starts again. The map's own lock
         * orders what was written to the place before whoever finds its number. */
        bpf_map_update_elem(&hop_index, key, &at, BPF_NOEXIST);
        known = bpf_map_lookup_elem(&hop_index, key);
        if (!known)
            return REASON_HOPS_FULL;
    }
    at = *known;
    place = bpf_map_lookup_elem(&hops, &at);
    if (!place)
        return REASON_HOPS_FULL;
    a->hop = at;
    a->hop_epoch = WORD(&place->epoch);
    return 0;
}

/* Whether the engine is attached to an interface, and frames get there. */
static __always_inline int can_be_target(u32 slot)
{
    u32 *lost = bpf_map_lookup_elem(&failed, &slot);

    if (!lost)
        return REASON_OUT_UNKNOWN;
    return *lost ? REASON_REDIRECT_FAILED : 0;
}

/* Steps 15 to 17: from the interface of the route down to the one that sends frames. */
static __noinline int descend(struct hop *hop, u16 vlan)
{
    u32 out = hop->logical;

#pragma unroll
    for (int depth = 0; depth < 4; depth++) {
        struct device *device = bpf_map_lookup_elem(&devices, &out);

        if (!device)
            return REASON_OUT_UNKNOWN;
        if (!(device->flags & DEVICE_UP))
            return REASON_OUT_DOWN;
        if (device->flags & DEVICE_PPPOE) {
            if (!device->session || hop->session)
                return REASON_SESSION_ADDRESS;
            hop->session = device->session;
            __builtin_memcpy(hop->dmac, device->peer, 6);
            __builtin_memcpy(hop->smac, device->mac, 6);
            out = device->lower;
        } else if (device->flags & DEVICE_VLAN) {
            if (hop->tags[1].proto)
                return REASON_TAGS;
            hop->tags[1] = hop->tags[0];
            hop->tags[0].proto = device->vlan_proto;
            hop->tags[0].tci = device->vlan_id;
            vlan = bpf_ntohs(device->vlan_id);
            out = device->lower;
        } else if (device->flags & DEVICE_BRIDGE) {
            bool aware = device->flags & DEVICE_VLAN_AWARE;
            struct fdb_value *to;
            u64 dmac = 0;

            __builtin_memcpy(&dmac, hop->dmac, 6);
            if (aware && !vlan)
                vlan = device->pvid;
            to = fdb_of(out, aware ? vlan : 0, dmac);
            if (!to || (to->flags & FDB_LOCAL))
                return REASON_FDB_UNKNOWN;
            if (aware && !(to->flags & FDB_TAGGED)) {
                hop->tags[0] = hop->tags[1];
                hop->tags[1].proto = hop->tags[1].tci = 0;
            } else if (aware && !hop->tags[0].proto) {
                hop->tags[0].proto = ETH_VLAN;
                hop->tags[0].tci = bpf_htons(vlan);
            }
            out = to->port;
        } else {
            hop->out = out;
            hop->slot = device->slot;
            if (device->flags & DEVICE_USER) {
                hop->flags |= HOP_USER;
                return 0;
            }
            return can_be_target(device->slot);
        }
    }
    return REASON_TAGS;
}

/* Step 4 for a frame that is bridged: where its sender and its receiver are, and that both may be believed. The next hop is a port, whoever talks to
 * whom by it: however many hosts there are, and whatever they send, they take no more of them than there are ports. */
static __noinline int bridge_hop(const struct question *q, struct hop *hop)
{
    struct device *bridge = bpf_map_lookup_elem(&devices, &q->bridge);
    struct fdb_value *to = fdb_of(q->bridge, q->vlan, q->dmac);
    struct fdb_value *from = fdb_of(q->bridge, q->vlan, q->smac);
    struct device *port;
    int reason;

    if (!bridge || !to || to->port == (q->in & 0xfffff))
        return REASON_FDB_UNKNOWN;
    if (!from || from->port != (q->in & 0xfffff))
        return REASON_FDB_MOVED;
    port = bpf_map_lookup_elem(&devices, &to->port);
    if (!port)
        return REASON_OUT_UNKNOWN;
    if (!(port->flags & DEVICE_UP))
        return REASON_OUT_DOWN;
    reason = can_be_target(port->slot);
    if (reason)
        return reason;
    hop->out = hop->logical = to->port;
    hop->slot = port->slot;
    hop->flags = HOP_BRIDGED;
    hop->mtu = port->mtu > 0xffff ? 0xffff : port->mtu;
    if (bridge->flags & DEVICE_VLAN_AWARE)
        hop->flags |= to->flags & FDB_TAGGED ? HOP_TAGGED : HOP_UNTAGGED;
    return 0;
}

/* The tag that a bridged frame leaves with: of its VLAN, with the priority that it came with. */
static __always_inline struct tag bridged_tag(u16 flags, u16 vlan, struct tag came)
{
    struct tag tag = {};

    if (flags & HOP_TAGGED) {
        tag.proto = came.proto ? came.proto : ETH_VLAN;
        tag.tci = bpf_htons(vlan) | (came.tci & bpf_htons(0xf000));
    } else if (!(flags & HOP_UNTAGGED)) {
        tag = came;
    }
    return tag;
}

/* What a rule of bridged frames has instead of new addresses and ports. */
static __always_inline void keep_ethernet(const struct question *q, struct answer *a)
{
    u32 words[3] = { q->dmac, (q->dmac >> 32 & 0xffff) | q->smac << 16, q->smac >> 16 };

    __builtin_memset(a->saddr, 0, sizeof(a->saddr));
    __builtin_memset(a->daddr, 0, sizeof(a->daddr));
    a->sport = a->dport = 0;
    a->saddr[0] = words[0];
    if (q->version == 4) {
        a->daddr[0] = words[1];
        a->sport = words[2];
        a->dport = words[2] >> 16;
    } else {
        a->saddr[1] = words[1];
        a->saddr[2] = words[2];
    }
    a->tag_proto = q->tag_proto;
}

static __always_inline void fill_route(struct bpf_fib_lookup *fib, const struct question *q)
{
    __builtin_memset(fib, 0, sizeof(*fib));
    fib->family = q->version == 4 ? AF_INET : AF_INET6;
    /* Of fragments Linux knows no ports. */
    fib->l4_protocol = q->version == 4 && q->proto == PROTO_FRAGMENT ? bpf_ntohs(q->sport) : q->proto;
    fib->ifindex = q->in;
    if (q->version == 4)
        fib->tos = q->tos & 0x1c; /* what Linux has of it for routing: IPTOS_RT_MASK and no more */
}

/* Whether the way back to the sender is what rp_filter wants. */
static __noinline int reverse_path(void *ctx, struct work *work)
{
    const struct question *q = &work->q;
    struct bpf_fib_lookup *fib = &work->fib;
    int verdict;

    fill_route(fib, q);
    COPY_ADDRESS(fib->ipv6_src, q->daddr);
    COPY_ADDRESS(fib->ipv6_dst, q->saddr);
    if (q->version == 4) {
        fib->ipv4_src = q->daddr[0];
        fib->ipv4_dst = q->saddr[0];
    }
    verdict = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
    if (verdict != BPF_FIB_LKUP_RET_SUCCESS && verdict != BPF_FIB_LKUP_RET_NO_NEIGH)
        return REASON_RP_FILTER;
    return (q->flags & DEVICE_RP_STRICT) && fib->ifindex != q->in ? REASON_RP_FILTER : 0;
}

/* Steps 13 to 17: the route of the packet as it is between the two translations of addresses. */
static __noinline int ask_routes(void *ctx, struct work *work)
{
    const struct question *q = &work->q;
    const struct answer *a = &work->a;
    struct hop *hop = &work->hop;
    struct bpf_fib_lookup *fib = &work->fib;

    fill_route(fib, q);
    if (q->proto == PROTO_TCP || q->proto == PROTO_UDP) {
        fib->sport = q->sport;
        fib->dport = a->dport;
    }
    fib->tot_len = sizeof(struct ipv4); /* so that the MTU of the route is given */
    if (q->version == 4) {
        fib->ipv4_src = q->saddr[0];
        fib->ipv4_dst = a->daddr[0];
    } else {
        fib->tot_len = sizeof(struct ipv6);
        COPY_ADDRESS(fib->ipv6_src, q->saddr);
        COPY_ADDRESS(fib->ipv6_dst, a->daddr);
    }
    switch (bpf_fib_lookup(ctx, fib, sizeof(*fib), 0)) {
    case BPF_FIB_LKUP_RET_SUCCESS:
        hop->mtu = fib->mtu_result;
        __builtin_memcpy(hop->dmac, fib->dmac, 6);
        __builtin_memcpy(hop->smac, fib->smac, 6);
        break;
    case BPF_FIB_LKUP_RET_NO_NEIGH: {
        /* Points to point have no neighbours. */
        u32 out = fib->ifindex;
        struct device *device = bpf_map_lookup_elem(&devices, &out);

        if (!device || out == q->in || !(device->flags & (DEVICE_PPPOE | DEVICE_USER)))
            return REASON_NEIGHBOUR;
        hop->mtu = device->mtu > 0xffff ? 0xffff : device->mtu;
        break;
    }
    case BPF_FIB_LKUP_RET_FWD_DISABLED:
        return REASON_FORWARDING_OFF;
    case BPF_FIB_LKUP_RET_UNSUPP_LWT:
        return REASON_ROUTE_SPECIAL;
    case BPF_FIB_LKUP_RET_NOT_FWDED:
        return REASON_ROUTE_LOCAL;
    case BPF_FIB_LKUP_RET_FRAG_NEEDED:
        return REASON_MTU;
    default:
        return REASON_ROUTE_NONE;
    }
    hop->logical = fib->ifindex;
    return descend(hop, 0);
}

static __always_inline bool is_martian(const struct question *q)
{
    if (q->version == 4) {
        u8 source = q->saddr[0], destination = q->daddr[0];

        return !source || source == 127 || source >= 224 || !destination || destination == 127 || destination >= 224 ||
               q->saddr[0] == q->daddr[0];
    }
    u8 source = q->saddr[0], destination = q->daddr[0];
    bool nowhere = !(q->saddr[0] | q->saddr[1] | q->saddr[2]);
    bool link_local = (q->saddr[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
                      (q->daddr[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);

    return source == 0xff || destination == 0xff || nowhere || link_local;
}

static __always_inline int compile_route_of(void *ctx, const bool skb, struct work *work)
{
    volatile struct globals *g = settings();
    const struct question *q = &work->q;
    struct answer *a = &work->a;
    int reason;

    if (!g)
        return REASON_OFF;
    a->flags = 0;
    COPY_ADDRESS(a->saddr, q->saddr);
    COPY_ADDRESS(a->daddr, q->daddr);
    a->sport = q->sport;
    a->dport = q->dport;
    if (q->bridge) {
        if (g->bridge_netfilter)
            return REASON_FDB_OFF;
        a->flags = RULE_BRIDGED;
        keep_ethernet(q, a);
        reason = bridge_hop(q, &work->hop);
        return reason ? reason : intern(&work->hop, a);
    }
    if (is_martian(q))
        return REASON_MARTIAN;
    if (!(q->flags & (q->version == 4 ? DEVICE_FORWARD4 : DEVICE_FORWARD6)))
        return REASON_FORWARDING_OFF;
    if ((q->version == 4 ? g->mode : g->mode6) == MODE_CONNTRACK) {
        reason = ask_conntrack(ctx, skb, q, a, false);
        if (reason == REASON_CONNTRACK_ICMP) {
            a->flags = RULE_SHOWN | RULE_NAT;
            return g->parts & PART_NAT ? 0 : REASON_NAT_OFF;
        }
        if (reason)
            return reason;
    }
    for (int i = 0; i < 4; i++)
        if (a->saddr[i] != q->saddr[i] || a->daddr[i] != q->daddr[i])
            a->flags |= RULE_NAT;
    if (a->sport != q->sport || a->dport != q->dport)
        a->flags |= RULE_NAT;
    if ((a->flags & RULE_NAT) && !(g->parts & PART_NAT))
        return REASON_NAT_OFF;
    if (q->flags & (DEVICE_RP_STRICT | DEVICE_RP_LOOSE)) {
        reason = reverse_path(ctx, work);
        if (reason)
            return reason;
    }
    reason = ask_routes(ctx, work);
    return reason ? reason : intern(&work->hop, a);
}

static __noinline int compile_route_xdp(void *ctx, struct work *work)
{
    return compile_route_of(ctx, false, work);
}

static __noinline int compile_route_skb(void *ctx, struct work *work)
{
    return compile_route_of(ctx, true, work);
}

static __always_inline int compile_route(void *ctx, const bool skb, struct work *work)
{
    return skb ? compile_route_skb(ctx, work) : compile_route_xdp(ctx, work);
}

#endif
