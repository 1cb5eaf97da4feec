/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The judgement about one rule; once for each version of IP, which is V. No guard: it is there twice. */
#define JOIN_(name, version) name##version
#define JOIN(name, version) JOIN_(name, version)
#define OF(name) JOIN(name, V)

/* What Linux sends against what the rule would have sent. 0: the same. */
static __always_inline int OF(difference)(struct __sk_buff *skb, struct view *v, struct packet *p, struct OF(rule) *rule,
                                       const struct expected *e, bool has_ethernet)
{
    u32 at = rule->hop;
    struct hop *hop = bpf_map_lookup_elem(&hops, &at);

    if (!hop)
        return REASON_MISMATCH_OUT;
    if (has_ethernet) {
        if (skb->ifindex != hop->out)
            return REASON_MISMATCH_OUT;
        if (!(hop->flags & HOP_BRIDGED ? same_ethernet(v, &rule->new_saddr, bridged_tag(hop->flags, rule->in >> 20, e->tag), hop, p)
                                       : same_ethernet(v, hop->dmac, hop->tags[0], hop, p)))
            return REASON_MISMATCH_ETHERNET;
    } else if (skb->ifindex != hop->logical) {
        return REASON_MISMATCH_OUT;
    }
    if (p->ttl != e->ttl)
        return REASON_MISMATCH_TTL;
    if ((FLAGS(device_word(skb->ifindex)) & DEVICE_SHAPED) &&
        (skb->mark || skb->priority != (V == 4 && !(hop->flags & HOP_BRIDGED) ? priority_of(p->tos) : 0)))
        return REASON_MISMATCH_MARK;
    return 0;
}

/* What the rule will do, into its slot, which is claimed. */
static __always_inline void OF(write_answer)(struct OF(rule) *rule, const struct question *q, const struct answer *a)
{
    u32 addresses = 0, ports;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        u64 both = (u64)(u32)~q->saddr[i] + (u32)~q->daddr[i] + a->saddr[i] + a->daddr[i];

        both = (both & 0xffff) + ((both >> 16) & 0xffff) + (both >> 32);
        addresses += both;
        if (V == 4)
            break;
    }
    addresses = (addresses & 0xffff) + (addresses >> 16);
    addresses = (addresses & 0xffff) + (addresses >> 16);
    ports = addresses + (u16)~q->sport + (u16)~q->dport + a->sport + a->dport;
    ports = (ports & 0xffff) + (ports >> 16);
    ports = (ports & 0xffff) + (ports >> 16);
    rule->l3_delta = a->flags & RULE_BRIDGED ? a->tag_proto : addresses;
    rule->l4_delta = ports;
#if V == 4
    rule->new_saddr = a->saddr[0];
    rule->new_daddr = a->daddr[0];
#else
    __builtin_memcpy(rule->new_saddr, a->saddr, 16);
    __builtin_memcpy(rule->new_daddr, a->daddr, 16);
#endif
    rule->new_sport = a->sport;
    rule->new_dport = a->dport;
    rule->hop = a->hop;
    rule->hop_epoch = a->hop_epoch;
}

/* A rule on trial about which only Linux could tell: what its packet has become is what the rule will do. The rule is claimed for that, so that
 * nobody reads a half of it. `is_ours`: conntrack says that it is a packet of this flow; what it has not seen nobody has translated. At least one of
 * the two addresses has stayed, or it would be a guess. */
