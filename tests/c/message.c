/* Two processes that meet by name, by millrace_message_...:
 *
 *   message serve NAME    sends back what comes, and kills itself when it is told to
 *   message drive NAME    messages of all sizes and ways, tags, doorbells, a descriptor, what is refused, and the death of the other one
 *
 * With a rail behind that, a card or a port, they are two hosts, of which the first is b.
 */
#define _POSIX_C_SOURCE 200809L
#include <millrace.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
#define LONG (30 * SECOND)
#define ALL UINT64_MAX
#define MOST (3 << 20)

enum { ECHO = 1, DIE = 2, BACK = 3, GIVE = 4, WINDOW = 5 };

static uint8_t out[MOST], in[MOST];
static struct millrace_message *endpoint;

#define CHECK(is) ((is) ? (void)0 : failed(#is, __LINE__))

static void failed(const char *what, int line) {
    fprintf(stderr, "line %d: %s (%s)\n", line, what, millrace_last_error());
    exit(1);
}

static struct millrace_message_end ended(uint64_t request, uint32_t outcome) {
    struct millrace_message_end end;
    CHECK(millrace_message_wait(endpoint, request, LONG, &end) == 0);
    if (end.outcome != outcome)
        fprintf(stderr, "outcome %" PRIu32 "\n", end.outcome);
    CHECK(end.outcome == outcome && end.request == request);
    return end;
}

static void open_as(const char *name, const char *rail, const char *host) {
    if (rail == NULL)
        CHECK(millrace_message_open(name, 0, &endpoint) == 0);
    else
        CHECK(millrace_message_open_between(name, 0, &rail, 1, host, &endpoint) == 0);
}

static void serve(const char *name, const char *rail) {
    open_as(name, rail, "b");
    CHECK(millrace_message_claim(endpoint, 10, 19, 1) == 0);
    CHECK(millrace_message_claim(endpoint, 19, 20, 1) == -EBUSY);
    for (;;) {
        uint64_t request, bell_from;
        CHECK(millrace_message_receive(endpoint, 0, 0, 0, in, MOST, &request) == 0);
        struct millrace_message_end end = ended(request, MILLRACE_MESSAGE_RECEIVED);
        if (end.tag == DIE)
            raise(SIGKILL);
        CHECK(end.bytes == in);
        if (end.tag == WINDOW) {
            struct millrace_message_window *window;
            uint64_t number;
            memcpy(&number, in, sizeof number);
            CHECK(millrace_message_window_open(endpoint, end.peer, number, 1 << 30, &window) == -ENXIO);
            CHECK(millrace_message_window_open(endpoint, end.peer, number, 64, &window) == 0);
            CHECK(millrace_message_nread(window, 60, in, 4) == 0 && memcmp(in, "word", 4) == 0);
            CHECK(millrace_message_nread(window, 61, in, 4) == -ERANGE);
            CHECK(millrace_message_swrite(window, 4, "12345678", 8) == -EINVAL);
            CHECK(millrace_message_swrite(window, 8, "12345678", 8) == 0);
            CHECK(millrace_message_nwrite(window, 1, "n", 1) == 0 && millrace_message_nwrite_r(window, 2, "r", 1) == 0);
            CHECK(millrace_message_window_close(window) == 0);
            CHECK(millrace_message_send_short(endpoint, end.peer, BACK, "", 0) == 0);
            continue;
        }
        if (end.tag == GIVE) {
            struct millrace_message_block *block;
            void *bytes;
            CHECK(millrace_message_allocate(endpoint, end.peer, end.len, LONG, &block, &bytes) == 0);
            memcpy(bytes, in, end.len);
            CHECK(millrace_message_give(endpoint, end.peer, BACK, block) == 0);
            continue;
        }
        CHECK(millrace_message_send(endpoint, end.peer, BACK, in, end.len, MILLRACE_MESSAGE_FASTEST, &request) == 0);
        ended(request, MILLRACE_MESSAGE_SENT);
        int bell = millrace_message_bell(endpoint, 0, &bell_from);
        if (bell >= 0)
            CHECK(bell == 12 && bell_from == end.peer);
    }
}

static void echo(uint64_t peer, size_t len, uint32_t way) {
    uint64_t back, sent;
    for (size_t at = 0; at < len; at++)
        out[at] = (uint8_t)(at * 7 + at / 251 + len + way);
    memset(in, 0, len);
    CHECK(millrace_message_receive(endpoint, peer, BACK, ALL, in, len, &back) == 0);
    CHECK(millrace_message_send(endpoint, peer, ECHO, out, len, way, &sent) == 0);
    ended(sent, MILLRACE_MESSAGE_SENT);
    struct millrace_message_end end = ended(back, MILLRACE_MESSAGE_RECEIVED);
    CHECK(end.len == len && end.peer == peer && end.tag == BACK && memcmp(in, out, len) == 0);
}

