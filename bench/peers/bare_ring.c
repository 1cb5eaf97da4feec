// The memory traffic of Medusa in direct mode, with nothing else: no checks, no translation, no error paths, no counters.
// What Millrace adds on top of this is what its care costs.
//
// One shared mapping holds what a queue pair has:
//   transmit: 8-byte descriptor ring, buffers, doorbell word (SDP), update word (HDP)
//   receive:  8-byte descriptor ring, buffers, 4-byte header ring, doorbell words (SDP, SHP), update word (HDP, HHP)
// Descriptors are of type 2 (length, lower address), where the address is an offset into the mapping. The type 0
// descriptor that sets the upper address is sent once per start in reality and is left out.
#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RX_REFILL 64u // descriptors posted at once, as the specification's clients do
#define SCRATCH_BUFFERS 64u

// One line per word and writer, with a line in between: the adjacent-line prefetcher moves lines in pairs.
struct control {
	alignas(2 * CACHE_LINE) _Atomic uint32_t tx_doorbell; // SDP: application -> card
	alignas(2 * CACHE_LINE) _Atomic uint32_t tx_update;   // HDP: card -> application
	alignas(2 * CACHE_LINE) _Atomic uint64_t rx_doorbell; // SDP | SHP << 32: application -> card
	alignas(2 * CACHE_LINE) _Atomic uint64_t rx_update;   // HDP | HHP << 32: card -> application
};

struct ring {
	uint8_t *base;
	struct control *control;
	uint64_t *tx_descriptors, *rx_descriptors;
	uint32_t *rx_headers;
	uint32_t tx_buffers, rx_buffers; // offsets from base
	uint32_t entries, mask, stride, burst;
	const char *pages;
};

static uint64_t descriptor(uint32_t address, uint32_t length)
{
	return 2ull << 62 | (uint64_t)length << 32 | (address & 0x3fffffff);
}
static uint32_t descriptor_address(uint64_t d) { return (uint32_t)d & 0x3fffffff; }
static uint32_t descriptor_length(uint64_t d) { return (uint32_t)(d >> 32) & 0xffff; }

