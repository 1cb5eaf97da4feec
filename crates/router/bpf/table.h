/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The table of rules: open addressing, at most PROBES slots, half of them in a row in each half of it.
 *
 * Who may write what, and which store pairs with which load:
 *  - A slot is claimed by cmpxchg to BUSY: from EMPTY, and two seconds after `seen` from DEAD, and from REFUSED and TRIAL, too, so that who sends
 *    from many addresses does not fill the table with flows that come to nothing. The claimer alone writes the rest.
 *    ACTIVE is never claimed: where all slots of a flow are, whoever looks for one makes DEAD of that which has had no packet for longest.
 *  - It publishes with an atomic exchange of the word to TRIAL or REFUSED: a full barrier, behind which nothing of the rule is written but
 *    epoch, hop (a word), counter, seen, asked, out_dscp and reason. That exchange pairs with the load of the word in `find`, upon which
 *    the address of everything else depends (`after`): so no processor reads the rest earlier than the word.
 *  - A judge takes a rule from TRIAL to BUSY, writes, and publishes it as ACTIVE in the same way: two of them never write at once.
 *  - Who puts a rule on trial again where it is takes it to BUSY with the next number, and publishes it as TRIAL. The flow and what is done to it
 *    stay as they are, so that who reads it meanwhile sees no mixture; whatever was awaited for it before has the old number.
 *  - A user of a rule copies what it needs and loads the word again: if it is another, it has seen a mixture and lets the packet go
 *    to Linux. On processors that do not keep loads in order, the two seconds do what the second load would not.
 *  - Anybody may exchange TRIAL, ACTIVE or REFUSED for DEAD, after having stored `seen`: from then on the slot rests for two seconds.
 *  - A word has a number that grows with each claim, so that a cmpxchg never mistakes one rule for the next in its slot. */
#ifndef MILLRACE_TABLE_H
#define MILLRACE_TABLE_H

#include "parse.h"

#define PROBES 8
#define NO_RULE 0xffffffff

#define WORD(pointer) (*(volatile u32 *)(pointer))

/* `pointer`, by way of `word`: the processor cannot load through it before it has the word. */
#define after(pointer, word) \
    ({ \
        u64 depends_ = (word); \
        asm volatile("%0 &= 0" : "+r"(depends_)); \
        (void *)((char *)(pointer) + depends_); \
    })

static __always_inline bool is_live(u32 word)
{
    u32 state = RULE_STATE(word);

    return state == RULE_TRIAL || state == RULE_ACTIVE || state == RULE_REFUSED;
}

static __always_inline u32 mix(u64 a, u64 b, u64 c)
{
    u64 h = (a ^ SEED) * 0x9e3779b97f4a7c15ULL;

    h ^= h >> 32;
    h = (h ^ b) * 0xd6e8feb86659fd93ULL;
    h ^= h >> 32;
    h = (h ^ c ^ SEED) * 0xff51afd7ed558ccdULL;
    return h >> 32;
}

struct key4 {
    u64 addresses;
    u64 rest; /* ports, protocol, DSCP */
    u32 in;
};

static __always_inline u64 key_rest(const struct packet *p)
{
    return (u64)p->sport | (u64)p->dport << 16 | (u64)p->proto << 32 | (u64)(p->tos >> 2) << 40;
}
#define REST_BITS MAC_BITS

static __always_inline u32 hash4(const struct key4 *key)
{
    return mix(key->addresses, key->rest, key->in);
}

static __always_inline bool is4(struct rule4 *rule, const struct key4 *key)
{
    return *(u64 *)&rule->saddr == key->addresses && (*(u64 *)&rule->sport & REST_BITS) == key->rest && rule->in == key->in;
}

struct key6 {
    u64 saddr[2];
    u64 daddr[2];
    u64 rest;
    u32 in;
};

static __always_inline u32 hash6(const struct key6 *key)
{
    u32 first = mix(key->saddr[0], key->saddr[1], key->daddr[0]);

    return mix(key->daddr[1], key->rest, (u64)key->in << 32 | first);
}

static __always_inline bool is6(struct rule6 *rule, const struct key6 *key)
{
    u64 *addresses = (u64 *)rule->saddr;

    return addresses[0] == key->saddr[0] && addresses[1] == key->saddr[1] && addresses[2] == key->daddr[0] &&
           addresses[3] == key->daddr[1] && (*(u64 *)&rule->sport & REST_BITS) == key->rest && rule->in == key->in;
}

#define V 4
#include "slots.h"
#undef V
#define V 6
#include "slots.h"
#undef V

#endif
