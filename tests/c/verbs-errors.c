/* What goes wrong between two queue pairs, and what both ends are told; limits; what a device says of itself.
 *
 *   verbs-errors PART    queries, errors, lengths, rnr, silence, shared, overrun, busy or many; the card is that of MILLRACE_VERBS
 */
#include "verbs-pair.h"

#include <poll.h>
#include <sys/resource.h>

/* Posts a request of left's, or of right's. */
static void post(struct ibv_qp *qp, uint64_t id, enum ibv_wr_opcode opcode, void *at, uint32_t len, uint32_t lkey, uint64_t remote, uint32_t rkey)
{
    struct ibv_sge piece = { .addr = (uintptr_t)at, .length = len, .lkey = lkey };
    struct ibv_send_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
                                .wr.rdma = { .remote_addr = remote, .rkey = rkey } }, *bad;
    if (opcode == IBV_WR_SEND_WITH_INV)
        work.invalidate_rkey = rkey;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        work.wr.atomic.remote_addr = remote;
        work.wr.atomic.rkey = rkey;
        work.wr.atomic.compare_add = 1;
    }
    CHECK(ibv_post_send(qp, &work, &bad) == 0);
}

static void offer(uint64_t id, uint32_t len)
{
    struct ibv_sge piece = { .addr = (uintptr_t)theirs, .length = len, .lkey = to->lkey };
    struct ibv_recv_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1 }, *bad;
    CHECK((srq ? ibv_post_srq_recv(srq, &work, &bad) : ibv_post_recv(right, &work, &bad)) == 0);
}

/* The next completions, in any order: that of `id` has this status. */
static struct ibv_wc found(uint64_t id)
{
    static struct ibv_wc kept[64];
    static int count;
    for (double begin = now(); now() < begin + 20;) {
        for (int i = 0; i < count; i++)
            if (kept[i].wr_id == id) {
                struct ibv_wc line = kept[i];
                kept[i] = kept[--count];
                return line;
            }
        CHECK(count < 64);
        int came = ibv_poll_cq(cq, 1, kept + count);
        CHECK(came >= 0);
        count += came;
    }
    printf("request %llu: ", (unsigned long long)id);
    CHECK(!"a completion within 20 s");
    return kept[0];
}

static void expect(uint64_t id, enum ibv_wc_status status)
{
    struct ibv_wc line = found(id);
    if (line.status != status) {
        printf("request %llu: expected %s, got %s\n", (unsigned long long)id, ibv_wc_status_str(status), ibv_wc_status_str(line.status));
        exit(1);
    }
}

/* The next asynchronous event; every one is of a queue pair, a queue or a shared receive queue of this program. */
static enum ibv_event_type event(void)
{
    struct ibv_async_event told;
    struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
    /* Somebody has to move the protocol on. */
    for (double begin = now(); now() < begin + 20;) {
        struct ibv_wc none;
        CHECK(ibv_poll_cq(cq, 0, &none) == 0);
        if (poll(&ready, 1, 1) == 1) {
            CHECK(ibv_get_async_event(context, &told) == 0);
            ibv_ack_async_event(&told);
            return told.event_type;
        }
    }
    CHECK(!"an asynchronous event within 20 s");
    return IBV_EVENT_DEVICE_FATAL;
}

static enum ibv_qp_state state(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
}

