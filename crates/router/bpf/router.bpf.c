/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Millrace's router in the kernel: what Linux decided about the first packets of a flow is done for the rest. The chain of a packet is that of
 * ../src/step.rs; why it is built so: docs/decisions/0082-router.md. One source for XDP and for tc; `skb` says which. */
#include "execute.h"
#include "shadow.h"
#include "error.h"
#include "group.h"
#include "user.h"
#include "watch.h"

#define V 4
#include "flow.h"
#undef V
#define V 6
#include "flow.h"
#undef V

#define TC_NEXT (-1) /* TC_ACT_UNSPEC: the next filter, and Linux */
#define TC_ACT_SHOT 2

/* Enough for the headers that are looked at: two tags, a session, IPv6, TCP. */
#define HEADERS 96

/* Looked at before anything else, so that a router that is off costs next to nothing. */
static __always_inline bool is_off(void)
{
    volatile struct globals *g = settings();

    return !g || !(g->mode | g->mode6);
}

/* Whether Linux has decrypted the packet, which comes by the same interface once more then. In the clear its flow may be one that is dropped. */
static __always_inline bool is_decrypted(struct __sk_buff *skb)
{
    struct bpf_xfrm_state state;

    /* A kernel without IPsec has no such function either. */
    return bpf_core_enum_value_exists(enum skb_ext_id, SKB_EXT_SEC_PATH) && !bpf_skb_get_xfrm_state(skb, 0, &state, sizeof(state), 0);
}

/* Whether nobody looks after the engine. On another CPU the daemon may have beaten since `jiffies` was read, so a beat that is about to come is one; a
 * signed comparison would take one of weeks ago for that. */
static __always_inline bool is_stale(volatile struct globals *g, u32 jiffies)
{
    u32 limit = g->heartbeat_limit;

    return limit && jiffies - g->heartbeat + limit > 2 * limit;
}

static __always_inline int router(void *ctx, const bool skb, u32 ifindex, u32 len, int *verdict)
{
    volatile struct globals *g = settings();
    struct port *port = port_of(ifindex);
    struct packet p = {};
    u32 jiffies = now(), slot;
    struct view v;
    u64 word;
    int reason;

    if (!g || !port)
        return REASON_OFF;
    word = *(volatile u64 *)&port->word;
    if (!(FLAGS(word) & DEVICE_ON) || !!(FLAGS(word) & DEVICE_TC) != skb)
        return REASON_OFF;
    if (is_stale(g, jiffies))
        return REASON_STALE;
    if (skb && is_decrypted(ctx))
        return REASON_DECRYPTED;
    if (skb) {
        struct __sk_buff *buffer = ctx;
        u32 wanted = len < HEADERS ? len : HEADERS;

        if ((void *)(long)buffer->data + HEADERS > (void *)(long)buffer->data_end)
            bpf_skb_pull_data(buffer, wanted);
    }
    look(ctx, skb, &v);
    p.len = len;
    slot = p.slot = port->slot;
    reason = parse_ethernet(ctx, skb, &v, &p, g, port, word, ifindex);
    if (reason == REASON_MULTICAST && !skb && g->groups && !(FLAGS(word) & DEVICE_PORT)) {
        reason = to_group(ctx, ifindex);
        if (!reason)
            *verdict = XDP_REDIRECT;
        goto counted;
    }
    if (reason)
        return reason;
    if (p.bridge) {
        if (ifindex > 0xfffff)
            return REASON_FDB_OFF;
        /* The same addresses in two VLANs are two flows. */
        p.in = ifindex | (u32)(p.vlan ? p.vlan : bpf_ntohs(p.tag) & 0xfff) << 20;
    }
    if (p.ethertype == ETH_IPV4) {
        if (!g->mode)
            return REASON_OFF;
        if (!(g->parts & PART_IPV4))
            return REASON_FAMILY_OFF;
        reason = decrypt(ctx, skb, &p, g, parse_ipv4(&v, &p), verdict);
        look(ctx, skb, &v);
        if (!reason && *verdict != XDP_REDIRECT)
            reason = go4(ctx, skb, &v, &p, g, jiffies, verdict);
    } else if (p.ethertype == ETH_IPV6) {
        if (!g->mode6)
            return REASON_OFF;
        if (!(g->parts & PART_IPV6))
            return REASON_FAMILY_OFF;
        reason = decrypt(ctx, skb, &p, g, parse_ipv6(&v, &p), verdict);
        look(ctx, skb, &v);
        if (!reason && *verdict != XDP_REDIRECT)
            reason = go6(ctx, skb, &v, &p, g, jiffies, verdict);
    } else {
        reason = REASON_NOT_IP;
    }
counted:
    if (!reason) {
        u32 at = slot;
        u64 *packets = bpf_map_lookup_elem(&fast, &at);

        if (packets)
            *packets += 1;
    }
    return reason;
}

