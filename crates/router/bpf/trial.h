/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* A rule on trial: what is written down when its packet goes to Linux, and the judgement when Linux sends the packet. */
#ifndef MILLRACE_TRIAL_H
#define MILLRACE_TRIAL_H

#include "compile.h"

/* Whether the daemon is woken: for what it has to do at once, and when the ring is a quarter full. The rest it finds some milliseconds later; to wake
 * it costs this packet microseconds, and on a busy machine those behind it more, for it may get this very processor. */
static __always_inline u64 waking(u8 kind, u8 proto)
{
    bool is_urgent = proto == PROTO_TCP && (kind == EVENT_MADE || kind == EVENT_ENDED);

    if (is_urgent || bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > EVENTS_BYTES / 4)
        return BPF_RB_FORCE_WAKEUP;
    return BPF_RB_NO_WAKEUP;
}

static __noinline void tell(u8 kind, u8 reason, u32 number, const struct question *q)
{
    struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
    volatile struct globals *g = settings();

    if (!event) {
        if (g)
            __sync_fetch_and_add(&g->events_lost, 1);
        return;
    }
    __builtin_memset(event, 0, sizeof(*event));
    event->time = bpf_ktime_get_ns();
    event->rule = number;
    event->kind = kind;
    event->reason = reason;
    event->in = q->in;
    event->version = q->version;
    event->proto = q->proto;
    event->dscp = q->tos >> 2;
    event->sport = q->sport;
    event->dport = q->dport;
    __builtin_memcpy(event->saddr, q->saddr, 16);
    __builtin_memcpy(event->daddr, q->daddr, 16);
    bpf_ringbuf_submit(event, waking(kind, q->proto));
}

/* What no router changes of a packet, so that it is known again. `l4` is a header that has been checked to be there. */
static __always_inline u32 print_of(struct view *v, u32 l4, const struct packet *p)
{
    u32 *words = v->data + l4;
    u32 size = p->size - (p->version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6)), print;
    u8 proto = p->proto;

    if (proto == PROTO_FRAGMENT)
        return p->print;
    if ((void *)(words + 2) > v->end)
        return 0;
    print = words[1];
    if (proto == PROTO_TCP)
        return print;
    if (proto == PROTO_UDP)
        print &= 0xffff; /* the length; the checksum changes with NAT */
    if (proto == PROTO_ICMP)
        print ^= words[0] * 0x9e3779b1; /* with the checksum of the whole, which does not */
    /* Within HEADERS, and not what Ethernet may have padded. */
#pragma unroll
    for (u32 at = 2; at < 6; at++)
        if ((at + 1) * 4 <= size && (void *)(words + at + 1) <= v->end)
            print = (print ^ words[at]) * 0x9e3779b1;
    return print;
}

/* Reasons that pass by themselves in less than a second: a rule that remembers them would only be in the way. */
static __always_inline bool is_passing(u32 reason)
{
    return reason == REASON_NO_CONNTRACK || reason == REASON_NOT_ESTABLISHED || reason == REASON_NEIGHBOUR ||
           reason == REASON_FDB_UNKNOWN || reason == REASON_FDB_MOVED || reason == REASON_FDB_REFRESH;
}

/* Whether the judge has something to look for. */
static __always_inline void expect_until(volatile u32 *until, u32 jiffies)
{
    if (*until != jiffies)
        *until = jiffies;
}

static __noinline void expect(const struct expected_key *key, u32 number, u32 word, const struct packet *p, u32 ticket)
{
    volatile struct globals *g = settings();
    u32 jiffies = now();
    struct expected value = { .rule = number, .state = word, .since = jiffies };

    /* One that Linux will not send on proves nothing. */
    if (!g || (p->ttl <= 1 && !p->bridge))
        return;
    value.ttl = p->bridge ? p->ttl : p->ttl - 1;
    value.dscp = p->tos >> 2;
    value.ticket = ticket;
    value.moved = g->moved;
    value.shadow = ticket != 0;
    value.tag.proto = p->tag_proto;
    value.tag.tci = p->tag;
    expect_until(&g->trial_until, jiffies + g->hz);
    bpf_map_update_elem(&expected, key, &value, BPF_ANY);
}

/* Whether the frame at the egress has the addresses that `hop`, or of a bridged frame its rule, would have written, the tag, and what follows. */
static __always_inline bool same_ethernet(struct view *v, const void *addresses, struct tag tag, const struct hop *hop,
                                          const struct packet *seen)
{
    const u16 *head = v->data, *macs = addresses;

    if (v->data + 14 > v->end)
        return false;
    for (int i = 0; i < 6; i++)
        if (head[i] != macs[i])
            return false;
    return seen->tag_proto == tag.proto && seen->tag == tag.tci && seen->vlan == hop->tags[1].tci && seen->session == hop->session;
}

/* By which Linux (`rt_tos2priority`) sorts packets of IPv4 that it forwards: bulk, interactive, both. */
static __always_inline u32 priority_of(u8 tos)
{
    u32 kind = (tos >> 3) & 3;

    return kind == 1 ? 2 : kind == 2 ? 6 : kind == 3 ? 4 : 0;
}

