/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A small loader of our own that treats an extension library as libnfb does (docs/spec/nfb-card.md section 1): the same
 * flags for dlopen, the same order of calls, the same ownership of the device tree, queues closed with their private
 * pointer, close before dlclose. It has the functions of libnfb that an extension calls back, and nothing else of it.
 */
#ifndef LOADER_H
#define LOADER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct nfb_device;
struct nfb_comp;
struct ndp_queue;

/* struct ndp_packet of the ABI. */
struct packet {
    unsigned char *data;
    unsigned char *header;
    uint32_t data_length;
    uint16_t header_length;
    uint16_t flags;
};

struct bus_ops {
    ssize_t (*read)(void *bus, void *buffer, size_t count, off_t offset);
    ssize_t (*write)(void *bus, const void *buffer, size_t count, off_t offset);
};

/* struct libnfb_ext_ops of the ABI. */
struct ext_ops {
    int (*open)(const char *name, int flags, void **priv, void **fdt);
    void (*close)(void *priv);
    int (*bus_open_mi)(void *priv, int bus_node, int comp_node, void **bus, struct bus_ops *ops);
    void (*bus_close_mi)(void *bus);
    int (*comp_lock)(const struct nfb_comp *comp, uint32_t features);
    void (*comp_unlock)(const struct nfb_comp *comp, uint32_t features);
    int (*ndp_queue_open)(struct nfb_device *dev, void *priv, unsigned index, int dir, int flags,
                          struct ndp_queue **queue);
    int (*ndp_queue_close)(void *priv);
};

/* struct ndp_queue_ops of the ABI: RX and TX share get and put. */
struct queue_ops {
    unsigned (*get)(void *priv, struct packet *packets, unsigned count);
    int (*put)(void *priv);
    int (*flush)(void *priv);
    int (*start)(void *priv);
    int (*stop)(void *priv);
};

enum { RX = 0, TX = 1 };
/* What an extension gets for NDP_OPEN_FLAG_USERSPACE. */
enum { SHARED = 0, USERSPACE = 0x12 };

/* NULL with errno when it cannot be opened. `name` is what follows the second colon of a libnfb device name. */
struct nfb_device *device_open(const char *library, const char *name);
void device_close(struct nfb_device *dev);
const struct ext_ops *device_ops(const struct nfb_device *dev);
void *device_priv(const struct nfb_device *dev);
const void *nfb_get_fdt(const struct nfb_device *dev);

/* The component at the index-th node with that compatible string; NULL with errno. */
struct nfb_comp *comp_open(struct nfb_device *dev, const char *compatible, unsigned index);
/* How many nodes have it. */
unsigned comp_count(const struct nfb_device *dev, const char *compatible);
void comp_close(struct nfb_comp *comp);
uint32_t comp_size(const struct nfb_comp *comp);
/* -1 beyond the component, otherwise what the extension says. */
ssize_t comp_read(struct nfb_comp *comp, void *buffer, size_t count, off_t offset);
ssize_t comp_write(struct nfb_comp *comp, const void *buffer, size_t count, off_t offset);
/* 1 when locked, otherwise what the extension says. */
int comp_lock(struct nfb_comp *comp, uint32_t features);
void comp_unlock(struct nfb_comp *comp, uint32_t features);

/* NULL with errno when it cannot be opened. */
struct ndp_queue *queue_open(struct nfb_device *dev, unsigned index, int dir, int flags);
int queue_start(struct ndp_queue *queue);
int queue_stop(struct ndp_queue *queue);
void queue_close(struct ndp_queue *queue);
unsigned queue_get(struct ndp_queue *queue, struct packet *packets, unsigned count);
void queue_put(struct ndp_queue *queue);
void queue_flush(struct ndp_queue *queue);
void *queue_priv(struct ndp_queue *queue);
/* Queues created and not destroyed, of the whole process. */
int queues_alive(void);

#endif
