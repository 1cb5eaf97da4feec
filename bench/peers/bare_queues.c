// The memory traffic of many queue pairs, with nothing else: no checks, no translation, no error paths, no counters. One
// application thread sends on and receives from all of them in turn, one card thread sends back everything it finds, as
// `millrace bench queues` does.
//
// Each pair has two rings of 8-byte descriptors, a ring of 4-byte headers, two rings of buffers, and four words that
// move: doorbell and update of each direction (see bare_ring.c).
#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BURST 64u // frames per doorbell, and buffers given back at once

// One line per word and writer.
struct control {
	alignas(CACHE_LINE) _Atomic uint32_t tx_doorbell; // application -> card
	alignas(CACHE_LINE) _Atomic uint32_t tx_update;   // card -> application
	alignas(CACHE_LINE) _Atomic uint32_t rx_doorbell; // application -> card
	alignas(CACHE_LINE) _Atomic uint32_t rx_update;   // card -> application
};

struct pair {
	struct control *control;
	uint64_t *tx_descriptors, *rx_descriptors; // offsets from the pair's buffers, and lengths
	uint32_t *rx_headers;
	uint8_t *tx_buffers, *rx_buffers;
};

struct queues {
	struct pair *pairs;
	uint32_t count, entries, mask, stride;
};

static uint64_t descriptor(uint32_t offset, uint32_t length) { return (uint64_t)length << 32 | offset; }

static size_t page_round(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

// One mapping of 4 KiB pages for each pair: the queues of `millrace bench queues` are on such pages too.
static void pair_map(const struct queues *q, struct pair *p)
{
	size_t ring = page_round(q->entries * 8ul), buffers = page_round((size_t)q->entries * q->stride);
	size_t control = page_round(sizeof(struct control)), bytes = control + 3 * ring + 2 * buffers;
	int fd = memfd_create("bare_queues", MFD_CLOEXEC);
	uint8_t *base = MAP_FAILED;
	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (base == MAP_FAILED) {
		fprintf(stderr, "bare_queues: cannot map %zu bytes of shared memory: %s; free memory or lower --tune queues\n",
			bytes, strerror(errno));
		exit(EXIT_FAILED);
	}
	close(fd);
	*p = (struct pair){
		.control = (struct control *)base,
		.tx_descriptors = (uint64_t *)(base + control),
		.rx_descriptors = (uint64_t *)(base + control + ring),
		.rx_headers = (uint32_t *)(base + control + 2 * ring),
		.tx_buffers = base + control + 3 * ring,
		.rx_buffers = base + control + 3 * ring + buffers,
	};
	for (uint32_t i = 0; i < q->entries; i++)
		p->rx_descriptors[i] = descriptor(i * q->stride, q->stride);
	// As a started queue, with every receive descriptor but a burst posted.
	atomic_store(&p->control->rx_doorbell, q->entries - BURST);
}

// Where one side stands on one pair.
struct place {
	uint32_t tx, rx, tx_seen, rx_seen, to_refill;
	uint64_t sent, received;
};

static struct place *places_new(struct shared *shared, enum side side, const struct queues *q)
{
	struct place *places = calloc(q->count, sizeof *places);
	if (!places)
		side_fail(shared, side, "no memory for %u pairs", q->count);
	return places;
}

// ---------------------------------------------------------------------------------------------------------------

// Copies up to a burst of frames of one pair into its receive buffers.
static uint32_t reflect(const struct queues *q, const struct pair *p, struct place *at)
{
	uint32_t sdp = atomic_load_explicit(&p->control->tx_doorbell, memory_order_acquire);
	uint32_t ready = (sdp - at->tx) & q->mask, done = 0;
	if (!ready)
		return 0;
	for (; done < ready && done < BURST; done++) {
		if (at->rx == at->rx_seen) {
			at->rx_seen = atomic_load_explicit(&p->control->rx_doorbell, memory_order_acquire);
			if (at->rx == at->rx_seen)
				break;
		}
		uint64_t from = p->tx_descriptors[at->tx], to = p->rx_descriptors[at->rx];
		uint32_t length = (uint32_t)(from >> 32);
		memcpy(p->rx_buffers + (uint32_t)to, p->tx_buffers + (uint32_t)from, length);
		p->rx_headers[at->rx] = length;
		at->tx = (at->tx + 1) & q->mask;
		at->rx = (at->rx + 1) & q->mask;
	}
	atomic_store_explicit(&p->control->rx_update, at->rx, memory_order_release);
	atomic_store_explicit(&p->control->tx_update, at->tx, memory_order_release);
	return done;
}

static void card(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)o, (void)m;
	const struct queues *q = context;
	struct place *places = places_new(shared, SIDE_CARD, q);
	for (uint32_t i = 0; i < q->count; i++)
		places[i].rx_seen = q->entries - BURST;
	side_wait_for_go(shared, SIDE_CARD);
	while (!atomic_load_explicit(&shared->receiver_done, memory_order_relaxed) && !side_expired(shared))
		for (uint32_t i = 0; i < q->count; i++)
			reflect(q, &q->pairs[i], &places[i]);
}

