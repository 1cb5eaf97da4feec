/*
 * Drives libmillrace as C programs do. tests/cases/c-library.sh compiles it and runs its parts:
 *
 *     abi PART DEVICE [FLAGS]
 *
 * Every check that fails ends the program with its line and what the library says.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <millrace.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("abi.c:%d: not so: %s; the library says: %s\n", __LINE__, #condition, millrace_last_error());       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The last failure's text contains the words. */
#define CHECK_TEXT(words) CHECK(strstr(millrace_last_error(), words))

enum { BURST = 32 };
static const uint64_t SECOND = 1000 * 1000 * 1000;

static const char *name;
static uint32_t flags;

static struct millrace_device *open_device(void)
{
    struct millrace_device *device;
    CHECK(millrace_open(name, &device) == 0);
    return device;
}

/* A pair of queues, and how far it is. */
struct pair {
    struct millrace_rx *rx;
    struct millrace_tx *tx;
    uint64_t sent, received;
};

static void open_pair(struct pair *pair, const struct millrace_device *device, uint32_t index)
{
    memset(pair, 0, sizeof *pair);
    CHECK(millrace_rx_open(device, index, flags, &pair->rx) == 0);
    CHECK(millrace_tx_open(device, index, flags, &pair->tx) == 0);
    CHECK(millrace_rx_start(pair->rx) == 0);
    CHECK(millrace_tx_start(pair->tx) == 0);
}

static void close_pair(struct pair *pair)
{
    CHECK(millrace_tx_close(pair->tx) == 0);
    CHECK(millrace_rx_close(pair->rx) == 0);
}

static uint16_t length_of(uint64_t number)
{
    return (uint16_t)(60 + number * 37 % 1400);
}

static void fill(uint8_t *data, size_t length, uint64_t number)
{
    memcpy(data, &number, sizeof number);
    for (size_t i = sizeof number; i < length; i++)
        data[i] = (uint8_t)(number * 7 + i);
}

static void check_packet(const uint8_t *data, size_t length, uint64_t number)
{
    uint64_t found;
    CHECK(length == length_of(number));
    memcpy(&found, data, sizeof found);
    CHECK(found == number);
    for (size_t i = sizeof found; i < length; i++)
        CHECK(data[i] == (uint8_t)(number * 7 + i));
}

/* Sends up to two bursts before one put. */
static void send_some(struct pair *pair, uint64_t goal)
{
    struct millrace_packet packets[BURST];
    uint16_t lengths[BURST];
    for (int burst = 0; burst < 2; burst++) {
        uint64_t count = goal - pair->sent < BURST ? goal - pair->sent : BURST;
        for (uint64_t i = 0; i < count; i++)
            lengths[i] = length_of(pair->sent + i);
        int taken = millrace_tx_burst_get(pair->tx, lengths, packets, count);
        CHECK(taken == 0 || taken == (int)count);
        for (int i = 0; i < taken; i++) {
            CHECK(packets[i].data_len == lengths[i] && !packets[i].header && !packets[i].header_len);
            fill(packets[i].data, packets[i].data_len, pair->sent++);
        }
    }
    CHECK(millrace_tx_burst_put(pair->tx) == 0);
    CHECK(millrace_tx_flush(pair->tx) == 0);
}

/* Takes up to two bursts before one put. */
static void receive_some(struct pair *pair)
{
    struct millrace_packet packets[2 * BURST];
    int first = millrace_rx_burst_get(pair->rx, packets, BURST);
    CHECK(first >= 0);
    int second = millrace_rx_burst_get(pair->rx, packets + first, BURST);
    CHECK(second >= 0);
    for (int i = 0; i < first + second; i++) {
        CHECK(!packets[i].header == !packets[i].header_len);
        check_packet(packets[i].data, packets[i].data_len, pair->received++);
    }
    CHECK(millrace_rx_burst_put(pair->rx) == 0);
}

static void round_trips(struct pair *pair, uint64_t count)
{
    while (pair->received < count) {
        uint64_t before = pair->received;
        if (pair->sent < count)
            send_some(pair, count);
        receive_some(pair);
        if (pair->received == before && pair->received < pair->sent)
            CHECK(millrace_rx_wait(pair->rx, 5 * SECOND) == 1);
    }
    CHECK(pair->sent == count);
}

/* Every byte of a million packets. */
static void million(void)
{
    struct millrace_device *device = open_device();
    struct pair pair;
    open_pair(&pair, device, 0);
    round_trips(&pair, 1000000);
    CHECK(millrace_rx_wait(pair.rx, 0) == 0);
    uint64_t lost = 1;
    CHECK(millrace_rx_lost(pair.rx, &lost) == 0 && lost == 0);
    close_pair(&pair);
    CHECK(millrace_close(device) == 0);
}