static void queries(void)
{
    set_up(0);
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK(device.orig_attr.max_qp >= 10000 && device.orig_attr.max_sge >= 16 && device.orig_attr.max_mr >= 1000);
    CHECK(device.orig_attr.atomic_cap != IBV_ATOMIC_NONE && device.orig_attr.phys_port_cnt == 1);
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET);
    CHECK(ibv_query_port(context, 2, &port) != 0 && ibv_query_port(context, 0, &port) != 0);
    struct ibv_gid_entry entries[16], one;
    ssize_t count = ibv_query_gid_table(context, entries, 16, 0);
    CHECK(count >= 2 && count <= port.gid_tbl_len);
    for (ssize_t i = 0; i < count; i++) {
        union ibv_gid gid;
        CHECK(entries[i].port_num == 1 && ibv_query_gid_ex(context, 1, entries[i].gid_index, &one, 0) == 0);
        CHECK(memcmp(&one.gid, &entries[i].gid, 16) == 0 && one.gid_type == entries[i].gid_type);
        CHECK(ibv_query_gid(context, 1, (int)entries[i].gid_index, &gid) == 0 && memcmp(&gid, &one.gid, 16) == 0);
    }
    CHECK(ibv_query_gid_ex(context, 1, 255, &one, 0) != 0);
    uint16_t key;
    CHECK(ibv_query_pkey(context, 1, 0, &key) == 0 && ibv_get_pkey_index(context, 1, key) == 0);
    struct ibv_ece ece = { .vendor_id = 1 };
    int asked = ibv_query_ece(left, &ece);
    CHECK(asked == 0 ? ece.vendor_id == 0 : asked == EOPNOTSUPP);
    CHECK(state(left) == IBV_QPS_RTS);
}

/* What reaches for memory and may not: told to left as an error, to right as an event, and both pairs have failed. */
static void refused(const char *what, enum ibv_wr_opcode opcode, uint64_t remote, uint32_t len, uint32_t rkey)
{
    memset(theirs, 7, LEN);
    offer(50, 64);
    post(left, 1, opcode, ours, len, from->lkey, remote, rkey);
    post(left, 2, IBV_WR_SEND, ours, 8, from->lkey, 0, 0);
    struct ibv_wc line = found(1);
    if (line.status != IBV_WC_REM_ACCESS_ERR && line.status != IBV_WC_REM_INV_REQ_ERR) {
        printf("%s: %s\n", what, ibv_wc_status_str(line.status));
        exit(1);
    }
    expect(2, IBV_WC_WR_FLUSH_ERR);
    expect(50, IBV_WC_WR_FLUSH_ERR);
    enum ibv_event_type told = event();
    CHECK(told == IBV_EVENT_QP_ACCESS_ERR || told == IBV_EVENT_QP_REQ_ERR);
    CHECK(state(left) == IBV_QPS_ERR && state(right) == IBV_QPS_ERR);
    for (int i = 0; i < LEN; i++)
        CHECK(theirs[i] == 7);
    renew();
}

