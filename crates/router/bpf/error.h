/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Step 13 where a packet ends: time exceeded, fragmentation needed, packet too big. What Linux says about one packet of a flow is what is said
 * about the next ones: from whom, with which hop limit, by which way, and whether at all. So nothing of that is known here. Only at XDP. */
#ifndef MILLRACE_ERROR_H
#define MILLRACE_ERROR_H

#include "shadow.h"

/* How much of a packet Linux quotes: up to 576 bytes of answer (RFC 1812), or the least MTU of IPv6 (RFC 4443). */
#define QUOTED4 (576 - 20 - 8)
#define QUOTED6 (1280 - 40 - 8)
#define ERROR_BYTES 2048

#define LOST (-1) /* and counted */

/* An answer from its header of IP on. Behind its end it is zero up to the next word. */
struct answer_bytes {
    u8 bytes[ERROR_BYTES];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct answer_bytes);
} answers SEC(".maps");

static __always_inline u32 quoted_of(const u8 version, u32 size)
{
    u32 most = version == 4 ? QUOTED4 : QUOTED6;

    return size < most ? size : most;
}

/* The type and code of ICMP, as in its first two bytes. */
static __always_inline u16 type_of(u8 version, u8 kind)
{
    if (version == 4)
        return kind == ERROR_TTL ? 11 : 3 | 4 << 8;
    return kind == ERROR_TTL ? 3 : 2;
}

/* ---- how often ---- */

/* All together: so many a second, and a few more at once. As Linux does it. */
static __always_inline bool may_say(volatile struct globals *g, u32 jiffies)
{
    u64 before = g->error_tokens, after;
    u32 tokens = before, passed = jiffies - (u32)(before >> 32), since = before >> 32;

    passed = passed < g->hz ? passed : g->hz;
    if (passed >= g->hz / 50) {
        u32 more = (u64)g->error_rate * passed / (g->hz ? g->hz : 1);

        if (more) {
            since = jiffies;
            tokens = tokens + more < g->error_burst ? tokens + more : g->error_burst;
        }
    }
    if (!tokens)
        return false;
    after = (u64)since << 32 | (tokens - 1);
    /* If another processor says something at this very moment, this one does not. */
    return __sync_val_compare_and_swap(&g->error_tokens, before, after) == before;
}

/* One host: six at once, then one in each interval. Two processors that say something to one host at a time count it once. */
static __always_inline bool may_say_to(volatile struct globals *g, const struct host *host, u32 interval, u32 jiffies)
{
    struct patience *found = bpf_map_lookup_elem(&patiences, host), fresh = { .since = jiffies };
    u64 tokens, most = 6 * (u64)interval;

    if (!found) {
        /* As for a host that was told something a minute ago. */
        tokens = most < 60 * g->hz ? most : 60 * g->hz;
        fresh.tokens = tokens < interval ? tokens : tokens - interval;
        bpf_map_update_elem(&patiences, host, &fresh, BPF_ANY);
        return tokens >= interval;
    }
    tokens = (u64)found->tokens + (jiffies - found->since);
    if (tokens > most)
        tokens = most;
    found->since = jiffies;
    if (tokens < interval) {
        found->tokens = tokens;
        return false;
    }
    found->tokens = tokens - interval;
    return true;
}

/* Whether a host may be told: of the header of an answer. `is_linux`: Linux has told it something, which counts. */
static __always_inline bool is_within_limits(volatile struct globals *g, u8 version, const u8 *head, u32 kind, bool is_linux)
{
    struct host host = {};
    u32 jiffies = now();

    if (!(g->error_limits & ERROR_LIMIT(version, kind)))
        return true;
    if (version == 4)
        __builtin_memcpy(host.addr, head + 16, 4);
    else
        __builtin_memcpy(host.addr, head + 24, 16);
    return (is_linux || may_say(g, jiffies)) && may_say_to(g, &host, version == 4 ? g->error_interval : g->error_interval6, jiffies);
}

/* ---- what Linux says ---- */

/* By what a packet is known in a quotation; `ip` are its first bytes, up to eight behind the header. */
static __always_inline void quoted_key4(struct quoted_key *key, const u32 *ip)
{
    key->saddr[0] = 0;
    *(u32 *)key->saddr = ip[3];
    *(u32 *)key->daddr = ip[4];
    *(u32 *)&key->sport = ip[5];
    key->print = ip[6];
    key->id = ip[1];
    key->proto = ip[2] >> 8;
    key->version = 4;
}

static __always_inline void quoted_key6(struct quoted_key *key, const u32 *ip)
{
    __builtin_memcpy(key->saddr, ip + 2, 32);
    *(u32 *)&key->sport = ip[10];
    key->print = ip[11];
    key->proto = ip[1] >> 16;
    key->version = 6;
}