/* The tags and the session of a frame that leaves, and where IP begins. */
static __always_inline bool open_frame(struct __sk_buff *skb, struct view *v, struct packet *p, bool has_ethernet)
{
    u16 kind = skb->protocol;
    u32 at = 0;
    bool first = true;

    p->len = skb->len;
    if (has_ethernet) {
        if (v->data + 14 > v->end)
            return false;
        kind = *(u16 *)(v->data + 12);
        at = 14;
        if (skb->vlan_present) {
            p->tag_proto = skb->vlan_proto;
            p->tag = bpf_htons(skb->vlan_tci);
            first = false;
        }
#pragma unroll
        for (int tags = 0; tags < 2; tags++) {
            u16 *next = v->data + at;

            if (kind != ETH_VLAN && kind != ETH_QINQ)
                break;
            if ((void *)(next + 2) > v->end)
                return false;
            if (first) {
                p->tag_proto = kind;
                p->tag = next[0];
                first = false;
            } else {
                p->vlan = next[0];
            }
            kind = next[1];
            at += 4;
        }
        if (kind == ETH_PPPOE) {
            u16 *head = v->data + at;

            if ((void *)(head + 4) > v->end)
                return false;
            p->session = head[1];
            p->size = bpf_ntohs(head[2]) - 2;
            kind = head[3] == PPP_IPV4 ? ETH_IPV4 : head[3] == PPP_IPV6 ? ETH_IPV6 : 0;
            at += 8;
        }
    }
    p->ethertype = kind;
    p->l3 = at;
    return kind == ETH_IPV4 || kind == ETH_IPV6;
}

/* What of a merged or not yet segmented packet goes over a link at a time. `size` is that of the whole. */
static __always_inline u32 size_of_segments(struct __sk_buff *skb, const struct packet *p, u32 size)
{
    if (skb->gso_segs < 2)
        return size;
    return skb->gso_size + p->l4_size + (p->version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6));
}

static __always_inline bool same_words(const void *one, const void *other, const u32 count)
{
    const u32 *a = one, *b = other;
    bool same = true;

#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (i < count && a[i] != b[i])
            same = false;
    return same;
}

/* Whose packet it is that Linux sends. */
enum whose {
    WHOSE_UNKNOWN, /* conntrack has not seen it */
    WHOSE_OURS,
    WHOSE_OTHER,
};

#define READ_TUPLE(ct, dir, came) \
    do { \
        bpf_core_read((came)->saddr, 16, &(ct)->tuplehash[dir].tuple.src.u3); \
        bpf_core_read((came)->daddr, 16, &(ct)->tuplehash[dir].tuple.dst.u3); \
        bpf_core_read(&(came)->sport, 2, &(ct)->tuplehash[dir].tuple.src.u); \
        bpf_core_read(&(came)->dport, 2, &(ct)->tuplehash[dir].tuple.dst.u); \
    } while (0)

/* Whether a packet came with the addresses and ports of `q`, before any translation: by the entry of conntrack that Linux keeps beside it. What the
 * packet looks like when it leaves does not say that: whoever knows what is waited for can send the same from an address of his own. */
static __noinline int whose_is(struct __sk_buff *skb, const struct question *q)
{
    struct question came = {};
    unsigned long word = 0;
    struct nf_conn *ct;

    if (!HAS_CONNTRACK || !q)
        return WHOSE_UNKNOWN;
    bpf_core_read(&word, sizeof(word), &((struct sk_buff *)skb)->_nfct);
    ct = (struct nf_conn *)(word & ~NFCT_INFOMASK);
    if (!ct)
        return WHOSE_UNKNOWN;
    if ((word & NFCT_INFOMASK) >= IP_CT_IS_REPLY)
        READ_TUPLE(ct, 1, &came);
    else
        READ_TUPLE(ct, 0, &came);
    for (int i = 0; i < 4; i++)
        if (came.saddr[i] != q->saddr[i] || came.daddr[i] != q->daddr[i])
            return WHOSE_OTHER;
    return came.sport == q->sport && came.dport == q->dport ? WHOSE_OURS : WHOSE_OTHER;
}

/* The next hop that a frame of Linux shows. */
static __noinline int shown_hop(struct __sk_buff *skb, const struct packet *seen, struct work *work)
{
    u32 out = skb->ifindex;
    struct device *device = bpf_map_lookup_elem(&devices, &out);
    struct hop *hop;

    if (!device || !work || !seen)
        return REASON_OUT_UNKNOWN;
    hop = &work->hop;
    __builtin_memset(hop, 0, sizeof(*hop));
    hop->out = hop->logical = out;
    hop->slot = device->slot;
    hop->mtu = device->mtu > 0xffff ? 0xffff : device->mtu;
    hop->tags[0].proto = seen->tag_proto;
    hop->tags[0].tci = seen->tag;
    if (seen->vlan) {
        hop->tags[1].proto = ETH_VLAN;
        hop->tags[1].tci = seen->vlan;
    }
    hop->session = seen->session;
    if (bpf_skb_load_bytes(skb, 0, hop->dmac, 12))
        return REASON_OUT_UNKNOWN;
    return can_be_target(device->slot);
}

#define V 4
#include "verdict.h"
#undef V
#define V 6
#include "verdict.h"
#undef V

#endif
