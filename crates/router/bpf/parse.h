/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Steps 1 to 7: from the frame to the tuple of its flow. Each function gives 0, or the reason why the packet goes to Linux. */
#ifndef MILLRACE_PARSE_H
#define MILLRACE_PARSE_H

#include "maps.h"

#define ETH_IPV4 bpf_htons(0x0800)
#define ETH_IPV6 bpf_htons(0x86dd)
#define ETH_VLAN bpf_htons(0x8100)
#define ETH_QINQ bpf_htons(0x88a8)
#define ETH_PPPOE bpf_htons(0x8864)
#define PPP_IPV4 bpf_htons(0x0021)
#define PPP_IPV6 bpf_htons(0x0057)

#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_FRAGMENT 44 /* of IPv6 on the wire; here of both versions */
#define PROTO_ESP 50
#define PROTO_ICMP6 58

/* Of echoes: type and code, as they lie in a packet. */
#define ECHO4 bpf_htons(0x0800)
#define ECHO_REPLY4 bpf_htons(0x0000)
#define ECHO6 bpf_htons(0x8000)
#define ECHO_REPLY6 bpf_htons(0x8100)

#define PORT_NAT_TRAVERSAL bpf_htons(4500)

struct ipv4 {
    u8 version_length;
    u8 tos;
    u16 len;
    u16 id;
    u16 fragment;
    u8 ttl;
    u8 proto;
    u16 sum;
    u32 saddr;
    u32 daddr;
};

struct ipv6 {
    u32 word; /* version, class, label */
    u16 len;
    u8 proto;
    u8 ttl;
    u8 saddr[16];
    u8 daddr[16];
};

