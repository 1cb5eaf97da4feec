/* Two queue pairs of this process that are connected with each other, and memory for both. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf(__FILE__ ":%d: not so: %s (errno %d)\n", __LINE__, #what, errno); \
            exit(1); \
        } \
    } while (0)

enum { LEN = 8192, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct ibv_qp *left, *right;
/* Of both pairs, unless a part says otherwise. */
static struct ibv_srq *srq;
static int access_flags = ALL, timeout = 14, retries = 7, rnr_retries = 7, rnr_timer = 12;
/* Pages of their own, which every engine can reach. */
static char *ours, *theirs;
static struct ibv_mr *from, *to;

static char *pages(void)
{
    // With room above: the loader's memory for the first thread may begin right there, and what is close below it is not shared
    // (docs/decisions/0058-adopted-memory.md).
    char *made = mmap(NULL, LEN + (128 << 10), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED);
    return made;
}

static void open_card(void)
{
    ours = pages();
    theirs = pages();
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    context = ibv_open_device(devices[0]);
    CHECK(context);
    ibv_free_device_list(devices);
    pd = ibv_alloc_pd(context);
    CHECK(pd);
}

static struct ibv_qp *make_pair(void)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .pd = pd,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    return qp;
}

static void connect_pair(struct ibv_qp *qp, const struct ibv_qp *other)
{
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access_flags };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = (uint8_t)rnr_timer,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } },
    };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = (uint8_t)timeout, .retry_cnt = (uint8_t)retries,
                                  .rnr_retry = (uint8_t)rnr_retries, .max_rd_atomic = 1 };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void make_pairs(void)
{
    left = make_pair();
    right = make_pair();
    connect_pair(left, right);
    connect_pair(right, left);
}

static void set_up(int extended)
{
    open_card();
    if (extended) {
        struct ibv_cq_init_attr_ex init = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
        cq_ex = ibv_create_cq_ex(context, &init);
        CHECK(cq_ex);
        cq = ibv_cq_ex_to_cq(cq_ex);
    } else {
        cq = ibv_create_cq(context, 64, NULL, NULL, 0);
        CHECK(cq);
    }
    make_pairs();
    from = ibv_reg_mr(pd, ours, LEN, IBV_ACCESS_LOCAL_WRITE);
    to = ibv_reg_mr(pd, theirs, LEN, ALL | IBV_ACCESS_MW_BIND);
    CHECK(from && to);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The status of the next completion, which is of this request. */
static enum ibv_wc_status ended(uint64_t id)
{
    struct ibv_wc line;
    for (double begin = now(); now() < begin + 20;)
        if (ibv_poll_cq(cq, 1, &line) == 1) {
            CHECK(line.wr_id == id);
            return line.status;
        }
    CHECK(!"a completion within 20 s");
    return IBV_WC_FATAL_ERR;
}

/* A WRITE of a word of left's to an address of right's memory. */
static enum ibv_wc_status write_word(uint64_t id, void *at, uint32_t rkey)
{
    struct ibv_sge piece = { .addr = (uintptr_t)ours, .length = 8, .lkey = from->lkey };
    struct ibv_send_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                                .wr.rdma = { .remote_addr = (uintptr_t)at, .rkey = rkey } };
    struct ibv_send_wr *bad;
    memset(ours, (int)id, 8);
    CHECK(ibv_post_send(left, &work, &bad) == 0);
    return ended(id);
}

/* After an error: both pairs anew. */
static void renew(void)
{
    CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0);
    make_pairs();
}
