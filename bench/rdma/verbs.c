// One measurement between two processes that use verbs, printed as one line of JSON. Any libibverbs.so.1 will do: the program knows
// nothing of who makes it.
//
//   verbs --op write|read|send --measure latency|bandwidth|rate|register|alone|asleep --size N --seconds S
//         [--cpus A,B] [--first WORDS] [--second WORDS] [--window N] [--card PID]
//
// WORDS are what MILLRACE_VERBS is to be in each of the two. The memory is ordinary memory of the heap. What has arrived is compared
// with what was sent; `wrong` says how many bytes were not the same. `moved` is all that was moved, in bytes, warming up included. With
// the process of a card, `cpu_card` is what that uses meanwhile, in cores.
//
// alone: one process, WRITE from one queue pair to another one of its own, until the last byte is there: for an engine that has a core
// of its own. asleep: GIGABYTE bytes of WRITEs, and the program sleeps until they are done, of which half a
// window is told at once; the value is its share of a core in percent.
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum op { WRITE, READ, SEND };
enum measure { LATENCY, BANDWIDTH, RATE, REGISTER, ALONE, ASLEEP };

struct options {
	enum op op;
	enum measure measure;
	uint64_t size;
	double seconds;
	int cpus[2];
	const char *words[2];
	uint32_t window;
	pid_t card;
};

// What one side tells the other before they begin.
struct end {
	union ibv_gid gid;
	uint64_t address;
	uint32_t qpn, psn, rkey;
	uint32_t mtu;
};

struct shared {
	struct end ends[2];
	atomic_uint told[2], connected[2], stop, checked;
	_Atomic uint64_t moved;
	double value, gbps, p50, p99, cpu[2], cpu_card, memcpy_us, mlock_us, first_us;
	uint64_t count, wrong;
	uint64_t seed;
};

struct side {
	const struct options *o;
	struct shared *shared;
	unsigned me;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint64_t bytes;
	uint32_t inline_max;
	uint64_t posted;
	// When the use of processors began to count, and what it was then.
	double since, cpu, card;
	struct ibv_sge piece;
	struct ibv_send_wr work;
};

