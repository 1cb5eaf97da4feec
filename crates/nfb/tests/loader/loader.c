/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nfb_device {
    struct ext_ops ops;
    void *priv;
    void *fdt;
    void *library;
};

struct nfb_comp {
    const struct nfb_device *dev;
    uint32_t base;
    uint32_t size;
    void *bus;
    struct bus_ops ops;
    char path[];
};

/* `priv` comes first: an extension may be closed with the queue or with this pointer. */
struct ndp_queue {
    void *priv;
    struct queue_ops ops;
    struct nfb_device *dev;
    int running;
    int dir;
};

static int alive;

/* ---- what an extension calls back ---- */

struct ndp_queue *ndp_queue_create(struct nfb_device *dev, int numa, int dir, int index)
{
    struct ndp_queue *queue = calloc(1, sizeof *queue);

    (void)numa, (void)index;
    if (queue) {
        queue->dev = dev;
        queue->dir = dir;
        __atomic_add_fetch(&alive, 1, __ATOMIC_RELAXED);
    }
    return queue;
}

void ndp_queue_destroy(struct ndp_queue *queue)
{
    __atomic_sub_fetch(&alive, 1, __ATOMIC_RELAXED);
    memset(queue, 0xdb, sizeof *queue);
    free(queue);
}

void *ndp_queue_get_priv(struct ndp_queue *queue) { return queue->priv; }
void ndp_queue_set_priv(struct ndp_queue *queue, void *priv) { queue->priv = priv; }
struct queue_ops *ndp_queue_get_ops(struct ndp_queue *queue) { return &queue->ops; }
const char *nfb_comp_path(struct nfb_comp *comp) { return comp->path; }
const struct nfb_device *nfb_comp_get_device(struct nfb_comp *comp) { return comp->dev; }
const void *nfb_get_fdt(const struct nfb_device *dev) { return dev->fdt; }

/* ---- devices ---- */

