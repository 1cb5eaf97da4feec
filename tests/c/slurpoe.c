/* Two processes on one wire, by millrace_slurpoe_...:
 *
 *   slurpoe serve PORT    has memory, says its keys and the hash of its bytes, and kills itself when it is told to
 *   slurpoe drive PORT    writes, reads, chains, tries what is not allowed, and sees the other one die
 */
#define _POSIX_C_SOURCE 200809L
#include <millrace.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SIZE (1 << 20)
#define PART 5000
#define CHAIN 100
#define SECOND UINT64_C(1000000000)

/* What one says to the other. */
struct message {
    char word[8];
    uint64_t hash;
    uint64_t refused[3];
    uint32_t open_key, closed_key;
};

static const uint8_t server[6] = {2, 0, 0, 0, 0, 1}, client[6] = {2, 0, 0, 0, 0, 2};
static uint8_t bytes[SIZE], closed[4096];
static struct message messages[2];
static struct millrace_slurpoe *endpoint;

#define CHECK(is) ((is) ? (void)0 : failed(#is, __LINE__))

static void failed(const char *what, int line) {
    fprintf(stderr, "line %d: %s (%s)\n", line, what, millrace_last_error());
    exit(1);
}

static uint64_t hash(const uint8_t *from, size_t len) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t at = 0; at < len; at++)
        sum = (sum ^ from[at]) * UINT64_C(0x100000001b3);
    return sum;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static struct millrace_slurpoe_end wait_for(uint64_t token) {
    struct millrace_slurpoe_end end;
    uint64_t begin = now();
    int count;
    while ((count = millrace_slurpoe_poll(endpoint, &end, 1)) == 0)
        CHECK(now() - begin < 30 * SECOND);
    CHECK(count == 1);
    if (end.token != token)
        fprintf(stderr, "token %" PRIu64 " and not %" PRIu64 ": %s\n", end.token, token, millrace_slurpoe_failed_name(end.failed));
    CHECK(end.token == token);
    return end;
}

static void done(uint64_t token) {
    struct millrace_slurpoe_end end = wait_for(token);
    if (end.failed)
        fprintf(stderr, "%" PRIu64 ": %s\n", token, millrace_slurpoe_failed_name(end.failed));
    CHECK(end.failed == MILLRACE_SLURPOE_DONE);
}

static void say(const uint8_t *to) {
    struct millrace_slurpoe_transfer send = {
        .kind = MILLRACE_SLURPOE_SEND, .len = sizeof messages[0], .local = &messages[0]};
    CHECK(millrace_slurpoe_post(endpoint, to, &send, 1, 1, 0, NULL, NULL) == 0);
}

static void open_endpoint(const char *port, const uint8_t *address) {
    uint32_t key;
    CHECK(millrace_slurpoe_open(NULL, port, address, 8192, 0, &endpoint) == 0);
    CHECK(millrace_slurpoe_register(endpoint, messages, sizeof messages, MILLRACE_SLURPOE_LOCAL, &key) == 0);
}

static void listen_for(void) {
    CHECK(millrace_slurpoe_receive(endpoint, &messages[1], sizeof messages[1], 2, 0, NULL, NULL) == 0);
}

static void serve(const char *port) {
    struct message keys = {0};
    uint32_t all = MILLRACE_SLURPOE_LOCAL | MILLRACE_SLURPOE_REMOTE_WRITE | MILLRACE_SLURPOE_REMOTE_READ;
    open_endpoint(port, server);
    CHECK(millrace_slurpoe_register(endpoint, bytes, SIZE, all, &keys.open_key) == 0);
    CHECK(millrace_slurpoe_register(endpoint, closed, sizeof closed, MILLRACE_SLURPOE_LOCAL, &keys.closed_key) == 0);
    listen_for();
    for (;;) {
        struct millrace_slurpoe_end end;
        int count = millrace_slurpoe_poll(endpoint, &end, 1);
        CHECK(count >= 0);
        if (count == 0 || end.kind != MILLRACE_SLURPOE_RECEIVE)
            continue;
        CHECK(end.failed == MILLRACE_SLURPOE_DONE && memcmp(end.other, client, 6) == 0);
        if (strcmp(messages[1].word, "die") == 0)
            raise(SIGKILL);
        listen_for();
        messages[0] = keys;
        messages[0].hash = hash(bytes, SIZE);
        CHECK(millrace_slurpoe_refused(endpoint, &messages[0].refused) == 0);
        say(client);
    }
}