_Noreturn static void fail(const struct side *side, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	fprintf(stderr, "verbs, end %u: ", side ? side->me : 0);
	vfprintf(stderr, format, list);
	fprintf(stderr, "%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
	va_end(list);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_used(void)
{
	struct rusage use;
	getrusage(RUSAGE_SELF, &use);
	return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) + (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static double card_used(const struct side *side)
{
	clockid_t clock;
	struct timespec t;
	if (!side->o->card || clock_getcpuclockid(side->o->card, &clock) || clock_gettime(clock, &t))
		return 0;
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void begin_use(struct side *side)
{
	side->since = now(), side->cpu = cpu_used(), side->card = card_used(side);
}

static void end_use(struct side *side)
{
	double took = now() - side->since;
	side->shared->cpu[side->me] = (cpu_used() - side->cpu) / took;
	if (side->me == 0)
		side->shared->cpu_card = (card_used(side) - side->card) / took;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27, x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void fill(uint8_t *to, uint64_t bytes, uint64_t seed)
{
	for (uint64_t at = 0; at < bytes; at += 8) {
		uint64_t word = mix(seed + at);
		memcpy(to + at, &word, bytes - at < 8 ? bytes - at : 8);
	}
}

static uint64_t differences(const uint8_t *from, uint64_t bytes, uint64_t seed)
{
	uint64_t wrong = 0;
	for (uint64_t at = 0; at < bytes; at += 8) {
		uint64_t word = mix(seed + at), n = bytes - at < 8 ? bytes - at : 8;
		if (memcmp(from + at, &word, n))
			for (uint64_t i = 0; i < n; i++)
				wrong += from[at + i] != ((uint8_t *)&word)[i];
	}
	return wrong;
}

// ---------------------------------------------------------------------------------------------------------------
// Getting ready

static void await_flag(const struct side *side, atomic_uint *flag)
{
	double until = now() + 20;
	while (!atomic_load(flag)) {
		if (now() > until)
			fail(side, "the other end does not come");
		usleep(200);
	}
}

static void *heap(const struct side *side, uint64_t bytes)
{
	void *memory = NULL;
	errno = posix_memalign(&memory, 4096, (bytes + 4095) / 4096 * 4096);
	if (errno)
		fail(side, "no memory");
	memset(memory, 0, bytes);
	return memory;
}

static void open_device(struct side *side)
{
	if (side->o->words[side->me])
		setenv("MILLRACE_VERBS", side->o->words[side->me], 1);
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list || !count)
		fail(side, "there is no device");
	side->context = ibv_open_device(list[0]);
	if (!side->context)
		fail(side, "cannot open %s", ibv_get_device_name(list[0]));
	ibv_free_device_list(list);
	side->pd = ibv_alloc_pd(side->context);
	side->channel = ibv_create_comp_channel(side->context);
	side->cq = side->pd && side->channel ? ibv_create_cq(side->context, 8192, NULL, side->channel, 0) : NULL;
	if (!side->cq)
		fail(side, "cannot make a completion queue");
}

static struct ibv_qp *make_pair(struct side *side)
{
	struct ibv_qp_init_attr init = {
		.send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1024, .max_recv_wr = 1024, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(side->pd, &init);
	if (!qp)
		fail(side, "cannot make a queue pair");
	side->inline_max = init.cap.max_inline_data;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
		fail(side, "to INIT");
	return qp;
}

static struct end end_of(const struct side *side, const struct ibv_qp *qp, unsigned which)
{
	struct ibv_port_attr port;
	struct end end = { .qpn = qp->qp_num, .psn = (uint32_t)mix(side->shared->seed + which) & 0xffffff,
		.address = (uintptr_t)side->memory, .rkey = side->mr->rkey };
	if (ibv_query_port(side->context, 1, &port) || ibv_query_gid(side->context, 1, 0, &end.gid))
		fail(side, "cannot ask the port");
	end.mtu = port.active_mtu;
	return end;
}

static void connect_to(struct side *side, struct ibv_qp *qp, const struct end *mine, const struct end *theirs)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = mine->mtu < theirs->mtu ? mine->mtu : theirs->mtu,
		.dest_qp_num = theirs->qpn, .rq_psn = theirs->psn, .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = theirs->gid, .hop_limit = 64 } } };
	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
		fail(side, "to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = mine->psn, .max_rd_atomic = 16 };
	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC)))
		fail(side, "to RTS");
}

static void prepare_work(struct side *side, const struct end *theirs)
{
	static const enum ibv_wr_opcode codes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND };
	side->piece = (struct ibv_sge){ .addr = (uintptr_t)side->memory, .length = (uint32_t)side->o->size, .lkey = side->mr->lkey };
	side->work = (struct ibv_send_wr){ .sg_list = &side->piece, .num_sge = 1, .opcode = codes[side->o->op],
		.wr.rdma = { .remote_addr = theirs->address, .rkey = theirs->rkey } };
	if (side->o->op != READ && side->o->size <= side->inline_max)
		side->work.send_flags |= IBV_SEND_INLINE;
}

static void connect_pair(struct side *side)
{
	struct shared *shared = side->shared;
	struct end *mine = &shared->ends[side->me], *theirs = &shared->ends[!side->me];
	*mine = end_of(side, side->qp, side->me);
	atomic_store(&shared->told[side->me], 1);
	await_flag(side, &shared->told[!side->me]);
	connect_to(side, side->qp, mine, theirs);
	prepare_work(side, theirs);
	atomic_store(&shared->connected[side->me], 1);
	await_flag(side, &shared->connected[!side->me]);
}

// ---------------------------------------------------------------------------------------------------------------
// Work

