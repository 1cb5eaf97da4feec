/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Drives an extension library as NFB programs do, traps included (docs/spec/nfb-card.md section 0).
 *
 *   checks LIBRARY DEVICE TEST...     runs these tests, or all that need nothing else with "all"
 *   checks LIBRARY DEVICE hold        opens a queue and a lock, says "holding", and waits to be killed
 *
 * DEVICE has at least two queue pairs and a loopback port. Exit code 0: everything was as it should be.
 */
#include "loader.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *library, *device;
static int failures;

static int judge(int good, const char *condition, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int judge(int good, const char *condition, int line, const char *format, ...)
{
    va_list arguments;

    if (good)
        return 1;
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "%s:%d: not %s:", __FILE__, line, condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 0;
}

#define CHECK(condition, ...) judge(!!(condition), #condition, __LINE__, " " __VA_ARGS__)

/* What a test cannot go on without. */
#define NEED(condition, ...)                                                                                           \
    do {                                                                                                               \
        if (!CHECK(condition, __VA_ARGS__))                                                                            \
            exit(1);                                                                                                   \
    } while (0)

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct nfb_device *open_it(void)
{
    struct nfb_device *dev = device_open(library, device);

    NEED(dev, "%s: %s", device, strerror(errno));
    return dev;
}

static struct ndp_queue *started(struct nfb_device *dev, unsigned index, int dir, int flags)
{
    struct ndp_queue *queue = queue_open(dev, index, dir, flags);

    NEED(queue, "queue %u: %s", index, strerror(errno));
    NEED(queue_start(queue) == 0);
    return queue;
}

/* Sends `count` frames of `length` bytes; each byte is the number of the frame plus its place. */
static void send_frames(struct ndp_queue *tx, unsigned first, unsigned count, uint32_t length)
{
    struct packet packets[64];
    unsigned i, sent = 0;
    double begin = now();

    while (sent < count) {
        unsigned n = count - sent < 64 ? count - sent : 64;

        for (i = 0; i < n; i++)
            packets[i] = (struct packet){.data_length = length};
        if (queue_get(tx, packets, n) == 0) {
            NEED(now() - begin < 10, "no room for frame %u", sent);
            continue;
        }
        for (i = 0; i < n; i++)
            for (uint32_t at = 0; at < length; at++)
                packets[i].data[at] = (unsigned char)(first + sent + i + at);
        queue_put(tx);
        sent += n;
    }
    queue_flush(tx);
}

static void check_frame(const struct packet *packet, unsigned number, uint32_t length)
{
    CHECK(packet->data_length == length, "frame %u has %u bytes", number, packet->data_length);
    for (uint32_t at = 0; at < length && at < packet->data_length; at++)
        if (packet->data[at] != (unsigned char)(number + at)) {
            CHECK(0, "frame %u differs at byte %u", number, at);
            return;
        }
}

/* Receives the frames that send_frames sent, and no others. */
static void receive_frames(struct ndp_queue *rx, unsigned first, unsigned count, uint32_t length)
{
    struct packet packets[64];
    unsigned i, received = 0;
    double begin = now();

    while (received < count) {
        unsigned n = queue_get(rx, packets, 64);

        if (n == 0)
            NEED(now() - begin < 10, "frame %u of %u did not come", received, count);
        for (i = 0; i < n; i++)
            check_frame(&packets[i], first + received + i, length);
        queue_put(rx);
        received += n;
    }
    CHECK(received == count, "%u frames instead of %u", received, count);
}

/* ---- devices ---- */

static void test_open(void)
{
    static const char *const wrong[] = {"nonsense", "embedded:queues=0", "embedded:port=bad:port", "unix:"};
    struct nfb_device *dev = open_it();
    const struct ext_ops *ops = device_ops(dev);
    unsigned i;

    CHECK(ops->ndp_queue_open && ops->ndp_queue_close);
    device_close(dev);
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        errno = 0;
        dev = device_open(library, wrong[i]);
        CHECK(!dev && errno == EINVAL, "%s: %s", wrong[i], strerror(errno));
    }
    errno = 0;
    dev = device_open(library, "unix:/nonexistent/card.sock");
    CHECK(!dev && errno == ENOENT, "%s", strerror(errno));
}

