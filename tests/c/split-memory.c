// Two programs of one backend of the split driver: what one reaches of the other's memory. Each has an engine's queue pair, region and completion queue by
// libibverbs; they tell each other numbers by a socket. With the argument `killed`: one that has all that, and dies; with `leaves` its child does not.
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is, ...)                                                                                                                                         \
    do {                                                                                                                                                       \
        if (!(is)) {                                                                                                                                           \
            fprintf(stderr, "failed: " __VA_ARGS__);                                                                                                           \
            fprintf(stderr, " (%s:%d, errno %d)\n", __FILE__, __LINE__, errno);                                                                                \
            exit(1);                                                                                                                                           \
        }                                                                                                                                                      \
    } while (0)

enum { PAGE = 4096, LEN = 3 * PAGE, DEPTH = 64, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;

static void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0], "no device");
    context = ibv_open_device(list[0]);
    CHECK(context, "the device cannot be opened");
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
    CHECK(pd && cq && ibv_query_gid(context, 1, 0, &gid) == 0, "no objects");
}

static struct ibv_qp *make_pair(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 }
    };
    struct ibv_qp *pair = ibv_create_qp(pd, &init);
    CHECK(pair, "no queue pair");
    return pair;
}

static void connect_pair(struct ibv_qp *pair, uint32_t to)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
    CHECK(ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };
    CHECK(ibv_modify_qp(pair, &attr,
              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
    CHECK(ibv_modify_qp(pair, &attr,
              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

// How a request ends.
static int done(struct ibv_qp *pair, enum ibv_wr_opcode opcode, struct ibv_sge own, uint64_t address, uint32_t rkey)
{
    struct ibv_send_wr *bad, wr = {
        .sg_list = &own, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { .remote_addr = address, .rkey = rkey }
    };
    CHECK(ibv_post_send(pair, &wr, &bad) == 0, "not posted");
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        sched_yield();
    CHECK(count == 1, "no completion");
    return wc.status;
}

// What one tells the other. The reader asks for a new connection with its number; 0: it wants no more.
struct offer {
    uint64_t open, secret;
    uint32_t open_key, secret_key, pair;
};

static void tell(int to, const void *bytes, size_t len)
{
    CHECK(write(to, bytes, len) == (ssize_t)len, "the other end is gone");
}

static void hear(int from, void *bytes, size_t len)
{
    CHECK(recv(from, bytes, len, MSG_WAITALL) == (ssize_t)len, "the other end is gone");
}

// Has memory in the middle of pages, with its own bytes around it, and memory that nobody is to reach.
static int serve(int other)
{
    open_device();
    uint8_t *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    for (int at = 0; at < 16 * PAGE; at++)
        memory[at] = at * 7;
    uint8_t *open = memory + 100, *secret = memory + 8 * PAGE;
    struct ibv_mr *region = ibv_reg_mr(pd, open, LEN, ALL), *hidden = ibv_reg_mr(pd, secret, LEN, IBV_ACCESS_LOCAL_WRITE);
    CHECK(region && hidden, "not registered");
    for (int at = 0; at < 16 * PAGE; at++)
        CHECK(memory[at] == (uint8_t)(at * 7), "registering has changed byte %d", at);
    struct offer offer = { (uintptr_t)open, (uintptr_t)secret, region->rkey, hidden->rkey, 0 };
    for (uint32_t wanted;;) {
        hear(other, &wanted, sizeof wanted);
        if (!wanted)
            break;
        struct ibv_qp *pair = make_pair();
        connect_pair(pair, wanted);
        offer.pair = pair->qp_num;
        tell(other, &offer, sizeof offer);
        hear(other, &wanted, sizeof wanted);
        CHECK(ibv_destroy_qp(pair) == 0, "not destroyed");
    }
    // The other has written 0xaa over the open region, and nowhere else.
    for (int at = 0; at < 16 * PAGE; at++) {
        int is_open = at >= 100 && at < 100 + LEN;
        CHECK(memory[at] == (is_open ? 0xaa : (uint8_t)(at * 7)), "byte %d is %02x", at, memory[at]);
    }
    // Other bytes, another key; then none.
    uint32_t before = region->rkey;
    CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, secret, PAGE, 0) == 0, "ibv_rereg_mr");
    CHECK(region->rkey != before, "the same key");
    CHECK(ibv_dereg_mr(region) == 0 && ibv_dereg_mr(hidden) == 0, "ibv_dereg_mr");
    for (int at = 0; at < 100; at++)
        memory[at] = at;
    CHECK(munmap(memory, 16 * PAGE) == 0, "munmap");
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0, "not ended");
    // Once more: nothing of the first time is in the way.
    open_device();
    CHECK(ibv_resize_cq(cq, 4 * DEPTH) == 0, "ibv_resize_cq");
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0, "not ended again");
    return 0;
}