/* What is needed of TCP, UDP and ICMP; of the latter two less than this is there. */
struct tcp {
    u16 sport;
    u16 dport;
    u32 seq;
    u32 ack;
    u8 offset;
    u8 flags;
    u16 window;
    u16 sum;
    u16 urgent;
};
struct udp {
    u16 sport;
    u16 dport;
    u16 len;
    u16 sum;
};
struct icmp {
    u8 type;
    u8 code;
    u16 sum;
    u16 id;
    u16 seq;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* A packet as far as it has been understood. */
struct packet {
    u32 in;       /* the interface that it has come by for IP */
    u32 l3;       /* where IP begins */
    u32 len;      /* of the frame */
    u32 size;     /* of the packet of IP */
    u64 flags;    /* of `in` */
    u32 bridge;   /* the bridge that sends it on, if it is not for us */
    u16 vlan;     /* in that bridge, in the processor's order */
    u16 slot;     /* of the interface that the frame has come by */
    u16 tag;      /* the tag of a bridged frame; its TCI as on the wire */
    u16 tag_proto;
    u16 session;
    u16 ethertype;
    u16 sport;
    u16 dport;
    u8 proto;
    u8 tos;
    u8 ttl;
    u8 version;
    u8 tcp_flags;
    u8 l4_size; /* of the header of TCP or UDP */
    u8 leaves;  /* it is one that Linux sends */
    u32 print;  /* of a fragment: its place */
};

/* The beginning of the frame and what is behind its end. */
struct view {
    void *data;
    void *end;
};

static __always_inline void look(void *ctx, const bool skb, struct view *view)
{
    if (skb) {
        struct __sk_buff *buffer = ctx;

        view->data = (void *)(long)buffer->data;
        view->end = (void *)(long)buffer->data_end;
    } else {
        struct xdp_md *frame = ctx;

        view->data = (void *)(long)frame->data;
        view->end = (void *)(long)frame->data_end;
    }
}

#define MAC_BITS 0xffffffffffffULL
#define FLAGS(word) ((word) >> 48)

static __always_inline u32 *upper(u32 lower, u32 kind, u32 id)
{
    struct upper_key key = { .lower = lower, .kind = kind, .id = id };

    return bpf_map_lookup_elem(&uppers, &key);
}

static __always_inline struct fdb_value *fdb_of(u32 bridge, u16 vlan, u64 mac)
{
    struct fdb_key key = { .bridge = bridge, .vlan = vlan };

    __builtin_memcpy(key.mac, &mac, 6);
    return bpf_map_lookup_elem(&fdb, &key);
}

/* Steps 3 and 4 for one tag: a VLAN interface on top of where the frame is now. */
static __always_inline int untag(struct packet *p, u16 proto, u16 tci)
{
    u32 *found = upper(p->in, UPPER_VLAN, (u32)proto << 16 | (tci & bpf_htons(0x0fff)));

    if (!found)
        return REASON_VLAN_UNKNOWN;
    p->in = *found;
    return 0;
}

/* Step 4: whether the frame of a port is for the router, or sent on by the bridge. A tag that is left is then of a VLAN of the bridge. */
static __noinline int through_bridge(struct packet *p, u64 dmac, u32 master, u16 pvid)
{
    volatile struct globals *g = settings();
    u64 bridge = device_word(master);
    struct fdb_value *to;

    if (!g || !p || !bridge)
        return REASON_FDB_UNKNOWN;
    if (!(g->parts & PART_FDB))
        return REASON_FDB_OFF;
    if (FLAGS(bridge) & DEVICE_VLAN_AWARE) {
        p->vlan = p->tag_proto ? bpf_ntohs(p->tag) & 0x0fff : pvid;
        if (!p->vlan)
            return REASON_VLAN_UNKNOWN;
    }
    if ((bridge & MAC_BITS) != dmac) {
        to = fdb_of(master, p->vlan, dmac);
        if (!to)
            return REASON_FDB_UNKNOWN;
        if (!(to->flags & FDB_LOCAL)) {
            p->bridge = master;
            return 0;
        }
    }
    p->in = master;
    p->flags = FLAGS(bridge);
    if (p->tag_proto || p->vlan) {
        /* The VLAN of an untagged frame has an interface on the bridge, too, if it is not the bridge's own. */
        u16 tci = p->tag_proto ? p->tag : bpf_htons(p->vlan);
        int reason = untag(p, p->tag_proto ? p->tag_proto : ETH_VLAN, tci);

        if (reason && p->tag_proto)
            return reason;
        p->flags = FLAGS(device_word(p->in));
    }
    return 0;
}

/* One tag more. */
static __always_inline int take_tag(struct packet *p, u16 proto, u16 tci, u32 parts, bool is_port)
{
    if (!(parts & PART_VLAN))
        return REASON_VLAN_OFF;
    if (!is_port)
        return untag(p, proto, tci);
    p->tag_proto = proto;
    p->tag = tci;
    return 0;
}

/* Tags and the session of PPPoE: what most frames have not. The first tag of a buffer is beside its frame: Linux has taken it off. */
static __always_inline int unwrap(void *ctx, const bool skb, struct view *v, struct packet *p, u16 kind, u32 parts, bool is_port)
{
    u32 at = 14, most = 2;
    int reason;

    if (skb && ((struct __sk_buff *)ctx)->vlan_present) {
        struct __sk_buff *buffer = ctx;

        reason = take_tag(p, buffer->vlan_proto, bpf_htons(buffer->vlan_tci), parts, is_port);
        if (reason)
            return reason;
        most = 1;
    }
#pragma unroll
    for (int tags = 0; tags < 2; tags++) {
        u16 *next = v->data + at;

        if (kind != ETH_VLAN && kind != ETH_QINQ)
            break;
        /* A bridge looks at one tag; what is behind that is its own guest. */
        if (tags >= most || (is_port && p->tag_proto))
            return REASON_TAGS;
        if ((void *)(next + 2) > v->end)
            return REASON_SHORT;
        reason = take_tag(p, kind, next[0], parts, is_port);
        if (reason)
            return reason;
        kind = next[1];
        at += 4;
    }
    if (kind == ETH_VLAN || kind == ETH_QINQ)
        return REASON_TAGS;
    if (kind == ETH_PPPOE && !is_port) {
        u16 *head = v->data + at;
        u32 *found;

        if (!(parts & PART_PPPOE))
            return REASON_PPPOE_OFF;
        if ((void *)(head + 4) > v->end)
            return REASON_SHORT;
        if (head[0] != bpf_htons(0x1100))
            return REASON_PPPOE_CONTROL;
        found = upper(p->in, UPPER_PPPOE, head[1]);
        if (!found)
            return REASON_PPPOE_UNKNOWN;
        p->in = *found;
        p->session = head[1];
        if (head[3] == PPP_IPV4)
            kind = ETH_IPV4;
        else if (head[3] == PPP_IPV6)
            kind = ETH_IPV6;
        else
            return REASON_PPPOE_CONTROL;
        /* What the session says is there has to be there; behind it, Ethernet may have padded. */
        p->size = bpf_ntohs(head[2]) - 2;
        at += 8;
    }
    p->ethertype = kind;
    p->l3 = at;
    return 0;
}

/* Steps 1 to 5. `word` is that of the interface that the frame has come by, of which `in` is the number. */
static __always_inline int parse_ethernet(void *ctx, const bool skb, struct view *v, struct packet *p, volatile struct globals *g,
                                          struct port *port, u64 word, u32 in)
{
    u64 dmac;
    u16 kind;

