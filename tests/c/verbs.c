/* What no program of perftest or ibverbs-utils calls: completion queues with functions of their own, memory windows of both types,
 * regions that change. Both ends are queue pairs of this process; the other end's memory is reached over the card.
 *
 *   verbs PART    cq-ex, windows, rereg or refusals; the card is that of MILLRACE_VERBS
 */
#include "verbs-pair.h"

static int holds(const char *at, int byte)
{
    for (int i = 0; i < 8; i++)
        if (at[i] != (char)byte)
            return 0;
    return 1;
}

static void cq_with_functions(void)
{
    set_up(1);
    struct ibv_poll_cq_attr none = { 0 }, more = { .comp_mask = 1 };
    CHECK(ibv_start_poll(cq_ex, &none) == ENOENT);
    CHECK(ibv_start_poll(cq_ex, &more) == EINVAL);
    struct ibv_sge place = { .addr = (uintptr_t)theirs, .length = 64, .lkey = to->lkey };
    struct ibv_recv_wr buffer = { .wr_id = 1000, .sg_list = &place, .num_sge = 1 }, *bad_buffer;
    struct ibv_sge piece = { .addr = (uintptr_t)ours, .length = 24, .lkey = from->lkey };
    struct ibv_send_wr work = { .wr_id = 7, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
                                .imm_data = htobe32(0x11223344) };
    struct ibv_send_wr *bad;
    for (int round = 0; round < 50; round++) {
        CHECK(ibv_post_recv(right, &buffer, &bad_buffer) == 0);
        CHECK(ibv_post_send(left, &work, &bad) == 0);
        int sent = 0, received = 0, outcome;
        for (double begin = now(); sent + received < 2 && now() < begin + 20;) {
            for (outcome = ibv_start_poll(cq_ex, &none); outcome == 0; outcome = ibv_next_poll(cq_ex)) {
                CHECK(cq_ex->status == IBV_WC_SUCCESS);
                if (cq_ex->wr_id == 7) {
                    CHECK(ibv_wc_read_opcode(cq_ex) == IBV_WC_SEND && ibv_wc_read_qp_num(cq_ex) == left->qp_num);
                    sent++;
                } else {
                    CHECK(cq_ex->wr_id == 1000 && ibv_wc_read_opcode(cq_ex) == IBV_WC_RECV);
                    CHECK(ibv_wc_read_byte_len(cq_ex) == 24 && ibv_wc_read_qp_num(cq_ex) == right->qp_num);
                    CHECK(ibv_wc_read_wc_flags(cq_ex) & IBV_WC_WITH_IMM && be32toh(ibv_wc_read_imm_data(cq_ex)) == 0x11223344);
                    received++;
                }
                if (sent + received == 2)
                    break;
            }
            if (outcome == 0 || sent + received > 0)
                ibv_end_poll(cq_ex);
            CHECK(outcome == 0 || outcome == ENOENT);
        }
        CHECK(sent == 1 && received == 1);
    }
    /* The old way takes completions of the same queue. */
    work.opcode = IBV_WR_SEND;
    CHECK(ibv_post_recv(right, &buffer, &bad_buffer) == 0 && ibv_post_send(left, &work, &bad) == 0);
    struct ibv_wc line;
    int some = 0;
    for (double begin = now(); some < 2 && now() < begin + 20;)
        some += ibv_poll_cq(cq, 1, &line);
    CHECK(some == 2);
}

