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
        if (!same_ethernet(skb, v, hop, p->l3, p))
            return REASON_MISMATCH_ETHERNET;
    } else if (skb->ifindex != hop->logical) {
        return REASON_MISMATCH_OUT;
    }
    if (p->ttl != e->ttl)
        return REASON_MISMATCH_TTL;
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
    int reason;

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
    reason = OF(difference)(skb, v, p, rule, e, has_ethernet);
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
    /* Two judges write the same, or the second fails at the word. */
    rule->out_dscp = p->tos >> 2;
    WORD(&rule->asked) = (now() & 0xffff) | size << 16;
    if (__sync_val_compare_and_swap(&rule->state, word, RULE_WORD(RULE_ACTIVE, flags | RULE_LEARNED, word)) == word)
        tell(EVENT_ACTIVE, 0, e->rule, &q);
}

#undef OF
#undef JOIN
#undef JOIN_