static void errors(void)
{
    set_up(0);
    uint64_t begin = (uintptr_t)theirs;
    refused("a key that is none", IBV_WR_RDMA_WRITE, begin, 8, to->rkey ^ 0x5a5a);
    refused("beyond the end", IBV_WR_RDMA_WRITE, begin + LEN - 4, 8, to->rkey);
    refused("before the beginning", IBV_WR_RDMA_WRITE, begin - 1, 8, to->rkey);
    refused("around the end of all addresses", IBV_WR_RDMA_WRITE, UINT64_MAX - 3, 8, to->rkey);
    refused("READ beyond the end", IBV_WR_RDMA_READ, begin + 1, LEN, to->rkey);
    refused("memory of its own that is not open", IBV_WR_RDMA_WRITE, (uintptr_t)ours, 8, from->rkey);
    refused("an atomic operation that is not aligned", IBV_WR_ATOMIC_FETCH_AND_ADD, begin + 4, 8, to->rkey);
    struct ibv_mr *reading = ibv_reg_mr(pd, theirs, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(reading);
    refused("WRITE to what may be read", IBV_WR_RDMA_WRITE, begin, 8, reading->rkey);
    uint32_t gone = reading->rkey;
    CHECK(ibv_dereg_mr(reading) == 0);
    refused("a key that was taken back", IBV_WR_RDMA_READ, begin, 8, gone);
    access_flags = IBV_ACCESS_LOCAL_WRITE;
    renew();
    refused("a queue pair that lets nobody write", IBV_WR_RDMA_WRITE, begin, 8, to->rkey);
    access_flags = ALL;
    renew();
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_mr *foreign = ibv_reg_mr(other, theirs, LEN, ALL);
    CHECK(other && foreign);
    refused("a key of another protection domain", IBV_WR_RDMA_WRITE, begin, 8, foreign->rkey);
    /* Local faults: only this end hears of them. */
    post(left, 3, IBV_WR_RDMA_WRITE, ours, 8, foreign->lkey, begin, to->rkey);
    expect(3, IBV_WC_LOC_PROT_ERR);
    CHECK(state(left) == IBV_QPS_ERR && state(right) == IBV_QPS_RTS);
    renew();
    CHECK(ibv_dereg_mr(foreign) == 0 && ibv_dealloc_pd(other) == 0);
}

static void lengths(void)
{
    set_up(0);
    /* To a buffer that is too short: both are told, each by its name. */
    offer(60, 10);
    post(left, 1, IBV_WR_SEND, ours, 11, from->lkey, 0, 0);
    expect(60, IBV_WC_LOC_LEN_ERR);
    expect(1, IBV_WC_REM_INV_REQ_ERR);
    renew();
    /* Nothing at all is a message too. */
    offer(61, 0);
    struct ibv_send_wr work = { .wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 0x01020304, .send_flags = IBV_SEND_SIGNALED }, *bad;
    CHECK(ibv_post_send(left, &work, &bad) == 0);
    struct ibv_wc line = found(61);
    CHECK(line.status == IBV_WC_SUCCESS && line.byte_len == 0 && line.imm_data == 0x01020304 && line.wc_flags & IBV_WC_WITH_IMM);
    expect(2, IBV_WC_SUCCESS);
    /* Two pieces into one buffer. */
    for (int i = 0; i < LEN; i++)
        ours[i] = (char)i;
    struct ibv_sge pieces[2] = { { (uintptr_t)ours + 100, 300, from->lkey }, { (uintptr_t)ours + 5000, 2500, from->lkey } };
    work = (struct ibv_send_wr){ .wr_id = 3, .sg_list = pieces, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
    offer(62, LEN);
    CHECK(ibv_post_send(left, &work, &bad) == 0);
    CHECK(found(62).byte_len == 2800);
    CHECK(memcmp(theirs, ours + 100, 300) == 0 && memcmp(theirs + 300, ours + 5000, 2500) == 0);
    expect(3, IBV_WC_SUCCESS);
    /* More requests than there is room for. */
    int posted = 0;
    work.send_flags = 0;
    while (posted < 100 && ibv_post_send(left, &work, &bad) == 0)
        posted++;
    CHECK(posted >= 15 && posted < 100);
}

/* Milliseconds until a SEND arrives whose buffer is posted only when the refusal is on its way back, or has come; `timer`: those of the
 * receiver's code. */
static double refused_once(double timer)
{
    renew();
    double begin = now();
    post(left, 1, IBV_WR_SEND, ours, 8, from->lkey, 0, 0);
    double wait = timer < 4 ? 0.002 : timer * 0.5e-3;
    for (double until = begin + wait; now() < until;) {
        struct ibv_wc none;
        CHECK(ibv_poll_cq(cq, 1, &none) == 0);
    }
    offer(70, 8);
    expect(70, IBV_WC_SUCCESS);
    expect(1, IBV_WC_SUCCESS);
    return (now() - begin) * 1e3;
}

static void rnr(void)
{
    /* Milliseconds, by code (volume 1, table 45). */
    static const double TIMES[32] = { 655.36, .01, .02, .03, .04, .06, .08, .12, .16, .24, .32, .48, .64, .96, 1.28, 1.92,
                                      2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52 };
    set_up(0);
    for (int code = 0; code < 32; code++) {
        rnr_timer = code;
        /* On a busy machine the request may come only when there is a buffer; then nothing was refused. */
        double took = 0;
        for (int tries = 0; took < TIMES[code] && tries < 5; tries++)
            took = refused_once(TIMES[code]);
        if (took < TIMES[code]) {
            printf("code %d: it came again after %.3f ms, and not after %.2f\n", code, took, TIMES[code]);
            exit(1);
        }
    }
    rnr_timer = 12;
    for (rnr_retries = 0; rnr_retries < 4; rnr_retries += 3) {
        renew();
        post(left, 1, IBV_WR_SEND, ours, 8, from->lkey, 0, 0);
        expect(1, IBV_WC_RNR_RETRY_EXC_ERR);
        CHECK(state(left) == IBV_QPS_ERR && state(right) == IBV_QPS_RTS);
    }
}

static void silence(void)
{
    set_up(0);
    retries = 1;
    renew();
    struct ibv_qp *lost = make_pair(), *gone = make_pair();
    connect_pair(lost, gone);
    CHECK(ibv_destroy_qp(gone) == 0);
    double begin = now();
    post(lost, 1, IBV_WR_SEND, ours, 8, from->lkey, 0, 0);
    post(lost, 2, IBV_WR_RDMA_READ, ours, 8, from->lkey, (uintptr_t)theirs, to->rkey);
    expect(1, IBV_WC_RETRY_EXC_ERR);
    expect(2, IBV_WC_WR_FLUSH_ERR);
    CHECK(now() - begin < 10);
    CHECK(ibv_destroy_qp(lost) == 0);
    /* A wrong queue pair: the other one is connected with another, and takes nothing. */
    struct ibv_qp *strange = make_pair();
    connect_pair(strange, right);
    post(strange, 3, IBV_WR_RDMA_WRITE, ours, 8, from->lkey, (uintptr_t)theirs, to->rkey ^ 0x5a5a);
    struct ibv_wc line = found(3);
    CHECK(line.status != IBV_WC_SUCCESS);
    CHECK(ibv_destroy_qp(strange) == 0);
}

static void shared(void)
{
    open_card();
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
    srq = ibv_create_srq(pd, &init);
    CHECK(cq && srq);
    make_pairs();
    from = ibv_reg_mr(pd, ours, LEN, IBV_ACCESS_LOCAL_WRITE);
    to = ibv_reg_mr(pd, theirs, LEN, ALL);
    CHECK(from && to);
    for (uint64_t id = 80; id < 84; id++)
        offer(id, 64);
    struct ibv_srq_attr limit = { .srq_limit = 3 };
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    post(left, 1, IBV_WR_SEND, ours, 8, from->lkey, 0, 0);
    expect(80, IBV_WC_SUCCESS);
    post(right, 2, IBV_WR_SEND, ours, 8, from->lkey, 0, 0);
    expect(81, IBV_WC_SUCCESS);
    CHECK(event() == IBV_EVENT_SRQ_LIMIT_REACHED);
    expect(1, IBV_WC_SUCCESS);
    expect(2, IBV_WC_SUCCESS);
    /* A SEND that takes a key back: that of a window, and of no other. */
    struct ibv_mr *open = ibv_reg_mr(pd, theirs, LEN, ALL | IBV_ACCESS_MW_BIND);
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(open && (window || errno == EOPNOTSUPP));
    if (window) {
        struct ibv_send_wr work = { .wr_id = 3, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
                                    .bind_mw = { .mw = window, .rkey = ibv_inc_rkey(window->rkey),
                                                 .bind_info = { open, (uintptr_t)theirs, LEN, IBV_ACCESS_REMOTE_WRITE } } }, *bad;
        CHECK(ibv_post_send(right, &work, &bad) == 0);
        expect(3, IBV_WC_SUCCESS);
        uint32_t key = work.bind_mw.rkey;
        post(left, 4, IBV_WR_RDMA_WRITE, ours, 8, from->lkey, (uintptr_t)theirs, key);
        expect(4, IBV_WC_SUCCESS);
        post(left, 5, IBV_WR_SEND_WITH_INV, ours, 8, from->lkey, 0, key);
        struct ibv_wc line = found(82);
        CHECK(line.status == IBV_WC_SUCCESS && line.wc_flags & IBV_WC_WITH_INV && line.invalidated_rkey == key);
        expect(5, IBV_WC_SUCCESS);
        post(left, 6, IBV_WR_RDMA_WRITE, ours, 8, from->lkey, (uintptr_t)theirs, key);
        expect(6, IBV_WC_REM_ACCESS_ERR);
        CHECK(event() == IBV_EVENT_QP_ACCESS_ERR && event() == IBV_EVENT_QP_LAST_WQE_REACHED);
        renew();
    }
    /* The end of the queue pair: no more buffers will be taken by it. */
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_modify_qp(right, &attr, IBV_QP_STATE) == 0);
    CHECK(event() == IBV_EVENT_QP_LAST_WQE_REACHED);
}

static void overrun(void)
{
    set_up(0);
    struct ibv_cq *big = cq;
    cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(cq);
    int depth = cq->cqe;
    make_pairs();
    CHECK(depth >= 4 && depth < 16);
    for (int i = 0; i < 16; i++) {
        struct ibv_sge piece = { .addr = (uintptr_t)ours, .length = 8, .lkey = from->lkey };
        struct ibv_send_wr work = { .wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                                    .wr.rdma = { .remote_addr = (uintptr_t)theirs, .rkey = to->rkey } }, *bad;
        if (ibv_post_send(left, &work, &bad) != 0)
            break;
    }
    CHECK(event() == IBV_EVENT_CQ_ERR);
    for (double begin = now(); state(left) != IBV_QPS_ERR;)
        CHECK(now() < begin + 5);
    (void)big;
}

static void busy(void)
{
    set_up(0);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_destroy_cq(cq) == EBUSY);
    CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
    /* Only queue pairs are left in it: it stays as it was. */
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    from = ibv_reg_mr(pd, ours, LEN, IBV_ACCESS_LOCAL_WRITE);
    to = ibv_reg_mr(pd, theirs, LEN, ALL);
    CHECK(from && to);
    CHECK(write_word(1, theirs, to->rkey) == IBV_WC_SUCCESS);
    CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0);
    CHECK(ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
}