static size_t page_round(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

// A memfd, as Millrace uses it; on 2 MiB pages when there are enough.
static void ring_map(struct ring *r, const struct options *o)
{
	size_t control = 0, tx_descriptors = page_round(sizeof(struct control)), rx_descriptors, rx_headers, bytes;
	rx_descriptors = tx_descriptors + page_round(r->entries * 8ul);
	rx_headers = rx_descriptors + page_round(r->entries * 8ul);
	r->tx_buffers = (uint32_t)(rx_headers + page_round(r->entries * 4ul));
	r->rx_buffers = r->tx_buffers + (uint32_t)page_round((size_t)r->entries * r->stride);
	bytes = r->rx_buffers + page_round((size_t)r->entries * r->stride);

	size_t huge_bytes = (bytes + (2ul << 20) - 1) & ~((2ul << 20) - 1);
	void *base = MAP_FAILED;
	int fd = -1;
	if (o->huge && huge_reserve((unsigned)(huge_bytes >> 21)) >= huge_bytes >> 21) {
		fd = memfd_create("bare_ring", MFD_CLOEXEC | MFD_HUGETLB);
		if (fd >= 0 && ftruncate(fd, (off_t)huge_bytes) == 0)
			base = mmap(NULL, huge_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
		r->pages = "2M";
	}
	if (base == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		fd = memfd_create("bare_ring", MFD_CLOEXEC);
		if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
			base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
		r->pages = "4K";
	}
	if (base == MAP_FAILED) {
		fprintf(stderr, "bare_ring: cannot map %zu bytes of shared memory: %s; free memory or lower --tune ring\n",
			bytes, strerror(errno));
		exit(EXIT_FAILED);
	}
	close(fd);
	r->base = base;
	r->control = (struct control *)(r->base + control);
	r->tx_descriptors = (uint64_t *)(r->base + tx_descriptors);
	r->rx_descriptors = (uint64_t *)(r->base + rx_descriptors);
	r->rx_headers = (uint32_t *)(r->base + rx_headers);
}

// Before each measurement: as a started queue, with every receive descriptor but 64 posted.
static uint32_t ring_start(struct ring *r, uint32_t size)
{
	uint32_t posted = r->entries - RX_REFILL;
	for (uint32_t i = 0; i < r->entries; i++) {
		frame_fill(r->base + r->tx_buffers + (size_t)i * r->stride, size);
		r->rx_descriptors[i] = descriptor(r->rx_buffers + i * r->stride, r->stride);
	}
	atomic_store(&r->control->tx_doorbell, 0);
	atomic_store(&r->control->tx_update, 0);
	atomic_store(&r->control->rx_doorbell, posted);
	atomic_store(&r->control->rx_update, 0);
	return posted;
}

// ---------------------------------------------------------------------------------------------------------------
// Round trip

// Every transmitted frame is copied into the next receive buffer.
static void card_reflect(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)o;
	const struct ring *r = context;
	// With many frames on their way the application takes back all of them after the end.
	const atomic_uint *end = m->kind == METRIC_RTT ? &shared->stop : &shared->receiver_done;
	struct control *control = r->control;
	uint32_t tx_hdp = 0, rx_hdp = 0, rx_hhp = 0, rx_sdp = 0, idle = 0;

	side_wait_for_go(shared, SIDE_CARD);
	for (;;) {
		uint32_t sdp = atomic_load_explicit(&control->tx_doorbell, memory_order_acquire);
		if (sdp == tx_hdp) {
			if (++idle % 1024 == 0 &&
			    (atomic_load_explicit(end, memory_order_relaxed) || side_expired(shared)))
				return;
			continue;
		}
		while (tx_hdp != sdp) {
			if (rx_hdp == rx_sdp) {
				rx_sdp = (uint32_t)atomic_load_explicit(&control->rx_doorbell, memory_order_acquire);
				if (rx_hdp == rx_sdp)
					break;
			}
			uint64_t from = r->tx_descriptors[tx_hdp], to = r->rx_descriptors[rx_hdp];
			uint32_t length = descriptor_length(from);
			memcpy(r->base + descriptor_address(to), r->base + descriptor_address(from), length);
			r->rx_headers[rx_hhp] = length | 1u << 30; // one descriptor freed
			tx_hdp = (tx_hdp + 1) & r->mask;
			rx_hdp = (rx_hdp + 1) & r->mask;
			rx_hhp = (rx_hhp + 1) & r->mask;
		}
		atomic_store_explicit(&control->rx_update, rx_hdp | (uint64_t)rx_hhp << 32, memory_order_release);
		atomic_store_explicit(&control->tx_update, tx_hdp, memory_order_release);
	}
}

static void app_round_trip(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct ring *r = context;
	struct control *control = r->control;
	uint32_t size = o->size ? o->size : m->size;
	uint32_t tx_sdp = 0, rx_sdp = r->entries - RX_REFILL, rx_shp = 0, to_refill = 0;
	uint64_t corrupt = 0;
	uint8_t frame[MAX_FRAME];
	struct histogram *h = histogram_new();
	if (!h)
		side_fail(shared, SIDE_APP, "no memory for the histogram");
	frame_fill(frame, size);

	side_wait_for_go(shared, SIDE_APP);
	uint64_t warm_up_end = ticks() + ns_to_ticks(0.1e9);
	uint64_t end = warm_up_end + ns_to_ticks(o->seconds * 1e9);
	bool warm = false;
	for (uint64_t sequence = 0; !warm || h->count < o->count; sequence++) {
		if (!warm && ticks() >= warm_up_end) {
			warm = true;
			corrupt = 0;
			histogram_reset(h);
		}
		memcpy(frame, &sequence, sizeof sequence);

		uint64_t t0 = ticks();
		if (t0 >= end)
			break;
		uint32_t address = r->tx_buffers + tx_sdp * r->stride;
		memcpy(r->base + address, frame, size);
		r->tx_descriptors[tx_sdp] = descriptor(address, size);
		tx_sdp = (tx_sdp + 1) & r->mask;
		atomic_store_explicit(&control->tx_doorbell, tx_sdp, memory_order_release);

		while ((uint32_t)(atomic_load_explicit(&control->rx_update, memory_order_acquire) >> 32) == rx_shp)
			if (side_expired(shared))
				side_fail(shared, SIDE_APP, "no answer from the card process");
		uint32_t length = r->rx_headers[rx_shp] & 0xffff;
		const uint8_t *received = r->base + r->rx_buffers + rx_shp * r->stride;
		uint64_t seen = *(const volatile uint64_t *)received;
		histogram_add(h, ticks_after_loads() - t0);

		// Outside the measured time: is it what was sent, and give buffers back by the 64.
		if (seen != sequence || length != size || memcmp(received + 8, frame + 8, size - 8))
			corrupt++;
		rx_shp = (rx_shp + 1) & r->mask;
		if (++to_refill == RX_REFILL) {
			for (uint32_t i = 0; i < RX_REFILL; i++) {
				r->rx_descriptors[rx_sdp] = descriptor(r->rx_buffers + rx_sdp * r->stride, r->stride);
				rx_sdp = (rx_sdp + 1) & r->mask;
			}
			atomic_store_explicit(&control->rx_doorbell, rx_sdp | (uint64_t)rx_shp << 32, memory_order_release);
			to_refill = 0;
		}
	}
	atomic_store(&shared->stop, 1);
	result_from_histogram(&shared->result, h);
	shared->result.corrupt = corrupt;
	snprintf(shared->note, sizeof shared->note, "pages=%s ring=%u stride=%u", r->pages, r->entries, r->stride);
}

// ---------------------------------------------------------------------------------------------------------------
// One direction

// Copies every frame into local memory, as a port does that keeps nothing, and counts.
static void card_receive(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)m;
	const struct ring *r = context;
	struct control *control = r->control;
	static uint8_t scratch[SCRATCH_BUFFERS][2048] __attribute__((aligned(CACHE_LINE)));
	uint32_t hdp = 0, idle = 0;
	uint64_t total = 0, counted_from = 0, begin = 0, now = 0;

	memset(scratch, 0, sizeof scratch);
	side_wait_for_go(shared, SIDE_CARD);
	uint64_t warm_up_end = ticks() + ns_to_ticks(0.2e9);
	uint64_t end = warm_up_end + ns_to_ticks(o->seconds * 1e9);
	bool measuring = true;
	while (measuring || !atomic_load_explicit(&shared->sender_done, memory_order_acquire) ||
	       atomic_load_explicit(&control->tx_doorbell, memory_order_acquire) != hdp) {
		uint32_t sdp = atomic_load_explicit(&control->tx_doorbell, memory_order_acquire);
		uint32_t ready = (sdp - hdp) & r->mask;
		if (ready == 0 && ++idle % 64)
			continue;
		if (ready > 2 * r->burst)
			ready = 2 * r->burst; // do not keep buffers from the sender for a whole ring
		for (uint32_t i = 0; i < ready; i++) {
			uint64_t d = r->tx_descriptors[(hdp + i) & r->mask];
			memcpy(scratch[i % SCRATCH_BUFFERS], r->base + descriptor_address(d), descriptor_length(d));
		}
		__asm__ volatile("" ::: "memory"); // the copies are the work: they must happen
		hdp = (hdp + ready) & r->mask;
		atomic_store_explicit(&control->tx_update, hdp, memory_order_release);
		total += ready;

		now = ticks();
		if (!begin && now >= warm_up_end) {
			begin = now;
			counted_from = total;
		}
		if (measuring && now >= end) {
			measuring = false;
			shared->result.count = total - counted_from;
			shared->result.seconds = ticks_to_ns(now - begin) / 1e9;
			shared->result.pps = (double)shared->result.count / shared->result.seconds;
			atomic_store(&shared->stop, 1);
		}
		if (now > shared->deadline)
			return;
	}
	shared->result.sent = shared->sent;
	shared->result.lost = shared->sent - total;
}

