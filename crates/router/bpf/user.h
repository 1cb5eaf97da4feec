/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Step 9, and rules whose next hop is not for BPF: frames go to the AF_XDP socket of the engine in user space, with a note in
 * front. What it sends goes Linux's way now and then, and is looked at when it leaves. */
#ifndef MILLRACE_USER_H
#define MILLRACE_USER_H

#include "execute.h"

/* To the socket of the queue that the frame has come by, with a note in front of it. 0, or the reason if there is none; then nothing has changed. */
static __always_inline int to_user(void *ctx, const bool skb, const struct packet *p, u8 what, u32 rule, int *verdict)
{
    struct xdp_md *frame = ctx;
    struct note *note;
    u32 queue;

    if (skb)
        return REASON_NO_ENGINE;
    queue = frame->rx_queue_index;
    if (p->slot >= TARGETS || queue >= QUEUES)
        return REASON_NO_ENGINE;
    if (bpf_redirect_map(&sockets, p->slot * QUEUES + queue, XDP_PASS) != XDP_REDIRECT)
        return REASON_NO_ENGINE;
    /* Some drivers have no room for it. */
    if (bpf_xdp_adjust_meta(frame, -(int)sizeof(*note)))
        return REASON_NO_ENGINE;
    note = (void *)(long)frame->data_meta;
    if ((void *)(note + 1) > (void *)(long)frame->data)
        return REASON_NO_ENGINE;
    note->rule = rule;
    note->l3 = p->l3;
    note->size = p->size;
    note->version = p->version;
    note->what = what;
    note->reserved = 0;
    note->in = p->in;
    *verdict = XDP_REDIRECT;
    return 0;
}

/* Whether a packet is ESP, by itself or in UDP, of an association that the engine in user space has. */
__noinline int is_for_user(struct xdp_md *ctx, const struct packet *p)
{
    struct sa_key key = {};
    u32 l3, l4, *spi;
    struct view v;

    if (!p)
        return 0;
    look(ctx, false, &v);
    l3 = p->l3 & 63;
    if (p->version == 4) {
        struct ipv4 *ip = v.data + l3;

        if ((void *)(ip + 1) > v.end)
            return 0;
        __builtin_memcpy(key.daddr, &ip->daddr, 4);
        l4 = l3 + sizeof(*ip);
    } else {
        struct ipv6 *ip = v.data + l3;

        if ((void *)(ip + 1) > v.end)
            return 0;
        __builtin_memcpy(key.daddr, ip->daddr, 16);
        l4 = l3 + sizeof(*ip);
    }
    spi = v.data + l4 + (p->proto == PROTO_UDP ? sizeof(struct udp) : 0);
    if ((void *)(spi + 1) > v.end)
        return 0;
    key.spi = *spi;
    return !!bpf_map_lookup_elem(&sas, &key);
}

/* Step 9 for what parsing has left: `reason` is why it would go to Linux, if it would. */
static __always_inline int decrypt(void *ctx, const bool skb, const struct packet *p, volatile struct globals *g, int reason, int *verdict)
{
    if (skb || !g->sas)
        return reason;
    if (!(reason == REASON_PROTOCOL && p->proto == PROTO_ESP) &&
        !(!reason && p->proto == PROTO_UDP && p->dport == PORT_NAT_TRAVERSAL))
        return reason;
    if (!is_for_user(ctx, p))
        return reason;
    return to_user(ctx, skb, p, NOTE_OPEN, 0, verdict);
}

/* Whether what Linux sends is ESP, by itself or in UDP; `reason` is what parsing has said. */
static __always_inline bool is_esp(const struct packet *p, int reason)
{
    return (reason == REASON_PROTOCOL && p->proto == PROTO_ESP) ||
           (!reason && p->proto == PROTO_UDP && p->sport == PORT_NAT_TRAVERSAL);
}

/* At the egress: how Linux sends the packets of an association, if the engine in user space wants to know. */
static __noinline void record_outer(struct __sk_buff *skb, const struct packet *p)
{
    u32 at = (p->l3 & 63) + (p->version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6)), words[2];
    struct sa_key key = {};
    struct outer *outer;

    if (p->proto == PROTO_UDP)
        at += sizeof(struct udp);
    if (bpf_skb_load_bytes(skb, at, words, sizeof(words)))
        return;
    if (p->version == 4) {
        if (bpf_skb_load_bytes(skb, (p->l3 & 63) + 16, key.daddr, 4))
            return;
    } else if (bpf_skb_load_bytes(skb, (p->l3 & 63) + 24, key.daddr, 16)) {
        return;
    }
    key.spi = words[0];
    outer = bpf_map_lookup_elem(&outers, &key);
    if (!outer || bpf_skb_load_bytes(skb, 0, outer->head, OUTER_HEAD))
        return;
    outer->out = skb->ifindex;
    outer->l3 = p->l3;
    outer->tag_proto = skb->vlan_present ? skb->vlan_proto : 0;
    outer->tag = skb->vlan_present ? bpf_htons(skb->vlan_tci) : 0;
    outer->sequence = words[1];
}

#endif
