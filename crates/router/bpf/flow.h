/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Step 8 and what hangs on it: the rule of a packet, made if there is none; once for each version of IP, which is V. No guard: it is there twice. */
#define JOIN_(name, version) name##version
#define JOIN(name, version) JOIN_(name, version)
#define OF(name) JOIN(name, V)

/* The key of a packet whose header has been checked to be there. */
static __always_inline bool OF(read_key)(struct view *v, const struct packet *p, struct OF(key) *key)
{
    u32 l3 = p->l3 & 63;
    struct JOIN(ipv, V) *ip = v->data + l3;

    if ((void *)(ip + 1) > v->end)
        return false;
#if V == 4
    key->addresses = (u64)ip->saddr | (u64)ip->daddr << 32;
#else
    __builtin_memcpy(key->saddr, ip->saddr, 32);
#endif
    key->rest = key_rest(p);
    key->in = p->in;
    return true;
}

static __always_inline bool OF(read_question)(struct view *v, const struct packet *p, struct question *q)
{
    u32 l3 = p->l3 & 63;
    struct JOIN(ipv, V) *ip = v->data + l3;

    if ((void *)(ip + 1) > v->end || v->data + 16 > v->end)
        return false;
#if V == 4
    q->saddr[0] = ip->saddr;
    q->daddr[0] = ip->daddr;
#else
    __builtin_memcpy(q->saddr, ip->saddr, 16);
    __builtin_memcpy(q->daddr, ip->daddr, 16);
#endif
    q->dmac = *(u64 *)v->data & MAC_BITS;
    q->smac = *(u64 *)(v->data + 6) & MAC_BITS;
    q->version = V;
    q->sport = p->sport;
    q->dport = p->dport;
    q->in = p->in;
    q->bridge = p->bridge;
    q->flags = p->flags;
    q->vlan = p->vlan;
    q->tag = p->tag;
    q->tag_proto = p->tag_proto;
    q->proto = p->proto;
    q->tos = p->tos;
    return true;
}

/* Whether the answer is what the rule does already, the next hop's epoch aside. */
static __always_inline bool OF(is_same)(const struct OF(rule) *rule, u32 flags, const struct answer *a)
{
#if V == 4
    bool addresses = rule->new_saddr == a->saddr[0] && rule->new_daddr == a->daddr[0];
#else
    const u64 *have = (const u64 *)rule->new_saddr, *saddr = (const u64 *)a->saddr, *daddr = (const u64 *)a->daddr;
    bool addresses = have[0] == saddr[0] && have[1] == saddr[1] && have[2] == daddr[0] && have[3] == daddr[1];
#endif
    return addresses && rule->new_sport == a->sport && rule->new_dport == a->dport && rule->hop == a->hop &&
           (flags & ~(RULE_LEARNED | RULE_AGAIN)) == a->flags && (!(a->flags & RULE_BRIDGED) || rule->l3_delta == a->tag_proto);
}

/* The slot of a new rule, written and published: on trial, or refused for `reason`. What it was refused for, or why there is no rule; where there is one,
 * its number is in the answer, and the caller tells of it: one call more would be too much for the stack in Linux 6.1. */
static __noinline int OF(publish)(const struct OF(key) *key, const struct question *q, struct answer *a, u32 reason, u32 epoch)
{
    volatile struct globals *g = settings();
    u32 hash = OF(hash)(key), word, number, jiffies = now();
    struct OF(rule) *rule;
    int full;

    a->number = NO_RULE;
    if (!g)
        return REASON_OFF;
    rule = OF(claim)(key, hash, jiffies, 2 * g->hz, &word, &number, &full);
    if (!rule)
        return full;
#if V == 4
    *(u64 *)&rule->saddr = key->addresses;
#else
    __builtin_memcpy(rule->saddr, key->saddr, 32);
#endif
    rule->in = key->in;
    rule->sport = q->sport;
    rule->dport = q->dport;
    rule->proto = q->proto;
    rule->dscp = rule->out_dscp = q->tos >> 2;
    rule->reason = reason;
    rule->epoch = epoch;
    rule->counter = 0;
    rule->seen = jiffies;
    *(u32 *)&rule->asked = 0;
    OF(write_answer)(rule, q, a);
    __sync_lock_test_and_set(&rule->state, RULE_WORD(reason ? RULE_REFUSED : RULE_TRIAL, reason ? a->flags & RULE_BRIDGED : a->flags, word));
    a->number = number;
    return reason ? reason : REASON_NEW_RULE;
}

