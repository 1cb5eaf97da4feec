/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Packets to groups: by the kernel's multicast routes, as the daemon has told them. It tells only those of which nobody on this host is a
 * member, and all of whose interfaces are the router's. Only at XDP, and only where nothing of netfilter is. */
#ifndef MILLRACE_GROUP_H
#define MILLRACE_GROUP_H

#include "shadow.h"

/* The Ethernet address of a group (RFC 1112, RFC 2464), in the order of the wire. */
static __always_inline u64 mac_of4(u32 group)
{
    return 0x5e0001 | (u64)(group >> 8 & 0xffff7f) << 24;
}

static __always_inline u64 mac_of6(const u8 *group)
{
    return 0x3333 | (u64) * (const u32 *)(group + 12) << 16;
}

/* Who sends, to which group, and by which interface: the key of the route. 0, or why the packet is Linux's. */
static __always_inline int read_group(struct view *v, struct packet *p, volatile struct globals *g, struct group_key *key)
{
    u64 mac;
    int reason;

    if (v->data + 14 > v->end)
        return REASON_SHORT;
    mac = *(u64 *)v->data & MAC_BITS;
    p->ethertype = *(u16 *)(v->data + 12);
    p->l3 = 14;
    if (p->ethertype == ETH_IPV4) {
        struct ipv4 *ip = v->data + 14;

        if (!g->mode || !(g->bare & BARE4) || !(g->parts & PART_IPV4))
            return REASON_MULTICAST;
        reason = parse_ipv4(v, p);
        if (reason)
            return reason;
        if ((void *)(ip + 1) > v->end || mac != mac_of4(ip->daddr))
            return REASON_MULTICAST;
        *(u32 *)key->saddr = ip->saddr;
        *(u32 *)key->daddr = ip->daddr;
    } else if (p->ethertype == ETH_IPV6) {
        struct ipv6 *ip = v->data + 14;

        if (!g->mode6 || !(g->bare & BARE6) || !(g->parts & PART_IPV6))
            return REASON_MULTICAST;
        reason = parse_ipv6(v, p);
        if (reason)
            return reason;
        if ((void *)(ip + 1) > v->end || mac != mac_of6(ip->daddr))
            return REASON_MULTICAST;
        __builtin_memcpy(key->saddr, ip->saddr, 32);
    } else {
        return REASON_MULTICAST;
    }
    /* What belongs to multicast routing itself is Linux's. */
    if (p->proto != PROTO_UDP && !(p->proto == PROTO_FRAGMENT && p->sport == bpf_htons(PROTO_UDP)))
        return REASON_PROTOCOL;
    return 0;
}

/* Whether the sender may have sent it by this interface, where rp_filter is on. */
static __always_inline int sender_may(struct xdp_md *ctx, const struct packet *p, const struct group_key *key, u64 flags)
{
    struct work *work;

    if (p->version == 6 || !(flags & (DEVICE_RP_STRICT | DEVICE_RP_LOOSE)))
        return 0;
    work = clean_work(false);
    if (!work)
        return REASON_RP_FILTER;
    work->q.saddr[0] = *(const u32 *)key->saddr;
    work->q.version = 4;
    work->q.in = key->in;
    work->q.flags = flags;
    work->q.proto = p->proto;
    work->q.tos = p->tos;
    return reverse_path(ctx, work);
}

/* A frame to a group. 0: it is on its way to all interfaces of the group. */
__noinline int to_group(struct xdp_md *ctx, u32 ifindex)
{
    volatile struct globals *g = settings();
    struct group_key key = { .in = ifindex };
    struct packet p = { .in = ifindex, .version = 6 };
    struct group *group;
    u32 jiffies = now(), at, spare;
    struct view v;
    void *set;
    int reason;

    if (!g)
        return REASON_OFF;
    look(ctx, false, &v);
    p.len = v.end - v.data;
    reason = read_group(&v, &p, g, &key);
    if (reason)
        return reason;
    if (!(g->parts & PART_MULTICAST))
        return REASON_GROUP_OFF;
    group = bpf_map_lookup_elem(&groups, &key);
    if (!group)
        return REASON_GROUP_NONE;
    if (p.ttl <= group->ttl)
        return REASON_GROUP_TTL;
    if (p.size > group->mtu)
        return REASON_GROUP_LONG;
    reason = sender_may(ctx, &p, &key, FLAGS(device_word(ifindex)));
    if (reason)
        return reason;
    if (!group->refreshed || jiffies - group->refreshed >= g->keep) {
        group->refreshed = jiffies ? jiffies : 1;
        return REASON_GROUP_REFRESH;
    }
    at = group->set;
    set = bpf_map_lookup_elem(&sets, &at);
    if (!set)
        return REASON_GROUP_NONE;
    spare = p.len - 14 - p.size;
    if (spare && bpf_xdp_adjust_tail(ctx, -(int)spare))
        return REASON_ROOM;
    look(ctx, false, &v);
    if (p.version == 4) {
        struct ipv4 *ip = v.data + 14;

        if ((void *)(ip + 1) > v.end)
            return REASON_ROOM;
        ip->ttl--;
        ip->sum = adjust(ip->sum, 0xfffe);
    } else {
        struct ipv6 *ip = v.data + 14;

        if ((void *)(ip + 1) > v.end)
            return REASON_ROOM;
        ip->ttl--;
    }
    bpf_redirect_map(set, 0, BPF_F_BROADCAST);
    return 0;
}

/* Each copy, when it leaves: from the interface that it leaves by. */
SEC("xdp/devmap")
int router_copy(struct xdp_md *ctx)
{
    u64 word = device_word(ctx->egress_ifindex);
    u16 *head = (void *)(long)ctx->data;

    if ((void *)(head + 7) > (void *)(long)ctx->data_end || !word)
        return XDP_DROP;
    head[3] = word;
    head[4] = word >> 16;
    head[5] = word >> 32;
    return XDP_PASS;
}

#endif