static void app_transmit(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct ring *r = context;
	struct control *control = r->control;
	uint32_t size = o->size ? o->size : m->size, sdp = 0, hdp = 0, polls = 0;
	uint64_t sequence = 0;
	uint8_t frame[MAX_FRAME];
	frame_fill(frame, size);

	snprintf(shared->note, sizeof shared->note, "pages=%s ring=%u stride=%u burst=%u", r->pages, r->entries, r->stride,
		 r->burst);
	side_wait_for_go(shared, SIDE_APP);
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		if (((hdp - sdp - 1) & r->mask) < r->burst) {
			hdp = atomic_load_explicit(&control->tx_update, memory_order_acquire);
			if (++polls % 65536 == 0 && side_expired(shared))
				return;
			continue;
		}
		for (uint32_t i = 0; i < r->burst; i++) {
			uint32_t slot = (sdp + i) & r->mask, address = r->tx_buffers + slot * r->stride;
			frame_write(r->base + address, frame, size, sequence + i, o->fill);
			r->tx_descriptors[slot] = descriptor(address, size);
		}
		sequence += r->burst;
		sdp = (sdp + r->burst) & r->mask;
		atomic_store_explicit(&control->tx_doorbell, sdp, memory_order_release);
	}
	shared->sent = sequence;
	atomic_store_explicit(&shared->sender_done, 1, memory_order_release);
}