/* Writes down what Linux will send if the rule is right. */
static __always_inline void OF(await)(struct view *v, const struct packet *p, struct OF(rule) *rule, u32 number, u32 word, u32 ticket,
                                struct expected_key *key)
{
    u32 l3 = p->l3 & 63, at = rule->hop;
    struct hop *hop = bpf_map_lookup_elem(&hops, &at);
    struct JOIN(ipv, V) *ip = v->data + l3;
    bool is_known = !(RULE_FLAGS(word) & RULE_SHOWN) || RULE_STATE(word) == RULE_ACTIVE;

    if ((void *)(ip + 1) > v->end)
        return;
    __builtin_memset(key, 0, sizeof(*key));
    if (RULE_FLAGS(word) & RULE_BRIDGED) {
        __builtin_memcpy(key->saddr, &rule->saddr, sizeof(rule->saddr));
        __builtin_memcpy(key->daddr, &rule->daddr, sizeof(rule->daddr));
    } else if (is_known) {
        __builtin_memcpy(key->saddr, &rule->new_saddr, sizeof(rule->new_saddr));
        __builtin_memcpy(key->daddr, &rule->new_daddr, sizeof(rule->new_daddr));
    }
    key->sport = RULE_FLAGS(word) & RULE_BRIDGED ? rule->sport : rule->new_sport;
    key->dport = RULE_FLAGS(word) & RULE_BRIDGED ? rule->dport : rule->new_dport;
#if V == 4
    key->id = ip->id;
#endif
    key->in = RULE_FLAGS(word) & RULE_BRIDGED ? p->in & 0xfffff : p->in;
    if (is_known && hop && hop->session)
        key->in = 0;
    key->proto = p->proto;
    key->version = V;
    key->print = print_of(v, l3 + sizeof(*ip), p);
    expect(key, number, word, p, ticket);
}

static __always_inline void OF(refuse)(struct OF(rule) *rule, u32 word, u32 number, u32 reason, const struct question *q)
{
    rule->reason = reason;
    WORD(&rule->seen) = now();
    if (__sync_val_compare_and_swap(&rule->state, word, RULE_WORD(RULE_REFUSED, RULE_FLAGS(word), word)) == word)
        tell(EVENT_REFUSED, reason, number, q);
}

/* One more packet of a rule on trial. That of a connection stays there until conntrack needs no more to see every packet of it, which the answer in
 * `work` says. */
static __always_inline int OF(try_rule)(struct view *v, const struct packet *p, struct OF(rule) *rule, u32 word, u32 number, struct work *work,
                                        volatile struct globals *g)
{
    if (p->proto == PROTO_TCP && (RULE_FLAGS(word) & RULE_CONNTRACK) && work->a.has_windows)
        return REASON_WINDOWS;
    /* One that Linux will not send on proves nothing. */
    if (p->ttl <= 1 && !p->bridge)
        return REASON_TRIAL;
    if (rule->asked < g->trial_packets) {
        __sync_fetch_and_add((u32 *)&rule->asked, 1);
        OF(await)(v, p, rule, number, word, 0, &work->expected);
    } else if (now() - WORD(&rule->seen) > g->hz / 8) {
        OF(refuse)(rule, word, number, REASON_LINUX_SILENT, &work->q);
        return REASON_LINUX_SILENT;
    }
    return REASON_TRIAL;
}

/* The same for who has not asked conntrack about this packet. */
static __always_inline int OF(on_trial)(void *ctx, const bool skb, struct view *v, const struct packet *p, struct OF(rule) *rule, u32 word,
                                        u32 number, struct work *work, volatile struct globals *g)
{
    if (p->proto == PROTO_TCP && (RULE_FLAGS(word) & RULE_CONNTRACK)) {
        int reason = ask_conntrack(ctx, skb, &work->q, &work->a, false);

        if (reason && OF(end)(rule, word, now()))
            tell(EVENT_ENDED, reason, number, &work->q);
        if (reason)
            return reason;
    }
    return OF(try_rule)(v, p, rule, word, number, work, g);
}