static long kilobytes(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
}

static void many(void)
{
    enum { PAIRS = 5000 };
    static struct ibv_qp *all[2 * PAIRS];
    set_up(0);
    CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0);
    long before = kilobytes();
    double begin = now();
    for (int i = 0; i < 2 * PAIRS; i++)
        all[i] = make_pair();
    for (int i = 0; i < 2 * PAIRS; i++)
        connect_pair(all[i], all[i ^ 1]);
    double connected = now();
    for (int i = 0; i < 2 * PAIRS; i += 2) {
        right = all[i + 1];
        offer(90, 64);
        post(all[i], 1, IBV_WR_SEND, ours, 64, from->lkey, 0, 0);
        expect(90, IBV_WC_SUCCESS);
        expect(1, IBV_WC_SUCCESS);
    }
    printf("%d queue pairs: made and connected in %.2f s, a SEND over each of %d connections in %.2f s, %.1f KiB each\n", 2 * PAIRS,
           connected - begin, PAIRS, now() - connected, (double)(kilobytes() - before) / (2 * PAIRS));
    for (int i = 0; i < 2 * PAIRS; i++)
        CHECK(ibv_destroy_qp(all[i]) == 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } PARTS[] = { { "queries", queries }, { "errors", errors }, { "lengths", lengths }, { "rnr", rnr }, { "silence", silence },
                  { "shared", shared }, { "overrun", overrun }, { "busy", busy }, { "many", many } };
    for (size_t i = 0; argc == 2 && i < sizeof PARTS / sizeof *PARTS; i++)
        if (strcmp(argv[1], PARTS[i].name) == 0) {
            PARTS[i].run();
            return 0;
        }
    printf("verbs-errors.c: which part?\n");
    return 2;
}