// The card makes every frame and writes it into the next receive buffer.
static void card_generate(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct ring *r = context;
	struct control *control = r->control;
	uint32_t size = o->size ? o->size : m->size, hdp = 0, hhp = 0, sdp = 0, idle = 0;
	uint64_t sequence = 0;
	uint8_t frame[MAX_FRAME];
	frame_fill(frame, size);

	side_wait_for_go(shared, SIDE_CARD);
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		if (((sdp - hdp) & r->mask) < r->burst) {
			sdp = (uint32_t)atomic_load_explicit(&control->rx_doorbell, memory_order_acquire);
			if (++idle % 65536 == 0 && side_expired(shared))
				return;
			if (((sdp - hdp) & r->mask) < r->burst)
				continue;
		}
		for (uint32_t i = 0; i < r->burst; i++) {
			uint8_t *to = r->base + descriptor_address(r->rx_descriptors[hdp]);
			frame_write(to, frame, size, sequence++, o->fill);
			r->rx_headers[hhp] = size | 1u << 30; // one descriptor freed
			hdp = (hdp + 1) & r->mask;
			hhp = (hhp + 1) & r->mask;
		}
		atomic_store_explicit(&control->rx_update, hdp | (uint64_t)hhp << 32, memory_order_release);
	}
	shared->sent = sequence;
	atomic_store_explicit(&shared->sender_done, 1, memory_order_release);
}

// What the application knows of its receive ring.
struct receiver {
	uint32_t sdp, shp, to_refill;
};

// Fetches every line of up to a burst of frames, and gives buffers back by the 64.
static uint32_t receive_burst(const struct ring *r, struct receiver *rx)
{
	struct control *control = r->control;
	uint32_t hhp = (uint32_t)(atomic_load_explicit(&control->rx_update, memory_order_acquire) >> 32);
	uint32_t ready = (hhp - rx->shp) & r->mask;
	if (ready > 2 * r->burst)
		ready = 2 * r->burst;
	for (uint32_t i = 0; i < ready; i++) {
		uint32_t slot = (rx->shp + i) & r->mask;
		frame_fetch(r->base + r->rx_buffers + slot * r->stride, r->rx_headers[slot] & 0xffff);
	}
	rx->shp = (rx->shp + ready) & r->mask;
	rx->to_refill += ready;
	while (rx->to_refill >= RX_REFILL) {
		for (uint32_t i = 0; i < RX_REFILL; i++) {
			r->rx_descriptors[rx->sdp] = descriptor(r->rx_buffers + rx->sdp * r->stride, r->stride);
			rx->sdp = (rx->sdp + 1) & r->mask;
		}
		atomic_store_explicit(&control->rx_doorbell, rx->sdp | (uint64_t)rx->shp << 32, memory_order_release);
		rx->to_refill -= RX_REFILL;
	}
	return ready;
}

static void app_receive(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)m;
	const struct ring *r = context;
	struct receiver rx = { .sdp = r->entries - RX_REFILL };
	struct meter meter = { 0 };
	uint32_t idle = 0;

	snprintf(shared->note, sizeof shared->note, "pages=%s ring=%u stride=%u burst=%u", r->pages, r->entries, r->stride,
		 r->burst);
	side_wait_for_go(shared, SIDE_APP);
	for (;;) {
		bool is_over = atomic_load_explicit(&shared->sender_done, memory_order_acquire);
		uint32_t count = receive_burst(r, &rx);
		if (count)
			meter_add(&meter, shared, o, count);
		else if (is_over)
			break;
		else if (++idle % 65536 == 0 && side_expired(shared))
			side_fail(shared, SIDE_APP, meter.total ? "out of time" : "no frame arrived");
	}
	shared->result.sent = shared->sent;
	shared->result.lost = shared->sent - meter.total;
}