/* Everything but a rule in force that is up to date. 0: now there is such a rule. */
static __always_inline int OF(slow)(void *ctx, const bool skb, const struct packet *p)
{
    volatile struct globals *g = settings();
    struct work *work = clean_work(skb);
    struct view v;
    struct OF(rule) *rule;
    u32 word = 0, number = 0, epoch, ruleset, moved, jiffies = now();
    u64 epochs;
    int reason;

    look(ctx, skb, &v);
    if (!g || !work || !OF(read_key)(&v, p, &work->OF(key)) || !OF(read_question)(&v, p, &work->q))
        return REASON_IP_HEADER;
    moved = g->moved;
    epochs = g->epochs;
    epoch = epochs;
    ruleset = epochs >> 32;
    rule = OF(find)(&work->OF(key), OF(hash)(&work->OF(key)), &word, &number);
    /* For a second, or until something changes if a comparison has shown that the program does not know what Linux does. */
    if (rule && RULE_STATE(word) == RULE_REFUSED && rule->epoch == epoch &&
        (rule->reason == REASON_MISMATCH_SHADOW || jiffies - WORD(&rule->seen) < g->hz))
        return rule->reason;
    if (rule && RULE_STATE(word) != RULE_REFUSED) {
        u32 at = rule->hop;
        struct hop *hop = bpf_map_lookup_elem(&hops, &at);

        bool is_to_be_shown = RULE_STATE(word) == RULE_TRIAL && (RULE_FLAGS(word) & RULE_SHOWN);

        if (rule->epoch == epoch && hop && (is_to_be_shown || (u16)WORD(&hop->epoch) == rule->hop_epoch))
            return RULE_STATE(word) == RULE_ACTIVE ? 0 : OF(on_trial)(ctx, skb, &v, p, rule, word, number, work, g);
    }
    /* There is none, or what it was made from may have changed. The epoch was read before anything is asked, so what changes from now on
     * makes what is written here out of date, too. */
    reason = compile_route(ctx, skb, work);
    /* The epoch of the next hop is read when it is known which one it is. If any has grown since the first question, that was too late. */
    if (__sync_fetch_and_add(&g->moved, 0) != moved)
        return REASON_BUSY;
    if (rule && !reason && RULE_STATE(word) != RULE_REFUSED && !(RULE_FLAGS(word) & RULE_SHOWN) && OF(is_same)(rule, RULE_FLAGS(word), &work->a)) {
        if ((s32)(rule->epoch - ruleset) < 0 || (RULE_STATE(word) == RULE_ACTIVE && work->a.has_windows)) {
            word = OF(again)(rule, word, work->a.hop | (u32)work->a.hop_epoch << 16, epoch, jiffies);
            return word ? OF(try_rule)(&v, p, rule, word, number, work, g) : REASON_BUSY;
        }
        /* The epoch last: who sees it finds the epoch of the hop. Of two processors that do this, both write what is true. How long a packet
         * may be is not in the answer: that has to be shown again. */
        if (RULE_STATE(word) == RULE_ACTIVE)
            *(volatile u16 *)&rule->proved = 0;
        *(volatile u32 *)&rule->hop = work->a.hop | (u32)work->a.hop_epoch << 16;
        WORD(&rule->epoch) = epoch;
        return RULE_STATE(word) == RULE_ACTIVE ? 0 : OF(try_rule)(&v, p, rule, word, number, work, g);
    }
    if (rule && OF(end)(rule, word, jiffies))
        tell(EVENT_ENDED, reason ? reason : REASON_EPOCH, number, &work->q);
    if (reason && is_passing(reason))
        return reason;
    reason = OF(publish)(&work->OF(key), &work->q, &work->a, reason, epoch);
    if (work->a.number != NO_RULE)
        tell(reason == REASON_NEW_RULE ? EVENT_MADE : EVENT_REFUSED, reason == REASON_NEW_RULE ? 0 : reason, work->a.number, &work->q);
    if (reason == REASON_NEW_RULE) {
        rule = OF(find)(&work->OF(key), OF(hash)(&work->OF(key)), &word, &number);
        if (rule && RULE_STATE(word) == RULE_TRIAL)
            OF(try_rule)(&v, p, rule, word, number, work, g);
    }
    return reason;
}

