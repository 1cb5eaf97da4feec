/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What ndp-tool does in its innermost loop, through the extension library: get 64 slots, fill them, put, flush.
 * Used by `millrace bench nfb`.
 */
#define _GNU_SOURCE
#include "../../crates/nfb/tests/loader/loader.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BURST = 64, BURSTS_PER_LOOK = 64 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The structured frame of ndp-tool: all words are {size hash 8, burst 16, packet 8}, most significant byte first. */
static inline void fill(unsigned char *data, uint32_t length, uint32_t burst, uint32_t packet)
{
    uint32_t hash = (length >> 8) + (length & 0xff), at;
    uint64_t words = __builtin_bswap32(hash << 24 | (burst & 0xffff) << 8 | (packet & 0xff));

    words |= words << 32;
    for (at = 0; at + 8 <= length; at += 8)
        memcpy(data + at, &words, 8);
    for (; at < length; at++)
        data[at] = (unsigned char)(words >> 8 * (at & 3));
}

static unsigned send_burst(struct ndp_queue *tx, struct packet *packets, uint32_t length, uint32_t number)
{
    unsigned i;

    if (queue_get(tx, packets, BURST) != BURST)
        return 0;
    for (i = 0; i < BURST; i++)
        fill(packets[i].data, length, number, i);
    queue_put(tx);
    queue_flush(tx);
    return BURST;
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s LIBRARY DEVICE shared|direct LENGTH SECONDS QUEUE [CORE]\n"
            "Sends bursts of %d frames and prints one JSON object: what was sent, and how fast.\n",
            name, BURST);
    return 2;
}

int main(int argc, char **argv)
{
    struct packet packets[BURST];
    struct nfb_device *dev;
    struct ndp_queue *tx;
    unsigned long long sent = 0;
    uint32_t length, number = 0;
    double seconds, begin, took;
    int flags, i;

    if (argc < 7 || (strcmp(argv[3], "shared") && strcmp(argv[3], "direct")))
        return usage(argv[0]);
    flags = argv[3][0] == 'd' ? USERSPACE : SHARED;
    length = (uint32_t)atoi(argv[4]);
    seconds = atof(argv[5]);
    if (length < 60 || seconds <= 0)
        return usage(argv[0]);
    if (argc > 7) {
        cpu_set_t set;

        CPU_ZERO(&set);
        CPU_SET(atoi(argv[7]), &set);
        if (sched_setaffinity(0, sizeof set, &set))
            perror("cannot be pinned");
    }
    dev = device_open(argv[1], argv[2]);
    tx = dev ? queue_open(dev, (unsigned)atoi(argv[6]), TX, flags) : NULL;
    if (!tx || queue_start(tx)) {
        fprintf(stderr, "%s: %s: %s\n", argv[0], argv[2], strerror(errno));
        return 1;
    }
    memset(packets, 0, sizeof packets);
    for (i = 0; i < BURST; i++)
        packets[i].data_length = length;
    begin = now();
    do {
        for (i = 0; i < BURSTS_PER_LOOK; i++) {
            unsigned count = send_burst(tx, packets, length, number);

            number += count != 0;
            sent += count;
        }
        took = now() - begin;
    } while (took < seconds);
    queue_close(tx);
    device_close(dev);
    printf("{\"packets\": %llu, \"seconds\": %.6f, \"mpps\": %.3f}\n", sent, took, (double)sent / took * 1e-6);
    return 0;
}