/* Linux sends an error: if it is about a packet that was waited for, the next ones are said here. */
__noinline int hear_error(struct __sk_buff *skb, const struct packet *p)
{
    volatile struct globals *g = settings();
    u32 one = 1, head, icmp[2];
    struct work *work = bpf_map_lookup_elem(&works, &one);
    struct said_key about = {};
    struct quoted *found;
    struct said *said;
    u16 size;

    if (!work || !p)
        return 0;
    __builtin_memset(work, 0, sizeof(*work));
    said = &work->said;
    head = p->version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
    if (bpf_skb_load_bytes(skb, p->l3, said->head, p->version == 4 ? 20 : 40) || bpf_skb_load_bytes(skb, p->l3 + head, icmp, 8))
        return 0;
    if (p->version == 4) {
        /* No options, and not in pieces. */
        if (bpf_skb_load_bytes(skb, p->l3 + 28, work->inner, 28) || said->head[0] != 0x45 || said->head[6] || said->head[7])
            return 0;
        quoted_key4(&work->quoted, work->inner);
    } else {
        if (bpf_skb_load_bytes(skb, p->l3 + 48, work->inner, 48))
            return 0;
        quoted_key6(&work->quoted, work->inner);
    }
    found = bpf_map_lookup_elem(&quotes, &work->quoted);
    if (!found)
        return 0;
    about.rule = found->rule;
    about.state = found->state;
    about.kind = found->kind;
    about.ecn = found->ecn;
    said->epoch = found->epoch;
    size = found->size;
    bpf_map_delete_elem(&quotes, &work->quoted);
    if ((icmp[0] & 0xffff) != type_of(p->version, about.kind) || p->size != head + 8 + quoted_of(p->version, size))
        return 0;
    if (shown_hop(skb, p, work) || intern(&work->hop, &work->a) || work->hop.mtu < (p->version == 4 ? 576 : 1280))
        return 0;
    if (g)
        is_within_limits(g, p->version, said->head, about.kind, true);
    said->since = now();
    said->hop = work->a.hop;
    said->hop_epoch = work->a.hop_epoch;
    said->rest = icmp[1];
    bpf_map_update_elem(&sayings, &about, said, BPF_ANY);
    return 0;
}

/* ---- saying it ---- */

