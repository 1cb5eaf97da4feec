/* A program of a card that sends to queue pair 1 of its neighbours what is not its own to say.
 *
 *     cm-forger forge COUNT        so many messages with numbers and queue pairs of others; prints how many
 *     cm-forger flood FILE         messages with its own numbers about connections of others, until FILE is there; prints how many
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>

#define QKEY 0x80010000u
#define SIZE 256
#define DEPTH 128

struct ibv_qp *millrace_create_general_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init);
int millrace_general_ids(struct ibv_context *context, uint32_t *first, uint8_t *bits);

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_ah *ah;
static uint32_t first;
static uint8_t bits;
static int waiting;
static uint64_t chance = 88172645463325252u;

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static uint32_t any(void)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (uint32_t)(chance >> 16);
}

static void prepare(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    must(list && list[0], "devices");
    struct ibv_context *context = ibv_open_device(list[0]);
    must(context != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
    must(pd && cq, "ibv_create_cq");
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
                                    .cap = {DEPTH, 1, 1, 1, SIZE}};
    qp = millrace_create_general_qp(pd, &init);
    must(qp != NULL, "millrace_create_general_qp");
    must(millrace_general_ids(context, &first, &bits) == 0 && bits < 32, "millrace_general_ids");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
    struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
    must(!ibv_query_gid(context, 1, 0, &way.grh.dgid), "ibv_query_gid");
    ah = ibv_create_ah(pd, &way);
    must(ah != NULL, "ibv_create_ah");
}

/* Waits until there is room. What is lost is told as sent: nobody learns whose it would have been. */
static void room(int most)
{
    struct ibv_wc wc[16];
    while (waiting > most) {
        int count = ibv_poll_cq(cq, 16, wc);
        must(count >= 0, "ibv_poll_cq");
        for (int at = 0; at < count; at++)
            must(wc[at].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[at].status));
        waiting -= count;
    }
}

static void say(int kind, uint32_t local, uint32_t remote, uint32_t number)
{
    uint8_t message[SIZE] = {1, 7, 2, 3};
    message[17] = (uint8_t)kind;
    uint32_t words[] = {htonl(local), htonl(remote), htonl(number << 8), htonl(number << 8)};
    memcpy(message + 24, words, sizeof words);
    struct ibv_sge piece = {.addr = (uintptr_t)message, .length = SIZE};
    struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
                                  .wr.ud = {ah, 1, QKEY}}, *bad;
    room(DEPTH - 1);
    must(!ibv_post_send(qp, &request, &bad), "ibv_post_send");
    waiting++;
}

int main(int argc, char **argv)
{
    long sent = 0;
    must(argc == 3, "arguments");
    prepare();
    if (!strcmp(argv[1], "forge")) {
        for (long count = atol(argv[2]); sent < count; sent++) {
            /* MRA, REJ, RTU, DREQ and DREP with the number of another program; a REP that is right but for the queue pair. */
            static const int kinds[] = {0x11, 0x12, 0x14, 0x15, 0x16};
            uint32_t other = first ^ (1 + any() % 0xfff) << bits;
            if (sent % 6 == 5)
                say(0x13, first | (any() & ((1u << bits) - 1)), any(), 2 + any() % 0xffff00);
            else
                say(kinds[sent % 6], other | (any() & ((1u << bits) - 1)), any(), 0);
        }
    } else {
        for (; access(argv[2], F_OK); sent++)
            say(sent % 2 ? 0x14 : 0x15, first | (any() & ((1u << bits) - 1)), any(), 0);
    }
    room(0);
    printf("%ld\n", sent);
    return 0;
}
