// What the peer programs share: options, pinned child processes, the clock, the histogram, the JSON line.
//
// Every program is a parent that forks one process per side ("application" and "card"), each pinned to its own core.
// The two sides and the parent meet in `struct shared`, an anonymous shared mapping outside the memory that is
// measured. The parent sleeps while a measurement runs: it must not steal time from the two cores.
#ifndef MILLRACE_PEERS_COMMON_H
#define MILLRACE_PEERS_COMMON_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <time.h>
#endif

enum {
	EXIT_FAILED = 1,       // a measurement failed; standard error says which step
	EXIT_USAGE = 2,        // the command line is wrong
	EXIT_UNAVAILABLE = 77, // a package is missing (the usual "skipped" code of test harnesses)
	EXIT_TIME_LIMIT = 124, // as timeout(1)
	EXIT_INTERRUPTED = 130,
};

#define CACHE_LINE 64
#define MIN_FRAME 60
#define MAX_FRAME 1518
// A packet that is not back by then counts as lost. Long, because a core that is taken away by other load is not a loss.
#define LOSS_TIMEOUT_NS 100000000ull

// ---------------------------------------------------------------------------------------------------------------
// Clock

#if defined(__x86_64__)
static inline uint64_t ticks(void) { return __rdtsc(); }
// Does not run before the loads in front of it: for the end of a measured interval.
static inline uint64_t ticks_after_loads(void)
{
	unsigned int core;
	return __rdtscp(&core);
}
#else
static inline uint64_t ticks(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static inline uint64_t ticks_after_loads(void) { return ticks(); }
#endif

// Ticks per nanosecond, measured against CLOCK_MONOTONIC over 20 ms. Call once, in the parent, before forking.
void clock_calibrate(void);
double ticks_to_ns(uint64_t interval);
uint64_t ns_to_ticks(double ns);

// ---------------------------------------------------------------------------------------------------------------
// Round-trip samples: one bin per tick up to 128 Ki ticks (about 50 us), the tail is kept as count and maximum.

#define HISTOGRAM_BINS (128 * 1024)

struct histogram {
	uint64_t count, sum, min, max;
	uint32_t bins[HISTOGRAM_BINS];
};

static inline void histogram_add(struct histogram *h, uint64_t interval)
{
	h->count++;
	h->sum += interval;
	if (interval < h->min)
		h->min = interval;
	if (interval > h->max)
		h->max = interval;
	if (interval < HISTOGRAM_BINS)
		h->bins[interval]++;
}

void histogram_reset(struct histogram *h);
struct histogram *histogram_new(void);

// ---------------------------------------------------------------------------------------------------------------
// Options

// RTT: one frame in flight. TX: application to card. RX: card to application. BOTH: out and back, many in flight.
// QUEUES: the same on many rings.
enum metric_kind { METRIC_RTT, METRIC_TX, METRIC_RX, METRIC_BOTH, METRIC_QUEUES };

struct metric {
	const char *name; // rtt_p50, tx_mpps_64, ...
	enum metric_kind kind;
	uint32_t size; // frame bytes without FCS
	const char *unit;
};

enum { METRIC_COUNT = 8 };
extern const struct metric METRICS[METRIC_COUNT];

// Most frames of a `both` measurement on their way at once, as in `millrace bench throughput`.
#define WINDOW 512u

// How much of each frame the sender writes, other than in a round trip.
enum fill { FILL_NONE, FILL_SEQ, FILL_ALL };

struct options {
	int cpu_app, cpu_card;
	double seconds;      // of measurement, without set-up and warm-up
	double limit;        // hard limit of one measurement, everything included
	uint64_t count;      // round trips; --seconds ends earlier
	uint32_t size;       // 0 = the metric's own
	bool metrics[METRIC_COUNT];
	const char *peers;   // --peer LIST as given, or NULL
	enum fill fill;
	bool huge;           // may use (and as root reserve) 2 MiB pages
	const char *tune;    // --tune KEY=VALUE,... or NULL
	const char *role;    // dpdk_peer only
	const char *socket;  // dpdk_peer only
};

// Parses the command line. `peers` is the NULL-terminated list of names that this program measures, `extra` is added to
// --help. Ends the program on --help and on errors.
void options_parse(struct options *o, int argc, char **argv, const char *const *peers, const char *about,
		   const char *extra);
bool options_want_peer(const struct options *o, const char *peer);
// The number behind KEY in --tune, or `otherwise`.
uint32_t options_tune(const struct options *o, const char *key, uint32_t otherwise);
// Exits with EXIT_USAGE when --tune holds a key that is not in the NULL-terminated list.
void options_tune_check(const struct options *o, const char *const *keys);

// ---------------------------------------------------------------------------------------------------------------
// A measurement: two processes and what they report

struct result {
	uint64_t count, lost, corrupt;
	double p50_ns, p99_ns, p999_ns, min_ns, max_ns, mean_ns; // round trips
	double seconds, pps;                                      // one direction
	uint64_t sent;
};

// Steps of getting ready. READY_FOR_PEER: the application may be started. READY: set up and connected. Frames may flow
// only when both sides are READY: virtio, for one, throws away at its start what has arrived before.
enum { READY_FOR_PEER = 1, READY = 2 };

struct shared {
	// Written by a side, one of the above (parent reads).
	alignas(CACHE_LINE) atomic_uint card_ready;
	atomic_uint app_ready;
	// Written by the parent once (both sides read).
	alignas(CACHE_LINE) atomic_uint go;
	// Written by the side that measures, when it has its numbers (the other side reads while it works; the line
	// stays shared in both caches until then).
	alignas(CACHE_LINE) atomic_uint stop;
	// Written by the sender after its last packet (the receiver reads).
	alignas(CACHE_LINE) atomic_uint sender_done;
	// Written by the receiver when it has drained the ring (the sender reads, and keeps the ring until then).
	alignas(CACHE_LINE) atomic_uint receiver_done;
	alignas(CACHE_LINE) uint64_t deadline; // ticks; written by the parent before it forks
	uint64_t sent;
	struct result result;
	char note[128]; // how the measurement was done, printed as "note"
	char error[2][256];
};

enum side { SIDE_CARD, SIDE_APP };

typedef void side_fn(struct shared *shared, const struct options *o, const struct metric *m, void *context);

// Forks card and application, waits for both, enforces --limit. Returns 0 or an exit code; the reason is on standard
// error. `card` is started first and the application only when the card has said that it is ready. Either may be NULL:
// then somebody else runs it.
int measure(const char *peer, const struct metric *m, const struct options *o, side_fn *card, side_fn *app,
	    void *context, struct result *result, char note[128]);

// For the sides.
struct shared *shared_new(const struct options *o);
void side_pin(int cpu);
_Noreturn void side_fail(struct shared *shared, enum side side, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void side_wait_for_go(struct shared *shared, enum side side);
static inline bool side_expired(const struct shared *shared) { return ticks() > shared->deadline; }
void result_from_histogram(struct result *r, const struct histogram *h);

// One load per cache line: the cheapest way to have fetched a frame.
static inline void frame_fetch(const void *frame, uint32_t size)
{
	const volatile uint8_t *data = frame;
	for (uint32_t i = 0; i < size; i += CACHE_LINE)
		(void)data[i];
}

// Writes as much of the next frame as --fill says.
static inline void frame_write(void *to, const uint8_t *pattern, uint32_t size, uint64_t sequence, enum fill fill)
{
	if (fill == FILL_ALL)
		__builtin_memcpy(to, pattern, size);
	if (fill != FILL_NONE)
		__builtin_memcpy(to, &sequence, sizeof sequence);
}

// Counts what arrives: after a warm-up, for --seconds from the first frame on.
struct meter {
	uint64_t total, counted_from, begin, warm_up_end, end;
	bool done;
};

// After each burst. Whoever measures tells the others to stop when it returns true, which it does once.
static inline bool meter_add(struct meter *meter, struct shared *shared, const struct options *o, uint32_t frames)
{
	uint64_t now = ticks();
	meter->total += frames;
	if (meter->done || !meter->total)
		return false;
	if (!meter->warm_up_end) { // the clock starts with the first frame
		meter->warm_up_end = now + ns_to_ticks(0.2e9);
		meter->end = meter->warm_up_end + ns_to_ticks(o->seconds * 1e9);
	}
	if (!meter->begin) {
		if (now >= meter->warm_up_end) {
			meter->begin = now;
			meter->counted_from = meter->total;
		}
		return false;
	}
	if (now < meter->end)
		return false;
	meter->done = true;
	shared->result.count = meter->total - meter->counted_from;
	shared->result.seconds = ticks_to_ns(now - meter->begin) / 1e9;
	shared->result.pps = (double)shared->result.count / shared->result.seconds;
	atomic_store(&shared->stop, 1);
	return true;
}

// Frames: the pattern that every byte but the leading sequence number is checked against.
void frame_fill(uint8_t *frame, uint32_t size);

void print_result(const char *peer, const struct metric *m, uint32_t size, const struct options *o,
		  const struct result *r, const char *note);

// ---------------------------------------------------------------------------------------------------------------
// Huge pages, clean-up

// Makes at least `pages` free 2 MiB pages available, as far as rights allow. Returns how many are free now. The number
// of reserved pages is put back at exit.
unsigned huge_reserve(unsigned pages);
void on_exit_remove_directory(const char *path); // at most four, with the plain files in them

#endif