static __always_inline u16 folded(u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

/* The sum of so many bytes; what is behind them up to the next word is zero. At most 1280. */
static __always_inline u64 sum_of(const u8 *bytes, u32 len)
{
    u64 sum = 0;

#pragma unroll
    for (u32 at = 0; at < 1280; at += 256) {
        u32 some = at < len ? len - at : 0;

        some = some > 256 ? 256 : (some + 3) & 0x1fc;
        sum += (u32)bpf_csum_diff(0, 0, (void *)(bytes + at), some, 0);
    }
    return sum;
}

/* The answer: the header that Linux has sent, with its own length and identification, and the quotation. Its length; 0: it cannot be. */
static __noinline u32 compose(struct xdp_md *ctx, const struct packet *p, const struct said *said, u32 kind)
{
    u32 zero = 0, size, head, quoted, end;
    struct answer_bytes *answer = bpf_map_lookup_elem(&answers, &zero);
    struct icmp *icmp;
    u64 sum;

    if (!answer || !p || !said)
        return 0;
    head = p->version == 4 ? sizeof(struct ipv4) : sizeof(struct ipv6);
    quoted = quoted_of(p->version, p->size);
    size = head + 8 + quoted;
    if (p->version == 4) {
        struct ipv4 *ip = (struct ipv4 *)answer->bytes;
        u32 *words = (u32 *)ip;

        __builtin_memcpy(ip, said->head, sizeof(*ip));
        ip->len = bpf_htons(size);
        ip->id = bpf_get_prandom_u32();
        ip->sum = 0;
        ip->sum = folded((u64)words[0] + words[1] + words[2] + words[3] + words[4]);
        icmp = (struct icmp *)(ip + 1);
        if (bpf_xdp_load_bytes(ctx, p->l3 & 63, answer->bytes + 28, bounded(quoted, 1024)))
            return 0;
    } else {
        struct ipv6 *ip = (struct ipv6 *)answer->bytes;

        __builtin_memcpy(ip, said->head, sizeof(*ip));
        ip->len = bpf_htons(size - sizeof(*ip));
        icmp = (struct icmp *)(ip + 1);
        if (bpf_xdp_load_bytes(ctx, p->l3 & 63, answer->bytes + 48, bounded(quoted, 1024 + 512)))
            return 0;
    }
    end = size & (ERROR_BYTES - 1);
    if (end > ERROR_BYTES - 4)
        return 0;
    answer->bytes[end] = answer->bytes[end + 1] = answer->bytes[end + 2] = 0;
    *(u16 *)icmp = type_of(p->version, kind);
    icmp->sum = 0;
    *(u32 *)&icmp->id = said->rest;
    if (p->version == 4) {
        sum = sum_of(answer->bytes + sizeof(struct ipv4), 8 + quoted);
    } else {
        const u32 *words = (const u32 *)answer->bytes;

        sum = sum_of(answer->bytes + sizeof(struct ipv6), 8 + quoted);
#pragma unroll
        for (int at = 2; at < 10; at++)
            sum += words[at];
        sum += bpf_htonl(8 + quoted) + (u64)bpf_htonl(PROTO_ICMP6);
    }
    icmp->sum = folded(sum);
    return size;
}

/* In place of the packet, its answer, by the way that Linux's has gone. */
static __always_inline int send_answer(struct xdp_md *ctx, const struct packet *p, const struct said *said, u32 kind)
{
    u32 zero = 0, at = said->hop, front, size;
    struct answer_bytes *answer = bpf_map_lookup_elem(&answers, &zero);
    struct hop *hop = bpf_map_lookup_elem(&hops, &at);
    struct packet back = {};
    u8 ahead[32] = {};
    int more;

    if (!answer || !hop)
        return REASON_HOPS_FULL;
    at = hop->slot;
    if (!bpf_map_lookup_elem(&targets, &at))
        return REASON_OUT_UNKNOWN;
    size = compose(ctx, p, said, kind);
    if (!size)
        return REASON_ROOM;
    front = size_in_front(hop, p);
    back.size = size;
    write_front(ahead, hop, &back, front, p->version);
    /* In front of a frame there is room, behind it often not. */
    more = (int)(front + size) - (int)p->len;
    if (more > 0 ? bpf_xdp_adjust_head(ctx, -more) : bpf_xdp_adjust_tail(ctx, more))
        return REASON_ROOM;
    bpf_xdp_store_bytes(ctx, 0, ahead, bounded(front, 32));
    bpf_xdp_store_bytes(ctx, front, answer->bytes, bounded(size, ERROR_BYTES));
    if (bpf_redirect_map(&targets, hop->slot, 0) == XDP_REDIRECT)
        return REASON_ERROR_SENT;
    /* The map has lost the interface meanwhile. */
    count(REASON_REDIRECT_FAILED);
    return LOST;
}

/* The key of a packet, from the frame. */
static __always_inline bool read_quoted(struct view *v, const struct packet *p, struct quoted_key *key)
{
    u32 *ip = v->data + (p->l3 & 63);

    if (p->version == 4) {
        if ((void *)(ip + 7) > v->end)
            return false;
        quoted_key4(key, ip);
    } else {
        if ((void *)(ip + 12) > v->end)
            return false;
        quoted_key6(key, ip);
    }
    return true;
}

/* Whether this is a packet about which something is said: not a later fragment, nor one that Linux cuts. */
static __always_inline bool is_told(struct view *v, const struct packet *p, u32 kind)
{
    struct ipv4 *ip = v->data + (p->l3 & 63);

    if (p->proto == PROTO_FRAGMENT || p->size < (p->version == 4 ? 28 : 48))
        return false;
    if (p->version == 6 || kind == ERROR_TTL)
        return true;
    return (void *)(ip + 1) <= v->end && (ip->fragment & bpf_htons(0x4000));
}

/* A packet that cannot go on. What has become of it. */
__noinline int say_error(struct xdp_md *ctx, const struct packet *p, u32 number, u32 word, u32 kind)
{
    volatile struct globals *g = settings();
    struct said_key about = { .rule = number, .state = word, .kind = kind };
    struct quoted_key key = {};
    struct quoted quoted = { .rule = number, .state = word, .kind = kind };
    u32 jiffies = now(), at;
    struct said *said;
    struct hop *hop;
    struct view v;
    int reason;

    if (!g || !p)
        return REASON_OFF;
    reason = kind == ERROR_TTL ? REASON_TTL : REASON_MTU;
    look(ctx, false, &v);
    if (!(g->parts & PART_ICMP) || !is_told(&v, p, kind))
        return reason;
    about.ecn = p->tos & 3;
    said = bpf_map_lookup_elem(&sayings, &about);
    if (said && said->epoch == (u32)g->epochs && jiffies - said->since < g->keep) {
        at = said->hop;
        hop = bpf_map_lookup_elem(&hops, &at);
        if (hop && (u16)WORD(&hop->epoch) == said->hop_epoch) {
            if (!is_within_limits(g, p->version, said->head, kind, false))
                return REASON_ERROR_LIMITED;
            return send_answer(ctx, p, said, kind);
        }
    }
    quoted.epoch = g->epochs;
    quoted.size = p->size;
    quoted.ecn = p->tos & 3;
    if (!read_quoted(&v, p, &key))
        return reason;
    expect_until(&g->trial_until, jiffies + g->hz);
    bpf_map_update_elem(&quotes, &key, &quoted, BPF_ANY);
    return REASON_ERROR_SHOWN;
}

/* The same with the verdict, while the rule lives on by it. */
#define tell_sender(ctx, p, rule, number, word, kind, jiffies, verdict) \
    ({ \
        int said_; \
        WORD(&(rule)->seen) = jiffies; \
        said_ = say_error(ctx, p, number, word, kind); \
        if (said_ == REASON_ERROR_SENT) \
            *(verdict) = XDP_REDIRECT; \
        else if (said_ == REASON_ERROR_LIMITED || said_ == LOST) \
            *(verdict) = XDP_DROP; \
        said_; \
    })

#endif
