/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Steps 10 to 17 by a rule: what is written into the packet. Everything that can send it to Linux has been asked before the first byte
 * changes. */
#ifndef MILLRACE_EXECUTE_H
#define MILLRACE_EXECUTE_H

#include "trial.h"

/* ~(~sum + delta), as in RFC 1624. */
static __always_inline u16 adjust(u16 sum, u32 delta)
{
    u32 total = (u16)~sum + delta;

    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    return ~total;
}

static __always_inline u32 size_in_front(const struct hop *hop, const struct packet *p)
{
    u32 size = 14;

    if (hop->flags & HOP_BRIDGED)
        return hop->flags & HOP_TAGGED ? 18 : hop->flags & HOP_UNTAGGED ? 14 : p->l3 & 63;
    if (hop->tags[0].proto)
        size += hop->tags[1].proto ? 8 : 4;
    if (hop->session)
        size += 8;
    return size;
}

/* Step 11 for TCP and UDP: ports, and the checksum by what the rule adds to it. */
static __always_inline void translate_l4(void *l4, void *end, u8 proto, const struct action *action)
{
    u16 *ports = l4;

    if (proto == PROTO_ICMP) /* the identifier stays, and addresses are not in its checksum */
        return;
    if (proto == PROTO_ICMP6) {
        struct icmp *icmp = l4;

        icmp->sum = adjust(icmp->sum, action->l4_delta);
        return;
    }
    ports[0] = action->sport;
    ports[1] = action->dport;
    if (proto == PROTO_TCP) {
        struct tcp *tcp = l4;

        if ((void *)(tcp + 1) > end) /* which parse_l4 has seen already */
            return;
        tcp->sum = adjust(tcp->sum, action->l4_delta);
    } else {
        struct udp *udp = l4;

        if (udp->sum) { /* none stays none */
            u16 sum = adjust(udp->sum, action->l4_delta);

            udp->sum = sum ? sum : 0xffff;
        }
    }
}

static __always_inline void write_ipv4(struct ipv4 *ip, const struct action *action)
{
    u8 tos = (ip->tos & 3) | action->dscp << 2;
    u32 delta = 0xfffe; /* one less of the hop limit, which is the low byte of its word */

    delta += (u16)~((u16)ip->tos << 8) + ((u16)tos << 8);
    if (action->flags & RULE_NAT) {
        delta += action->l3_delta;
        ip->saddr = action->saddr[0];
        ip->daddr = action->daddr[0];
    }
    ip->tos = tos;
    ip->ttl--;
    ip->sum = adjust(ip->sum, delta);
}

static __always_inline void write_ipv6(struct ipv6 *ip, const struct action *action)
{
    u32 word = bpf_ntohl(ip->word);

    word = (word & ~0x0fc00000) | (u32)action->dscp << 22;
    ip->word = bpf_htonl(word);
    ip->ttl--;
    if (action->flags & RULE_NAT) {
        __builtin_memcpy(ip->saddr, action->saddr, 16);
        __builtin_memcpy(ip->daddr, action->daddr, 16);
    }
}

/* Step 16 of a bridged frame: its addresses, which are those of the rule, and its tag, in front of what kind of packet it is. */
static __always_inline void write_bridged(void *data, const struct hop *hop, const struct packet *p, const struct action *action,
                                          const u8 version)
{
    struct tag came = { .proto = p->tag_proto, .tci = p->tag }, tag = bridged_tag(hop->flags, p->vlan, came);
    u32 *words = data;
    u16 *at = data + 12;

    if (!(hop->flags & (HOP_TAGGED | HOP_UNTAGGED)))
        return;
    words[0] = action->saddr[0];
    words[1] = version == 4 ? action->daddr[0] : action->saddr[1];
    words[2] = version == 4 ? action->sport | (u32)action->dport << 16 : action->saddr[2];
    if (tag.proto) {
        at[0] = tag.proto;
        at[1] = tag.tci;
        at += 2;
    }
    at[0] = version == 4 ? ETH_IPV4 : ETH_IPV6;
}

/* Steps 15 and 16: the frame's head, `l3` bytes of it. */
static __always_inline void write_front(void *data, const struct hop *hop, const struct packet *p, u32 l3, const u8 version)
{
    u32 *words = data;
    u32 *macs = (u32 *)hop->dmac;
    u16 kind = version == 4 ? ETH_IPV4 : ETH_IPV6;
    u16 *at = data + 12;

    words[0] = macs[0];
    words[1] = macs[1];
    words[2] = macs[2];
    if (l3 == 14) {
        *at = kind;
        return;
    }
    if (hop->tags[0].proto) {
        at[0] = hop->tags[0].proto;
        at[1] = hop->tags[0].tci;
        at += 2;
        if (hop->tags[1].proto) {
            at[0] = hop->tags[1].proto;
            at[1] = hop->tags[1].tci;
            at += 2;
        }
    }
    if (!hop->session) {
        at[0] = kind;
        return;
    }
    at[0] = ETH_PPPOE;
    at[1] = bpf_htons(0x1100);
    at[2] = hop->session;
    at[3] = bpf_htons(p->size + 2);
    at[4] = version == 4 ? PPP_IPV4 : PPP_IPV6;
}

