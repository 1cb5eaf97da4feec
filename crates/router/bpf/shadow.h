/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Step 17 for one packet in so many: the frame is changed as the rule says, copied, changed back and given to Linux. What Linux makes of it is
 * copied at the egress, and the daemon compares the two (../src/engine/shadow.rs). So what is compared is what would have been sent. */
#ifndef MILLRACE_SHADOW_H
#define MILLRACE_SHADOW_H

#include "execute.h"

#define SAVED 128 /* headers that may change: Ethernet, tags, session, IP, TCP */

struct saved {
    u8 bytes[SAVED];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, u32);
    __type(value, struct saved);
} originals SEC(".maps");

/* At most `limit`, a power of two, of a length that is not 0: in a way that the verifier of Linux 6.1 follows. */
static __always_inline u32 bounded(u32 len, const u32 limit)
{
    u32 last = len - 1;

    if (last >= limit)
        last = limit - 1;
    asm volatile("" : "+r"(last)); /* so that the compiler does not see that the next line changes nothing */
    return (last & (limit - 1)) + 1;
}

static __always_inline bool is_chosen(volatile struct globals *g)
{
    u32 share = g->shadow;

    return share && (share == 1 || bpf_get_prandom_u32() % share == 0);
}

static __always_inline void fill_shadow(struct shadow *copy, u32 ticket, u32 rule, u32 word, u32 out, u32 len, u8 side, u8 version)
{
    volatile struct globals *g = settings();

    copy->ticket = ticket;
    copy->rule = rule;
    copy->state = word;
    copy->out = out;
    copy->len = len;
    copy->changes = g ? g->changes : 0;
    copy->side = side;
    copy->version = version;
    copy->tag_proto = 0;
    copy->tag = 0;
    copy->reserved = 0;
}

/* Changes a frame, copies it and changes it back. 0, or why not; then it is as it was. */
static __always_inline int copy_frame(struct xdp_md *ctx, struct view *v, const struct packet *p, const struct hop *hop,
                                      const struct action *action, const u8 version, struct shadow *copy)
{
    u32 at = 0, saved = bounded(p->len, SAVED), wanted = size_in_front(hop, p), spare = p->len - p->l3 - p->size, len;
    struct saved *original = bpf_map_lookup_elem(&originals, &at);
    int reason;

    if (!original || bpf_xdp_load_bytes(ctx, 0, original->bytes, saved))
        return REASON_UNCOMPARED;
    reason = change_frame(ctx, v, p, hop, action, version);
    if (reason)
        return reason;
    len = ctx->data_end - ctx->data;
    copy->len = len;
    bpf_xdp_load_bytes(ctx, 0, copy->frame, bounded(len, SHADOW_BYTES));
    if (wanted != p->l3)
        bpf_xdp_adjust_head(ctx, (int)wanted - (int)p->l3);
    if (spare && !p->bridge)
        bpf_xdp_adjust_tail(ctx, spare);
    bpf_xdp_store_bytes(ctx, 0, original->bytes, saved);
    return 0;
}

/* The same with a buffer of Linux; those with tags are left out. */
static __always_inline int copy_buffer(struct __sk_buff *skb, struct view *v, const struct packet *p, const struct hop *hop,
                                       const struct action *action, const u8 version, struct shadow *copy)
{
    u32 at = 1, saved = bounded(p->len, SAVED);
    struct saved *original = bpf_map_lookup_elem(&originals, &at);
    u32 head = version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
    u32 sum = p->proto == PROTO_TCP ? 14 + head + 16 : p->proto == PROTO_UDP ? 14 + head + 6 : 14 + head + 2;
    u64 udp = p->proto == PROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
    int reason;

    if (!original || skb->vlan_present || hop->tags[0].proto || (hop->flags & HOP_TAGGED) || skb->gso_segs > 1 || bpf_skb_load_bytes(skb, 0, original->bytes, saved))
        return REASON_UNCOMPARED;
    reason = change_buffer(skb, v, p, hop, action, version);
    if (reason)
        return reason;
    copy->len = skb->len;
    bpf_skb_load_bytes(skb, 0, copy->frame, bounded(skb->len, SHADOW_BYTES));
    if (!(action->flags & RULE_BRIDGED) && (action->flags & RULE_NAT) && p->proto != PROTO_ICMP) {
        /* What the kernel keeps beside the frame of its checksum goes back, too; then the bytes. */
        u32 ports = (u32)p->sport + p->dport + (u16)~action->sport + (u16)~action->dport;

        ports = (ports & 0xffff) + (ports >> 16);
        bpf_l4_csum_replace(skb, sum, 0, (u16)~action->l3_delta, BPF_F_PSEUDO_HDR | udp);
        bpf_l4_csum_replace(skb, sum, 0, ports, udp);
    }
    /* Behind IP there may have been padding, which is off now; Linux would take it off, too. */
    bpf_skb_store_bytes(skb, 0, original->bytes, bounded(saved < skb->len ? saved : skb->len, SAVED), 0);
    return 0;
}

/* What Linux has made of a packet that is compared. */
static __noinline void copy_linux(struct __sk_buff *skb, const struct expected *e, u32 version)
{
    volatile struct globals *g = settings();
    struct shadow *copy;

    if (!g || skb->gso_segs > 1) {
        count(REASON_UNCOMPARED);
        return;
    }
    copy = bpf_ringbuf_reserve(&shadows, sizeof(*copy), 0);
    if (!copy) {
        __sync_fetch_and_add(&g->shadow_lost, 1);
        return;
    }
    fill_shadow(copy, e->ticket, e->rule, e->state, skb->ifindex, skb->len, SHADOW_LINUX, version);
    if (skb->vlan_present) {
        copy->tag_proto = skb->vlan_proto;
        copy->tag = bpf_htons(skb->vlan_tci);
    }
    bpf_skb_load_bytes(skb, 0, copy->frame, bounded(skb->len, SHADOW_BYTES));
    bpf_ringbuf_submit(copy, 0);
}

#endif