/* What the server says. */
static struct message ask(void) {
    int sent = 0, came = 0;
    listen_for();
    strcpy(messages[0].word, "say");
    say(server);
    for (uint64_t begin = now(); !sent || !came;) {
        struct millrace_slurpoe_end end;
        CHECK(now() - begin < 30 * SECOND);
        if (millrace_slurpoe_poll(endpoint, &end, 1) == 1) {
            CHECK(end.failed == MILLRACE_SLURPOE_DONE);
            sent |= end.token == 1;
            came |= end.token == 2;
        }
    }
    return messages[1];
}

static void fill(unsigned seed) {
    for (size_t at = 0; at < SIZE; at++)
        bytes[at] = (uint8_t)((at * 2654435761u >> 7) ^ at ^ seed);
}

static void count_up(const struct millrace_slurpoe_end *end, void *context) {
    if (end->failed == MILLRACE_SLURPOE_DONE && end->token == 5 && end->index == CHAIN - 1)
        atomic_fetch_add((atomic_int *)context, 1);
}

static struct millrace_slurpoe_transfer transfer(uint32_t kind, size_t at, uint32_t len, uint32_t key, uint64_t offset) {
    struct millrace_slurpoe_transfer made = {.kind = kind, .len = len, .local = bytes + at, .key = key, .offset = offset};
    return made;
}