static __always_inline int OF(learn)(struct __sk_buff *skb, struct view *v, struct packet *p, struct OF(rule) *rule,
                                     const struct expected *e, struct question *q, bool is_ours)
{
    volatile struct globals *g = settings();
    bool same_source, same_destination;
    u32 one = 1, l3 = p->l3 & 63, word = e->state, flags = RULE_FLAGS(word), busy = RULE_WORD(RULE_BUSY, flags, word);
    struct work *work = bpf_map_lookup_elem(&works, &one);
    struct JOIN(ipv, V) *ip = v->data + l3;
    int reason;

    if (!work || (void *)(ip + 1) > v->end)
        return REASON_MISMATCH_ETHERNET;
    if (p->ttl != e->ttl)
        return REASON_MISMATCH_TTL;
    __builtin_memset(&work->a, 0, sizeof(work->a));
    __builtin_memcpy(work->a.saddr, &ip->saddr, sizeof(ip->saddr));
    __builtin_memcpy(work->a.daddr, &ip->daddr, sizeof(ip->daddr));
    work->a.sport = q->sport;
    work->a.dport = q->dport;
    same_source = same_words(&ip->saddr, &rule->saddr, sizeof(ip->saddr) / 4);
    same_destination = same_words(&ip->daddr, &rule->daddr, sizeof(ip->daddr) / 4);
    if (!is_ours && !(same_source && same_destination))
        return 0; /* anybody's */
    if (!same_source && !same_destination)
        return REASON_MISMATCH_OUT;
    reason = shown_hop(skb, p, work);
    if (!reason)
        reason = intern(&work->hop, &work->a);
    if (reason)
        return reason;
    /* What has been seen may have been true before something moved only: the next packet shows it again. */
    if (!g || __sync_fetch_and_add(&g->moved, 0) != e->moved)
        return 0;
    if (__sync_val_compare_and_swap(&rule->state, word, busy) != word)
        return 0;
    OF(write_answer)(rule, q, &work->a);
    rule->out_dscp = p->tos >> 2;
    WORD(&rule->asked) = (now() & 0xffff) | p->size << 16;
    __sync_lock_test_and_set(&rule->state, RULE_WORD(RULE_ACTIVE, flags | RULE_LEARNED, word));
    tell(EVENT_ACTIVE, 0, e->rule, q);
    return 0;
}

/* A packet that was looked for, which Linux sends: a rule on trial is in force, or refused; one in force may be for longer packets, too. */
static __always_inline void OF(judge)(struct __sk_buff *skb, struct view *v, struct packet *p, const struct expected *e,
                                      bool has_ethernet)
{
    volatile struct globals *g = settings();
    struct OF(rule) *rule = bpf_map_lookup_elem(&OF(rules), &e->rule);
    struct question q = {};
    u32 word = e->state, flags = RULE_FLAGS(word), size = size_of_segments(skb, p, p->size);
    int reason, whose = WHOSE_UNKNOWN;

    if (!rule || !g || WORD(&rule->state) != word || (RULE_STATE(word) != RULE_TRIAL && RULE_STATE(word) != RULE_ACTIVE))
        return;
    rule = after(rule, word);
    q.version = V;
    q.in = rule->in;
    q.proto = rule->proto;
    q.tos = rule->dscp << 2;
    q.sport = rule->sport;
    q.dport = rule->dport;
    __builtin_memcpy(q.saddr, &rule->saddr, sizeof(rule->saddr));
    __builtin_memcpy(q.daddr, &rule->daddr, sizeof(rule->daddr));
    if (flags & (RULE_CONNTRACK | RULE_SHOWN))
        whose = whose_is(skb, &q);
    if (whose == WHOSE_OTHER)
        return;
    if (RULE_STATE(word) == RULE_TRIAL && (flags & RULE_SHOWN)) {
        reason = has_ethernet ? OF(learn)(skb, v, p, rule, e, &q, whose == WHOSE_OURS) : REASON_OUT_UNKNOWN;
        if (!reason)
            return;
    } else {
        reason = OF(difference)(skb, v, p, rule, e, has_ethernet);
    }
    if (!reason && p->tos >> 2 != rule->dscp && !(g->parts & PART_TOS))
        reason = REASON_TOS_OFF;
    if (!reason && RULE_STATE(word) == RULE_ACTIVE && p->tos >> 2 != rule->out_dscp)
        reason = REASON_MISMATCH_DSCP;
    if (!reason && RULE_STATE(word) == RULE_ACTIVE) {
        if (size > rule->proved)
            *(volatile u16 *)&rule->proved = size;
        return;
    }
    if (reason) {
        rule->reason = reason;
        WORD(&rule->seen) = now();
        if (__sync_val_compare_and_swap(&rule->state, word, RULE_WORD(RULE_REFUSED, flags, word)) == word) {
            count(reason);
            tell(EVENT_MISMATCH, reason, e->rule, &q);
        }
        return;
    }
    if (__sync_val_compare_and_swap(&rule->state, word, RULE_WORD(RULE_BUSY, flags, word)) != word)
        return; /* another judge was faster */
    rule->out_dscp = p->tos >> 2;
    WORD(&rule->asked) = (now() & 0xffff) | size << 16;
    __sync_lock_test_and_set(&rule->state, RULE_WORD(RULE_ACTIVE, flags | RULE_LEARNED, word));
    if (!(flags & RULE_AGAIN))
        tell(EVENT_ACTIVE, 0, e->rule, &q);
}

#undef OF
#undef JOIN
#undef JOIN_
