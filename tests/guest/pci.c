/* A driver of the card as a PCI function, in a guest that has no driver for it: by the files of sysfs alone.
 *
 *   pci find                     the function's address, such as 0000:01:00.0
 *   pci tree ADDRESS             its device tree, compressed by xz, as its configuration space has it
 *   pci loopback ADDRESS TREE N  sends N frames by TX queue 0 of that tree, takes them from RX queue 0, and says how many
 *                                doorbells were stores and how many took a register
 *
 * The function's addresses are those of the guest's memory, which /proc/self/pagemap tells: there is no IOMMU. */
#define _GNU_SOURCE
#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ENTRIES = 256, BUFFER = 2048, HEADERS = 0x4000, UPDATE = 0x8000, BUFFERS = 0x10000, HUGE_PAGE = 2 << 20 };
/* Registers of a Medusa queue, and words of its control page. */
enum { CONTROL = 0x00, STATUS = 0x04, SDP = 0x10, DESC_BASE = 0x40, HDR_BASE = 0x48, UPDATE_BASE = 0x50, MDP = 0x58, MHP = 0x5c };
enum { DOORBELL = 0x40, CARD_SLEEPS = 0x80 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static int open_file(const char *address, const char *name, int flags) {
    char path[128];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", address, name);
    int fd = open(path, flags);
    if (fd < 0) die(path);
    return fd;
}

static uint32_t config32(int fd, int at) {
    uint32_t word;
    if (pread(fd, &word, 4, at) != 4) die("configuration space");
    return le32toh(word);
}

static void find(void) {
    DIR *all = opendir("/sys/bus/pci/devices");
    for (struct dirent *entry; all && (entry = readdir(all));) {
        if (entry->d_name[0] == '.') continue;
        int fd = open_file(entry->d_name, "config", O_RDONLY);
        if (config32(fd, 0) == 0xc00018ec) puts(entry->d_name);
        close(fd);
    }
}

/* Word by word, as the hardware has it. */
static void tree(const char *address) {
    int fd = open_file(address, "config", O_RDWR), at = 0x100;
    while (config32(fd, at + 4) != 0x02010d7b) {
        at = config32(fd, at) >> 20;
        if (at == 0) fail("there is no capability with a device tree");
    }
    uint32_t len = config32(fd, at + 0x0c);
    for (uint32_t word = 0; word < len / 4; word++) {
        uint32_t index = htole32(word);
        if (pwrite(fd, &index, 4, at + 0x10) != 4) die("configuration space");
        uint32_t data = htole32(config32(fd, at + 0x14));
        fwrite(&data, 4, 1, stdout);
    }
}

/* A flattened device tree: the first node compatible with a text, and two words of it. */
struct place {
    uint32_t registers, doorbell;
};

static uint32_t be32(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return be32toh(word);
}

static struct place controller(const uint8_t *blob, const char *compatible) {
    const uint8_t *at = blob + be32(blob + 8);
    const char *names = (const char *)blob + be32(blob + 12);
    struct place found = {0, 0};
    int here = 0;
    for (;;) {
        uint32_t token = be32(at);
        at += 4;
        if (token == 1) {
            at += (strlen((const char *)at) + 4) & ~3u;
            found = (struct place){0, 0};
            here = 0;
        } else if (token == 2) {
            if (here) return found;
        } else if (token == 3) {
            uint32_t len = be32(at);
            const char *name = names + be32(at + 4);
            const uint8_t *value = at + 8;
            if (!strcmp(name, "compatible")) here = !strcmp((const char *)value, compatible);
            if (!strcmp(name, "reg")) found.registers = be32(value);
            if (!strcmp(name, "millrace,doorbell")) found.doorbell = be32(value);
            at += 8 + ((len + 3) & ~3u);
        } else if (token == 9) {
            fail("the tree has no such controller");
        }
    }
}

struct queue {
    volatile uint8_t *registers, *page;
    uint8_t *memory;
    uint64_t physical;
    uint32_t sdp, shp;
    uint64_t posted, taken;
};

static void write32(struct queue *queue, int at, uint32_t value) {
    *(volatile uint32_t *)(queue->registers + at) = value;
}

/* As drivers of the hardware do it, which has registers of 32 bits. */
static void write64(struct queue *queue, int at, uint64_t value) {
    write32(queue, at, value);
    write32(queue, at + 4, value >> 32);
}

static uint64_t update(struct queue *queue) {
    return atomic_load_explicit((_Atomic uint64_t *)(queue->memory + UPDATE), memory_order_acquire);
}

static void put(struct queue *queue, uint64_t descriptor) {
    ((uint64_t *)queue->memory)[queue->sdp] = descriptor;
    queue->sdp = (queue->sdp + 1) % ENTRIES;
}

static uint8_t *buffer(struct queue *queue, uint64_t number) {
    return queue->memory + BUFFERS + number % ENTRIES * BUFFER;
}

static void post(struct queue *queue, uint16_t len) {
    uint64_t at = queue->physical + BUFFERS + queue->posted++ % ENTRIES * BUFFER;
    put(queue, 2ull << 62 | (uint64_t)len << 32 | (at & 0x3fffffff));
}

static int room(struct queue *queue) {
    return ((uint32_t)update(queue) - queue->sdp - 1) % ENTRIES;
}

static long stores, kicks;

/* A store, and the register only if the card sleeps. */
static void ring(struct queue *queue) {
    uint64_t pointers = queue->sdp | (uint64_t)queue->shp << 32;
    atomic_store_explicit((_Atomic uint64_t *)(queue->page + DOORBELL), pointers, memory_order_release);
    stores++;
    atomic_thread_fence(memory_order_seq_cst);
    if (*(volatile uint32_t *)(queue->page + CARD_SLEEPS)) {
        kicks++;
        *(volatile uint32_t *)(queue->registers + SDP) = queue->sdp;
    }
}

static void start(struct queue *queue, int is_rx) {
    memset(queue->memory + UPDATE, 0, 8);
    write64(queue, DESC_BASE, queue->physical);
    write64(queue, HDR_BASE, queue->physical + HEADERS);
    write64(queue, UPDATE_BASE, queue->physical + UPDATE);
    write32(queue, MDP, ENTRIES - 1);
    write32(queue, MHP, is_rx ? ENTRIES - 1 : 0xffffffff);
    write64(queue, SDP, 0);
    write32(queue, CONTROL, 1);
    if (!(*(volatile uint32_t *)(queue->registers + STATUS) & 1)) fail("a queue did not start");
    put(queue, queue->physical >> 30);
}

static void stop(struct queue *queue) {
    write32(queue, CONTROL, 0);
    for (int i = 0; *(volatile uint32_t *)(queue->registers + STATUS) & 1; i++) {
        if (i > 100000) fail("a queue does not stop");
    }
}

/* A huge page, and its address in the guest's memory. */
static uint8_t *memory(uint64_t *physical) {
    uint8_t *at = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) die("a huge page");
    memset(at, 0, HUGE_PAGE);
    int fd = open("/proc/self/pagemap", O_RDONLY);
    uint64_t entry;
    if (fd < 0 || pread(fd, &entry, 8, (uintptr_t)at / 4096 * 8) != 8) die("pagemap");
    close(fd);
    *physical = (entry & ((1ull << 55) - 1)) * 4096;
    if (!*physical) fail("pagemap does not tell");
    return at;
}