/* Gathered from three pieces, and scattered to two. */
static void in_pieces(uint64_t peer) {
    uint64_t back, sent;
    struct millrace_message_piece from[] = {{out, 10}, {NULL, 0}, {out + 10, 200000}, {out + 200010, 5}};
    struct millrace_message_piece to[] = {{in, 1000}, {in + 1000, 300000}};
    memset(in, 0, sizeof in);
    CHECK(millrace_message_receive_pieces(endpoint, peer, BACK, ALL, to, 2, &back) == 0);
    CHECK(millrace_message_send_pieces(endpoint, peer, ECHO, from, 4, MILLRACE_MESSAGE_FASTEST, &sent) == 0);
    ended(sent, MILLRACE_MESSAGE_SENT);
    struct millrace_message_end end = ended(back, MILLRACE_MESSAGE_RECEIVED);
    CHECK(end.len == 200015 && end.bytes == in && memcmp(in, out, 200015) == 0);
    from[1].len = 1;
    CHECK(millrace_message_send_pieces(endpoint, peer, ECHO, from, 4, 0, &sent) == -EINVAL);
    CHECK(millrace_message_send_pieces(endpoint, peer, ECHO, NULL, 4, 0, &sent) == -EINVAL);
}

/* Memory of this end, which the other one reads and writes. */
static void in_a_window(uint64_t peer) {
    uint64_t number, request;
    struct millrace_message_block *block;
    void *bytes;
    CHECK(millrace_message_allocate(endpoint, peer, 64, LONG, &block, &bytes) == 0);
    CHECK(millrace_message_block_number(block, &number) == 0);
    memset(bytes, 0, 64);
    memcpy((char *)bytes + 60, "word", 4);
    CHECK(millrace_message_receive(endpoint, peer, BACK, ALL, NULL, 0, &request) == 0);
    CHECK(millrace_message_send_short(endpoint, peer, WINDOW, &number, sizeof number) == 0);
    ended(request, MILLRACE_MESSAGE_RECEIVED);
    CHECK(memcmp(bytes, "\0nr\0\0\0\0\0" "12345678", 16) == 0);
    CHECK(millrace_message_block_free(block) == 0);
}

static void called(const struct millrace_message_end *end, void *context) {
    *(struct millrace_message_end *)context = *end;
    CHECK(millrace_message_ring(endpoint, end->peer, 12, 0) == 0);
}

static void short_message(uint64_t peer) {
    char word[8];
    int code;
    while ((code = millrace_message_send_short(endpoint, peer, ECHO, "short", 6)) == -EAGAIN)
        millrace_message_wait(endpoint, 0, 0, &(struct millrace_message_end){0});
    CHECK(code == 0);
    while ((code = millrace_message_receive_short(endpoint, peer, BACK, ALL, word, sizeof word)) == -EAGAIN)
        ;
    CHECK(code == 6 && strcmp(word, "short") == 0);
}