/* Opens and closes the device, and queues on it, many times and in any order. */
static void cycles(void)
{
    for (int i = 0; i < 1000; i++) {
        struct millrace_device *device = open_device();
        struct pair pair;
        open_pair(&pair, device, 0);
        if (i % 3 == 0)
            /* The queues keep the card. */
            CHECK(millrace_close(device) == 0);
        round_trips(&pair, 40);
        if (i % 3 == 1) {
            CHECK(millrace_tx_stop(pair.tx) == 0);
            CHECK(millrace_rx_stop(pair.rx) == 0);
            CHECK(millrace_rx_start(pair.rx) == 0);
            CHECK(millrace_tx_start(pair.tx) == 0);
            pair.sent = pair.received = 0;
            round_trips(&pair, 40);
        }
        close_pair(&pair);
        if (i % 3 != 0)
            CHECK(millrace_close(device) == 0);
    }
}

struct thread {
    pthread_t thread;
    struct millrace_device *device;
    uint32_t index;
};

static void *drive(void *argument)
{
    struct thread *thread = argument;
    struct pair pair;
    open_pair(&pair, thread->device, thread->index);
    round_trips(&pair, 200000);
    close_pair(&pair);
    /* The text of a thread is its own. */
    CHECK(strcmp(millrace_last_error(), "") == 0);
    return NULL;
}

