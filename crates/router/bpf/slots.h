/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Finding, claiming and ending a rule; once for each version of IP, which is V. No guard: it is there twice. */
#define JOIN_(name, version) name##version
#define JOIN(name, version) JOIN_(name, version)
#define OF(name) JOIN(name, V)

/* The slots of a flow, in the order in which they are tried: half of them in the first half of the table, which is full before the second one
 * is used much. So rules lie close together: 100,000 of IPv4 need half of the pages, and half of the cache where it fetches lines by two. */
static __always_inline u32 OF(place)(u32 hash, u32 probe)
{
    u32 half = JOIN(JOIN(RULES, V), _MASK) >> 1;

    if (probe < PROBES / 2)
        return (hash + probe) & half;
    return half + 1 + ((hash + probe - PROBES / 2) & half);
}

/* The live rule of a flow and its number; its word as it was when it was found. */
static __always_inline struct OF(rule) *OF(find)(const struct OF(key) *key, u32 hash, u32 *word, u32 *number)
{
    for (u32 probe = 0; probe < PROBES; probe++) {
        u32 at = OF(place)(hash, probe);
        struct OF(rule) *rule = bpf_map_lookup_elem(&OF(rules), &at);
        u32 seen;

        if (!rule)
            return 0;
        seen = WORD(&rule->state);
        if (seen == RULE_EMPTY)
            return 0;
        rule = after(rule, seen);
        if (is_live(seen) && OF(is)(rule, key)) {
            *word = seen;
            *number = at;
            return rule;
        }
    }
    return 0;
}

/* Ends a rule, if it is still the one of `word`. */
static __always_inline bool OF(end)(struct OF(rule) *rule, u32 word, u32 jiffies)
{
    WORD(&rule->seen) = jiffies;
    return __sync_val_compare_and_swap(&rule->state, word, RULE_WORD(RULE_DEAD, 0, word)) == word;
}

/* Claims a slot. Gives its rule with the word to publish in `word`, state and flags zero; or nothing, with why in `reason`. If all of them are in
 * force, the one that has had no packet for longest ends, if that is long enough: once it has rested, its slot is the next one's. So who sends a packet
 * each of many flows does not keep others from the fast path for as long as rules may be idle. */
static __always_inline struct OF(rule) *OF(claim)(const struct OF(key) *key, u32 hash, u32 jiffies, u32 rest, u32 *word, u32 *number,
                                                  int *reason)
{
    u32 longest = rest, oldest = NO_RULE;
    bool rests = false;
    struct OF(rule) *old;

    for (u32 probe = 0; probe < PROBES; probe++) {
        u32 at = OF(place)(hash, probe);
        struct OF(rule) *rule = bpf_map_lookup_elem(&OF(rules), &at);
        u32 seen, claimed, idle;

        if (!rule)
            break;
        seen = WORD(&rule->state);
        if (RULE_STATE(seen) == RULE_BUSY || (is_live(seen) && OF(is)(rule, key))) {
            /* It may be this very flow that another processor is at. */
            *reason = REASON_BUSY;
            return 0;
        }
        idle = jiffies - WORD(&rule->seen);
        if (RULE_STATE(seen) == RULE_ACTIVE && (s32)idle > (s32)longest) {
            longest = idle;
            oldest = at;
        }
        /* The last packet may have come since `jiffies` was read. */
        if (RULE_STATE(seen) == RULE_ACTIVE || (RULE_STATE(seen) != RULE_EMPTY && (s32)idle < (s32)rest)) {
            rests |= RULE_STATE(seen) == RULE_DEAD;
            continue;
        }
        claimed = (seen & 0xffff0000) + RULE_GENERATION + RULE_BUSY;
        if (__sync_val_compare_and_swap(&rule->state, seen, claimed) != seen) {
            *reason = REASON_BUSY;
            return 0;
        }
        *word = claimed & 0xffff0000;
        *number = at;
        return rule;
    }
    *reason = REASON_TABLE_FULL;
    /* One place is free soon. */
    if (rests)
        return 0;
    old = bpf_map_lookup_elem(&OF(rules), &oldest);
    if (old) {
        u32 word_of_old = WORD(&old->state);

        if (RULE_STATE(word_of_old) == RULE_ACTIVE && (s32)(jiffies - WORD(&old->seen)) > (s32)rest && OF(end)(old, word_of_old, jiffies)) {
            volatile struct globals *g = settings();

            if (g)
                __sync_fetch_and_add(&g->made_room, 1);
        }
    }
    return 0;
}

/* Puts a rule on trial again, if it is still the one of `word`: what it does stays, but nothing that was learned of Linux. Its new word, or 0. */
static __always_inline u32 OF(again)(struct OF(rule) *rule, u32 word, u32 hop, u32 epoch, u32 jiffies)
{
    u32 flags = (RULE_FLAGS(word) & ~RULE_LEARNED) | RULE_AGAIN, next = word + RULE_GENERATION;

    if (__sync_val_compare_and_swap(&rule->state, word, RULE_WORD(RULE_BUSY, flags, next)) != word)
        return 0;
    *(volatile u32 *)&rule->hop = hop;
    *(volatile u32 *)&rule->asked = 0;
    rule->out_dscp = rule->dscp;
    WORD(&rule->seen) = jiffies;
    WORD(&rule->epoch) = epoch;
    next = RULE_WORD(RULE_TRIAL, flags, next);
    __sync_lock_test_and_set(&rule->state, next);
    return next;
}

#undef OF
#undef JOIN
#undef JOIN_
