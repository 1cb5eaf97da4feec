/*
 * Sends packets through a card that sends back what it is sent, and compares every byte that returns.
 *
 *     cc -o loopback loopback.c $(pkg-config --cflags --libs millrace)
 *     ./loopback -n 1000000
 *
 * Eight steps, as in every Millrace program: open the device, open the queues, start them, get bursts, put them back,
 * stop, close the queues, close the device.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <millrace.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 64 };

/* How long to sleep at most, so that Ctrl-C is heard; and after how many such naps the card has fallen silent. */
static const uint64_t NAP_NS = 100 * 1000 * 1000;
static const int PATIENCE = 50;

/* The number of a packet is in its first bytes. */
static const uint64_t SHORTEST = sizeof(uint64_t);

static const char USAGE[] =
    "usage: loopback [-d DEVICE] [-q QUEUE] [-n COUNT] [-s BYTES]\n"
    "\n"
    "Sends packets through a card that loops them back, and compares every byte.\n"
    "\n"
    "  -d DEVICE  a card: embedded[:OPTIONS] or unix:PATH [default: $MILLRACE_DEVICE,\n"
    "             or a card inside this program]\n"
    "  -q QUEUE   index of the RX and the TX queue [default: 0]\n"
    "  -n COUNT   packets to send [default: 1000000]\n"
    "  -s BYTES   length of a packet, without FCS [default: 64]\n"
    "  -h         this text\n"
    "\n"
    "Exit code: 0 all came back as they were, 1 they did not or something failed,\n"
    "2 wrong usage, 130 Ctrl-C before the end.\n";

struct options {
    const char *device;
    uint64_t queue, count, length;
};

