/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Step 9, and rules whose next hop is not for BPF: frames go, as they are, to the AF_XDP socket of the engine in user space. */
#ifndef MILLRACE_USER_H
#define MILLRACE_USER_H

#include "execute.h"

/* To the socket of the queue that the frame has come by. 0, or the reason if there is none. */
static __always_inline int to_user(void *ctx, const bool skb, u32 slot, int *verdict)
{
    u32 queue;

    if (skb)
        return REASON_NO_ENGINE;
    queue = ((struct xdp_md *)ctx)->rx_queue_index;
    if (slot >= TARGETS || queue >= QUEUES)
        return REASON_NO_ENGINE;
    *verdict = bpf_redirect_map(&sockets, slot * QUEUES + queue, XDP_PASS);
    return *verdict == XDP_REDIRECT ? 0 : REASON_NO_ENGINE;
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
    return to_user(ctx, skb, p->slot, verdict);
}

#endif