// Sends, and receives what the card sends back; at most WINDOW frames are on their way.
static void app_echo(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct ring *r = context;
	struct control *control = r->control;
	uint32_t size = o->size ? o->size : m->size, sdp = 0, hdp = 0, idle = 0;
	struct receiver rx = { .sdp = r->entries - RX_REFILL };
	struct meter meter = { 0 };
	uint64_t sequence = 0, quiet_since = 0;
	uint8_t frame[MAX_FRAME];
	frame_fill(frame, size);

	snprintf(shared->note, sizeof shared->note, "pages=%s ring=%u stride=%u burst=%u window=%u", r->pages, r->entries,
		 r->stride, r->burst, WINDOW);
	side_wait_for_go(shared, SIDE_APP);
	while (!meter.done || sequence != meter.total) {
		bool has_room = !meter.done && sequence - meter.total + r->burst <= WINDOW;
		if (has_room && ((hdp - sdp - 1) & r->mask) < r->burst) {
			hdp = atomic_load_explicit(&control->tx_update, memory_order_acquire);
			has_room = ((hdp - sdp - 1) & r->mask) >= r->burst;
		}
		for (uint32_t i = 0; has_room && i < r->burst; i++) {
			uint32_t address = r->tx_buffers + sdp * r->stride;
			frame_write(r->base + address, frame, size, sequence++, o->fill);
			r->tx_descriptors[sdp] = descriptor(address, size);
			sdp = (sdp + 1) & r->mask;
		}
		if (has_room)
			atomic_store_explicit(&control->tx_doorbell, sdp, memory_order_release);
		uint32_t count = receive_burst(r, &rx);
		if (count) {
			meter_add(&meter, shared, o, count);
			quiet_since = 0;
		} else if (++idle % 65536 == 0) {
			uint64_t now = ticks();
			quiet_since = quiet_since ? quiet_since : now;
			if (side_expired(shared))
				side_fail(shared, SIDE_APP, "no frame comes back");
			if (meter.done && now - quiet_since > ns_to_ticks(LOSS_TIMEOUT_NS))
				break;
		}
	}
	shared->result.sent = sequence;
	shared->result.lost = sequence - meter.total;
	atomic_store(&shared->receiver_done, 1);
}

int main(int argc, char **argv)
{
	static const char *const peers[] = { "bare_ring", NULL }, *const keys[] = { "ring", "stride", "burst", NULL };
	struct options o;
	options_parse(&o, argc, argv, peers,
		      "A shared-memory ring with Medusa's memory traffic and no checks, between two pinned processes.",
		      "  --tune K=N,...   ring = entries (power of two, default 1024), stride = bytes from buffer to buffer\n"
		      "                   (multiple of 64, default 2112), burst = frames per doorbell (default 32)\n");
	options_tune_check(&o, keys);
	struct ring ring = { .entries = options_tune(&o, "ring", 1024),
			     .stride = options_tune(&o, "stride", 2112),
			     .burst = options_tune(&o, "burst", 32) };
	ring.mask = ring.entries - 1;
	if (ring.entries < 128 || ring.entries > 32768 || (ring.entries & ring.mask) || ring.stride < 1536 ||
	    ring.stride > 8192 || ring.stride % 64 || ring.burst < 1 || ring.burst > ring.entries / 2) {
		fprintf(stderr, "bare_ring: --tune: ring must be a power of two from 128 to 32768, stride a multiple of 64 from "
				"1536 to 8192, burst 1 to half the ring\n");
		return EXIT_USAGE;
	}
	clock_calibrate();
	ring_map(&ring, &o);
	for (int i = 0; i < METRIC_COUNT; i++) {
		const struct metric *m = &METRICS[i];
		uint32_t size = o.size ? o.size : m->size;
		struct result result;
		char note[128];
		if (!o.metrics[i] || m->kind == METRIC_QUEUES)
			continue;
		ring_start(&ring, size);
		static const struct { side_fn *card, *app; } sides[] = {
			[METRIC_RTT] = { card_reflect, app_round_trip },
			[METRIC_TX] = { card_receive, app_transmit },
			[METRIC_RX] = { card_generate, app_receive },
			[METRIC_BOTH] = { card_reflect, app_echo },
		};
		int code = measure("bare_ring", m, &o, sides[m->kind].card, sides[m->kind].app, &ring, &result, note);
		if (code)
			return code;
		print_result("bare_ring", m, size, &o, &result, note);
	}
	return 0;
}
