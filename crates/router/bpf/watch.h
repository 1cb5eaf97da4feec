/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Step 17 when it fails. XDP says that a redirect has failed by tracepoints only: nobody else would know that frames are lost. */
#ifndef MILLRACE_WATCH_H
#define MILLRACE_WATCH_H

#include "maps.h"

#define ERROR_NXIO 6        /* the other end of a veth takes no frames of XDP */
#define ERROR_OPNOTSUPP 95  /* nor does this driver */

struct net_device {
    int ifindex;
} __attribute__((preserve_access_index));

/* The interface is left alone from now on: all rules ask again. */
static __always_inline void leave_alone(u32 slot)
{
    volatile struct globals *g = settings();
    u32 *lost = bpf_map_lookup_elem(&failed, &slot);

    if (!g || !lost || *lost)
        return;
    *lost = 1;
    __sync_fetch_and_add(&g->epochs, 1);
}

static __always_inline void count_lost(u32 reason, u32 frames)
{
    u64 *counter = bpf_map_lookup_elem(&counters, &reason);

    if (counter)
        __sync_fetch_and_add(counter, frames);
}

/* xdp_redirect_err: interface, program, target, error, kind of map, number of the map, index in it. */
SEC("raw_tp/xdp_redirect_err")
int router_redirect_failed(struct bpf_raw_tracepoint_args *ctx)
{
    volatile struct globals *g = settings();

    if (!g || (u32)ctx->args[5] != g->targets || !g->targets)
        return 0;
    count_lost(REASON_REDIRECT_FAILED, 1);
    if ((int)ctx->args[3] == -ERROR_OPNOTSUPP || (int)ctx->args[3] == -ERROR_NXIO)
        leave_alone(ctx->args[6]);
    return 0;
}

/* xdp_devmap_xmit: from, to, frames sent, frames dropped, error. Anybody's; ours are those to interfaces of ours. */
SEC("raw_tp/xdp_devmap_xmit")
int router_transmitted(struct bpf_raw_tracepoint_args *ctx)
{
    struct net_device *to = (void *)ctx->args[1];
    int drops = ctx->args[3], error = ctx->args[4];
    struct port *port;

    if (drops <= 0)
        return 0;
    port = port_of(BPF_CORE_READ(to, ifindex));
    if (!port || port->slot == NO_SLOT)
        return 0;
    if (error == -ERROR_NXIO || error == -ERROR_OPNOTSUPP) {
        count_lost(REASON_REDIRECT_FAILED, drops);
        leave_alone(port->slot);
    } else {
        count_lost(REASON_QUEUE_FULL, drops);
    }
    return 0;
}

#endif