/* Step 10 every few seconds: conntrack still has the entry, it still says the same, and it lives on. */
static __always_inline int OF(alive)(void *ctx, const bool skb, const struct packet *p)
{
    volatile struct globals *g = settings();
    struct work *work = clean_work(skb);
    struct view v;
    struct OF(rule) *rule;
    u32 word = 0, number = 0;
    int reason;

    look(ctx, skb, &v);
    if (!work || !OF(read_key)(&v, p, &work->OF(key)) || !OF(read_question)(&v, p, &work->q))
        return REASON_IP_HEADER;
    rule = OF(find)(&work->OF(key), OF(hash)(&work->OF(key)), &word, &number);
    if (!rule)
        return REASON_NO_CONNTRACK;
    *(volatile u16 *)&rule->asked = now();
    if (RULE_FLAGS(word) & RULE_BRIDGED) {
        /* What a bridge looks at beside its table (VLANs of ports, states of the spanning tree) is seen by whether this frame leaves. */
        word = g ? OF(again)(rule, word, *(volatile u32 *)&rule->hop, rule->epoch, now()) : 0;
        if (word)
            OF(try_rule)(&v, p, rule, word, number, work, g);
        return REASON_FDB_REFRESH;
    }
    if (RULE_FLAGS(word) & RULE_SHOWN) {
        /* The entry of conntrack lives on by this packet, and shows by the next one whether it still says the same. */
        if (OF(end)(rule, word, now()))
            tell(EVENT_ENDED, REASON_CONNTRACK_ICMP, number, &work->q);
        return REASON_CONNTRACK_ICMP;
    }
    reason = ask_conntrack(ctx, skb, &work->q, &work->a, true);
    work->a.hop = rule->hop;
    work->a.flags = RULE_FLAGS(word) & ~RULE_LEARNED;
    if (!reason && !OF(is_same)(rule, RULE_FLAGS(word), &work->a))
        reason = REASON_NO_CONNTRACK;
    if (!reason && work->a.has_windows) /* another entry than that which the daemon has told of */
        reason = REASON_WINDOWS;
    if (reason && OF(end)(rule, word, now()))
        tell(EVENT_ENDED, reason, number, &work->q);
    return reason;
}

/* A connection ends, or begins anew: its rule does not live longer. */
static __always_inline int OF(finish)(void *ctx, const bool skb, const struct packet *p)
{
    struct work *work = clean_work(skb);
    struct view v;
    struct OF(rule) *rule;
    u32 word, number;

    look(ctx, skb, &v);
    if (!work || !OF(read_key)(&v, p, &work->OF(key)) || !OF(read_question)(&v, p, &work->q))
        return REASON_IP_HEADER;
    rule = OF(find)(&work->OF(key), OF(hash)(&work->OF(key)), &word, &number);
    if (rule && OF(end)(rule, word, now()))
        tell(EVENT_ENDED, REASON_TCP_FLAGS, number, &work->q);
    return REASON_TCP_FLAGS;
}

/* One of each for the verifier, as in compile.h. They are not static, so that it reads each of them once and not for each way that leads
 * there: a third of the time to load. */
__noinline int OF(slow_xdp)(struct xdp_md *ctx, const struct packet *p)
{
    return p ? OF(slow)(ctx, false, p) : REASON_IP_HEADER;
}
__noinline int OF(slow_skb)(struct __sk_buff *ctx, const struct packet *p)
{
    return p ? OF(slow)(ctx, true, p) : REASON_IP_HEADER;
}
__noinline int OF(alive_xdp)(struct xdp_md *ctx, const struct packet *p)
{
    return p ? OF(alive)(ctx, false, p) : REASON_IP_HEADER;
}
__noinline int OF(alive_skb)(struct __sk_buff *ctx, const struct packet *p)
{
    return p ? OF(alive)(ctx, true, p) : REASON_IP_HEADER;
}
__noinline int OF(finish_xdp)(struct xdp_md *ctx, const struct packet *p)
{
    return p ? OF(finish)(ctx, false, p) : REASON_IP_HEADER;
}
__noinline int OF(finish_skb)(struct __sk_buff *ctx, const struct packet *p)
{
    return p ? OF(finish)(ctx, true, p) : REASON_IP_HEADER;
}
#define EITHER(name) (skb ? OF(name##_skb)(ctx, p) : OF(name##_xdp)(ctx, p))