static void windows_of_type_one(void)
{
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    CHECK(window && window->type == IBV_MW_TYPE_1);
    uint32_t first = window->rkey;
    CHECK(write_word(1, theirs, first) == IBV_WC_REM_ACCESS_ERR);
    renew();
    struct ibv_mw_bind bind = { .wr_id = 2, .send_flags = IBV_SEND_SIGNALED,
                                .bind_info = { .mr = to, .addr = (uintptr_t)theirs + 100, .length = 50, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
    CHECK(ibv_bind_mw(right, window, &bind) == 0 && window->rkey != first);
    CHECK(ended(2) == IBV_WC_SUCCESS);
    uint32_t second = window->rkey;
    CHECK(write_word(3, theirs + 120, second) == IBV_WC_SUCCESS && holds(theirs + 120, 3));
    CHECK(write_word(4, theirs + 146, second) == IBV_WC_REM_ACCESS_ERR);
    renew();
    CHECK(write_word(5, theirs + 90, second) == IBV_WC_REM_ACCESS_ERR);
    renew();
    CHECK(ibv_dereg_mr(to) == EBUSY);
    /* Bound elsewhere: the old key is gone. */
    bind.wr_id = 6;
    bind.bind_info.addr = (uintptr_t)theirs + 4000;
    CHECK(ibv_bind_mw(right, window, &bind) == 0 && ended(6) == IBV_WC_SUCCESS);
    CHECK(write_word(7, theirs + 120, second) == IBV_WC_REM_ACCESS_ERR);
    renew();
    CHECK(write_word(8, theirs + 4000, window->rkey) == IBV_WC_SUCCESS && holds(theirs + 4000, 8));
    /* With no bytes it is closed. */
    bind.wr_id = 9;
    bind.bind_info.length = 0;
    CHECK(ibv_bind_mw(right, window, &bind) == 0 && ended(9) == IBV_WC_SUCCESS);
    CHECK(write_word(10, theirs + 4000, window->rkey) == IBV_WC_REM_ACCESS_ERR);
    renew();
    /* Beyond its region: it says so, and opens nothing. */
    bind.wr_id = 11;
    bind.bind_info.addr = (uintptr_t)theirs + LEN - 10;
    bind.bind_info.length = 20;
    CHECK(ibv_bind_mw(right, window, &bind) == 0 && ended(11) == IBV_WC_MW_BIND_ERR);
    renew();
    CHECK(ibv_dealloc_mw(window) == 0);
}

static void windows_of_type_two(void)
{
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(window && window->type == IBV_MW_TYPE_2);
    struct ibv_mw_bind one = { 0 };
    CHECK(ibv_bind_mw(right, window, &one) == EINVAL);
    uint32_t rkey = ibv_inc_rkey(window->rkey);
    struct ibv_send_wr work = { .wr_id = 12, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
                                .bind_mw = { .mw = window, .rkey = rkey,
                                             .bind_info = { .mr = to, .addr = (uintptr_t)theirs + 2000, .length = 1000,
                                                            .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED } } };
    struct ibv_send_wr *bad;
    CHECK(ibv_post_send(right, &work, &bad) == 0 && ended(12) == IBV_WC_SUCCESS);
    CHECK(write_word(13, (void *)16, rkey) == IBV_WC_SUCCESS && holds(theirs + 2016, 13));
    /* Closed by its owner; then the next binding by the functions of the queue pair. */
    struct ibv_send_wr close = { .wr_id = 14, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey };
    CHECK(ibv_post_send(right, &close, &bad) == 0 && ended(14) == IBV_WC_SUCCESS);
    CHECK(write_word(15, (void *)16, rkey) == IBV_WC_REM_ACCESS_ERR);
    renew();
    struct ibv_qp_ex *functions = ibv_qp_to_qp_ex(right);
    CHECK(functions);
    rkey = ibv_inc_rkey(rkey);
    ibv_wr_start(functions);
    functions->wr_id = 16;
    functions->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(functions, window, rkey, &work.bind_mw.bind_info);
    CHECK(ibv_wr_complete(functions) == 0 && ended(16) == IBV_WC_SUCCESS);
    CHECK(write_word(17, (void *)24, rkey) == IBV_WC_SUCCESS && holds(theirs + 2024, 17));
    /* Of another queue pair's requests it is not open. */
    struct ibv_qp *other = left;
    renew();
    (void)other;
    CHECK(write_word(18, (void *)24, rkey) == IBV_WC_REM_ACCESS_ERR);
    renew();
    CHECK(ibv_dealloc_mw(window) == 0);
}

static void windows(void)
{
    set_up(0);
    struct ibv_device_attr attr;
    CHECK(ibv_query_device(context, &attr) == 0 && attr.max_mw > 0);
    CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
    windows_of_type_one();
    windows_of_type_two();
    CHECK(ibv_dereg_mr(to) == 0);
}

static void changed_regions(void)
{
    set_up(0);
    uint32_t rkey = to->rkey;
    CHECK(write_word(1, theirs + 8, rkey) == IBV_WC_SUCCESS && holds(theirs + 8, 1));
    /* Without the right to write. */
    CHECK(ibv_rereg_mr(to, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) == 0);
    CHECK(write_word(2, theirs + 8, to->rkey) == IBV_WC_REM_ACCESS_ERR);
    renew();
    /* Other memory. */
    CHECK(ibv_rereg_mr(to, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, theirs + 4096, 1024, ALL) == 0);
    CHECK(to->addr == theirs + 4096 && to->length == 1024);
    CHECK(write_word(3, theirs + 5000, to->rkey) == IBV_WC_SUCCESS && holds(theirs + 5000, 3));
    CHECK(write_word(4, theirs + 8, to->rkey) == IBV_WC_REM_ACCESS_ERR);
    renew();
    /* Another domain: what the queue pairs of the first one ask for is refused. */
    struct ibv_pd *second = ibv_alloc_pd(context);
    CHECK(second && ibv_rereg_mr(to, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0) == 0 && to->pd == second);
    CHECK(write_word(5, theirs + 5000, to->rkey) == IBV_WC_REM_ACCESS_ERR);
    renew();
    CHECK(ibv_rereg_mr(to, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(to, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_dealloc_pd(second) == EBUSY && ibv_dereg_mr(to) == 0 && ibv_dealloc_pd(second) == 0);
}

/* ibv_wr_...: all of a session or nothing of it. */
static void sessions(void)
{
    struct ibv_qp_ex *functions = ibv_qp_to_qp_ex(left);
    struct ibv_sge pieces[3] = { { (uintptr_t)ours, 8, from->lkey }, { (uintptr_t)ours, 8, from->lkey }, { (uintptr_t)ours, 8, from->lkey } };
    struct ibv_wc line;
    functions->wr_flags = IBV_SEND_SIGNALED;
    for (int count = 1; count <= 3; count++) {
        ibv_wr_start(functions);
        functions->wr_id = 71;
        ibv_wr_rdma_write(functions, to->rkey, (uintptr_t)theirs);
        ibv_wr_set_sge(functions, from->lkey, (uintptr_t)ours, 8);
        functions->wr_id = 72;
        ibv_wr_rdma_write(functions, to->rkey, (uintptr_t)theirs + 64);
        ibv_wr_set_sge_list(functions, (size_t)count, pieces);
        /* The queue pair has two pieces for a request. */
        CHECK(ibv_wr_complete(functions) == (count > 2 ? EINVAL : 0));
        if (count <= 2)
            CHECK(ended(71) == IBV_WC_SUCCESS && ended(72) == IBV_WC_SUCCESS);
    }
    for (double begin = now(); now() < begin + 0.2;)
        CHECK(ibv_poll_cq(cq, 1, &line) == 0);
    /* More than the queue has room for: 16. */
    ibv_wr_start(functions);
    for (int i = 0; i < 17; i++) {
        ibv_wr_send(functions);
        ibv_wr_set_sge(functions, from->lkey, (uintptr_t)ours, 8);
    }
    CHECK(ibv_wr_complete(functions) == ENOMEM);
    /* Without a request, and what was given up. */
    ibv_wr_start(functions);
    ibv_wr_set_sge(functions, from->lkey, (uintptr_t)ours, 8);
    CHECK(ibv_wr_complete(functions) == EINVAL);
    ibv_wr_start(functions);
    ibv_wr_send(functions);
    ibv_wr_abort(functions);
    CHECK(write_word(73, theirs, to->rkey) == IBV_WC_SUCCESS);
}

static void refusals(void)
{
    set_up(0);
    sessions();
    struct ibv_cq_init_attr_ex init = { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
    CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
    init = (struct ibv_cq_init_attr_ex){ .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
    CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
    init = (struct ibv_cq_init_attr_ex){ .cqe = 0 };
    CHECK(!ibv_create_cq_ex(context, &init) && errno == EINVAL);
    CHECK(!ibv_alloc_mw(pd, 3) && errno == EINVAL);
    struct ibv_send_wr work = { .opcode = IBV_WR_BIND_MW }, *bad;
    CHECK(ibv_post_send(left, &work, &bad) == EINVAL && bad == &work);
    /* A window of type 1 has a call of its own, and a list stops where it is refused. */
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    CHECK(window);
    work.bind_mw.mw = window;
    CHECK(ibv_post_send(left, &work, &bad) == EINVAL);
    CHECK(ibv_dealloc_mw(window) == 0);
    struct ibv_sge pieces[20] = { { 0 } };
    work = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = pieces, .num_sge = 20 };
    CHECK(ibv_post_send(left, &work, &bad) == EINVAL);
    work.num_sge = -1;
    CHECK(ibv_post_send(left, &work, &bad) == EINVAL);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } PARTS[] = { { "cq-ex", cq_with_functions }, { "windows", windows }, { "rereg", changed_regions }, { "refusals", refusals } };
    for (size_t i = 0; argc == 2 && i < sizeof PARTS / sizeof *PARTS; i++)
        if (strcmp(argv[1], PARTS[i].name) == 0) {
            PARTS[i].run();
            return 0;
        }
    printf("verbs.c: which part?\n");
    return 2;
}
