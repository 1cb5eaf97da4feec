// A program whose memory is the transport's from the first (LD_PRELOAD=libmillrace-memory.so): what it may register, what becomes of it in children, by threads,
// and when there is no room. With the argument `killed`: one that has regions, and dies.
#include <errno.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

enum { PAGE = 4096, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_context *context;
static struct ibv_pd *pd;

static void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0], "no device");
    context = ibv_open_device(list[0]);
    CHECK(context, "the device cannot be opened");
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    CHECK(pd, "no protection domain");
}

static void close_device(void)
{
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0, "not ended");
}

// Whether that is memory that can be registered.
static int is_there(void *memory, size_t len)
{
    struct ibv_mr *region = ibv_reg_mr(pd, memory, len, ALL);
    if (!region) {
        CHECK(errno == EOPNOTSUPP, "not registered, but for another reason");
        return 0;
    }
    CHECK(ibv_dereg_mr(region) == 0, "ibv_dereg_mr");
    return 1;
}

static char variable[3 * PAGE];

static void kinds_of_memory(void)
{
    void *page, *blocks[] = { malloc(1), malloc(100), malloc(1 << 20), calloc(10, 1000), memalign(PAGE, 5000), aligned_alloc(64, 640), strdup("some bytes") };
    CHECK(posix_memalign(&page, 1 << 16, 100) == 0 && (uintptr_t)page % (1 << 16) == 0, "posix_memalign");
    CHECK(is_there(page, 100), "posix_memalign");
    free(page);
    for (size_t at = 0; at < sizeof blocks / sizeof *blocks; at++) {
        CHECK(blocks[at] && is_there(blocks[at], malloc_usable_size(blocks[at])), "block %zu", at);
        free(blocks[at]);
    }
    char local[64];
    CHECK(!is_there(variable, sizeof variable) && !is_there(local, sizeof local), "what was not allocated is registered");
    char *mapping = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED && !is_there(mapping, PAGE), "mmap");
    munmap(mapping, PAGE);
    // Longer and shorter, with its bytes.
    uint8_t *bytes = malloc(1);
    for (size_t len = 1; len < 1 << 20; len = len * 3 + 1) {
        for (size_t at = 0; at < len; at++)
            bytes[at] = at * 11;
        bytes = realloc(bytes, len * 3 + 1);
        CHECK(bytes && is_there(bytes, len * 3 + 1), "realloc");
        for (size_t at = 0; at < len; at++)
            CHECK(bytes[at] == (uint8_t)(at * 11), "byte %zu of %zu", at, len);
    }
    bytes = realloc(bytes, 10);
    CHECK(bytes[9] == 99 && is_there(bytes, 10), "a shorter one");
    free(bytes);
    bytes = calloc(100, PAGE);
    for (size_t at = 0; at < 100 * PAGE; at++)
        CHECK(bytes[at] == 0, "calloc has byte %zu", at);
    free(bytes);
}

// What a block of the parent had is there when another thread of the child makes it longer.
static void *longer(void *block)
{
    unsigned char *other = realloc(block, 10 * PAGE);
    return other && other[0] == 2 && other[3 * PAGE - 1] == 2 ? other : NULL;
}

// A child has a copy, and allocates without its parent's.
static void children(void)
{
    volatile uint8_t *bytes = malloc(3 * PAGE);
    memset((void *)bytes, 1, 3 * PAGE);
    int told[2];
    CHECK(pipe(told) == 0, "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        for (int at = 0; at < 3 * PAGE; at++)
            if (bytes[at] != 1)
                _exit(2);
        memset((void *)bytes, 2, 3 * PAGE);
        pthread_t thread;
        void *other;
        if (pthread_create(&thread, NULL, longer, (void *)bytes) != 0 || pthread_join(thread, &other) != 0 || !other)
            _exit(3);
        free(other);
        for (int count = 0; count < 1000; count++) {
            char *block = malloc(1 + count * 13);
            memset(block, count, 1 + count * 13);
            if (count % 3)
                free(block);
        }
        struct ibv_device **list = ibv_get_device_list(NULL);
        // It has none of the transport's: that is said, and nothing else happens.
        if (list && list[0] && ibv_open_device(list[0]))
            _exit(4);
        // A child of the child.
        pid_t next = fork();
        if (next == 0)
            _exit(bytes == NULL);
        int status;
        if (waitpid(next, &status, 0) != next || status != 0)
            _exit(5);
        _exit(write(told[1], "x", 1) != 1);
    }
    char byte;
    close(told[1]);
    CHECK(read(told[0], &byte, 1) == 1, "the child has ended");
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);
    for (int at = 0; at < 3 * PAGE; at++)
        CHECK(bytes[at] == 1, "the child has written into its parent");
    close(told[0]);
    free((void *)bytes);
}

