/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What is read of conntrack in the kernel: those members only, whose places libbpf finds in the BTF of the kernel that runs (CO-RE). */
#ifndef MILLRACE_KERNEL_H
#define MILLRACE_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef _Bool bool;
#define true 1
#define false 0

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

union nf_inet_addr {
    u32 all[4];
};
union nf_conntrack_man_proto {
    u16 all;
};
struct nf_conntrack_man {
    union nf_inet_addr u3;
    union nf_conntrack_man_proto u;
};
struct nf_conntrack_tuple {
    struct nf_conntrack_man src;
    struct {
        union nf_inet_addr u3;
        union {
            u16 all;
        } u;
    } dst;
};
struct nf_conntrack_tuple_hash {
    struct nf_conntrack_tuple tuple;
};
struct nf_ct_ext {
    u8 offset[4];
};
struct ip_ct_tcp_state {
    u8 flags;
};
struct ip_ct_tcp {
    struct ip_ct_tcp_state seen[2];
    u8 state;
};
union nf_conntrack_proto {
    struct ip_ct_tcp tcp;
};
struct sk_buff {
    unsigned long _nfct;
};
struct nf_conn {
    struct nf_conntrack_tuple_hash tuplehash[2];
    unsigned long status;
    struct nf_ct_ext *ext;
    union nf_conntrack_proto proto;
};

#pragma clang attribute pop

enum nf_ct_ext_id {
    NF_CT_EXT_HELPER,
    NF_CT_EXT_NAT,
    NF_CT_EXT_SEQADJ,
    NF_CT_EXT_TIMEOUT,
};

enum skb_ext_id {
    SKB_EXT_SEC_PATH,
};

/* Bits of `status`: include/uapi/linux/netfilter/nf_conntrack_common.h. */
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_CONFIRMED (1 << 3)
#define IPS_SEQ_ADJUST (1 << 6)
#define IPS_DYING (1 << 9)
#define IPS_TEMPLATE (1 << 11)
#define IPS_UNTRACKED (1 << 12)
#define IPS_HELPER (1 << 13)
#define TCP_CONNTRACK_ESTABLISHED 3
/* What lies beside the pointer to the entry in a buffer's `_nfct`: include/linux/skbuff.h, include/uapi/linux/netfilter/nf_conntrack_common.h. */
#define NFCT_INFOMASK 7UL
#define IP_CT_IS_REPLY 3
#define IP_CT_TCP_FLAG_BE_LIBERAL 8 /* of each direction: include/uapi/linux/netfilter/nf_conntrack_tcp.h */

/* The first form of the kernel's bpf_ct_opts, which newer kernels take as well. */
struct ct_opts {
    s32 netns_id;
    s32 error;
    u8 l4proto;
    u8 dir;
    u8 reserved[2];
};

extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple, u32 size, struct ct_opts *opts,
                                         u32 opts_size) __ksym __weak;
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *ctx, struct bpf_sock_tuple *tuple, u32 size, struct ct_opts *opts,
                                         u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;
extern int bpf_ct_change_timeout(struct nf_conn *ct, u32 ms) __ksym __weak;

#endif