static void drive(const char *name, const char *rail) {
    static const size_t lens[] = {0, 1, 40, 1328, 1329, 32768, 100000, MOST};
    uint64_t peer, request, other;
    struct millrace_message_end end;
    struct millrace_message_other who;
    CHECK(millrace_message_open("no name", 0, &endpoint) == -EINVAL && endpoint == NULL);
    open_as(NULL, rail, NULL);
    CHECK(millrace_message_connect(endpoint, "nobody-has-this-name", 0, &peer) == -ECONNREFUSED);
    char theirs[80];
    snprintf(theirs, sizeof theirs, "%s%s", rail ? "b:" : "", name);
    CHECK(millrace_message_connect(endpoint, theirs, LONG, &peer) == 0 && peer != 0);
    CHECK(millrace_message_who(endpoint, peer, &who) == 0);
    CHECK(strcmp(who.name, name) == 0 && who.user == geteuid() && who.pid != (uint32_t)getpid());
    CHECK(strcmp(who.host, rail ? "b" : "") == 0 && (who.pid == 0) == (rail != NULL));
    for (uint32_t way = MILLRACE_MESSAGE_FASTEST; way <= MILLRACE_MESSAGE_ZERO_COPY; way++)
        for (size_t at = 0; at < sizeof lens / sizeof *lens; at++)
            echo(peer, lens[at], way);
    in_pieces(peer);
    printf("messages of all sizes and ways\n");
    for (int count = 0; count < 10000; count++)
        short_message(peer);
    printf("10000 short messages\n");

    CHECK(millrace_message_ring(endpoint, peer, 9, 0) == -ENXIO);
    CHECK(millrace_message_ring(endpoint, peer, 12, 0) == 0);
    echo(peer, 8, MILLRACE_MESSAGE_EAGER);
    CHECK(millrace_message_bell(endpoint, 0, &other) == -ETIMEDOUT);
    printf("doorbells\n");

    struct pollfd descriptor = {.fd = millrace_message_descriptor(endpoint), .events = POLLIN};
    CHECK(poll(&descriptor, 1, 0) == 0);
    CHECK(millrace_message_receive(endpoint, 0, BACK, ALL, in, MOST, &request) == 0);
    CHECK(millrace_message_send(endpoint, peer, ECHO, out, 500000, MILLRACE_MESSAGE_ONE_COPY, &other) == 0);
    ended(other, MILLRACE_MESSAGE_SENT);
    CHECK(poll(&descriptor, 1, 30000) == 1);
    CHECK(millrace_message_wait(endpoint, 0, 0, &end) == 0 && end.request == request && end.len == 500000);
    CHECK(poll(&descriptor, 1, 0) == 0);
    CHECK(millrace_message_wait(endpoint, request, 0, &end) == -ETIMEDOUT);
    printf("a descriptor\n");

    static struct millrace_message_end told;
    CHECK(millrace_message_receive(endpoint, 0, BACK, ALL, in, MOST, &request) == 0);
    CHECK(millrace_message_then(endpoint, request, NULL, NULL) == -EINVAL);
    CHECK(millrace_message_then(endpoint, request, called, &told) == 0);
    CHECK(millrace_message_send(endpoint, peer, ECHO, out, 500000, MILLRACE_MESSAGE_FASTEST, &other) == 0);
    ended(other, MILLRACE_MESSAGE_SENT);
    for (int turn = 0; turn < 3000 && *(volatile uint64_t *)&told.request == 0; turn++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    CHECK(told.request == request && told.outcome == MILLRACE_MESSAGE_RECEIVED && told.len == 500000 && told.bytes == in);
    CHECK(millrace_message_then(endpoint, request, called, &told) == -ENOENT);
    echo(peer, 8, MILLRACE_MESSAGE_EAGER);
    printf("a function that is called\n");

    struct millrace_message_block *block;
    void *bytes;
    for (int turn = 0; turn < 20 && rail == NULL; turn++) {
        CHECK(millrace_message_allocate(endpoint, peer, MOST, LONG, &block, &bytes) == 0);
        memset(bytes, turn + 1, MOST);
        CHECK(millrace_message_receive_held(endpoint, peer, BACK, ALL, NULL, 0, &request) == 0);
        CHECK(millrace_message_give(endpoint, peer, GIVE, block) == 0);
        end = ended(request, MILLRACE_MESSAGE_HELD);
        CHECK(end.len == MOST && end.peer == peer && end.tag == BACK && end.given != NULL);
        memset(out, turn + 1, MOST);
        CHECK(memcmp(end.bytes, out, MOST) == 0);
        CHECK(millrace_message_give_back(end.given) == 0);
    }
    if (rail != NULL) {
        CHECK(millrace_message_allocate(endpoint, peer, 1, 0, &block, &bytes) == -EOPNOTSUPP);
    } else {
        CHECK(millrace_message_allocate(endpoint, peer, (16 << 20) + 1, 0, &block, &bytes) == -EMSGSIZE);
        CHECK(millrace_message_allocate(endpoint, peer, 16 << 20, LONG, &block, &bytes) == 0);
        CHECK(millrace_message_block_free(block) == 0 && millrace_message_block_free(NULL) == 0);
    }
    printf("memory that is handed over\n");

    if (rail == NULL)
        in_a_window(peer);
    printf("memory that the other one writes\n");

    CHECK(millrace_message_receive(endpoint, peer, 77, ALL, in, 8, &request) == 0);
    CHECK(millrace_message_cancel(endpoint, request) == 0);
    ended(request, MILLRACE_MESSAGE_CANCELLED);
    CHECK(millrace_message_cancel(endpoint, request) == -ENOENT);
    CHECK(millrace_message_send(endpoint, peer, ECHO, out, 8, 4, &request) == -EINVAL);
    CHECK(millrace_message_send(endpoint, peer, ECHO, NULL, 8, 0, &request) == -EINVAL);
    CHECK(millrace_message_send(endpoint, peer + 1, ECHO, out, 8, 0, &request) == -ENOTCONN);
    CHECK(millrace_message_send(NULL, peer, ECHO, out, 8, 0, &request) == -EINVAL);
    CHECK(millrace_message_event(endpoint, 0, &other) == -ETIMEDOUT);
    printf("what cannot be is refused\n");

    CHECK(millrace_message_receive(endpoint, peer, BACK, ALL, in, 8, &request) == 0);
    CHECK(millrace_message_send(endpoint, peer, DIE, out, 8, 0, &other) == 0);
    CHECK(millrace_message_event(endpoint, LONG, &other) == MILLRACE_MESSAGE_GONE && other == peer);
    ended(request, MILLRACE_MESSAGE_LOST);
    CHECK(millrace_message_send_short(endpoint, peer, ECHO, "x", 1) == -EAGAIN);
    CHECK(millrace_message_leave(endpoint, peer) == 0);
    CHECK(millrace_message_who(endpoint, peer, &who) == -ENOTCONN);
    CHECK(millrace_message_send_short(endpoint, peer, ECHO, "x", 1) == -ENOTCONN);
    CHECK(millrace_message_close(endpoint) == 0 && millrace_message_close(NULL) == 0);
    printf("death: lost\n");
}

int main(int count, char **words) {
    int is_right = count == 3 || count == 4;
    if (is_right && strcmp(words[1], "serve") == 0)
        serve(words[2], words[3]);
    else if (is_right && strcmp(words[1], "drive") == 0)
        drive(words[2], words[3]);
    else
        fprintf(stderr, "message serve|drive NAME [RAIL]\n");
    return !is_right;
}