static int drive(const char *port) {
    struct millrace_slurpoe_transfer list[CHAIN], one;
    struct message said;
    struct pollfd waits;
    uint64_t begin, events;
    uint32_t key;
    uint8_t own[6];
    int got;
    atomic_int called = 0;

    open_endpoint(port, client);
    CHECK(millrace_slurpoe_address(endpoint, &own) == 0 && memcmp(own, client, 6) == 0);
    CHECK(millrace_slurpoe_register(endpoint, bytes, SIZE, MILLRACE_SLURPOE_LOCAL, &key) == 0);
    one = transfer(MILLRACE_SLURPOE_WRITE, 0, SIZE, 0, 0);
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 0, 0, NULL, NULL) == -ENOTCONN);
    CHECK(millrace_slurpoe_connect(endpoint, server, 20 * SECOND) == 0);
    said = ask();

    /* A write of everything, and the same bytes read. */
    fill(1);
    one = transfer(MILLRACE_SLURPOE_WRITE, 0, SIZE, said.open_key, 0);
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 3, 0, NULL, NULL) == 0);
    done(3);
    uint64_t right = hash(bytes, SIZE);
    CHECK(ask().hash == right);
    memset(bytes, 0, SIZE);
    one.kind = MILLRACE_SLURPOE_READ;
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 4, 0, NULL, NULL) == 0);
    done(4);
    CHECK(hash(bytes, SIZE) == right);
    printf("write and read: %016" PRIx64 "\n", right);

    /* A list: one end, by a callback, while nobody polls. */
    fill(2);
    for (int at = 0; at < CHAIN; at++)
        list[at] = transfer(MILLRACE_SLURPOE_WRITE, (size_t)at * PART, PART, said.open_key, (uint64_t)at * PART);
    CHECK(millrace_slurpoe_post(endpoint, server, list, CHAIN, 5, MILLRACE_SLURPOE_CALLBACK, count_up, &called) == 0);
    for (begin = now(); atomic_load(&called) == 0;)
        CHECK(now() - begin < 30 * SECOND);
    one = transfer(MILLRACE_SLURPOE_WRITE, CHAIN * PART, SIZE - CHAIN * PART, said.open_key, CHAIN * PART);
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 6, 0, NULL, NULL) == 0);
    done(6);
    CHECK(ask().hash == hash(bytes, SIZE));
    printf("%d transfers, one end: called %d time\n", CHAIN, atomic_load(&called));

    /* The same with an end for each, by the descriptor. */
    fill(3);
    got = millrace_slurpoe_post(endpoint, server, list, CHAIN, 1000, MILLRACE_SLURPOE_DESCRIPTOR | MILLRACE_SLURPOE_EACH, NULL, NULL);
    CHECK(got == 0);
    waits.fd = millrace_slurpoe_descriptor(endpoint);
    waits.events = POLLIN;
    for (int ended = 0; ended < CHAIN;) {
        struct millrace_slurpoe_end ends[16];
        CHECK(poll(&waits, 1, 30000) == 1);
        CHECK(read(waits.fd, &events, sizeof events) == sizeof events);
        while ((got = millrace_slurpoe_poll(endpoint, ends, 16)) > 0)
            for (int at = 0; at < got; at++, ended++)
                CHECK(ends[at].failed == MILLRACE_SLURPOE_DONE && ends[at].token == 1000u + (unsigned)ended);
        CHECK(got == 0);
    }
    printf("%d transfers, an end for each: by the descriptor\n", CHAIN);

    /* What is not allowed. */
    const struct { const char *name; struct millrace_slurpoe_transfer transfer; } bad[] = {
        {"wrong key", transfer(MILLRACE_SLURPOE_WRITE, 0, 8, said.open_key ^ 1, 0)},
        {"out of bounds", transfer(MILLRACE_SLURPOE_WRITE, 0, 8, said.open_key, SIZE - 7)},
        {"no permission", transfer(MILLRACE_SLURPOE_READ, 0, 8, said.closed_key, 0)},
    };
    for (size_t at = 0; at < sizeof bad / sizeof *bad; at++) {
        CHECK(millrace_slurpoe_connect(endpoint, server, 20 * SECOND) == 0);
        CHECK(millrace_slurpoe_post(endpoint, server, &bad[at].transfer, 1, 7, 0, NULL, NULL) == 0);
        struct millrace_slurpoe_end end = wait_for(7);
        CHECK(end.failed == MILLRACE_SLURPOE_FAILED_REMOTE_ACCESS);
        printf("%s: %s\n", bad[at].name, millrace_slurpoe_failed_name(end.failed));
    }
    CHECK(millrace_slurpoe_connect(endpoint, server, 20 * SECOND) == 0);
    said = ask();
    for (int at = 0; at < 3; at++)
        CHECK(said.refused[at] > 0);
    printf("the other end has counted: key, bounds, permission\n");

    /* Calls that cannot be done. */
    uint8_t stack[8];
    one = transfer(MILLRACE_SLURPOE_WRITE, 0, 8, said.open_key, 0);
    one.local = stack;
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 0, 0, NULL, NULL) == -EFAULT);
    one = transfer(9, 0, 8, said.open_key, 0);
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 0, 0, NULL, NULL) == -EINVAL);
    CHECK(millrace_slurpoe_post(endpoint, server, list, CHAIN, 0, MILLRACE_SLURPOE_CALLBACK, NULL, NULL) == -EINVAL);
    CHECK(millrace_slurpoe_connect(endpoint, own, SECOND) == -EINVAL);
    CHECK(millrace_slurpoe_deregister(endpoint, key ^ 1) == -ENOENT);
    CHECK(millrace_slurpoe_poll(NULL, NULL, 0) == -EINVAL);

    /* The other one dies. */
    strcpy(messages[0].word, "die");
    say(server);
    one = transfer(MILLRACE_SLURPOE_WRITE, 0, SIZE, said.open_key, 0);
    begin = now();
    CHECK(millrace_slurpoe_post(endpoint, server, &one, 1, 8, 0, NULL, NULL) == 0);
    const char *name = NULL;
    for (int ended = 0; ended < 2;) {
        struct millrace_slurpoe_end end;
        CHECK(now() - begin < 60 * SECOND);
        if (millrace_slurpoe_poll(endpoint, &end, 1) == 1) {
            if (end.failed && !name)
                name = millrace_slurpoe_failed_name(end.failed);
            ended++;
        }
    }
    CHECK(name != NULL);
    printf("death: %s\n", name);
    fprintf(stderr, "noticed after %.1f s\n", (double)(now() - begin) / 1e9);
    CHECK(millrace_slurpoe_deregister(endpoint, key) == 0);
    CHECK(millrace_slurpoe_close(endpoint) == 0);
    return 0;
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "serve") == 0)
        serve(words[2]);
    if (count == 3 && strcmp(words[1], "drive") == 0)
        return drive(words[2]);
    fprintf(stderr, "slurpoe serve|drive PORT\n");
    return 2;
}