/* What a rule does, copied at once; false if another one is in its slot meanwhile. */
static __always_inline bool OF(read_action)(struct OF(rule) *rule, u32 word, struct action *action)
{
    action->dscp = rule->out_dscp;
    action->flags = RULE_FLAGS(word);
    action->l3_delta = rule->l3_delta;
    action->l4_delta = rule->l4_delta;
    action->sport = rule->new_sport;
    action->dport = rule->new_dport;
    __builtin_memcpy(action->saddr, &rule->new_saddr, sizeof(rule->new_saddr));
    __builtin_memcpy(action->daddr, &rule->new_daddr, sizeof(rule->new_daddr));
    return WORD(&rule->state) == word;
}

/* One packet in so many goes to Linux, with a copy of what the rule makes of it for the daemon. */
static __always_inline int OF(compare)(void *ctx, const bool skb, const struct packet *p)
{
    volatile struct globals *g = settings();
    struct work *work = clean_work(skb);
    struct OF(rule) *rule;
    struct shadow *copy;
    struct hop *hop;
    struct view v;
    u32 ticket, word, number, at;
    int reason;

    look(ctx, skb, &v);
    if (!g || !work || !OF(read_key)(&v, p, &work->OF(key)))
        return REASON_UNCOMPARED;
    rule = OF(find)(&work->OF(key), OF(hash)(&work->OF(key)), &word, &number);
    if (!rule || !OF(read_action)(rule, word, &work->action))
        return REASON_UNCOMPARED;
    at = rule->hop;
    hop = bpf_map_lookup_elem(&hops, &at);
    copy = bpf_ringbuf_reserve(&shadows, sizeof(*copy), 0);
    if (!copy) {
        __sync_fetch_and_add(&g->shadow_lost, 1);
        return REASON_UNCOMPARED;
    }
    ticket = __sync_fetch_and_add(&g->tickets, 1) + 1;
    if (!hop) {
        bpf_ringbuf_discard(copy, 0);
        return REASON_UNCOMPARED;
    }
    fill_shadow(copy, ticket, number, word, hop->out, 0, SHADOW_OURS, V);
    reason = skb ? copy_buffer(ctx, &v, p, hop, &work->action, V, copy) : copy_frame(ctx, &v, p, hop, &work->action, V, copy);
    if (reason) {
        bpf_ringbuf_discard(copy, 0);
        return reason;
    }
    bpf_ringbuf_submit(copy, 0);
    look(ctx, skb, &v);
    OF(await)(&v, p, rule, number, word, ticket, &work->expected);
    return REASON_SHADOW;
}
__noinline int OF(compare_xdp)(struct xdp_md *ctx, const struct packet *p)
{
    return p ? OF(compare)(ctx, false, p) : REASON_IP_HEADER;
}
__noinline int OF(compare_skb)(struct __sk_buff *ctx, const struct packet *p)
{
    return p ? OF(compare)(ctx, true, p) : REASON_IP_HEADER;
}

/* A packet longer than any before it: whether the route takes it is seen at the egress. */
static __always_inline int OF(prove)(void *ctx, const bool skb, const struct packet *p)
{
    struct work *work = clean_work(skb);
    struct OF(rule) *rule;
    u32 word, number;
    struct view v;

    look(ctx, skb, &v);
    if (!work || !OF(read_key)(&v, p, &work->OF(key)))
        return REASON_IP_HEADER;
    rule = OF(find)(&work->OF(key), OF(hash)(&work->OF(key)), &word, &number);
    if (rule && RULE_STATE(word) == RULE_ACTIVE)
        OF(await)(&v, p, rule, number, word, 0, &work->expected);
    return REASON_LONGER;
}
__noinline int OF(prove_xdp)(struct xdp_md *ctx, const struct packet *p)
{
    return p ? OF(prove)(ctx, false, p) : REASON_IP_HEADER;
}
__noinline int OF(prove_skb)(struct __sk_buff *ctx, const struct packet *p)
{
    return p ? OF(prove)(ctx, true, p) : REASON_IP_HEADER;
}