static void post(struct side *side, bool signaled)
{
	struct ibv_send_wr *bad;
	side->work.send_flags = (side->work.send_flags & ~(unsigned)IBV_SEND_SIGNALED) | (signaled ? IBV_SEND_SIGNALED : 0);
	if ((errno = ibv_post_send(side->qp, &side->work, &bad)))
		fail(side, "ibv_post_send");
	side->posted++;
}

static void post_receive(struct side *side)
{
	struct ibv_sge piece = { .addr = (uintptr_t)side->memory + side->bytes / 2, .length = (uint32_t)side->o->size, .lkey = side->mr->lkey };
	struct ibv_recv_wr work = { .sg_list = &piece, .num_sge = 1 }, *bad;
	if ((errno = ibv_post_recv(side->qp, &work, &bad)))
		fail(side, "ibv_post_recv");
}

// Returns how many completions there were, and by `received` how many of them are of receive requests.
static unsigned poll_queue(struct side *side, unsigned *received)
{
	struct ibv_wc done[32];
	int count = ibv_poll_cq(side->cq, 32, done);
	if (count < 0)
		fail(side, "ibv_poll_cq");
	unsigned of_receives = 0;
	for (int i = 0; i < count; i++) {
		errno = 0;
		if (done[i].status != IBV_WC_SUCCESS)
			fail(side, "completed with %s", ibv_wc_status_str(done[i].status));
		of_receives += (done[i].opcode & IBV_WC_RECV) != 0;
	}
	if (received)
		*received += of_receives;
	return (unsigned)count - of_receives;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

#define SAMPLES (1 << 16)
// Trips between two looks at the clock.
#define TRIPS 16

static void keep_latency(struct side *side, double *samples, unsigned count)
{
	end_use(side);
	errno = 0;
	if (!count)
		fail(side, "no round trip in %g seconds", side->o->seconds);
	qsort(samples, count, sizeof *samples, by_value);
	side->shared->p50 = side->shared->value = samples[count / 2];
	side->shared->p99 = samples[count * 99ull / 100];
	side->shared->count = (uint64_t)count * TRIPS;
}

// Both write the last byte of the other's memory in turn.
static void await_byte(struct side *side, volatile uint8_t *byte, uint8_t value, unsigned *open)
{
	// A program that waits for a byte looks at that byte, and at its completions when there may be one.
	for (unsigned spin = 1; *byte != value; spin++)
		if (spin % (*open ? 16 : 1024) == 0) {
			*open -= poll_queue(side, NULL);
			if (spin % 4096 == 0 && atomic_load(&side->shared->stop))
				return;
		}
}

static void ping(struct side *side, volatile uint8_t *in, uint8_t *out, uint8_t value, unsigned *open, unsigned *since)
{
	*out = value;
	bool signaled = ++*since % 64 == 0;
	post(side, signaled);
	*open += signaled;
	while (*open > 8)
		*open -= poll_queue(side, NULL);
	(void)in;
}

static void write_latency(struct side *side)
{
	const uint64_t size = side->o->size;
	// What is written lies in the first half, what the other end writes in the second.
	volatile uint8_t *in = side->memory + side->bytes / 2 + size - 1;
	uint8_t *out = side->memory + size - 1;
	unsigned open = 0, since = 0, count = 0;
	uint8_t value = 0;
	if (side->me == 1) {
		while (!atomic_load(&side->shared->stop)) {
			await_byte(side, in, ++value, &open);
			ping(side, in, out, value, &open, &since);
		}
		return;
	}
	double *samples = calloc(SAMPLES, sizeof *samples), warm = now() + side->o->seconds / 4, end = warm + side->o->seconds;
	while (now() < end && count < SAMPLES) {
		double begin = now();
		if (!side->since && begin > warm)
			begin_use(side);
		for (unsigned i = 0; i < TRIPS; i++) {
			ping(side, in, out, ++value, &open, &since);
			await_byte(side, in, value, &open);
		}
		if (begin > warm)
			samples[count++] = (now() - begin) / TRIPS / 2 * 1e9;
	}
	keep_latency(side, samples, count);
}

static void read_latency(struct side *side)
{
	if (side->me == 1)
		return;
	double *samples = calloc(SAMPLES, sizeof *samples), warm = now() + side->o->seconds / 4, end = warm + side->o->seconds;
	unsigned count = 0;
	while (now() < end && count < SAMPLES) {
		double begin = now();
		if (!side->since && begin > warm)
			begin_use(side);
		for (unsigned i = 0; i < TRIPS; i++) {
			post(side, true);
			while (!poll_queue(side, NULL))
				;
		}
		if (begin > warm)
			samples[count++] = (now() - begin) / TRIPS * 1e9;
	}
	keep_latency(side, samples, count);
}

static void send_latency(struct side *side)
{
	unsigned open = 0, since = 0, received = 0, count = 0;
	for (unsigned i = 0; i < 64; i++)
		post_receive(side);
	atomic_fetch_add(&side->shared->checked, 1);
	while (atomic_load(&side->shared->checked) < 2)
		usleep(100);
	double *samples = calloc(SAMPLES, sizeof *samples), warm = now() + side->o->seconds / 4, end = warm + side->o->seconds;
	while (side->me == 1 || (now() < end && count < SAMPLES)) {
		double begin = now();
		if (!side->since && begin > warm)
			begin_use(side);
		for (unsigned i = 0; i < TRIPS; i++) {
			if (side->me == 0)
				ping(side, NULL, side->memory, 1, &open, &since);
			for (unsigned spin = 1; !received; spin++) {
				open -= poll_queue(side, &received);
				if (spin % 1024 == 0 && atomic_load(&side->shared->stop))
					return;
			}
			received--;
			post_receive(side);
			if (side->me == 1)
				ping(side, NULL, side->memory, 1, &open, &since);
		}
		if (begin > warm && side->me == 0)
			samples[count++] = (now() - begin) / TRIPS / 2 * 1e9;
	}
	keep_latency(side, samples, count);
}

// As many as the window allows on their way; the last of a batch is signaled.
static void flood(struct side *side)
{
	const uint32_t window = side->o->window, batch = window >= 32 ? window / 4 : 1;
	uint32_t open = 0;
	uint64_t done = 0, counted_from = 0;
	double begin = now(), end = 0;
	while (!end || now() < end) {
		// The clock is read once in a round, which for short requests is hundreds of them.
		for (unsigned round = 0; round < (side->o->size < 4096 ? 64u : 1u); round++) {
			while (open + batch <= window) {
				for (uint32_t i = 1; i <= batch; i++)
					post(side, i == batch);
				open += batch;
			}
			unsigned count = poll_queue(side, NULL) * batch;
			open -= count, done += count;
		}
		if (!end && now() > begin + side->o->seconds / 4 && done) {
			counted_from = done, begin = now(), end = begin + side->o->seconds;
			begin_use(side);
		}
	}
	double took = now() - begin;
	end_use(side);
	side->shared->count = done - counted_from;
	double per_second = (double)side->shared->count / took;
	side->shared->value = side->o->measure == RATE ? per_second / 1e6 : per_second * (double)side->o->size / 1e9;
	while (open)
		open -= poll_queue(side, NULL) * batch;
}

static void receive_flood(struct side *side)
{
	unsigned received = 0;
	while (!atomic_load(&side->shared->stop))
		for (unsigned i = 0; i < 64; i++) {
			poll_queue(side, &received);
			for (; received; received--)
				post_receive(side);
		}
}

static void bandwidth(struct side *side)
{
	if (side->o->op == SEND && side->me == 1)
		for (unsigned i = 0; i < 512; i++)
			post_receive(side);
	uint64_t half = side->bytes / 2, seed = side->shared->seed;
	// The end that bytes come from: of a READ it is the other one.
	unsigned source = side->o->op == READ;
	if (side->me == source)
		fill(side->memory, side->o->size, seed);
	atomic_fetch_add(&side->shared->checked, 1);
	while (atomic_load(&side->shared->checked) < 2)
		usleep(100);
	if (side->me == 0)
		flood(side);
	else
		receive_flood(side);
	if (side->me == 0)
		atomic_store(&side->shared->stop, 1);
	if (side->me != source)
		side->shared->wrong = differences(side->memory + (side->o->op == READ ? 0 : half), side->o->size, seed);
}

// Of one mebibyte, say: registered for the first time, and again right after; a copy and mlock() beside them.
static void registering(struct side *side)
{
	const uint64_t size = side->o->size;
	if (side->me == 1)
		return;
	enum { ROUNDS = 200 };
	double first[ROUNDS], again[ROUNDS], copies[ROUNDS], locks[ROUNDS];
	uint8_t *copy = heap(side, size);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	for (unsigned round = 0; round < ROUNDS; round++) {
		// Mapped anew, so that nobody has ever seen these addresses.
		uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			fail(side, "mmap");
		memset(memory, 1, size);
		for (unsigned i = 0; i < 2; i++) {
			double begin = now();
			struct ibv_mr *mr = ibv_reg_mr(side->pd, memory, size, access);
			*(i ? &again[round] : &first[round]) = (now() - begin) * 1e6;
			if (!mr || ibv_dereg_mr(mr))
				fail(side, "cannot register");
		}
		double begin = now();
		memcpy(copy, memory, size);
		copies[round] = (now() - begin) * 1e6;
		begin = now();
		errno = 0;
		locks[round] = mlock(memory, size) ? 0 : (now() - begin) * 1e6;
		munmap(memory, size);
	}
	double *all[] = { first, again, copies, locks };
	for (unsigned i = 0; i < 4; i++)
		qsort(all[i], ROUNDS, sizeof(double), by_value);
	struct shared *shared = side->shared;
	shared->first_us = first[ROUNDS / 2], shared->value = again[ROUNDS / 2];
	shared->memcpy_us = copies[ROUNDS / 2], shared->mlock_us = locks[ROUNDS / 2], shared->count = ROUNDS;
}

// A word from the program to whoever moves it, and back into its own memory.
static void alone(struct side *side)
{
	if (side->me == 1)
		return;
	struct ibv_qp *other = make_pair(side);
	struct end mine = end_of(side, side->qp, 0), theirs = end_of(side, other, 1);
	connect_to(side, side->qp, &mine, &theirs);
	connect_to(side, other, &theirs, &mine);
	prepare_work(side, &theirs);
	side->work.wr.rdma.remote_addr += side->bytes / 2;
	volatile uint8_t *in = side->memory + side->bytes / 2 + side->o->size - 1;
	uint8_t *out = side->memory + side->o->size - 1, value = 0;
	unsigned open = 0, since = 0, count = 0;
	double *samples = calloc(SAMPLES, sizeof *samples), warm = now() + side->o->seconds / 4, end = warm + side->o->seconds;
	while (now() < end && count < SAMPLES) {
		double begin = now();
		if (!side->since && begin > warm)
			begin_use(side);
		for (unsigned i = 0; i < TRIPS; i++) {
			ping(side, in, out, ++value, &open, &since);
			// Nothing has to be moved on from here.
			for (unsigned spin = 1; *in != value; spin++)
				if (spin % 4096 == 0)
					open -= poll_queue(side, NULL);
		}
		if (begin > warm)
			samples[count++] = (now() - begin) / TRIPS * 1e9;
	}
	keep_latency(side, samples, count);
	while (open)
		open -= poll_queue(side, NULL);
	ibv_destroy_qp(other);
}

#define GIGABYTE (1ull << 30)

// As much as the window allows on its way; then the program sleeps until something is done.
static void asleep(struct side *side)
{
	uint64_t half = side->bytes / 2, seed = side->shared->seed, left = GIGABYTE / side->o->size, warm = left / 8;
	// The last of a batch is signaled.
	const uint32_t batch = side->o->window >= 4 ? side->o->window / 2 : 1;
	uint32_t open = 0;
	left -= left % batch, warm -= warm % batch;
	if (side->me == 0)
		fill(side->memory, side->o->size, seed);
	const uint64_t counted = left;
	for (left += warm; side->me == 0 && left + open;) {
		if (!side->since && left <= counted)
			begin_use(side);
		for (; left && open < side->o->window; left--)
			post(side, ++open % batch == 0);
		struct ibv_cq *cq;
		void *context;
		if (ibv_req_notify_cq(side->cq, 0))
			fail(side, "ibv_req_notify_cq");
		unsigned done = poll_queue(side, NULL) * batch;
		open -= done;
		if (done || !open)
			continue;
		if (ibv_get_cq_event(side->channel, &cq, &context))
			fail(side, "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
	}
	if (side->me == 0) {
		end_use(side);
		side->shared->value = side->shared->cpu[0] * 100;
		side->shared->gbps = (double)(counted * side->o->size) / (now() - side->since) / 1e9;
		atomic_store(&side->shared->stop, 1);
		return;
	}
	while (!atomic_load(&side->shared->stop))
		usleep(1000);
	side->shared->wrong = differences(side->memory + half, side->o->size, seed);
}

static void be_side(const struct options *o, struct shared *shared, unsigned me)
{
	struct side side = { .o = o, .shared = shared, .me = me };
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	if (o->cpus[me] >= 0) {
		CPU_SET(o->cpus[me], &cpus);
		sched_setaffinity(0, sizeof cpus, &cpus);
	}
	open_device(&side);
	if (o->measure == REGISTER) {
		registering(&side);
		exit(0);
	}
	// What is sent lies in the first half, what comes in the second. The other end reaches all of it.
	uint64_t half = (o->size + 4095) / 4096 * 4096;
	side.bytes = 2 * half;
	side.memory = heap(&side, side.bytes);
	side.mr = ibv_reg_mr(side.pd, side.memory, side.bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (!side.mr)
		fail(&side, "cannot register memory");
	side.qp = make_pair(&side);
	if (o->measure != ALONE)
		connect_pair(&side);
	if (o->op == WRITE)
		side.work.wr.rdma.remote_addr += half;
	if (me == 1)
		begin_use(&side);
	if (o->measure == ALONE)
		alone(&side);
	else if (o->measure == ASLEEP)
		asleep(&side);
	else if (o->measure != LATENCY)
		bandwidth(&side);
	else if (o->op == WRITE)
		write_latency(&side);
	else if (o->op == READ)
		read_latency(&side);
	else
		send_latency(&side);
	if (me == 0)
		atomic_store(&shared->stop, 1);
	else
		end_use(&side);
	atomic_fetch_add(&shared->moved, side.posted * o->size);
	// The protocol may still need this end.
	while (!atomic_load(&shared->stop))
		if (o->measure == ALONE)
			usleep(1000);
		else
			poll_queue(&side, NULL);
	atomic_fetch_add(&shared->checked, 1);
	double until = now() + 1;
	while (atomic_load(&shared->checked) % 2 && now() < until)
		poll_queue(&side, NULL);
	ibv_destroy_qp(side.qp);
	ibv_dereg_mr(side.mr);
	ibv_destroy_cq(side.cq);
	ibv_destroy_comp_channel(side.channel);
	ibv_dealloc_pd(side.pd);
	ibv_close_device(side.context);
	exit(0);
}

// ---------------------------------------------------------------------------------------------------------------
// The command line

_Noreturn static void usage(const char *what)
{
	fprintf(stderr, "verbs: %s\nverbs --op write|read|send --measure latency|bandwidth|rate|register|alone|asleep --size N --seconds S [--cpus A,B] [--first WORDS] [--second WORDS] [--window N] [--card PID]\n", what);
	exit(2);
}

static int one_of(const char *word, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (!strcmp(word, words[i]))
			return i;
	usage(word);
}

static const char *const OPS[] = { "write", "read", "send", NULL };
static const char *const MEASURES[] = { "latency", "bandwidth", "rate", "register", "alone", "asleep", NULL };

static struct options parse(int argc, char **argv)
{
	struct options o = { .size = 8, .seconds = 0.5, .cpus = { -1, -1 } };
	for (int i = 1; i + 1 < argc; i += 2) {
		const char *key = argv[i], *value = argv[i + 1];
		if (!strcmp(key, "--op"))
			o.op = (enum op)one_of(value, OPS);
		else if (!strcmp(key, "--measure"))
			o.measure = (enum measure)one_of(value, MEASURES);
		else if (!strcmp(key, "--size"))
			o.size = strtoull(value, NULL, 10);
		else if (!strcmp(key, "--seconds"))
			o.seconds = atof(value);
		else if (!strcmp(key, "--window"))
			o.window = (uint32_t)atoi(value);
		else if (!strcmp(key, "--card"))
			o.card = atoi(value);
		else if (!strcmp(key, "--cpus"))
			sscanf(value, "%d,%d", &o.cpus[0], &o.cpus[1]);
		else if (!strcmp(key, "--first"))
			o.words[0] = value;
		else if (!strcmp(key, "--second"))
			o.words[1] = value;
		else
			usage(key);
	}
	if (argc % 2 == 0 || !o.size || o.size > 1u << 30 || o.seconds <= 0 || o.seconds > 100 || o.window > 512)
		usage("a number is missing or out of range");
	if ((o.measure == ALONE || o.measure == ASLEEP) && (o.op != WRITE || o.size > GIGABYTE / 8))
		usage("alone and asleep are of WRITEs of up to 128 MiB");
	if (!o.window && o.measure == ASLEEP)
		o.window = 64;
	if (!o.window)
		o.window = o.size >= 1u << 26 ? 2 : o.size >= 1u << 18 ? 8 : o.size >= 4096 ? 32 : 256;
	return o;
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv);
	struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail(NULL, "no shared memory");
	shared->seed = mix((uint64_t)getpid() + (uint64_t)time(NULL));
	pid_t ends[2];
	for (unsigned me = 0; me < 2; me++) {
		ends[me] = fork();
		if (ends[me] < 0)
			fail(NULL, "fork");
		if (!ends[me])
			be_side(&o, shared, me);
	}
	int worst = 0;
	for (int left = 2; left > 0; left--) {
		int status = 0;
		pid_t pid = wait(&status);
		if (pid < 0)
			break;
		if (status && !worst) {
			worst = 1;
			kill(ends[pid == ends[0]], SIGTERM);
		}
	}
	if (worst)
		return 1;
	printf("{\"op\":\"%s\",\"measure\":\"%s\",\"size\":%llu,\"value\":%.4f,\"gbps\":%.3f,\"p50_ns\":%.1f,\"p99_ns\":%.1f,\"cpu_first\":%.3f,\"cpu_second\":%.3f,\"cpu_card\":%.3f,\"moved\":%llu,"
	       "\"count\":%llu,\"wrong\":%llu,\"first_us\":%.2f,\"memcpy_us\":%.2f,\"mlock_us\":%.2f}\n",
	       OPS[o.op], MEASURES[o.measure], (unsigned long long)o.size, shared->value, shared->gbps, shared->p50, shared->p99, shared->cpu[0], shared->cpu[1], shared->cpu_card,
	       (unsigned long long)shared->moved,
	       (unsigned long long)shared->count, (unsigned long long)shared->wrong, shared->first_us, shared->memcpy_us, shared->mlock_us);
	return shared->wrong != 0;
}