// Sends a burst on one pair, if nothing more than that is on its way there.
static void send_burst(const struct queues *q, const struct pair *p, struct place *at, const uint8_t *frame, uint32_t size,
		       uint32_t window, enum fill fill)
{
	if (at->sent - at->received + BURST > window)
		return;
	if (((at->tx_seen - at->tx - 1) & q->mask) < BURST) {
		at->tx_seen = atomic_load_explicit(&p->control->tx_update, memory_order_acquire);
		if (((at->tx_seen - at->tx - 1) & q->mask) < BURST)
			return;
	}
	for (uint32_t i = 0; i < BURST; i++) {
		frame_write(p->tx_buffers + at->tx * q->stride, frame, size, at->sent++, fill);
		p->tx_descriptors[at->tx] = descriptor(at->tx * q->stride, size);
		at->tx = (at->tx + 1) & q->mask;
	}
	atomic_store_explicit(&p->control->tx_doorbell, at->tx, memory_order_release);
}

// Fetches every line of up to a burst of frames, and gives their buffers back by the burst.
static uint32_t receive_burst(const struct queues *q, const struct pair *p, struct place *at)
{
	uint32_t hdp = atomic_load_explicit(&p->control->rx_update, memory_order_acquire);
	uint32_t ready = (hdp - at->rx) & q->mask;
	if (ready > BURST)
		ready = BURST;
	for (uint32_t i = 0; i < ready; i++) {
		frame_fetch(p->rx_buffers + at->rx * q->stride, p->rx_headers[at->rx]);
		at->rx = (at->rx + 1) & q->mask;
	}
	at->received += ready;
	at->to_refill += ready;
	while (at->to_refill >= BURST) {
		for (uint32_t i = 0; i < BURST; i++) {
			p->rx_descriptors[at->rx_seen] = descriptor(at->rx_seen * q->stride, q->stride);
			at->rx_seen = (at->rx_seen + 1) & q->mask;
		}
		atomic_store_explicit(&p->control->rx_doorbell, at->rx_seen, memory_order_release);
		at->to_refill -= BURST;
	}
	return ready;
}

static void app(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct queues *q = context;
	uint32_t size = o->size ? o->size : m->size, window = WINDOW / q->count > BURST ? WINDOW / q->count : BURST;
	uint64_t sent = 0, last = ticks();
	uint8_t frame[MAX_FRAME];
	struct meter meter = { 0 };
	struct place *places = places_new(shared, SIDE_APP, q);
	frame_fill(frame, size);
	for (uint32_t i = 0; i < q->count; i++)
		places[i].rx_seen = q->entries - BURST;
	snprintf(shared->note, sizeof shared->note, "pages=4K queues=%u ring=%u stride=%u burst=%u window=%u", q->count,
		 q->entries, q->stride, BURST, window);
	side_wait_for_go(shared, SIDE_APP);
	while (!meter.done || sent != meter.total) {
		uint32_t received = 0;
		for (uint32_t i = 0; i < q->count; i++) {
			struct place *at = &places[i];
			uint64_t before = at->sent;
			if (!meter.done)
				send_burst(q, &q->pairs[i], at, frame, size, window, o->fill);
			sent += at->sent - before;
			received += receive_burst(q, &q->pairs[i], at);
		}
		uint64_t now = ticks();
		if (received) {
			last = now;
			meter_add(&meter, shared, o, received);
		} else if (now > shared->deadline) {
			side_fail(shared, SIDE_APP, "no frame comes back");
		} else if (meter.done && now - last > ns_to_ticks(LOSS_TIMEOUT_NS)) {
			break;
		}
	}
	shared->result.sent = sent;
	shared->result.lost = sent - meter.total;
	atomic_store(&shared->receiver_done, 1);
}

int main(int argc, char **argv)
{
	static const char *const peers[] = { "bare_queues", NULL }, *const keys[] = { "queues", "ring", "stride", NULL };
	struct options o;
	options_parse(&o, argc, argv, peers,
		      "Many shared-memory rings with no checks, between two pinned processes (only queues_1000).",
		      "  --tune K=N,...   queues = pairs of rings (1 to 4096, default 1000), ring = entries (power of two,\n"
		      "                   default 256), stride = bytes from buffer to buffer (multiple of 64, default 2112)\n");
	options_tune_check(&o, keys);
	struct queues queues = { .count = options_tune(&o, "queues", 1000),
				 .entries = options_tune(&o, "ring", 256),
				 .stride = options_tune(&o, "stride", 2112) };
	queues.mask = queues.entries - 1;
	if (queues.count < 1 || queues.count > 4096 || queues.entries < 2 * BURST || queues.entries > 32768 ||
	    (queues.entries & queues.mask) || queues.stride < 1536 || queues.stride > 8192 || queues.stride % 64) {
		fprintf(stderr, "bare_queues: --tune: queues must be 1 to 4096, ring a power of two from 128 to 32768, stride a "
				"multiple of 64 from 1536 to 8192\n");
		return EXIT_USAGE;
	}
	clock_calibrate();
	for (int i = 0; i < METRIC_COUNT; i++) {
		struct result result;
		char note[128];
		if (!o.metrics[i] || METRICS[i].kind != METRIC_QUEUES)
			continue;
		queues.pairs = calloc(queues.count, sizeof *queues.pairs);
		for (uint32_t n = 0; queues.pairs && n < queues.count; n++)
			pair_map(&queues, &queues.pairs[n]);
		if (!queues.pairs) {
			fprintf(stderr, "bare_queues: no memory for %u pairs\n", queues.count);
			return EXIT_FAILED;
		}
		int code = measure("bare_queues", &METRICS[i], &o, card, app, &queues, &result, note);
		if (code)
			return code;
		print_result("bare_queues", &METRICS[i], o.size ? o.size : METRICS[i].size, &o, &result, note);
	}
	return 0;
}