static uint32_t own_key;

static int attempt(int other, enum ibv_wr_opcode opcode, struct ibv_sge own, int which, int64_t shift)
{
    struct ibv_qp *pair = make_pair();
    struct offer offer;
    tell(other, &pair->qp_num, sizeof pair->qp_num);
    hear(other, &offer, sizeof offer);
    connect_pair(pair, offer.pair);
    uint64_t address = (which == 1 ? offer.secret : offer.open) + shift;
    uint32_t keys[] = { offer.open_key, offer.secret_key, offer.open_key ^ 0x100, 0x12345678 };
    // A key of the other's instead of an own one; one that has the same number here by chance is none.
    if (own.lkey == 0)
        own.lkey = offer.open_key == own_key ? offer.open_key ^ 0x100 : offer.open_key;
    int status = done(pair, opcode, own, address, keys[which]);
    CHECK(ibv_destroy_qp(pair) == 0, "not destroyed");
    uint32_t enough = 1;
    tell(other, &enough, sizeof enough);
    return status;
}

static void drive(int other)
{
    open_device();
    uint8_t *bytes = malloc(LEN + PAGE);
    memset(bytes, 0xaa, LEN + PAGE);
    struct ibv_mr *region = ibv_reg_mr(pd, bytes, LEN + PAGE, IBV_ACCESS_LOCAL_WRITE);
    CHECK(region, "not registered");
    own_key = region->lkey;
    struct ibv_sge own = { (uintptr_t)bytes, LEN, region->lkey };
    CHECK(attempt(other, IBV_WR_RDMA_READ, own, 0, 0) == IBV_WC_SUCCESS, "READ");
    for (int at = 0; at < LEN; at++)
        CHECK(bytes[at] == (uint8_t)((at + 100) * 7), "byte %d was read as %02x", at, bytes[at]);
    memset(bytes, 0xaa, LEN);
    CHECK(attempt(other, IBV_WR_RDMA_WRITE, own, 0, 0) == IBV_WC_SUCCESS, "WRITE");
    // Beyond either end, with the key of memory that is not open, and with keys that there are not.
    for (int writes = 0; writes < 2; writes++) {
        enum ibv_wr_opcode opcode = writes ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
        struct { int which; int64_t shift; } refused[] = { { 0, 1 }, { 0, -1 }, { 0, PAGE }, { 1, 0 }, { 2, 0 }, { 3, 0 }, { 0, 1LL << 40 } };
        for (size_t at = 0; at < sizeof refused / sizeof *refused; at++) {
            int status = attempt(other, opcode, own, refused[at].which, refused[at].shift);
            CHECK(status == IBV_WC_REM_ACCESS_ERR, "attempt %zu (%d) ended with %d", at, writes, status);
        }
    }
    // The other's key opens nothing here: it is not in this program.
    struct ibv_sge foreign = { (uintptr_t)bytes, 8, 0 };
    int status = attempt(other, IBV_WR_RDMA_WRITE, foreign, 0, 0);
    CHECK(status == IBV_WC_LOC_PROT_ERR, "a key of another program: %d", status);
    uint32_t no_more = 0;
    tell(other, &no_more, sizeof no_more);
}

// `leaves`: a child stays behind, with all descriptors; its number is printed.
static int killed(int leaves)
{
    open_device();
    if (leaves) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        printf("%d %d\n", getpid(), child);
        fflush(stdout);
    }
    size_t len = 4 << 20;
    for (int count = 0; count < 4; count++) {
        void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED && ibv_reg_mr(pd, memory, len, ALL), "not registered");
        for (int pairs = 0; pairs < 8; pairs++)
            make_pair();
        CHECK(ibv_create_cq(context, 1000, NULL, NULL, 0), "no completion queue");
    }
    raise(SIGKILL);
    return 1;
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "killed") == 0)
        return killed(0);
    if (count > 1 && strcmp(arguments[1], "leaves") == 0)
        return killed(1);
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        close(ends[1]);
        return serve(ends[0]);
    }
    close(ends[0]);
    drive(ends[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the other end: %d", status);
    return 0;
}