static volatile uint8_t *map(const char *address, const char *name, size_t len) {
    int fd = open_file(address, name, O_RDWR);
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die(name);
    close(fd);
    return at;
}

static void loopback(const char *address, const char *file, long count) {
    static uint8_t blob[1 << 20];
    int fd = open(file, O_RDONLY);
    if (fd < 0 || read(fd, blob, sizeof blob) < 40 || be32(blob) != 0xd00dfeed) fail("no device tree");
    close(fd);
    struct place rx_place = controller(blob, "netcope,dma_ctrl_ndp_rx");
    struct place tx_place = controller(blob, "netcope,dma_ctrl_ndp_tx");
    fd = open_file(address, "enable", O_WRONLY);
    if (write(fd, "1", 1) != 1) die("enable");
    close(fd);
    fd = open_file(address, "config", O_RDWR);
    uint16_t command = htole16(config32(fd, 4) | 6);
    if (pwrite(fd, &command, 2, 4) != 2) die("bus master");
    close(fd);

    volatile uint8_t *registers = map(address, "resource0", 64 << 20);
    volatile uint8_t *pages = map(address, "resource2", 2 * 4096);
    struct queue rx = {registers + rx_place.registers, pages + rx_place.doorbell, 0, 0, 0, 0, 0, 0};
    struct queue tx = {registers + tx_place.registers, pages + tx_place.doorbell, 0, 0, 0, 0, 0, 0};
    rx.memory = memory(&rx.physical);
    tx.memory = memory(&tx.physical);
    start(&rx, 1);
    start(&tx, 0);
    while (room(&rx) > 0) post(&rx, BUFFER);
    ring(&rx);
    stores = kicks = 0;
    long sent = 0, received = 0, idle = 0;
    while (received < count) {
        int posted = 0;
        while (sent < count && sent - received < 64 && room(&tx) > 0 && posted < 32) {
            uint8_t *frame = buffer(&tx, tx.posted);
            int len = 60 + sent * 37 % 1400;
            memset(frame, (int)sent, len);
            memcpy(frame, "\x02\0\0\0\0\1\x02\0\0\0\0\2\x88\xb5", 14);
            memcpy(frame + 14, &sent, 8);
            post(&tx, len);
            sent++, posted++;
        }
        if (posted) ring(&tx);
        uint32_t hhp = update(&rx) >> 32;
        int taken = 0;
        for (; rx.shp != hhp; rx.shp = (rx.shp + 1) % ENTRIES, received++, taken++) {
            int len = ((uint32_t *)(rx.memory + HEADERS))[rx.shp] & 0xffff;
            uint8_t *frame = buffer(&rx, rx.taken++);
            long number;
            memcpy(&number, frame + 14, 8);
            if (number != received || len != 60 + received * 37 % 1400) fail("another frame than was sent");
            for (int i = 22; i < len; i++) {
                if (frame[i] != (uint8_t)received) fail("a damaged frame");
            }
        }
        if (taken) {
            while (room(&rx) > 0) post(&rx, BUFFER);
            ring(&rx);
        }
        idle = taken ? 0 : idle + 1;
        if (idle > 100 * 1000 * 1000) fail("frames do not come back");
    }
    long all = stores, registers_written = kicks;
    stop(&tx);
    stop(&rx);
    printf("frames %ld doorbells %ld kicks %ld\n", received, all, registers_written);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "find")) find();
    else if (argc == 3 && !strcmp(argv[1], "tree")) tree(argv[2]);
    else if (argc == 5 && !strcmp(argv[1], "loopback")) loopback(argv[2], argv[3], atol(argv[4]));
    else fail("usage: pci find | tree ADDRESS | loopback ADDRESS TREE N");
    return 0;
}