/* Two threads with a queue each, and a third that asks, on one device. */
static void threads(void)
{
    struct millrace_device *device = open_device();
    struct thread both[2];
    struct millrace_rx *none;
    CHECK(millrace_rx_open(device, 999, 0, &none) == -ENOENT && !none);
    for (uint32_t i = 0; i < 2; i++) {
        both[i].device = device;
        both[i].index = i;
        CHECK(pthread_create(&both[i].thread, NULL, drive, &both[i]) == 0);
    }
    for (int i = 0; i < 200; i++) {
        char *json;
        uint32_t word;
        CHECK(millrace_stats_json(device, &json) == 0);
        CHECK(json[0] == '{' && strstr(json, "\"queues\"") && json[strlen(json) - 1] == '}');
        millrace_free_string(json);
        CHECK(millrace_reg_read32(device, 0, &word) == 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(both[i].thread, NULL) == 0);
    CHECK_TEXT("rx999");
    CHECK(millrace_close(device) == 0);
}

/* What a device says about itself, its registers and its locks. */
static void control(void)
{
    struct millrace_device *device = open_device();
    CHECK(strncmp(millrace_name(device), name, strlen("unix:")) == 0);
    CHECK(millrace_rx_queues(device) >= 2 && millrace_tx_queues(device) >= 2);
    int pid = millrace_card_pid(device);
    CHECK(strncmp(name, "embedded", 8) == 0 ? pid == (int)getpid() : pid > 0 && pid != (int)getpid());
    uint16_t shortest = 0, longest = 0;
    CHECK(millrace_frame_limits(device, &shortest, &longest) == 0 && shortest == 60 && longest > 1514);
    CHECK(millrace_frame_limits(device, NULL, NULL) == 0);

    const void *blob, *again;
    size_t len;
    CHECK(millrace_device_tree(device, &blob, &len) == 0 && len > 1000);
    CHECK(memcmp(blob, "\xd0\x0d\xfe\xed", 4) == 0);
    CHECK(millrace_device_tree(device, &again, &len) == 0 && again == blob);

    struct millrace_clock *clock = NULL;
    struct millrace_clock_status status;
    uint64_t now = 0, later = 0;
    CHECK(millrace_clock_open(device, &clock) == 0 && clock);
    CHECK(millrace_clock_set(clock, 5 * SECOND) == 0 && millrace_clock_step(clock, -2 * (int64_t)SECOND) == 0);
    CHECK(millrace_clock_now(clock, &now) == 0 && now >= 3 * SECOND && now < 60 * SECOND);
    CHECK(millrace_clock_frequency(clock, -65536) == 0 && millrace_clock_frequency(clock, INT64_MAX) == -EINVAL);
    CHECK(millrace_clock_read(clock, &status) == 0 && status.ns >= now && status.steps >= 2 && status.state == 0);
    CHECK(status.scaled_ppm >= -65538 && status.scaled_ppm <= -65534);
    CHECK(millrace_clock_set(clock, UINT64_MAX) == -EINVAL);
    CHECK(millrace_clock_close(clock) == 0);
    CHECK(millrace_clock_open(NULL, &clock) == -EINVAL && !clock);
    CHECK(millrace_clock_open(device, &clock) == 0 && millrace_clock_now(clock, &later) == 0 && later >= now);
    CHECK(millrace_clock_now(NULL, &now) == -EINVAL && millrace_clock_now(clock, NULL) == -EINVAL);
    CHECK(millrace_clock_read(NULL, &status) == -EINVAL && millrace_clock_set(NULL, 1) == -EINVAL);
    CHECK(millrace_clock_frequency(clock, 0) == 0 && millrace_clock_close(clock) == 0 && millrace_clock_close(NULL) == 0);

    /* The test space of the card begins at 0. */
    uint32_t word = 0;
    uint64_t both = 0;
    uint8_t bytes[16] = { 0 }, some[5] = { 1, 2, 3, 4, 5 };
    CHECK(millrace_reg_write64(device, 0x10, 0x1122334455667788) == 0);
    CHECK(millrace_reg_read32(device, 0x10, &word) == 0 && word == 0x55667788);
    CHECK(millrace_reg_read32(device, 0x14, &word) == 0 && word == 0x11223344);
    CHECK(millrace_reg_write32(device, 0x14, 0xaabbccdd) == 0);
    CHECK(millrace_reg_read64(device, 0x10, &both) == 0 && both == 0xaabbccdd55667788);
    CHECK(millrace_reg_write(device, 0x11, some, sizeof some) == 0);
    CHECK(millrace_reg_read(device, 0x10, bytes, 8) == 0);
    CHECK(memcmp(bytes, "\x88\1\2\3\4\5\xbb\xaa", 8) == 0);
    CHECK(millrace_reg_read(device, 0x10, NULL, 0) == 0 && millrace_reg_write(device, 0x10, NULL, 0) == 0);

    struct millrace_component_lock *lock, *other;
    CHECK(millrace_lock(device, "/firmware/mi_bus0/i2c0", 3, 0, &lock) == 0);
    CHECK(millrace_lock(device, "/firmware/mi_bus0/i2c0", 2, SECOND / 100, &other) == -EBUSY && !other);
    CHECK(millrace_lock(device, "/firmware/mi_bus0/i2c0", 4, 0, &other) == 0);
    CHECK(millrace_unlock(lock) == 0 && millrace_unlock(other) == 0);
    CHECK(millrace_lock(device, "/firmware/mi_bus0/i2c0", 7, 0, &lock) == 0);
    CHECK(millrace_unlock(lock) == 0);
    CHECK(millrace_close(device) == 0);
}

/* What is refused, with which number and which words. */
static void refusals(void)
{
    struct millrace_device *device = NULL;
    CHECK(strcmp(millrace_last_error(), "") == 0);
    CHECK(millrace_open("nonsense", &device) == -EINVAL && !device);
    CHECK_TEXT("nonsense");
    CHECK(millrace_open("\xff\xfe", &device) == -EINVAL && !device);
    CHECK_TEXT("UTF-8");
    CHECK(millrace_open("unix:/nowhere/card.sock", &device) == -ENOENT && !device);
    CHECK_TEXT("no card listens on /nowhere/card.sock");

    device = open_device();
    CHECK_TEXT("/nowhere/card.sock");
    struct pair pair;
    struct millrace_rx *rx;
    struct millrace_tx *tx;
    struct millrace_packet packets[2];
    uint16_t lengths[MILLRACE_MAX_BURST + 1] = { 65535, 64 };
    uint64_t lost;
    CHECK(millrace_rx_open(device, 999, 0, &rx) == -ENOENT && !rx);
    CHECK(millrace_rx_open(device, 0, MILLRACE_OPEN_JOINERS_DROP, &rx) == -EINVAL && !rx);
    CHECK(millrace_tx_open(device, 0, MILLRACE_OPEN_SHARED_BLOCK | MILLRACE_OPEN_SHARED_DROP, &tx) == -EINVAL && !tx);
    CHECK_TEXT("0x6");

    CHECK(millrace_rx_open(device, 0, 0, &pair.rx) == 0 && millrace_tx_open(device, 0, 0, &pair.tx) == 0);
    CHECK(millrace_rx_open(device, 0, 0, &rx) == -EBUSY && !rx);
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    CHECK_TEXT(pid);

    CHECK(millrace_rx_burst_get(pair.rx, packets, 2) == -ESHUTDOWN);
    CHECK_TEXT("rx0 is not started");
    CHECK(millrace_rx_burst_put(pair.rx) == -ESHUTDOWN && millrace_rx_wait(pair.rx, 0) == -ESHUTDOWN);
    CHECK(millrace_rx_lost(pair.rx, &lost) == -ESHUTDOWN && millrace_rx_stop(pair.rx) == -ESHUTDOWN);
    CHECK(millrace_tx_burst_get(pair.tx, lengths + 1, packets, 1) == -ESHUTDOWN);
    CHECK(millrace_tx_burst_put(pair.tx) == -ESHUTDOWN && millrace_tx_flush(pair.tx) == -ESHUTDOWN);
    CHECK(millrace_tx_wait(pair.tx, 0) == -ESHUTDOWN && millrace_tx_stop(pair.tx) == -ESHUTDOWN);
    CHECK(millrace_tx_longest(pair.tx) == -ESHUTDOWN);
    CHECK(millrace_rx_start(pair.rx) == 0 && millrace_rx_start(pair.rx) == -EINVAL);
    CHECK(millrace_tx_start(pair.tx) == 0 && millrace_tx_start(pair.tx) == -EINVAL);
    CHECK_TEXT("tx0 is started already");

    CHECK(millrace_tx_longest(pair.tx) > 1514);
    CHECK(millrace_tx_burst_get(pair.tx, lengths, packets, 2) == -EMSGSIZE);
    CHECK(millrace_tx_burst_get(pair.tx, lengths + 1, packets, MILLRACE_MAX_BURST + 1) == -E2BIG);
    CHECK(millrace_tx_burst_get(pair.tx, lengths + 1, packets, SIZE_MAX) == -EINVAL);
    CHECK(millrace_tx_burst_get(pair.tx, NULL, NULL, 0) == 0);
    CHECK(millrace_rx_burst_get(pair.rx, NULL, 0) == 0);
    CHECK(millrace_rx_burst_put(pair.rx) == 0 && millrace_tx_burst_put(pair.tx) == 0);
    CHECK(millrace_tx_flush(pair.tx) == 0 && millrace_tx_wait(pair.tx, 0) == 1);

    /* Nothing of that has sent anything, and the queues are as good as before. */
    CHECK(millrace_rx_wait(pair.rx, SECOND / 100) == 0);
    pair.sent = pair.received = 0;
    round_trips(&pair, 100);
    close_pair(&pair);
    CHECK(millrace_close(device) == 0);
}

/* A DD queue belongs to one program, which drives it itself: anything else is refused, and said how it goes. */
static void own(void)
{
    static const uint32_t other_modes[] = { MILLRACE_OPEN_MEDIATED, MILLRACE_OPEN_SHARED_BLOCK,
                                            MILLRACE_OPEN_SHARED_DROP, MILLRACE_OPEN_SHARED_EVICT,
                                            MILLRACE_OPEN_MEDIATED | MILLRACE_OPEN_SHARED_BLOCK };
    struct millrace_device *device = open_device();
    struct millrace_rx *rx;
    struct millrace_tx *tx;
    struct millrace_supplied_rx *supplied_rx;
    struct millrace_supplied_tx *supplied_tx;
    struct pair pair;
    for (size_t i = 0; i < sizeof other_modes / sizeof *other_modes; i++) {
        CHECK(millrace_rx_open(device, 0, other_modes[i], &rx) == -EINVAL && !rx);
        CHECK_TEXT("rx0 is a DD queue");
        CHECK_TEXT("open it direct and exclusive");
        CHECK(millrace_tx_open(device, 0, other_modes[i], &tx) == -EINVAL && !tx);
        CHECK_TEXT("engine=medusa@tx0");
    }
    CHECK(millrace_supplied_rx_open(device, 0, 64, &supplied_rx) == -EINVAL && !supplied_rx);
    CHECK_TEXT("engine=medusa@rx0");
    CHECK(millrace_supplied_tx_open(device, 0, 64, &supplied_tx) == -EINVAL && !supplied_tx);
    CHECK_TEXT("engine=medusa@tx0");

    open_pair(&pair, device, 0);
    CHECK(millrace_rx_open(device, 0, 0, &rx) == -EBUSY && !rx && millrace_tx_open(device, 0, 0, &tx) == -EBUSY && !tx);
    CHECK_TEXT("exclusively");
    round_trips(&pair, 1000);
    close_pair(&pair);
    CHECK(millrace_close(device) == 0);
}

/* NULL for every pointer, one at a time. */
static void nulls(void)
{
    struct millrace_device *device;
    struct millrace_packet packet;
    struct millrace_received received;
    struct millrace_component_lock *lock;
    struct millrace_memory *memory;
    struct millrace_rx *rx;
    struct millrace_tx *tx;
    struct millrace_supplied_rx *supplied_rx;
    struct millrace_supplied_tx *supplied_tx;
    const void *blob;
    char *json;
    size_t len;
    uint64_t word;
    uint16_t length = 64;

    CHECK(millrace_open(NULL, &device) == -EINVAL && !device);
    CHECK_TEXT("name is NULL");
    CHECK(millrace_open(name, NULL) == -EINVAL && millrace_open_default(NULL) == -EINVAL);
    device = open_device();
    CHECK(millrace_close(NULL) == 0 && millrace_unlock(NULL) == 0 && millrace_memory_close(NULL) == 0);
    CHECK(millrace_rx_close(NULL) == 0 && millrace_tx_close(NULL) == 0);
    CHECK(millrace_supplied_rx_close(NULL) == 0 && millrace_supplied_tx_close(NULL) == 0);
    millrace_free_string(NULL);

    CHECK(!millrace_name(NULL) && millrace_card_pid(NULL) == -EINVAL);
    CHECK(millrace_rx_queues(NULL) == -EINVAL && millrace_tx_queues(NULL) == -EINVAL);
    CHECK(millrace_frame_limits(NULL, &length, &length) == -EINVAL);
    CHECK_TEXT("device is NULL");
    CHECK(millrace_device_tree(NULL, &blob, &len) == -EINVAL && millrace_device_tree(device, NULL, &len) == -EINVAL);
    CHECK(millrace_device_tree(device, &blob, NULL) == -EINVAL);
    CHECK(millrace_stats_json(NULL, &json) == -EINVAL && !json && millrace_stats_json(device, NULL) == -EINVAL);
    CHECK(millrace_flow_change(NULL, "", 0, NULL) == -EINVAL && millrace_flow_change(device, NULL, 0, NULL) == -EINVAL);
    CHECK(millrace_flow_list_json(NULL, "", &json) == -EINVAL && !json);
    CHECK(millrace_flow_list_json(device, NULL, &json) == -EINVAL);
    CHECK(millrace_flow_list_json(device, "", NULL) == -EINVAL);
    CHECK(millrace_flow_explain(device, NULL, 60, 0, 0, &json) == -EINVAL && !json);
    CHECK(millrace_flow_keys(NULL, 2, "", NULL) == -EINVAL && millrace_flow_keys(device, 2, NULL, NULL) == -EINVAL);
    CHECK(millrace_flow_watch_open(NULL, NULL) == -EINVAL && millrace_flow_watch_next(NULL, 0, &json) == -EINVAL);
    CHECK(millrace_flow_tap_open(NULL, NULL, NULL) == -EINVAL && millrace_flow_tap_next(NULL, 0, NULL) == -EINVAL);
    CHECK(millrace_flow_tap_missed(NULL, NULL, NULL) == -EINVAL);
    CHECK(millrace_reg_read(NULL, 0, &word, 4) == -EINVAL && millrace_reg_read(device, 0, NULL, 4) == -EINVAL);
    CHECK(millrace_reg_write(NULL, 0, &word, 4) == -EINVAL && millrace_reg_write(device, 0, NULL, 4) == -EINVAL);
    CHECK(millrace_reg_read32(NULL, 0, (uint32_t *)&word) == -EINVAL && millrace_reg_read32(device, 0, NULL) == -EINVAL);
    CHECK(millrace_reg_read64(NULL, 0, &word) == -EINVAL && millrace_reg_read64(device, 0, NULL) == -EINVAL);
    CHECK(millrace_reg_write32(NULL, 0, 0) == -EINVAL && millrace_reg_write64(NULL, 0, 0) == -EINVAL);
    CHECK(millrace_lock(NULL, "x", 1, 0, &lock) == -EINVAL && millrace_lock(device, NULL, 1, 0, &lock) == -EINVAL);
    CHECK(millrace_lock(device, "x", 1, 0, NULL) == -EINVAL);

    CHECK(millrace_rx_open(NULL, 0, 0, &rx) == -EINVAL && !rx && millrace_rx_open(device, 0, 0, NULL) == -EINVAL);
    CHECK(millrace_rx_start(NULL) == -EINVAL && millrace_rx_stop(NULL) == -EINVAL);
    CHECK(millrace_rx_burst_get(NULL, &packet, 1) == -EINVAL && millrace_rx_burst_put(NULL) == -EINVAL);
    CHECK(millrace_rx_wait(NULL, 0) == -EINVAL && millrace_rx_lost(NULL, &word) == -EINVAL);
    CHECK(millrace_tx_open(NULL, 0, 0, &tx) == -EINVAL && !tx && millrace_tx_open(device, 0, 0, NULL) == -EINVAL);
    CHECK(millrace_tx_start(NULL) == -EINVAL && millrace_tx_stop(NULL) == -EINVAL);
    CHECK(millrace_tx_longest(NULL) == -EINVAL && millrace_tx_burst_get(NULL, &length, &packet, 1) == -EINVAL);
    CHECK(millrace_tx_burst_put(NULL) == -EINVAL && millrace_tx_flush(NULL) == -EINVAL);
    CHECK(millrace_tx_wait(NULL, 0) == -EINVAL);

    struct pair pair;
    open_pair(&pair, device, 0);
    CHECK(millrace_rx_burst_get(pair.rx, NULL, 1) == -EINVAL && millrace_rx_lost(pair.rx, NULL) == -EINVAL);
    CHECK_TEXT("lost is NULL");
    CHECK(millrace_tx_burst_get(pair.tx, NULL, &packet, 1) == -EINVAL);
    CHECK(millrace_tx_burst_get(pair.tx, &length, NULL, 1) == -EINVAL);
    round_trips(&pair, 10);
    close_pair(&pair);

    CHECK(millrace_memory_open(NULL, 4096, &memory) == -EINVAL && !memory);
    CHECK(millrace_memory_open(device, 4096, NULL) == -EINVAL && millrace_memory_open(device, 0, &memory) == -EINVAL);
    CHECK(!millrace_memory_data(NULL) && millrace_memory_iova(NULL) == 0);
    CHECK(millrace_supplied_rx_open(NULL, 0, 64, &supplied_rx) == -EINVAL && !supplied_rx);
    CHECK(millrace_supplied_rx_open(device, 0, 64, NULL) == -EINVAL);
    CHECK(millrace_supplied_rx_post(NULL, 0, 64) == -EINVAL && millrace_supplied_rx_flush(NULL) == -EINVAL);
    CHECK(millrace_supplied_rx_peek(NULL, &received, 1) == -EINVAL && millrace_supplied_rx_release(NULL, 0) == -EINVAL);
    CHECK(millrace_supplied_rx_wait(NULL, 0) == -EINVAL);
    CHECK(millrace_supplied_tx_open(NULL, 0, 64, &supplied_tx) == -EINVAL && !supplied_tx);
    CHECK(millrace_supplied_tx_open(device, 0, 64, NULL) == -EINVAL);
    CHECK(millrace_supplied_tx_post(NULL, 0, 64) == -EINVAL && millrace_supplied_tx_flush(NULL) == -EINVAL);
    CHECK(millrace_supplied_tx_completed(NULL) == -EINVAL);
    CHECK(millrace_close(device) == 0);
}

/* Queues over buffers of the program: half of them to send from, half to receive into. */
static void supplied(void)
{
    enum { BUFFERS = 64, SIZE = 2048, COUNT = 100000 };
    struct millrace_device *device = open_device();
    struct millrace_memory *memory;
    struct millrace_supplied_rx *rx;
    struct millrace_supplied_tx *tx;
    struct millrace_received packets[BUFFERS];
    CHECK(millrace_supplied_rx_open(device, 0, 3, &rx) == -EINVAL && !rx);
    CHECK(millrace_memory_open(device, (size_t)2 * BUFFERS * SIZE, &memory) == 0);
    uint8_t *data = millrace_memory_data(memory), *in = data + (size_t)BUFFERS * SIZE;
    uint64_t from = millrace_memory_iova(memory), to = from + (uint64_t)BUFFERS * SIZE;
    CHECK(millrace_supplied_rx_open(device, 0, 256, &rx) == 0);
    CHECK(millrace_supplied_tx_open(device, 0, 256, &tx) == 0);
    CHECK(millrace_supplied_rx_release(rx, 1) == -EINVAL);

    uint64_t posted = 0, sent = 0, completed = 0, received = 0;
    while (received < COUNT || completed < COUNT) {
        for (; posted < received + BUFFERS; posted++)
            CHECK(millrace_supplied_rx_post(rx, to + posted % BUFFERS * SIZE, SIZE) == 1);
        CHECK(millrace_supplied_rx_flush(rx) == 0);
        for (; sent < COUNT && sent < completed + BUFFERS; sent++) {
            uint64_t at = sent % BUFFERS * SIZE;
            fill(data + at, length_of(sent), sent);
            CHECK(millrace_supplied_tx_post(tx, from + at, length_of(sent)) == 1);
        }
        CHECK(millrace_supplied_tx_flush(tx) == 0);
        int done = millrace_supplied_tx_completed(tx), there = millrace_supplied_rx_peek(rx, packets, BUFFERS);
        CHECK(done >= 0 && there >= 0);
        completed += (uint64_t)done;
        for (int i = 0; i < there; i++) {
            CHECK(packets[i].header_len == 0);
            check_packet(in + (received + (uint64_t)i) % BUFFERS * SIZE, packets[i].len, received + (uint64_t)i);
        }
        CHECK(millrace_supplied_rx_release(rx, (uint32_t)there) == 0);
        received += (uint64_t)there;
        if (there == 0 && received < sent)
            CHECK(millrace_supplied_rx_wait(rx, 5 * SECOND) == 1);
    }
    CHECK(millrace_supplied_rx_wait(rx, 0) == 0);

    /* An address outside of what was mapped stops the queue, and says so. */
    CHECK(millrace_supplied_tx_post(tx, from - SIZE, 64) == 1);
    CHECK(millrace_supplied_tx_flush(tx) == 0);
    int code;
    while ((code = millrace_supplied_tx_completed(tx)) == 0)
        ;
    CHECK(code == -EIO);
    CHECK_TEXT("tx0 was stopped by the card");
    CHECK(millrace_supplied_tx_close(tx) == 0);
    CHECK(millrace_supplied_rx_close(rx) == 0);
    CHECK(millrace_memory_close(memory) == 0);
    CHECK(millrace_close(device) == 0);
}

/* Runs until the card is gone, which somebody else sees to. */
static void until_gone(void)
{
    struct millrace_device *device = open_device();
    struct pair pair;
    uint32_t word;
    open_pair(&pair, device, 0);
    round_trips(&pair, 1000);
    printf("ready\n");
    fflush(stdout);
    int code;
    while ((code = millrace_rx_wait(pair.rx, SECOND)) == 0)
        ;
    CHECK(code == -ENODEV);
    CHECK_TEXT("the card is gone");
    CHECK(millrace_reg_read32(device, 0, &word) == -ENODEV);
    CHECK(millrace_tx_flush(pair.tx) == -ENODEV);
    CHECK(millrace_tx_close(pair.tx) == -ENODEV && millrace_rx_close(pair.rx) == -ENODEV);
    CHECK(millrace_close(device) == 0);
}

/* The text of a watch once it contains the words. */
static void await_event(struct millrace_flow_watch *watch, const char *words)
{
    for (int i = 0; i < 100; i++) {
        char *json;
        CHECK(millrace_flow_watch_next(watch, SECOND / 10, &json) == 0);
        int found = strstr(json, words) != NULL;
        millrace_free_string(json);
        if (found)
            return;
    }
    printf("abi.c: no event with %s\n", words);
    exit(1);
}

/* Rules are set up, listed, watched, explained and deleted; nothing is done of what is refused; they end with the device. */
static void rules(void)
{
    static const char CHANGES[] = "# a group and two rules\n"
                                  "group=1,rss,queues=0-1\n"
                                  "add priority=40000,udp,udp_dst=9,actions=queue:1\n"
                                  "ip,actions=rss:1\n";
    static const uint8_t FRAME[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 8, 0, 9, 0, 26 };
    struct millrace_device *device = open_device(), *other = open_device();
    struct millrace_flow_watch *watch;
    struct millrace_flow_done done;
    char *text;
    int shared = strncmp(name, "unix:", 5) == 0;

    CHECK(millrace_flow_watch_open(device, &watch) == 0);
    CHECK(millrace_flow_change(device, CHANGES, MILLRACE_FLOW_DRY_RUN, &done) == 0 && done.added == 2);
    CHECK(millrace_flow_change(device, CHANGES, 0, &done) == 0);
    CHECK(done.added == 2 && done.modified == 0 && done.removed == 0 && done.version > 0);
    await_event(watch, "udp_dst=9");
    CHECK(millrace_flow_list_json(device, "udp", &text) == 0);
    CHECK(text[0] == '[' && strstr(text, "udp_dst=9") && !strstr(text, "rss:1") && strstr(text, "\"packets\":0"));
    millrace_free_string(text);
    CHECK(millrace_flow_explain(device, FRAME, sizeof FRAME, 0, UINT64_MAX, &text) == 0);
    CHECK(strstr(text, "table 0: table=0,priority=40000") && strstr(text, "queue:1"));
    millrace_free_string(text);
    CHECK(millrace_flow_explain(device, FRAME, sizeof FRAME, 0, done.version + 1000, &text) == -ENOENT && !text);

    /* All or nothing, with the change that is wrong. */
    CHECK(millrace_flow_change(device, "arp,actions=drop\nactions=rss:7", 0, NULL) == -EINVAL);
    CHECK_TEXT("change 2: ");
    CHECK(millrace_flow_change(device, "tcp,actions=drop", 1u << 20, NULL) == -EINVAL);
    CHECK(millrace_flow_change(device, "nonsense", 0, NULL) == -EINVAL);
    struct millrace_flow_keys_done keys;
    CHECK(millrace_flow_keys(device, 9, "", NULL) == -ENOENT);
    CHECK(millrace_flow_change(device, "group=9,quic,queues=0,keys,connections=9,handshakes=9,per_source=9", 0, NULL) == 0);
    CHECK(millrace_flow_keys(device, 9, "CLIENT_TRAFFIC_SECRET_0 x", &keys) == 0);
    CHECK(keys.malformed == 1 && keys.taken == 0 && keys.connections == 0);
    CHECK(millrace_flow_list_json(device, "nonsense", &text) == -EINVAL && !text);

    if (shared) {
        /* What belongs to one device another one may not change. */
        CHECK(millrace_flow_change(other, "priority=40000,udp,udp_dst=9,actions=drop", 0, NULL) == -EACCES);
        CHECK(millrace_flow_change(other, "delete", 0, &done) == 0 && done.removed == 0);
        CHECK(millrace_flow_watch_close(watch) == 0 && millrace_flow_watch_open(other, &watch) == 0);
        CHECK(millrace_close(device) == 0);
        await_event(watch, "owner-gone");
    } else {
        CHECK(millrace_flow_change(device, "delete udp", 0, &done) == 0 && done.removed == 1);
        await_event(watch, "\"reason\":\"delete\"");
        CHECK(millrace_close(device) == 0);
    }
    CHECK(millrace_flow_watch_close(watch) == 0 && millrace_flow_watch_close(NULL) == 0);
    CHECK(millrace_flow_list_json(other, "udp", &text) == 0 && strcmp(text, "[]") == 0);
    millrace_free_string(text);
    CHECK(millrace_close(other) == 0);
}

/* A tap hears what it was asked for, whole or cut, with who gets it; and counts what it cannot bring. */
static void taps(void)
{
    struct millrace_device *device = open_device();
    struct millrace_flow_tap_options options = { .wants = MILLRACE_FLOW_TAP_COOKIE, .value = 0x11, .mask = 0xff, .snap = 40 };
    struct millrace_flow_tap *tap;
    struct millrace_flow_frame frame;
    struct millrace_flow_done done;
    struct pair pair;
    uint64_t lost = 1, limited = 1;

    options.wants = 99;
    CHECK(millrace_flow_tap_open(device, &options, &tap) == -EINVAL && !tap);
    CHECK_TEXT("MILLRACE_FLOW_TAP_");
    options.wants = MILLRACE_FLOW_TAP_PORT;
    options.value = UINT64_MAX;
    CHECK(millrace_flow_tap_open(device, &options, &tap) == -EINVAL && !tap);
    options.wants = MILLRACE_FLOW_TAP_COOKIE;
    options.value = 0x11;

    CHECK(millrace_flow_change(device, "priority=2,cookie=0x11,actions=queue:0\npriority=1,actions=drop", 0, &done) == 0);
    CHECK(millrace_flow_tap_open(device, &options, &tap) == 0);
    open_pair(&pair, device, 0);
    round_trips(&pair, 3);
    for (uint64_t number = 0; number < 3; number++) {
        CHECK(millrace_flow_tap_next(tap, 5 * SECOND, &frame) == 1);
        CHECK(frame.version == done.version && frame.port == 0 && frame.queue == 0 && frame.time_ns > 0);
        CHECK(frame.len == length_of(number) && frame.data_len == 40);
        CHECK(memcmp(frame.data, &number, sizeof number) == 0);
        CHECK(frame.rule_count == 1 && frame.rules[0] > 0);
        CHECK(frame.sent_count == 1 && frame.sent[0].kind == 0 && frame.sent[0].number == 0);
    }
    CHECK(millrace_flow_tap_next(tap, 0, &frame) == 0);
    CHECK(millrace_flow_tap_missed(tap, &lost, &limited) == 0 && lost == 0 && limited == 0);
    CHECK(millrace_flow_tap_close(tap) == 0);

    /* All of everything, and nothing of what meets no such rule. */
    memset(&options, 0, sizeof options);
    CHECK(millrace_flow_tap_open(device, &options, &tap) == 0);
    round_trips(&pair, 4);
    CHECK(millrace_flow_tap_next(tap, 5 * SECOND, &frame) == 1 && frame.data_len == frame.len);
    CHECK(millrace_flow_tap_close(tap) == 0 && millrace_flow_tap_close(NULL) == 0);
    options.wants = MILLRACE_FLOW_TAP_PORT;
    options.value = 1;
    CHECK(millrace_flow_tap_open(device, &options, &tap) == 0);
    round_trips(&pair, 5);
    CHECK(millrace_flow_tap_next(tap, SECOND / 10, &frame) == 0);
    CHECK(millrace_flow_tap_close(tap) == 0);
    close_pair(&pair);
    CHECK(millrace_close(device) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} PARTS[] = {
    { "million", million },   { "cycles", cycles },     { "threads", threads },       { "control", control },
    { "refusals", refusals }, { "nulls", nulls },       { "supplied", supplied },     { "until-gone", until_gone },
    { "own", own },           { "rules", rules },         { "taps", taps },
};

int main(int argc, char **argv)
{
    CHECK(millrace_version() == MILLRACE_VERSION);
    CHECK(argc == 3 || argc == 4);
    name = argv[2];
    flags = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 0) : 0;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        if (strcmp(argv[1], PARTS[i].name) == 0) {
            PARTS[i].run();
            return 0;
        }
    }
    printf("there is no part %s\n", argv[1]);
    return 2;
}