    if (v->data + 14 > v->end)
        return REASON_SHORT;
    dmac = *(u64 *)v->data & MAC_BITS;
    kind = *(u16 *)(v->data + 12);
    if (dmac & 1)
        return REASON_MULTICAST;
    p->in = in;
    p->flags = FLAGS(word);
    p->ethertype = kind;
    p->l3 = 14;
    if ((kind != ETH_IPV4 && kind != ETH_IPV6) || (skb && ((struct __sk_buff *)ctx)->vlan_present)) {
        int reason;

        if (kind != ETH_VLAN && kind != ETH_QINQ && kind != ETH_PPPOE && kind != ETH_IPV4 && kind != ETH_IPV6)
            return REASON_NOT_IP;
        reason = unwrap(ctx, skb, v, p, kind, g->parts, FLAGS(word) & DEVICE_PORT);
        if (reason)
            return reason;
    }
    if (FLAGS(word) & DEVICE_PORT)
        return through_bridge(p, dmac, port->master, port->pvid);
    if (p->in != in) {
        u64 logical = device_word(p->in);

        p->flags = FLAGS(logical);
        /* A VLAN interface may have an address of its own; a session has none. */
        if (!(p->flags & DEVICE_PPPOE) && (logical & MAC_BITS) == dmac)
            return 0;
    }
    return (word & MAC_BITS) == dmac ? 0 : REASON_NOT_OURS;
}

/* Ports and what else is looked at of TCP, UDP and ICMP; `l4` is where they begin. */
static __always_inline int parse_l4(struct view *v, struct packet *p, u32 l4, u32 size)
{
    struct tcp *tcp = v->data + l4;

    if (p->proto == PROTO_TCP) {
        if ((void *)(tcp + 1) > v->end || size < sizeof(*tcp) || (tcp->offset >> 4) < 5 || (tcp->offset >> 4) * 4u > size)
            return REASON_L4_HEADER;
        p->tcp_flags = tcp->flags;
        p->l4_size = (tcp->offset >> 4) * 4;
    } else if (p->proto == PROTO_UDP) {
        struct udp *udp = (void *)tcp;

        if ((void *)(udp + 1) > v->end || bpf_ntohs(udp->len) != size)
            return REASON_L4_HEADER;
        p->l4_size = sizeof(*udp);
    } else {
        struct icmp *icmp = (void *)tcp;

        if ((void *)(icmp + 1) > v->end || size < sizeof(*icmp))
            return REASON_L4_HEADER;
        /* What asks and what answers are two flows, which filters tell apart; conntrack keeps type and code at this place, too. */
        p->sport = icmp->id;
        p->dport = *(u16 *)icmp;
        if (p->version == 4 ? p->dport != ECHO4 && p->dport != ECHO_REPLY4 : p->dport != ECHO6 && p->dport != ECHO_REPLY6)
            return REASON_PROTOCOL;
        return 0;
    }
    p->sport = tcp->sport;
    p->dport = tcp->dport;
    return 0;
}

/* Step 7: where nobody puts fragments together, they are a flow of their own, whatever ports the first one has. */
static __always_inline int fragment_of(struct packet *p, u8 proto, u32 print)
{
    volatile struct globals *g = settings();

    if (!g || !(p->bridge || p->leaves || (g->bare & (p->version == 4 ? BARE4 : BARE6))))
        return REASON_FRAGMENT;
    if (!p->leaves && !(g->parts & PART_FRAGMENT))
        return REASON_FRAGMENT_OFF;
    p->sport = bpf_htons(proto);
    p->dport = 0;
    p->proto = PROTO_FRAGMENT;
    p->print = print;
    return 0;
}

/* Steps 6 and 7 of IPv4. `whole` is how long a packet that has been merged or is not yet segmented may be behind its header. */
static __always_inline int parse_ipv4(struct view *v, struct packet *p)
{
    u32 l3 = p->l3 & 63; /* the verifier forgets what is in memory */
    struct ipv4 *ip = v->data + l3;
    u32 *words = (u32 *)ip;
    u64 sum;
    u32 size;

    if ((void *)(ip + 1) > v->end)
        return REASON_IP_HEADER;
    if (ip->version_length != 0x45)
        return ip->version_length >> 4 == 4 && (ip->version_length & 15) > 5 ? REASON_IP_OPTIONS : REASON_IP_HEADER;
    size = bpf_ntohs(ip->len);
    if (size < sizeof(*ip) || l3 + size > p->len || (p->session && size > p->size))
        return REASON_IP_HEADER;
    sum = (u64)words[0] + words[1] + words[2] + words[3] + words[4];
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    if (sum != 0xffff)
        return REASON_IP_CHECKSUM;
    if (ip->fragment & bpf_htons(0x8000))
        return REASON_FRAGMENT;
    p->version = 4;
    p->size = size;
    p->tos = ip->tos;
    p->ttl = ip->ttl;
    if (ip->fragment & bpf_htons(0x3fff))
        return fragment_of(p, ip->proto, ip->fragment | (u32)ip->len << 16);
    p->proto = ip->proto;
    if (p->proto != PROTO_TCP && p->proto != PROTO_UDP && p->proto != PROTO_ICMP)
        return REASON_PROTOCOL;
    return parse_l4(v, p, l3 + sizeof(*ip), size - sizeof(*ip));
}

static __always_inline int parse_ipv6(struct view *v, struct packet *p)
{
    u32 l3 = p->l3 & 63;
    struct ipv6 *ip = v->data + l3;
    u32 size, word;

    if ((void *)(ip + 1) > v->end)
        return REASON_IP_HEADER;
    word = bpf_ntohl(ip->word);
    if (word >> 28 != 6)
        return REASON_IP_HEADER;
    size = bpf_ntohs(ip->len) + sizeof(*ip);
    if (l3 + size > p->len || (p->session && size > p->size))
        return REASON_IP_HEADER;
    p->version = 6;
    p->size = size;
    p->tos = word >> 20;
    p->ttl = ip->ttl;
    p->proto = ip->proto;
    if (p->proto == PROTO_FRAGMENT) {
        u32 *head = (u32 *)(ip + 1);

        /* What a fragment of an extension header is part of, is for Linux to see. */
        if ((void *)(head + 2) > v->end || size < sizeof(*ip) + 8)
            return REASON_FRAGMENT;
        return fragment_of(p, head[0], (head[0] >> 16) * 0x9e3779b1 ^ head[1] ^ size);
    }
    if (p->proto == 0 || p->proto == 43 || p->proto == 60)
        return REASON_IP_OPTIONS;
    if (p->proto != PROTO_TCP && p->proto != PROTO_UDP && p->proto != PROTO_ICMP6)
        return REASON_PROTOCOL;
    return parse_l4(v, p, l3 + sizeof(*ip), size - sizeof(*ip));
}

#endif