struct loopback {
    struct millrace_device *device;
    struct millrace_rx *rx;
    struct millrace_tx *tx;
    uint16_t lengths[BURST];
    uint64_t count, sent, received, damaged;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* A library call has failed; its words are better than ours. */
static bool failed(const char *doing)
{
    fprintf(stderr, "loopback: %s: %s\n", doing, millrace_last_error());
    return false;
}

static bool open_all(struct loopback *l, const struct options *options)
{
    int code = options->device ? millrace_open(options->device, &l->device) : millrace_open_default(&l->device);
    if (code < 0)
        return failed("cannot open the card");
    uint32_t queue = (uint32_t)options->queue;
    if (millrace_rx_open(l->device, queue, 0, &l->rx) < 0 || millrace_rx_start(l->rx) < 0)
        return failed("cannot start the RX queue");
    if (millrace_tx_open(l->device, queue, 0, &l->tx) < 0 || millrace_tx_start(l->tx) < 0)
        return failed("cannot start the TX queue");
    uint16_t shortest, longest;
    millrace_frame_limits(l->device, &shortest, &longest);
    if (options->length < shortest || options->length > (uint64_t)millrace_tx_longest(l->tx)) {
        fprintf(stderr, "loopback: %" PRIu64 " bytes: this card has packets of %u to %d\n", options->length,
                (unsigned)shortest, millrace_tx_longest(l->tx));
        return false;
    }
    l->count = options->count;
    for (int i = 0; i < BURST; i++)
        l->lengths[i] = (uint16_t)options->length;
    return true;
}

/* What was opened is closed, whatever came before; to close what was not opened does nothing. */
static bool close_all(struct loopback *l)
{
    bool closed = true;
    if (millrace_tx_close(l->tx) < 0)
        closed = failed("cannot close the TX queue");
    if (millrace_rx_close(l->rx) < 0)
        closed = failed("cannot close the RX queue");
    millrace_close(l->device);
    return closed;
}

static void fill(uint8_t *data, size_t length, uint64_t number)
{
    memcpy(data, &number, sizeof number);
    for (size_t i = sizeof number; i < length; i++)
        data[i] = (uint8_t)(number + i);
}

static bool is_as_sent(const struct millrace_packet *packet, size_t length, uint64_t number)
{
    uint64_t found;
    if (packet->data_len != length)
        return false;
    memcpy(&found, packet->data, sizeof found);
    if (found != number)
        return false;
    for (size_t i = sizeof found; i < length; i++)
        if (packet->data[i] != (uint8_t)(number + i))
            return false;
    return true;
}

/* Sends a burst if there is room: how many packets, negative if the queue cannot go on. */
static int send_some(struct loopback *l)
{
    struct millrace_packet packets[BURST];
    uint64_t left = l->count - l->sent;
    int taken = millrace_tx_burst_get(l->tx, l->lengths, packets, left < BURST ? left : BURST);
    if (taken <= 0)
        return taken;
    for (int i = 0; i < taken; i++)
        fill(packets[i].data, packets[i].data_len, l->sent++);
    int code = millrace_tx_burst_put(l->tx);
    return code < 0 ? code : taken;
}

/* Takes what has come: how many packets, negative if the queue cannot go on. */
static int receive_some(struct loopback *l)
{
    struct millrace_packet packets[BURST];
    int taken = millrace_rx_burst_get(l->rx, packets, BURST);
    if (taken <= 0)
        return taken;
    for (int i = 0; i < taken; i++)
        l->damaged += !is_as_sent(&packets[i], l->lengths[0], l->received++);
    int code = millrace_rx_burst_put(l->rx);
    return code < 0 ? code : taken;
}

/* Until everything is back, or after Ctrl-C everything that was sent. */
static bool run(struct loopback *l)
{
    int silence = 0;
    while (l->received < (interrupted ? l->sent : l->count)) {
        int sent = interrupted || l->sent == l->count ? 0 : send_some(l);
        if (sent < 0)
            return failed("cannot send");
        int received = receive_some(l);
        if (received < 0)
            return failed("cannot receive");
        if (sent > 0 || received > 0) {
            silence = 0;
            continue;
        }
        if (millrace_tx_flush(l->tx) < 0)
            return failed("cannot send");
        int there = millrace_rx_wait(l->rx, NAP_NS);
        if (there < 0)
            return failed("cannot receive");
        if (!there && ++silence == PATIENCE) {
            fprintf(stderr, "loopback: nothing comes back any more; does this card loop back?\n");
            return false;
        }
    }
    return true;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void report(const struct loopback *l, double time)
{
    double packets = (double)l->received, bits = packets * l->lengths[0] * 8;
    printf("%" PRIu64 " sent, %" PRIu64 " received, %" PRIu64 " damaged, %" PRIu64 " lost\n", l->sent, l->received,
           l->damaged, l->sent - l->received);
    printf("%.3f s, %.2f Mpps, %.2f Gb/s\n", time, packets / time * 1e-6, bits / time * 1e-9);
}

static bool parse_number(const char *text, uint64_t smallest, uint64_t largest, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return !errno && end != text && !*end && *text != '-' && *number >= smallest && *number <= largest;
}

/* Whether to go on; if not, the exit code. */
static bool parse(int argc, char **argv, struct options *options, int *code)
{
    int option;
    bool good = true;
    while (good && (option = getopt(argc, argv, "d:q:n:s:h")) != -1) {
        switch (option) {
        case 'd': options->device = optarg; break;
        case 'q': good = parse_number(optarg, 0, UINT32_MAX, &options->queue); break;
        case 'n': good = parse_number(optarg, 1, UINT64_MAX, &options->count); break;
        case 's': good = parse_number(optarg, SHORTEST, UINT16_MAX, &options->length); break;
        case 'h': fputs(USAGE, stdout); *code = 0; return false;
        default: good = false;
        }
    }
    if (good && optind == argc)
        return true;
    fputs(USAGE, stderr);
    *code = 2;
    return false;
}

int main(int argc, char **argv)
{
    struct options options = { .device = NULL, .queue = 0, .count = 1000000, .length = 64 };
    struct loopback l = { 0 };
    int code;
    if (!parse(argc, argv, &options, &code))
        return code;

    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESETHAND };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    bool good = open_all(&l, &options);
    if (good) {
        double begin = seconds();
        good = run(&l);
        report(&l, seconds() - begin);
    }
    good = close_all(&l) && good && l.damaged == 0;
    if (good && interrupted && l.received < l.count)
        return 130;
    return good ? 0 : 1;
}
