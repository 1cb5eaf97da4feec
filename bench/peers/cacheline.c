// Bare cache-line ping-pong: the floor under every round trip between two cores.
//
// lines=1: both sides write one line in turn. lines=2: each side writes its own line and polls the other's, which is
// what a doorbell and an update word do.
#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct lines {
	alignas(CACHE_LINE) _Atomic uint64_t to_card;
	// Two lines apart: the adjacent-line prefetcher moves lines in pairs.
	alignas(4 * CACHE_LINE) _Atomic uint64_t to_app;
};

struct context {
	struct lines *lines;
	bool one;
};

static void card(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)o, (void)m;
	const struct context *c = context;
	_Atomic uint64_t *in = &c->lines->to_card, *out = c->one ? in : &c->lines->to_app;
	side_wait_for_go(shared, SIDE_CARD);
	for (uint64_t expected = 1;; expected += 2) {
		for (uint32_t spin = 1; atomic_load_explicit(in, memory_order_acquire) != expected; spin++)
			if (spin % 1024 == 0 && (atomic_load_explicit(&shared->stop, memory_order_relaxed) || side_expired(shared)))
				return;
		atomic_store_explicit(out, expected + 1, memory_order_release);
	}
}

static void app(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)m;
	const struct context *c = context;
	_Atomic uint64_t *out = &c->lines->to_card, *in = c->one ? out : &c->lines->to_app;
	struct histogram *h = histogram_new();
	if (!h)
		side_fail(shared, SIDE_APP, "no memory for the histogram");
	side_wait_for_go(shared, SIDE_APP);
	uint64_t warm_up_end = ticks() + ns_to_ticks(0.1e9);
	uint64_t end = warm_up_end + ns_to_ticks(o->seconds * 1e9);
	bool warm = false;
	for (uint64_t value = 1; !warm || h->count < o->count; value += 2) {
		if (!warm && ticks() >= warm_up_end) {
			warm = true;
			histogram_reset(h);
		}
		uint64_t t0 = ticks();
		if (t0 >= end)
			break;
		atomic_store_explicit(out, value, memory_order_release);
		while (atomic_load_explicit(in, memory_order_acquire) != value + 1)
			if (side_expired(shared))
				side_fail(shared, SIDE_APP, "no answer from the card process");
		histogram_add(h, ticks_after_loads() - t0);
	}
	atomic_store(&shared->stop, 1);
	result_from_histogram(&shared->result, h);
	snprintf(shared->note, sizeof shared->note, "lines=%d", c->one ? 1 : 2);
}

int main(int argc, char **argv)
{
	static const char *const peers[] = { "cacheline", NULL }, *const keys[] = { "lines", NULL };
	struct options o;
	options_parse(&o, argc, argv, peers,
		      "Round trip of a cache line between two pinned processes (only rtt_p50; other metrics are passed over).",
		      "  --tune lines=N   1 = both write the same line, 2 = one line each way (default 1)\n");
	options_tune_check(&o, keys);
	clock_calibrate();

	struct lines *lines = mmap(NULL, sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (lines == MAP_FAILED) {
		fprintf(stderr, "cacheline: cannot map shared memory: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	struct context context = { lines, options_tune(&o, "lines", 1) == 1 };
	for (int i = 0; i < METRIC_COUNT; i++) {
		struct result result;
		char note[128];
		if (!o.metrics[i] || METRICS[i].kind != METRIC_RTT)
			continue;
		int code = measure("cacheline", &METRICS[i], &o, card, app, &context, &result, note);
		if (code)
			return code;
		print_result("cacheline", &METRICS[i], CACHE_LINE, &o, &result, note);
	}
	return 0;
}