static volatile int stop;

static void *allocates(void *argument)
{
    uint8_t mark = (uintptr_t)argument;
    uint8_t *blocks[32] = { 0 };
    size_t lens[32] = { 0 };
    for (unsigned turn = 0; !stop; turn++) {
        int at = turn % 32;
        for (size_t byte = 0; byte < lens[at]; byte++)
            CHECK(blocks[at][byte] == mark, "a block of another");
        free(blocks[at]);
        lens[at] = 1 + turn * 7919u % 5000;
        blocks[at] = malloc(lens[at]);
        memset(blocks[at], mark, lens[at]);
    }
    for (int at = 0; at < 32; at++)
        free(blocks[at]);
    return NULL;
}

// Children of a program whose other threads allocate all the time: neither hangs.
static void threads_and_children(void)
{
    pthread_t threads[3];
    for (uintptr_t at = 0; at < 3; at++)
        CHECK(pthread_create(&threads[at], NULL, allocates, (void *)(at + 1)) == 0, "pthread_create");
    for (int count = 0; count < 50; count++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            void *block = malloc(1000);
            free(block);
            _exit(block == NULL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);
    }
    stop = 1;
    for (int at = 0; at < 3; at++)
        CHECK(pthread_join(threads[at], NULL) == 0, "pthread_join");
}

static void no_room(void)
{
    size_t len = 1 << 20, count = 0;
    void *blocks[100];
    while (count < 100 && (blocks[count] = malloc(len)) && is_there(blocks[count], len)) {
        memset(blocks[count], 5, len);
        count++;
    }
    CHECK(count > 0 && count < 100, "%zu MiB", count);
    // This one is the C library's, and works.
    memset(blocks[count], 6, len);
    for (size_t at = 0; at <= count; at++) {
        uint8_t *bytes = blocks[at];
        CHECK(bytes[0] == (at < count ? 5 : 6) && bytes[len - 1] == bytes[0], "block %zu", at);
        free(blocks[at]);
    }
    void *again = malloc(len);
    CHECK(is_there(again, len), "what was given back is not given again");
    free(again);
}

static int killed(void)
{
    open_device();
    for (int count = 0; count < 4; count++) {
        void *memory = malloc(256 << 10);
        CHECK(memory && ibv_reg_mr(pd, memory, 256 << 10, ALL), "not registered");
    }
    CHECK(ibv_create_cq(context, 1000, NULL, NULL, 0), "no completion queue");
    raise(SIGKILL);
    return 1;
}

// Each time the pages of the one before are there again.
static int again(int times)
{
    for (int time = 0; time < times; time++) {
        open_device();
        close_device();
    }
    open_device();
    CHECK(is_there(malloc(PAGE), PAGE), "after %d times", times);
    close_device();
    return 0;
}

int main(int count, char **arguments)
{
    if (count > 2 && strcmp(arguments[1], "again") == 0)
        return again(atoi(arguments[2]));
    if (count > 1 && strcmp(arguments[1], "killed") == 0)
        return killed();
    open_device();
    kinds_of_memory();
    children();
    threads_and_children();
    no_room();
    close_device();
    // Once more: nothing of the first time is in the way.
    open_device();
    CHECK(is_there(malloc(PAGE), PAGE), "the second time");
    close_device();
    return 0;
}