SEC("xdp")
int router_xdp(struct xdp_md *ctx)
{
    int verdict = XDP_PASS;
    int reason;

    if (is_off()) {
        count(REASON_OFF);
        return XDP_PASS;
    }
    reason = router(ctx, false, ctx->ingress_ifindex, ctx->data_end - ctx->data, &verdict);
    if (reason == LOST)
        return XDP_DROP;
    if (reason == REASON_ERROR_SENT || reason == REASON_ERROR_LIMITED) {
        count(reason);
        return verdict;
    }
    if (!reason && verdict == XDP_REDIRECT)
        return verdict;
    if (!reason) {
        /* The map has lost the interface since the rule was looked at; the frame is changed already. */
        count(REASON_REDIRECT_FAILED);
        return XDP_DROP;
    }
    count(reason);
    return XDP_PASS;
}

SEC("tc")
int router_tc(struct __sk_buff *skb)
{
    int verdict = TC_NEXT;
    int reason;

    if (is_off()) {
        count(REASON_OFF);
        return TC_NEXT;
    }
    reason = router(skb, true, skb->ifindex, skb->len, &verdict);
    if (!reason)
        return verdict;
    count(reason);
    return TC_NEXT;
}

/* At the egress: does Linux do what rules on trial would have done? */
SEC("tc")
int router_judge(struct __sk_buff *skb)
{
    volatile struct globals *g = settings();
    struct expected_key key = {};
    struct expected *found, copy;
    struct packet p = {};
    struct view v;
    bool has_ethernet, is_trial, is_outer;
    u32 jiffies = now();
    int reason;

    if (!g)
        return TC_NEXT;
    is_trial = (s32)(g->trial_until - jiffies) >= 0;
    is_outer = g->sas && (s32)(g->outer_until - jiffies) >= 0;
    if (!is_trial && !is_outer)
        return TC_NEXT;
    if ((void *)(long)skb->data + HEADERS > (void *)(long)skb->data_end)
        bpf_skb_pull_data(skb, skb->len < HEADERS ? skb->len : HEADERS);
    look(skb, true, &v);
    p.leaves = 1;
    has_ethernet = !(FLAGS(device_word(skb->ifindex)) & (DEVICE_L3 | DEVICE_PPPOE));
    if (!open_frame(skb, &v, &p, has_ethernet))
        return TC_NEXT;
    if (p.ethertype == ETH_IPV4) {
        u32 l3 = p.l3 & 63;
        struct ipv4 *ip = v.data + l3;

        reason = parse_ipv4(&v, &p);
        if (reason == REASON_PROTOCOL && p.proto == PROTO_ICMP && has_ethernet)
            hear_error(skb, &p);
        if (is_outer && is_esp(&p, reason)) {
            record_outer(skb, &p);
            return TC_NEXT;
        }
        if (reason || (void *)(ip + 1) > v.end)
            return TC_NEXT;
        __builtin_memcpy(key.saddr, &ip->saddr, 4);
        __builtin_memcpy(key.daddr, &ip->daddr, 4);
        key.id = ip->id;
        key.print = print_of(&v, l3 + sizeof(*ip), &p);
    } else {
        u32 l3 = p.l3 & 63;
        struct ipv6 *ip = v.data + l3;

        reason = parse_ipv6(&v, &p);
        if (reason == REASON_PROTOCOL && p.proto == PROTO_ICMP6 && has_ethernet)
            hear_error(skb, &p);
        if (is_outer && is_esp(&p, reason)) {
            record_outer(skb, &p);
            return TC_NEXT;
        }
        if (reason || (void *)(ip + 1) > v.end)
            return TC_NEXT;
        __builtin_memcpy(key.saddr, ip->saddr, 16);
        __builtin_memcpy(key.daddr, ip->daddr, 16);
        key.print = print_of(&v, l3 + sizeof(*ip), &p);
    }
    key.sport = p.sport;
    key.dport = p.dport;
    key.proto = p.proto;
    key.version = p.version;
    /* The last interface that received it: the port of a bridge, or whatever has the address. 0 of what the router sends itself; of what is in a
     * session Linux forgets it. */
    key.in = p.session ? 0 : skb->ingress_ifindex;
    found = bpf_map_lookup_elem(&expected, &key);
    if (!found && (p.proto == PROTO_ICMP || p.proto == PROTO_ICMP6)) {
        /* Of an echo nobody may have known which addresses it would have. */
        __builtin_memset(key.saddr, 0, sizeof(key.saddr));
        __builtin_memset(key.daddr, 0, sizeof(key.daddr));
        found = bpf_map_lookup_elem(&expected, &key);
    }
    if (!found)
        return TC_NEXT;
    copy = *found;
    bpf_map_delete_elem(&expected, &key);
    /* What was waited for has not come: Linux has dropped it, or keeps it. */
    if (!copy.shadow && jiffies - copy.since > g->hz / 4)
        return TC_NEXT;
    if (copy.shadow) {
        copy_linux(skb, &copy, p.version);
        return TC_NEXT;
    }
    if (p.version == 4)
        judge4(skb, &v, &p, &copy, has_ethernet);
    else
        judge6(skb, &v, &p, &copy, has_ethernet);
    return TC_NEXT;
}

/* The clock of the programs, for the daemon, which has no jiffies: run by BPF_PROG_TEST_RUN. */
SEC("xdp")
int router_clock(struct xdp_md *ctx)
{
    volatile struct globals *g = settings();

    if (g)
        g->jiffies = now();
    return XDP_PASS;
}

/* For interfaces to which frames are redirected, but from which none are taken. */
SEC("xdp")
int router_pass(struct xdp_md *ctx)
{
    return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