static uint32_t be32(const void *at)
{
    const unsigned char *b = at;

    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static int load(struct nfb_device *dev, const char *library, const char *name)
{
    int (*get_ops)(const char *, struct ext_ops *);
    const uint32_t *version;

    dev->library = dlopen(library, RTLD_NOW);
    if (!dev->library) {
        fprintf(stderr, "loader: %s\n", dlerror());
        return -ENOENT;
    }
    *(void **)&get_ops = dlsym(dev->library, "libnfb_ext_get_ops");
    version = dlsym(dev->library, "libnfb_ext_abi_version");
    if (!version || version[0] != 1) {
        fprintf(stderr, "loader: the extension has another major version of the ABI, or none\n");
        return -EBADF;
    }
    if (version[1] != 0)
        fprintf(stderr, "loader: the extension has another minor version of the ABI\n");
    return get_ops ? get_ops(name, &dev->ops) : -EBADF;
}

struct nfb_device *device_open(const char *library, const char *name)
{
    struct nfb_device *dev = calloc(1, sizeof *dev);
    const struct ext_ops *ops = &dev->ops;

    if (!dev)
        return NULL;
    if (load(dev, library, name) <= 0)
        goto unload;
    if (!ops->open || !ops->close || !ops->bus_open_mi || !ops->bus_close_mi || !ops->comp_lock || !ops->comp_unlock)
        goto unload;
    if (ops->open(name, 0, &dev->priv, &dev->fdt))
        goto unload;
    if (be32(dev->fdt) != 0xd00dfeed) {
        errno = EBADF;
        ops->close(dev->priv);
        free(dev->fdt);
        goto unload;
    }
    return dev;
unload:
    if (dev->library)
        dlclose(dev->library);
    free(dev);
    return NULL;
}

void device_close(struct nfb_device *dev)
{
    dev->ops.close(dev->priv);
    dlclose(dev->library);
    free(dev->fdt);
    free(dev);
}

const struct ext_ops *device_ops(const struct nfb_device *dev) { return &dev->ops; }
void *device_priv(const struct nfb_device *dev) { return dev->priv; }

/* ---- the device tree ---- */

enum { BEGIN_NODE = 1, END_NODE, PROPERTY, NOP, END = 9, DEEPEST = 16 };

struct node {
    int offset;
    size_t path_length;
    int is_bus;
    int matches;
    int counted;
    uint32_t reg[2];
    int has_reg;
};

struct search {
    const char *compatible;
    unsigned index;
    unsigned seen;
    int found;
    struct node node;
    int bus_offset;
    char path[512];
};

static int lists(const char *list, size_t length, const char *wanted)
{
    size_t at, step;

    for (at = 0; at < length; at += step) {
        step = strlen(list + at) + 1;
        if (!strcmp(list + at, wanted))
            return 1;
    }
    return 0;
}

/* All properties of a node come before its children: at the first child or the end of the node it can be judged. */
static void judge(struct search *search, struct node *stack, int depth)
{
    struct node *node = &stack[depth];
    int i;

    if (search->found || node->counted)
        return;
    node->counted = 1;
    if (!node->matches || search->seen++ != search->index)
        return;
    search->found = 1;
    search->node = *node;
    search->bus_offset = -1;
    for (i = 0; i <= depth; i++)
        if (stack[i].is_bus)
            search->bus_offset = stack[i].offset;
    search->path[node->path_length ? node->path_length : 1] = 0;
}

static void walk(const void *fdt, struct search *search)
{
    const char *structure = (const char *)fdt + be32((const char *)fdt + 8);
    const char *strings = (const char *)fdt + be32((const char *)fdt + 12);
    struct node stack[DEEPEST];
    int depth = -1, at = 0;

    for (;;) {
        const char *here = structure + at;
        uint32_t token = be32(here), length;

        at += 4;
        if (token == BEGIN_NODE) {
            size_t parent = depth >= 0 ? stack[depth].path_length : 0;
            const char *name = here + 4;

            if (depth >= 0)
                judge(search, stack, depth);
            if (search->found || ++depth == DEEPEST)
                return;
            memset(&stack[depth], 0, sizeof stack[depth]);
            stack[depth].offset = (int)(here - structure);
            if (depth > 0) {
                snprintf(search->path + parent, sizeof search->path - parent, "/%s", name);
                stack[depth].path_length = parent + 1 + strlen(name);
            }
            at += (int)((strlen(name) + 4) & ~3u);
        } else if (token == PROPERTY) {
            const char *name = strings + be32(here + 8), *value = here + 12;

            length = be32(here + 4);
            if (!strcmp(name, "compatible")) {
                stack[depth].matches = lists(value, length, search->compatible);
                stack[depth].is_bus = lists(value, length, "netcope,bus,mi");
            } else if (!strcmp(name, "reg") && length == 8) {
                stack[depth].reg[0] = be32(value);
                stack[depth].reg[1] = be32(value + 4);
                stack[depth].has_reg = 1;
            }
            at += 8 + (int)((length + 3) & ~3u);
        } else if (token == END_NODE) {
            judge(search, stack, depth--);
            if (search->found)
                return;
        } else if (token == END) {
            return;
        }
    }
}

unsigned comp_count(const struct nfb_device *dev, const char *compatible)
{
    struct search search = {.compatible = compatible, .index = ~0u};

    walk(dev->fdt, &search);
    return search.seen;
}

/* ---- components ---- */

struct nfb_comp *comp_open(struct nfb_device *dev, const char *compatible, unsigned index)
{
    struct search search = {.compatible = compatible, .index = index};
    struct nfb_comp *comp;
    int error;

    walk(dev->fdt, &search);
    if (!search.found || !search.node.has_reg || search.bus_offset < 0) {
        errno = search.found ? EBADFD : ENODEV;
        return NULL;
    }
    comp = malloc(sizeof *comp + strlen(search.path) + 1);
    if (!comp)
        return NULL;
    /* Not zeroed, on purpose. */
    memset(comp, 0xa5, sizeof *comp);
    comp->dev = dev;
    comp->base = search.node.reg[0];
    comp->size = search.node.reg[1];
    strcpy(comp->path, search.path);
    error = dev->ops.bus_open_mi(dev->priv, search.bus_offset, search.node.offset, &comp->bus, &comp->ops);
    if (error) {
        errno = error;
        free(comp);
        return NULL;
    }
    return comp;
}

void comp_close(struct nfb_comp *comp)
{
    comp->dev->ops.bus_close_mi(comp->bus);
    free(comp);
}

uint32_t comp_size(const struct nfb_comp *comp) { return comp->size; }

ssize_t comp_read(struct nfb_comp *comp, void *buffer, size_t count, off_t offset)
{
    if (offset + count > comp->size)
        return -1;
    return comp->ops.read(comp->bus, buffer, count, offset + comp->base);
}

ssize_t comp_write(struct nfb_comp *comp, const void *buffer, size_t count, off_t offset)
{
    if (offset + count > comp->size)
        return -1;
    return comp->ops.write(comp->bus, buffer, count, offset + comp->base);
}

int comp_lock(struct nfb_comp *comp, uint32_t features) { return comp->dev->ops.comp_lock(comp, features); }
void comp_unlock(struct nfb_comp *comp, uint32_t features) { comp->dev->ops.comp_unlock(comp, features); }

/* ---- queues ---- */

struct ndp_queue *queue_open(struct nfb_device *dev, unsigned index, int dir, int flags)
{
    struct ndp_queue *queue = NULL;
    const struct queue_ops *ops;
    int error;

    if (!dev->ops.ndp_queue_open || !dev->ops.ndp_queue_close) {
        errno = -ENXIO;
        return NULL;
    }
    error = dev->ops.ndp_queue_open(dev, dev->priv, index, dir, flags, &queue);
    if (error) {
        errno = error;
        return NULL;
    }
    ops = &queue->ops;
    if (!ops->start || !ops->stop || !ops->get || !ops->put || (!ops->flush && dir == TX)) {
        dev->ops.ndp_queue_close(queue->priv);
        errno = -EINVAL;
        return NULL;
    }
    return queue;
}

int queue_start(struct ndp_queue *queue)
{
    int error;

    if (queue->running)
        return EALREADY;
    error = queue->ops.start(queue->priv);
    queue->running = !error;
    return error;
}

int queue_stop(struct ndp_queue *queue)
{
    int error;

    if (!queue->running)
        return EALREADY;
    if (queue->dir == TX)
        queue->ops.flush(queue->priv);
    error = queue->ops.stop(queue->priv);
    queue->running = !!error;
    return error;
}

void queue_close(struct ndp_queue *queue)
{
    queue_stop(queue);
    queue->dev->ops.ndp_queue_close(queue->priv);
}

unsigned queue_get(struct ndp_queue *queue, struct packet *packets, unsigned count)
{
    return queue->ops.get(queue->priv, packets, count);
}

void queue_put(struct ndp_queue *queue) { queue->ops.put(queue->priv); }
void queue_flush(struct ndp_queue *queue) { queue->ops.flush(queue->priv); }
void *queue_priv(struct ndp_queue *queue) { return queue->priv; }
int queues_alive(void) { return __atomic_load_n(&alive, __ATOMIC_RELAXED); }