/* A packet from step 8 to its end. 0 with the verdict, or why it goes to Linux. */
static __always_inline int OF(go)(void *ctx, const bool skb, struct view *v, struct packet *p, volatile struct globals *g, u32 jiffies,
                                  int *verdict)
{
    struct OF(key) key = {};
    struct OF(rule) *rule;
    struct action action = {};
    struct hop *hop;
    u32 hash, word, number, at, hop_word, size;
    int reason;

    if (p->proto == PROTO_TCP && (p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK)
        return p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST) ? EITHER(finish) : REASON_TCP_FLAGS;
    if (!OF(read_key)(v, p, &key))
        return REASON_IP_HEADER;
    hash = OF(hash)(&key);
    rule = OF(find)(&key, hash, &word, &number);
    if (!rule || RULE_STATE(word) != RULE_ACTIVE)
        goto slow;
    hop_word = *(volatile u32 *)&rule->hop;
    at = hop_word & 0xffff;
    hop = bpf_map_lookup_elem(&hops, &at);
    if (!hop || (u16)WORD(&hop->epoch) != hop_word >> 16 || WORD(&rule->epoch) != (u32)g->epochs)
        goto slow;
    if (p->ttl <= 1 && !p->bridge)
        return skb ? REASON_TTL : tell_sender(ctx, p, rule, number, word, ERROR_TTL, jiffies, verdict);
    if (p->size > rule->proved) {
        size = p->size;
        if (skb)
            size = size_of_segments(ctx, p, size);
        if (size > hop->mtu && (skb || p->bridge))
            return size == p->size ? REASON_MTU : REASON_BIG;
        if (size > hop->mtu)
            return tell_sender(ctx, p, rule, number, word, ERROR_SIZE, jiffies, verdict);
        if (size > rule->proved && g->route_mtus)
            return EITHER(prove);
    }
    if (RULE_FLAGS(word) & (RULE_CONNTRACK | RULE_BRIDGED | RULE_SHOWN)) {
        /* Half of the jiffies is enough for as long as packets come; if none came for long, the other number says so. */
        if ((u16)(jiffies - rule->asked) >= g->keep || jiffies - WORD(&rule->seen) >= g->keep) {
            reason = EITHER(alive);
            if (reason)
                return reason;
            look(ctx, skb, v);
        }
    }
    if (hop->flags & HOP_USER) {
        if (p->proto == PROTO_FRAGMENT)
            return REASON_FRAGMENT;
        if (!OF(read_action)(rule, word, &action))
            return REASON_BUSY;
        reason = to_user(ctx, skb, p, NOTE_SEAL, number, verdict);
        if (!reason)
            reason = change_packet(ctx, v, p, &action, V);
        if (reason) {
            *verdict = XDP_PASS;
            return reason;
        }
        __sync_fetch_and_add(&rule->counter, COUNTER_ADD(p->size));
        if (WORD(&rule->seen) != jiffies)
            WORD(&rule->seen) = jiffies;
        return 0;
    }
    if (hop->flags & HOP_BRIDGED) {
        if (v->data + 14 > v->end)
            return REASON_SHORT;
        const u32 *have = v->data, *want = (const u32 *)&rule->new_saddr;

        if (have[0] != want[0] || have[1] != want[1] || have[2] != want[2])
            return REASON_FDB_MOVED;
        /* Its VLAN is part of the flow, its priority its own; but whether a bridge that filters looks at a tag is a matter of its type. */
        if ((hop->flags & (HOP_TAGGED | HOP_UNTAGGED)) && p->tag_proto != rule->l3_delta)
            return REASON_FDB_TAG;
    }
    if (!OF(read_action)(rule, word, &action))
        return REASON_BUSY;
    if (is_chosen(g)) {
        reason = EITHER(compare);
        if (reason != REASON_UNCOMPARED)
            return reason;
        count(reason);
        look(ctx, skb, v);
    }
    reason = skb ? change_buffer(ctx, v, p, hop, &action, V) : change_frame(ctx, v, p, hop, &action, V);
    if (reason)
        return reason;
    __sync_fetch_and_add(&rule->counter, COUNTER_ADD(p->size));
    if (WORD(&rule->seen) != jiffies)
        WORD(&rule->seen) = jiffies;
    *verdict = skb ? bpf_redirect(hop->out, 0) : bpf_redirect_map(&targets, hop->slot, 0);
    return 0;
slow:
    reason = EITHER(slow);
    /* 0: it is up to date again, and the next packet finds it so; this one takes Linux's way, which is as right. */
    return reason ? reason : REASON_EPOCH;
}

#undef EITHER
#undef OF
#undef JOIN
#undef JOIN_