/* The room in front of IP as the hop wants it, and nothing behind it, as Linux would trim it. 0, or why not; then nothing has changed. */
static __always_inline int fit_frame(struct xdp_md *ctx, struct view *v, const struct packet *p, const struct hop *hop, u32 *l3)
{
    u32 wanted = size_in_front(hop, p), spare = p->len - p->l3 - p->size;

    *l3 = wanted;
    if (wanted != p->l3) {
        if (bpf_xdp_adjust_head(ctx, (int)p->l3 - (int)wanted))
            return REASON_ROOM;
    }
    if (spare && !p->bridge)
        bpf_xdp_adjust_tail(ctx, -(int)spare);
    look(ctx, false, v);
    return 0;
}

/* All of it, to a frame of XDP. */
static __always_inline int change_frame(struct xdp_md *ctx, struct view *v, const struct packet *p, const struct hop *hop,
                                        const struct action *action, const u8 version)
{
    u32 l3, head = version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
    int reason = fit_frame(ctx, v, p, hop, &l3);
    void *ip, *l4;

    if (reason)
        return reason;
    ip = v->data + l3;
    l4 = ip + head;
    if (l4 + 8 > v->end || v->data + 34 > v->end)
        return REASON_ROOM;
    if (!(action->flags & RULE_BRIDGED)) {
        if (action->flags & RULE_NAT)
            translate_l4(l4, v->end, p->proto, action);
        if (version == 4)
            write_ipv4(ip, action);
        else
            write_ipv6(ip, action);
    }
    if (hop->flags & HOP_BRIDGED)
        write_bridged(v->data, hop, p, action, version);
    else
        write_front(v->data, hop, p, l3, version);
    return 0;
}

/* What Linux would give to a tunnel interface: the packet, where it lies. 0, or why not; then nothing has changed. */
static __always_inline int change_packet(struct xdp_md *ctx, struct view *v, const struct packet *p, const struct action *action,
                                         const u8 version)
{
    u32 l3 = p->l3 & 63, head = version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
    void *ip, *l4;

    look(ctx, false, v);
    ip = v->data + l3;
    l4 = ip + head;
    if (l4 + 8 > v->end)
        return REASON_ROOM;
    if (action->flags & RULE_NAT)
        translate_l4(l4, v->end, p->proto, action);
    if (version == 4)
        write_ipv4(ip, action);
    else
        write_ipv6(ip, action);
    return 0;
}

/* The same to a buffer of Linux, whose checksum may not be there yet, and whose tags are beside the frame. */
static __always_inline int change_buffer(struct __sk_buff *skb, struct view *v, const struct packet *p, const struct hop *hop,
                                         const struct action *action, const u8 version)
{
    u32 head = version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
    u32 l4 = 14 + head;
    u32 sum = p->proto == PROTO_TCP ? l4 + 16 : p->proto == PROTO_UDP ? l4 + 6 : l4 + 2;
    u64 udp = p->proto == PROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
    u32 spare = p->len - p->l3 - p->size;
    struct tag came = { .proto = p->tag_proto, .tci = p->tag };
    struct tag tag = hop->flags & HOP_BRIDGED ? bridged_tag(hop->flags, p->vlan, came) : hop->tags[0];
    bool is_as_it_came = (hop->flags & (HOP_BRIDGED | HOP_TAGGED | HOP_UNTAGGED)) == HOP_BRIDGED;

    if (p->l3 != 14 || hop->session || hop->tags[1].proto)
        return REASON_PARTIAL;
    /* What stands behind IP is trimmed, as Linux does. */
    if (spare && !p->bridge && bpf_skb_change_tail(skb, skb->len - spare, 0))
        return REASON_ROOM;
    if (!is_as_it_came) {
        if (skb->vlan_present && bpf_skb_vlan_pop(skb))
            return REASON_ROOM;
        if (tag.proto && bpf_skb_vlan_push(skb, tag.proto, bpf_ntohs(tag.tci)))
            return REASON_ROOM;
    }
    if (!(action->flags & RULE_BRIDGED) && (action->flags & RULE_NAT) && p->proto != PROTO_ICMP) {
        /* Addresses are part of the pseudo header, ports are not: of a checksum that the card will complete, only the former is there. */
        u32 ports = (u32)(u16)~p->sport + (u16)~p->dport + action->sport + action->dport;
        u16 both[2] = { action->sport, action->dport };

        ports = (ports & 0xffff) + (ports >> 16);
        bpf_l4_csum_replace(skb, sum, 0, action->l3_delta, BPF_F_PSEUDO_HDR | udp);
        if (p->proto != PROTO_ICMP6) {
            bpf_l4_csum_replace(skb, sum, 0, ports, udp);
            bpf_skb_store_bytes(skb, l4, both, 4, 0);
        }
    }
    look(skb, true, v);
    if (v->data + l4 > v->end)
        return REASON_ROOM;
    if (!(action->flags & RULE_BRIDGED)) {
        if (version == 4) {
            write_ipv4(v->data + 14, action);
            skb->priority = priority_of(action->dscp << 2);
        } else {
            write_ipv6(v->data + 14, action);
        }
    }
    if (!(hop->flags & HOP_BRIDGED))
        write_front(v->data, hop, p, 14, version);
    return 0;
}

#endif