static int entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;

    NEED(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;

    NEED(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void one_life(int with_queues)
{
    struct nfb_device *dev = open_it();
    struct nfb_comp *comp = comp_open(dev, "cesnet,ofm,mi_test_space", 0);
    uint32_t word = 0xdeadbeef, back = 0;

    NEED(comp);
    CHECK(comp_write(comp, &word, 4, 0x1c) == 4 && comp_read(comp, &back, 4, 0x1c) == 4 && back == word);
    comp_close(comp);
    if (with_queues) {
        struct ndp_queue *rx = started(dev, 0, RX, SHARED), *tx = started(dev, 0, TX, SHARED);

        send_frames(tx, 0, 4, 64);
        receive_frames(rx, 0, 4, 64);
        queue_close(tx);
        queue_close(rx);
    }
    device_close(dev);
}

static void test_thousand(void)
{
    int i, threads, files, alive = queues_alive();
    long memory;

    for (i = 0; i < 20; i++)
        one_life(1);
    threads = entries("/proc/self/task");
    files = entries("/proc/self/fd");
    memory = resident_kib();
    for (i = 0; i < 1000; i++)
        one_life(i % 10 == 0);
    /* One that has ended is still listed for a moment. */
    for (i = 0; i < 1000 && entries("/proc/self/task") > threads; i++)
        usleep(5000);
    CHECK(entries("/proc/self/task") <= threads, "%d threads, then %d", threads, entries("/proc/self/task"));
    CHECK(entries("/proc/self/fd") == files, "%d descriptors, then %d", files, entries("/proc/self/fd"));
    CHECK(resident_kib() < memory + 8192, "%ld KiB, then %ld", memory, resident_kib());
    CHECK(queues_alive() == alive, "%d queues not destroyed", queues_alive() - alive);
}

/* ---- registers ---- */

/* What the controllers of RX queues are called: Medusa, or DD, whose CONTROL and STATUS are in the same places. */
static const char *receiver(struct nfb_device *dev)
{
    return comp_count(dev, "netcope,dma_ctrl_ndp_rx") ? "netcope,dma_ctrl_ndp_rx" : "millrace,dma_ctrl_dd_rx";
}

static void test_registers(void)
{
    struct nfb_device *dev = open_it();
    struct nfb_comp *comp = comp_open(dev, "cesnet,ofm,mi_test_space", 0);
    unsigned char bytes[256], back[256];
    unsigned i, at;

    NEED(comp);
    CHECK(comp_size(comp) == 256);
    /* What nfb-bus begins with, also behind the end. */
    CHECK(comp_write(comp, NULL, 0, 0) == 0);
    CHECK(comp_write(comp, NULL, 0, 256) == 0);
    CHECK(comp_read(comp, NULL, 0, 256) == 0);
    CHECK(comp_read(comp, back, 4, 256) == -1 && comp_read(comp, back, 257, 0) == -1);
    for (i = 0; i < 256; i++)
        bytes[i] = (unsigned char)(i * 7 + 1);
    CHECK(comp_write(comp, bytes, 256, 0) == 256 && comp_read(comp, back, 256, 0) == 256);
    CHECK(!memcmp(bytes, back, 256));
    /* Every width at every place; nothing else may change. */
    for (at = 0; at < 248; at++)
        for (i = 1; i <= 8; i++) {
            memset(bytes + at, (int)(at + i), i);
            CHECK(comp_write(comp, bytes + at, i, at) == (ssize_t)i);
            CHECK(comp_read(comp, back, i, at) == (ssize_t)i && !memcmp(back, bytes + at, i));
        }
    CHECK(comp_read(comp, back, 256, 0) == 256 && !memcmp(bytes, back, 256));
    comp_close(comp);
    CHECK(comp_count(dev, receiver(dev)) >= 2 && comp_count(dev, "netcope,eth") >= 1);
    CHECK(!comp_open(dev, "no,such", 0) && errno == ENODEV);
    device_close(dev);
}

static void test_bad_bus(void)
{
    struct nfb_device *dev = open_it();
    struct bus_ops ops;
    void *bus = NULL;
    int node;

    for (node = -3; node < 64; node++) {
        int error = device_ops(dev)->bus_open_mi(device_priv(dev), node, 0, &bus, &ops);

        CHECK(error > 0, "node %d: %d", node, error);
    }
    device_close(dev);
}

/* ---- locks ---- */

static void test_locks(void)
{
    struct nfb_device *one = open_it(), *other = open_it();
    struct nfb_comp *mine = comp_open(one, "netcope,rxmac", 0), *theirs = comp_open(other, "netcope,rxmac", 0);
    struct nfb_comp *mac = comp_open(one, "netcope,txmac", 0);

    NEED(mine && theirs && mac);
    CHECK(comp_lock(mine, 1) == 1);
    CHECK(comp_lock(mine, 1) == 0, "not recursive");
    CHECK(comp_lock(theirs, 1) == 0 && comp_lock(theirs, 3) == 0);
    CHECK(comp_lock(theirs, 2) == 1, "another feature");
    CHECK(comp_lock(mac, 1) == 1, "another component");
    comp_unlock(theirs, 1);
    CHECK(comp_lock(theirs, 1) == 0, "not theirs to unlock");
    comp_unlock(mine, 1);
    CHECK(comp_lock(theirs, 1) == 1);
    CHECK(comp_lock(mine, 1) == 0);
    comp_close(theirs);
    device_close(other);
    CHECK(comp_lock(mine, 3) == 1, "locks end with their device");
    comp_unlock(mine, 3);
    comp_unlock(mac, 1);
    comp_close(mac);
    comp_close(mine);
    device_close(one);
}

/* ---- queues ---- */

static void test_loopback(void)
{
    static const int flags[] = {SHARED, USERSPACE};
    static const uint32_t lengths[] = {60, 61, 64, 128, 1000, 1518};
    struct nfb_device *dev = open_it();
    unsigned i, j, index, turn;

    for (i = 0; i < 2; i++)
        for (index = 0; index < 2; index++) {
            struct ndp_queue *rx = started(dev, index, RX, flags[i]), *tx = started(dev, index, TX, flags[i]);

            for (j = 0; j < sizeof lengths / sizeof *lengths; j++)
                for (turn = 0; turn < 40; turn++) {
                    send_frames(tx, turn, 200, lengths[j]);
                    receive_frames(rx, turn, 200, lengths[j]);
                }
            queue_close(tx);
            queue_close(rx);
        }
    device_close(dev);
    CHECK(queues_alive() == 0);
}

static void test_bursts(int flags)
{
    struct nfb_device *dev = open_it();
    struct ndp_queue *rx = started(dev, 0, RX, flags), *tx = started(dev, 0, TX, flags);
    struct packet packets[1025], more[4], first = {0};
    unsigned char copy[64] = {0};
    unsigned i, got;
    double begin;

    /* Nothing outstanding: harmless. */
    queue_put(rx), queue_put(tx), queue_flush(tx), queue_put(rx);
    CHECK(queue_get(rx, packets, 0) == 0 && queue_get(tx, packets, 0) == 0);

    /* Flags and pointers of packets to be sent are not initialised. */
    memset(packets, 0xee, sizeof packets);
    for (i = 0; i < 8; i++)
        packets[i].data_length = 64, packets[i].header_length = 0;
    CHECK(queue_get(tx, packets, 8) == 8);
    for (i = 0; i < 8; i++)
        for (unsigned at = 0; at < 64; at++)
            packets[i].data[at] = (unsigned char)(i + at);
    /* A second get, and then a flush without any put: all of it leaves. */
    more[0] = (struct packet){.data_length = 64}, more[1] = more[0];
    CHECK(queue_get(tx, more, 2) == 2);
    for (i = 0; i < 2; i++)
        for (unsigned at = 0; at < 64; at++)
            more[i].data[at] = (unsigned char)(8 + i + at);
    queue_flush(tx);

    /* Several gets before a put; what was got first stays as it is. */
    got = 0, begin = now();
    while (got < 10 && now() - begin < 10) {
        unsigned n = queue_get(rx, packets, 3);

        for (i = 0; i < n; i++)
            check_frame(&packets[i], got + i, 64);
        if (got == 0 && n) {
            first = packets[0];
            memcpy(copy, first.data, 64);
        }
        got += n;
    }
    CHECK(got == 10, "%u", got);
    CHECK(got && !memcmp(copy, first.data, 64));
    CHECK(got && first.header && first.header_length == 0 && first.flags == 0);
    queue_put(rx);
    queue_put(rx);

    /* All or nothing, and what is as long as no frame never goes. */
    for (i = 0; i < 1025; i++)
        packets[i] = (struct packet){.data_length = 64};
    CHECK(queue_get(tx, packets, 1025) == 0);
    for (i = 0; i < 50000; i++) {
        got = queue_get(tx, packets, 100);
        if (got == 0)
            break;
        CHECK(got == 100, "%u of 100", got);
    }
    CHECK(got == 0, "a ring without end");
    queue_flush(tx);
    begin = now();
    while (now() - begin < 10 && queue_get(tx, packets, 1) == 0) {
        queue_get(rx, packets, 64);
        queue_put(rx);
    }
    packets[0] = (struct packet){.data_length = 1 << 20};
    CHECK(queue_get(tx, packets, 1) == 0 && queue_get(tx, packets, 1) == 0);

    /* Headers have a place, though nobody sends them; shorter frames are padded with zeros. */
    queue_flush(tx);
    more[0] = (struct packet){.data_length = 20, .header_length = 128};
    begin = now();
    while ((got = queue_get(tx, more, 1)) == 0 && now() - begin < 10) {
        queue_get(rx, packets, 64);
        queue_put(rx);
    }
    CHECK(got == 1);
    memset(more[0].header, 0x77, 128);
    memset(more[0].data, 0x55, 20);
    queue_put(tx);
    queue_flush(tx);
    /* What was sent before is 64 bytes long, and comes first. */
    begin = now();
    while (((got = queue_get(rx, packets, 1)) == 0 || packets[0].data_length == 64) && now() - begin < 10)
        queue_put(rx);
    CHECK(got == 1 && packets[0].data_length == 60, "%u packets, %u bytes", got, packets[0].data_length);
    if (got) {
        CHECK(packets[0].data[19] == 0x55 && packets[0].data[20] == 0 && packets[0].data[59] == 0);
        /* Programs read up to the next word behind a frame, and 12 bytes of header whatever its length. */
        memcpy(copy, packets[0].data + 60, 4);
        memcpy(copy, packets[0].header, 12);
    }
    queue_put(rx);
    queue_close(tx);
    queue_close(rx);
    device_close(dev);
}

static void test_shared_bursts(void) { test_bursts(SHARED); }
static void test_direct_bursts(void) { test_bursts(USERSPACE); }

/* A burst that no ring holds at once is had whole, as often as asked, and arrives whole and in order. */
static void test_whole_bursts(void)
{
    static const int flags[] = {SHARED, USERSPACE};
    struct nfb_device *dev = open_it();
    unsigned i, turn;

    for (i = 0; i < 2; i++) {
        struct ndp_queue *rx = started(dev, 0, RX, flags[i]), *tx = started(dev, 0, TX, flags[i]);
        struct packet more = {.data_length = 64};

        for (turn = 0; turn < 50; turn++) {
            send_frames(tx, turn, 64, 1500);
            receive_frames(rx, turn, 64, 1500);
            send_frames(tx, turn, 1, 1500);
            receive_frames(rx, turn, 1, 1500);
        }
        /* Left behind without put or flush, and with: the queue stops all the same. */
        for (turn = 0; turn < 2; turn++) {
            struct packet packets[64];

            for (unsigned j = 0; j < 64; j++)
                packets[j] = (struct packet){.data_length = 1500};
            CHECK(queue_get(tx, packets, 64) == 64);
            if (turn)
                queue_put(tx);
            CHECK(queue_stop(tx) == 0 && queue_start(tx) == 0);
            while (queue_get(rx, packets, 64))
                queue_put(rx);
        }
        CHECK(queue_get(tx, &more, 1) == 1);
        queue_close(tx);
        queue_close(rx);
    }
    device_close(dev);
}

/* What is too long for the queue does not hold up what goes before and behind it. */
static void test_long_frames(void)
{
    struct nfb_device *dev = open_it();
    struct ndp_queue *rx = started(dev, 1, RX, SHARED), *tx = started(dev, 1, TX, SHARED);
    struct packet packets[8];
    unsigned i, at, turn;

    for (turn = 0; turn < 20; turn++) {
        for (i = 0; i < 8; i++)
            packets[i] = (struct packet){.data_length = i == 3 ? 20000 : 200};
        NEED(queue_get(tx, packets, 8) == 8, "turn %u", turn);
        for (i = 0; i < 8; i++)
            for (at = 0; at < packets[i].data_length; at++)
                packets[i].data[at] = (unsigned char)(i - (i > 3) + at);
        queue_put(tx);
        queue_flush(tx);
        receive_frames(rx, 0, 7, 200);
    }
    queue_close(tx);
    queue_close(rx);
    device_close(dev);
}

/* Gets `count` frames of `length` bytes, of which the first may be too long. */
static unsigned get_behind(struct ndp_queue *tx, unsigned count, int too_long, uint32_t length, struct packet *packets)
{
    unsigned i;

    for (i = 0; i < count; i++)
        packets[i] = (struct packet){.data_length = i == 0 && too_long ? 20000 : length};
    return queue_get(tx, packets, count);
}

/* Several gets before a put, of which some have what no ring holds: all of it stays where it is, and leaves in order. */
static void test_several_gets(void)
{
    struct nfb_device *dev = open_it();
    struct ndp_queue *rx = started(dev, 1, RX, SHARED), *tx = started(dev, 1, TX, SHARED);
    struct packet packets[6][64];
    unsigned i, j, at, number, turn, got;

    for (turn = 0; turn < 20; turn++) {
        /* The first goes to the ring, the others beside it. */
        for (i = 0; i < 6; i++)
            NEED(get_behind(tx, 8, i == 1 || i == 4, 200, packets[i]) == 8, "turn %u, get %u", turn, i);
        for (i = 0, number = turn; i < 6; i++)
            for (j = 0; j < 8; j++) {
                struct packet *packet = &packets[i][j];

                for (at = 0; at < packet->data_length; at++)
                    packet->data[at] = (unsigned char)(number + at);
                number += packet->data_length == 200;
            }
        if (turn % 2)
            queue_put(tx);
        queue_flush(tx);
        receive_frames(rx, turn, 46, 200);
    }

    /* Not without end, and what nobody takes does not keep the queue from stopping. */
    NEED(get_behind(tx, 64, 1, 1500, packets[0]) == 64);
    for (i = 0, got = 64; i < 100000 && got; i++)
        got = get_behind(tx, 64, 0, 1500, packets[0]);
    CHECK(got == 0, "memory without end");
    CHECK(queue_stop(tx) == 0 && queue_stop(rx) == 0);
    CHECK(queue_start(rx) == 0 && queue_start(tx) == 0);
    send_frames(tx, 3, 10, 200);
    receive_frames(rx, 3, 10, 200);
    queue_close(tx);
    queue_close(rx);
    device_close(dev);
}

/* One reader more than a queue has places for, which tries again and again. */
static void test_crowd(void)
{
    struct nfb_device *dev = open_it();
    struct ndp_queue *readers[16];
    unsigned i;

    for (i = 0; i < 16; i++)
        readers[i] = started(dev, 0, RX, SHARED);
    for (i = 0; i < 50; i++)
        CHECK(!queue_open(dev, 0, RX, SHARED) && errno == EBUSY, "%s", strerror(errno));
    for (i = 0; i < 16; i++)
        queue_close(readers[i]);
    device_close(dev);
}

static void test_close_pointers(void)
{
    struct nfb_device *dev = open_it();
    const struct ext_ops *ops = device_ops(dev);
    struct ndp_queue *queue;
    int i, dir;

    /* libnfb closes with the private pointer; by the prototype it would be the queue. */
    for (i = 0; i < 50; i++)
        for (dir = RX; dir <= TX; dir++) {
            queue = queue_open(dev, 0, dir, USERSPACE);
            NEED(queue, "%s", strerror(errno));
            CHECK(ops->ndp_queue_close(i % 2 ? queue_priv(queue) : (void *)queue) == 0);
        }
    CHECK(queues_alive() == 0);
    device_close(dev);
}

static void test_states(void)
{
    struct nfb_device *dev = open_it();
    struct ndp_queue *rx = queue_open(dev, 1, RX, SHARED), *tx = queue_open(dev, 1, TX, USERSPACE);
    struct packet packet = {.data_length = 64};
    int i;

    NEED(rx && tx);
    /* Not started. */
    CHECK(queue_get(rx, &packet, 1) == 0 && queue_get(tx, &packet, 1) == 0);
    queue_put(rx), queue_put(tx), queue_flush(tx);
    for (i = 0; i < 20; i++) {
        CHECK(queue_start(rx) == 0 && queue_start(tx) == 0);
        CHECK(queue_start(rx) == EALREADY);
        send_frames(tx, 0, 10, 64);
        receive_frames(rx, 0, 10, 64);
        CHECK(queue_stop(tx) == 0 && queue_stop(rx) == 0);
        CHECK(queue_stop(rx) == EALREADY);
        CHECK(queue_get(rx, &packet, 1) == 0);
    }
    /* Stop with packets that nobody reads. */
    CHECK(queue_start(rx) == 0 && queue_start(tx) == 0);
    for (i = 0; i < 100000; i++) {
        packet.data_length = 64;
        if (queue_get(tx, &packet, 1) == 0)
            break;
        queue_put(tx);
    }
    CHECK(queue_stop(tx) == 0, "a queue that cannot drain has to stop as well");
    CHECK(queue_stop(rx) == 0);
    CHECK(queue_start(rx) == 0 && queue_start(tx) == 0);
    send_frames(tx, 5, 10, 64);
    receive_frames(rx, 5, 10, 64);
    queue_close(tx);
    queue_close(rx);
    CHECK(!queue_open(dev, 4000, RX, SHARED) && errno == ENODEV, "%s", strerror(errno));
    CHECK(!queue_open(dev, 4000, TX, USERSPACE) && errno == ENODEV, "%s", strerror(errno));
    device_close(dev);
}

/* "direct:" before the name stands for the user-space flag of programs that cannot give it. */
static void test_direct_name(struct nfb_device *other)
{
    char name[256];
    struct nfb_device *dev;
    struct ndp_queue *tx;

    snprintf(name, sizeof name, "direct:%s", device);
    dev = device_open(library, name);
    NEED(dev, "%s: %s", name, strerror(errno));
    tx = started(dev, 0, TX, SHARED);
    CHECK(!queue_open(other, 0, TX, SHARED) && errno == EBUSY, "%s", strerror(errno));
    queue_close(tx);
    device_close(dev);
}

static void test_sharing(void)
{
    struct nfb_device *one = open_it(), *other = open_it();
    struct ndp_queue *rx = started(one, 0, RX, SHARED), *rx2 = started(other, 0, RX, SHARED);
    struct ndp_queue *tx = started(one, 0, TX, SHARED), *tx2 = started(other, 0, TX, SHARED);
    int i;

    /* Every subscriber sees every packet, whoever sends it. */
    for (i = 0; i < 100; i++) {
        send_frames(i % 2 ? tx : tx2, 0, 20, 100);
        receive_frames(rx, 0, 20, 100);
        receive_frames(rx2, 0, 20, 100);
    }
    CHECK(!queue_open(one, 0, RX, USERSPACE) && errno == EBUSY, "%s", strerror(errno));
    CHECK(!queue_open(one, 0, TX, USERSPACE) && errno == EBUSY, "%s", strerror(errno));
    queue_close(tx), queue_close(tx2), queue_close(rx), queue_close(rx2);
    rx = started(one, 0, RX, USERSPACE);
    CHECK(!queue_open(other, 0, RX, USERSPACE) && errno == EBUSY, "%s", strerror(errno));
    CHECK(!queue_open(other, 0, RX, SHARED) && errno == EBUSY, "%s", strerror(errno));
    queue_close(rx);
    rx = queue_open(other, 0, RX, USERSPACE);
    CHECK(rx, "%s", strerror(errno));
    if (rx)
        queue_close(rx);
    test_direct_name(one);
    device_close(one);
    device_close(other);
}

/* A card of DD queues, opened without "direct:". As NFB programs open queues by default they are refused, as often as
 * asked, and so is none with the user-space flag. */
static void test_own_only(void)
{
    struct nfb_device *dev = open_it();
    struct ndp_queue *rx, *tx;
    int i;

    for (i = 0; i < 50; i++) {
        errno = 0;
        CHECK(!queue_open(dev, 0, RX, SHARED) && errno == EINVAL, "%s", strerror(errno));
        errno = 0;
        CHECK(!queue_open(dev, 0, TX, SHARED) && errno == EINVAL, "%s", strerror(errno));
    }
    CHECK(queues_alive() == 0);
    rx = started(dev, 0, RX, USERSPACE), tx = started(dev, 0, TX, USERSPACE);
    CHECK(!queue_open(dev, 0, RX, USERSPACE) && errno == EBUSY, "%s", strerror(errno));
    send_frames(tx, 0, 200, 100);
    receive_frames(rx, 0, 200, 100);
    queue_close(tx), queue_close(rx);
    /* Its registers are none that NFB programs know, so that they do not take them for others. */
    CHECK(comp_count(dev, "netcope,dma_ctrl_ndp_rx") == 0 && comp_count(dev, "netcope,dma_ctrl_sze_rx") == 0);
    CHECK(comp_count(dev, "millrace,dma_ctrl_dd_rx") >= 1);
    device_close(dev);
}

/* ---- threads ---- */

static void *one_thread(void *argument)
{
    unsigned index = *(unsigned *)argument, turn;

    for (turn = 0; turn < 20; turn++) {
        struct nfb_device *dev = open_it();
        struct ndp_queue *rx = started(dev, index, RX, turn % 2 ? SHARED : USERSPACE);
        struct ndp_queue *tx = started(dev, index, TX, turn % 2 ? USERSPACE : SHARED);
        struct nfb_comp *comp = comp_open(dev, receiver(dev), index);
        uint32_t status = 0;

        for (int i = 0; i < 20; i++) {
            send_frames(tx, turn, 100, 64 + turn);
            receive_frames(rx, turn, 100, 64 + turn);
            CHECK(comp && comp_read(comp, &status, 4, 4) == 4 && (status & 1), "status %u", status);
        }
        if (comp)
            comp_close(comp);
        queue_close(tx);
        queue_close(rx);
        device_close(dev);
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[2];
    unsigned indices[2] = {0, 1}, i;

    for (i = 0; i < 2; i++)
        NEED(pthread_create(&threads[i], NULL, one_thread, &indices[i]) == 0);
    for (i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* One card for all opens of a name in this process. */
static void test_one_card(void)
{
    struct nfb_device *one = open_it(), *other = open_it();
    struct nfb_comp *a = comp_open(one, "cesnet,ofm,mi_test_space", 0);
    struct nfb_comp *b = comp_open(other, "cesnet,ofm,mi_test_space", 0);
    struct ndp_queue *tx = started(one, 0, TX, USERSPACE), *rx = started(other, 0, RX, USERSPACE);
    uint32_t word = 0x12345678, back = 0;

    NEED(a && b);
    CHECK(comp_write(a, &word, 4, 8) == 4 && comp_read(b, &back, 4, 8) == 4 && back == word, "0x%x", back);
    send_frames(tx, 0, 100, 200);
    receive_frames(rx, 0, 100, 200);
    queue_close(tx);
    comp_close(a);
    device_close(one);
    CHECK(comp_read(b, &back, 4, 8) == 4 && back == word, "the card lives as long as anybody has it open");
    queue_close(rx);
    comp_close(b);
    device_close(other);
}

/* ---- with other processes ---- */

static void test_hold(void)
{
    struct nfb_device *dev = open_it();
    struct nfb_comp *comp = comp_open(dev, "netcope,tsu", 0);

    started(dev, 0, RX, USERSPACE);
    started(dev, 0, TX, USERSPACE);
    NEED(comp && comp_lock(comp, 1) == 1);
    puts("holding");
    fflush(stdout);
    for (;;)
        pause();
}

/* Somebody else holds it. */
static void test_is_held(void)
{
    struct nfb_device *dev = open_it();
    struct nfb_comp *comp = comp_open(dev, "netcope,tsu", 0);

    NEED(comp);
    CHECK(comp_lock(comp, 1) == 0);
    CHECK(!queue_open(dev, 0, RX, USERSPACE) && errno == EBUSY, "%s", strerror(errno));
    CHECK(!queue_open(dev, 0, TX, SHARED) && errno == EBUSY, "%s", strerror(errno));
    comp_close(comp);
    device_close(dev);
}

/* Nobody holds it any more; a second is more than it takes. */
static void test_is_free(void)
{
    struct nfb_device *dev = open_it();
    struct nfb_comp *comp = comp_open(dev, "netcope,tsu", 0);
    struct ndp_queue *rx = NULL;
    double begin = now();

    NEED(comp);
    while (comp_lock(comp, 1) != 1)
        NEED(now() - begin < 1, "the lock outlives its process");
    while (!(rx = queue_open(dev, 0, RX, USERSPACE)))
        NEED(now() - begin < 1, "the queue outlives its process");
    queue_close(rx);
    comp_unlock(comp, 1);
    comp_close(comp);
    device_close(dev);
}

/* The card dies while it is used: nothing hangs, nothing crashes, everything can be closed. */
static void test_card_dies(void)
{
    struct nfb_device *dev = open_it();
    struct nfb_comp *comp = comp_open(dev, "netcope,tsu", 0);
    struct ndp_queue *rx = started(dev, 0, RX, SHARED), *tx = started(dev, 0, TX, SHARED);
    struct ndp_queue *rx1 = started(dev, 1, RX, USERSPACE), *tx1 = started(dev, 1, TX, USERSPACE);
    struct packet packets[8];
    uint32_t word;
    double begin = now();
    int i;

    puts("running");
    fflush(stdout);
    while (now() - begin < 20 && comp_read(comp, &word, 4, 0x10) == 4) {
        for (i = 0; i < 8; i++)
            packets[i] = (struct packet){.data_length = 64};
        if (queue_get(tx, packets, 8) || queue_get(tx1, packets, 8))
            queue_put(tx), queue_put(tx1), queue_flush(tx), queue_flush(tx1);
        queue_get(rx, packets, 8), queue_get(rx1, packets, 8);
        queue_put(rx), queue_put(rx1);
    }
    CHECK(now() - begin < 20, "the card did not die");
    CHECK(comp_read(comp, &word, 4, 0x10) == -1 && errno == ENODEV, "%s", strerror(errno));
    CHECK(comp_lock(comp, 1) == -ENODEV);
    for (i = 0; i < 10; i++) {
        packets[0] = (struct packet){.data_length = 64};
        queue_get(tx, packets, 1), queue_put(tx), queue_flush(tx);
        queue_get(rx, packets, 8), queue_put(rx);
        queue_get(tx1, packets, 1), queue_put(tx1), queue_flush(tx1);
        queue_get(rx1, packets, 8), queue_put(rx1);
    }
    queue_close(tx1), queue_close(rx1), queue_close(tx), queue_close(rx);
    comp_close(comp);
    device_close(dev);
    CHECK(!device_open(library, device));
}

static const struct {
    const char *name;
    void (*run)(void);
    /* Part of "all". */
    int alone;
} tests[] = {
    {"open", test_open, 1},
    {"registers", test_registers, 1},
    {"bad-bus", test_bad_bus, 1},
    {"locks", test_locks, 1},
    {"loopback", test_loopback, 1},
    {"shared-bursts", test_shared_bursts, 1},
    {"direct-bursts", test_direct_bursts, 1},
    {"whole-bursts", test_whole_bursts, 1},
    {"long-frames", test_long_frames, 1},
    {"several-gets", test_several_gets, 1},
    {"crowd", test_crowd, 0},
    {"close-pointers", test_close_pointers, 1},
    {"states", test_states, 1},
    {"sharing", test_sharing, 1},
    {"threads", test_threads, 1},
    {"one-card", test_one_card, 1},
    {"thousand", test_thousand, 1},
    {"own-only", test_own_only, 0},
    {"hold", test_hold, 0},
    {"is-held", test_is_held, 0},
    {"is-free", test_is_free, 0},
    {"card-dies", test_card_dies, 0},
};

int main(int argc, char **argv)
{
    int i, ran = 0;
    size_t j;

    if (argc < 4) {
        fprintf(stderr, "usage: %s LIBRARY DEVICE all|TEST...\n", argv[0]);
        return 2;
    }
    library = argv[1];
    device = argv[2];
    for (i = 3; i < argc; i++)
        for (j = 0; j < sizeof tests / sizeof *tests; j++)
            if (!strcmp(argv[i], tests[j].name) || (!strcmp(argv[i], "all") && tests[j].alone)) {
                int before = failures;
                double begin = now();

                tests[j].run();
                ran++;
                printf("%-16s %6.2f s  %s\n", tests[j].name, now() - begin, failures == before ? "passed" : "FAILED");
                fflush(stdout);
            }
    if (ran == 0)
        fprintf(stderr, "%s: no such test\n", argv[3]);
    return ran == 0 || failures != 0;
}
