#define _GNU_SOURCE
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------------------------------
// Clock

static double ticks_per_ns = 1.0;

static uint64_t monotonic_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void clock_calibrate(void)
{
	uint64_t t0 = ticks(), n0 = monotonic_ns(), n1;
	do
		n1 = monotonic_ns();
	while (n1 - n0 < 20000000);
	ticks_per_ns = (double)(ticks() - t0) / (double)(n1 - n0);
}

double ticks_to_ns(uint64_t interval) { return (double)interval / ticks_per_ns; }
uint64_t ns_to_ticks(double ns) { return (uint64_t)(ns * ticks_per_ns); }

static void sleep_ns(long ns)
{
	struct timespec t = { .tv_sec = 0, .tv_nsec = ns };
	nanosleep(&t, NULL);
}

// ---------------------------------------------------------------------------------------------------------------
// Histogram

void histogram_reset(struct histogram *h)
{
	memset(h, 0, sizeof *h); // also touches every page before the clock runs
	h->min = UINT64_MAX;
}

struct histogram *histogram_new(void)
{
	struct histogram *h = malloc(sizeof *h);
	if (h)
		histogram_reset(h);
	return h;
}

static double histogram_percentile(const struct histogram *h, double share)
{
	uint64_t rank = (uint64_t)(share * (double)h->count), seen = 0;
	for (uint64_t i = 0; i < HISTOGRAM_BINS; i++) {
		seen += h->bins[i];
		if (seen > rank)
			return ticks_to_ns(i);
	}
	return ticks_to_ns(h->max); // in the tail beyond the bins, of which only the maximum is known
}

void result_from_histogram(struct result *r, const struct histogram *h)
{
	r->count = h->count;
	if (!h->count)
		return;
	r->p50_ns = histogram_percentile(h, 0.50);
	r->p99_ns = histogram_percentile(h, 0.99);
	r->p999_ns = histogram_percentile(h, 0.999);
	r->min_ns = ticks_to_ns(h->min);
	r->max_ns = ticks_to_ns(h->max);
	r->mean_ns = ticks_to_ns(h->sum) / (double)h->count;
}

// ---------------------------------------------------------------------------------------------------------------
// Options

const struct metric METRICS[METRIC_COUNT] = {
	{ "rtt_p50", METRIC_RTT, 64, "ns" },
	{ "tx_mpps_64", METRIC_TX, 64, "Mpps" },
	{ "tx_gbps_1518", METRIC_TX, 1518, "Gbps" },
	{ "rx_mpps_64", METRIC_RX, 64, "Mpps" },
	{ "rx_gbps_1518", METRIC_RX, 1518, "Gbps" },
	{ "both_mpps_64", METRIC_BOTH, 64, "Mpps" },
	{ "both_gbps_1518", METRIC_BOTH, 1518, "Gbps" },
	{ "queues_1000", METRIC_QUEUES, 64, "Mpps" },
};

_Noreturn static void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn static void usage_error(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, args);
	fprintf(stderr, "\nTry '%s --help'.\n", program_invocation_short_name);
	va_end(args);
	exit(EXIT_USAGE);
}

static bool list_contains(const char *list, const char *name)
{
	size_t length = strlen(name);
	for (const char *item = list; item; item = strchr(item, ',')) {
		if (*item == ',')
			item++;
		if (!strncmp(item, name, length) && (item[length] == ',' || item[length] == '\0'))
			return true;
	}
	return false;
}

// Every item of `list` must be in `names`, so that a typing error does not silently measure nothing.
static void list_check(const char *option, const char *list, const char *const *names)
{
	char copy[256], *rest = copy, *item;
	snprintf(copy, sizeof copy, "%s", list);
	while ((item = strsep(&rest, ","))) {
		const char *const *name = names;
		while (*name && strcmp(*name, item))
			name++;
		if (*name)
			continue;
		char known[256] = "";
		for (name = names; *name; name++)
			snprintf(known + strlen(known), sizeof known - strlen(known), " %s", *name);
		usage_error("%s: '%s' is not known here; known:%s", option, item, known);
	}
}

static double parse_number(const char *option, const char *text, double low, double high)
{
	char *end;
	errno = 0;
	double value = strtod(text, &end);
	if (errno || end == text || *end || !(value >= low && value <= high))
		usage_error("%s: '%s' is not a number from %g to %g", option, text, low, high);
	return value;
}

static void default_cpus(struct options *o)
{
	cpu_set_t set;
	int found = 0, cpus[2] = { -1, -1 };
	if (sched_getaffinity(0, sizeof set, &set))
		usage_error("cannot read the CPU affinity: %s; give --cpus A,B", strerror(errno));
	for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
		if (CPU_ISSET(i, &set))
			cpus[found++] = i;
	if (found < 2)
		usage_error("needs two CPUs, this process may use %d; both sides spin, so one is not enough", found);
	o->cpu_app = cpus[0];
	o->cpu_card = cpus[1];
}

static void parse_cpus(struct options *o, const char *text)
{
	char rest;
	if (sscanf(text, "%d,%d%c", &o->cpu_app, &o->cpu_card, &rest) != 2)
		usage_error("--cpus: '%s' is not APPLICATION,CARD such as 0,1", text);
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		for (int i = 0; i < 2; i++) {
			int cpu = i ? o->cpu_card : o->cpu_app;
			if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &set))
				usage_error("--cpus: CPU %d is not one of those this process may use (see nproc, taskset)", cpu);
		}
	if (o->cpu_app == o->cpu_card)
		usage_error("--cpus: both sides spin, so they need two different CPUs");
}

static void print_help(const char *const *peers, const char *about, const char *extra)
{
	printf("Usage: %s [OPTION]...\n%s\n\n"
	       "Each measurement prints one JSON object on one line of standard output.\n\n"
	       "  --cpus A,B       pin the application to CPU A and the card to CPU B (default: the first two)\n"
	       "  --seconds S      length of one measurement, 0.05 to 60 (default 1)\n"
	       "  --count N        round trips of rtt_p50 (default 1000000; --seconds ends it earlier)\n"
	       "  --limit S        hard limit of one measurement, set-up included (default: seconds + 10)\n"
	       "  --metric LIST    of rtt_p50,{tx,rx,both}_mpps_64,{tx,rx,both}_gbps_1518,queues_1000 (default: all that\n"
	       "                   this program has)\n"
	       "  --peer LIST      of",
	       program_invocation_short_name, about);
	for (const char *const *peer = peers; *peer; peer++)
		printf("%s%s", peer == peers ? " " : ",", *peer);
	printf(" (default: all)\n"
	       "  --size N         frame bytes instead of the metric's own, %d to %d\n"
	       "  --fill WHAT      what a sender writes into each frame, but of rtt_p50: all = the whole frame\n"
	       "                   (default), seq = an 8-byte sequence number, none = nothing\n"
	       "  --no-huge        use 4 KiB pages only; otherwise 2 MiB pages are used, and reserved for the time of\n"
	       "                   the run when there are too few and this is root\n"
	       "%s"
	       "  --help           this text\n\n"
	       "Exit: 0 measured, 1 failed, 2 wrong usage, 77 a package is missing, 124 time limit, 130 interrupted.\n",
	       MIN_FRAME, MAX_FRAME, extra);
}

void options_parse(struct options *o, int argc, char **argv, const char *const *peers, const char *about,
		   const char *extra)
{
	static const struct option longopts[] = {
		{ "cpus", required_argument, NULL, 'c' },   { "seconds", required_argument, NULL, 's' },
		{ "count", required_argument, NULL, 'n' },  { "limit", required_argument, NULL, 'l' },
		{ "metric", required_argument, NULL, 'm' }, { "peer", required_argument, NULL, 'p' },
		{ "size", required_argument, NULL, 'z' },   { "fill", required_argument, NULL, 'f' },
		{ "no-huge", no_argument, NULL, 'H' },      { "tune", required_argument, NULL, 't' },
		{ "role", required_argument, NULL, 'r' },   { "socket", required_argument, NULL, 'u' },
		{ "help", no_argument, NULL, 'h' },         { NULL, 0, NULL, 0 },
	};
	const char *metrics = NULL, *cpus = NULL;
	int option;

	*o = (struct options){ .seconds = 1, .count = 1000000, .fill = FILL_ALL, .huge = true };
	while ((option = getopt_long(argc, argv, "h", longopts, NULL)) != -1) {
		switch (option) {
		case 'c': cpus = optarg; break;
		case 's': o->seconds = parse_number("--seconds", optarg, 0.05, 60); break;
		case 'n': o->count = (uint64_t)parse_number("--count", optarg, 1, 1e9); break;
		case 'l': o->limit = parse_number("--limit", optarg, 0.5, 600); break;
		case 'm': metrics = optarg; break;
		case 'p': o->peers = optarg; break;
		case 'z': o->size = (uint32_t)parse_number("--size", optarg, MIN_FRAME, MAX_FRAME); break;
		case 'f':
			if (!strcmp(optarg, "seq"))
				o->fill = FILL_SEQ;
			else if (!strcmp(optarg, "all"))
				o->fill = FILL_ALL;
			else if (!strcmp(optarg, "none"))
				o->fill = FILL_NONE;
			else
				usage_error("--fill: '%s' is not seq, all or none", optarg);
			break;
		case 'H': o->huge = false; break;
		case 't': o->tune = optarg; break;
		case 'r': o->role = optarg; break;
		case 'u': o->socket = optarg; break;
		case 'h': print_help(peers, about, extra); exit(0);
		default: usage_error("wrong option");
		}
	}
	if (optind < argc)
		usage_error("'%s' was not expected; every argument is an option", argv[optind]);
	if (cpus)
		parse_cpus(o, cpus);
	else
		default_cpus(o);
	if (o->limit == 0)
		o->limit = o->seconds + 10;
	if (o->peers)
		list_check("--peer", o->peers, peers);
	const char *names[METRIC_COUNT + 1] = { NULL };
	for (int i = 0; i < METRIC_COUNT; i++) {
		names[i] = METRICS[i].name;
		o->metrics[i] = !metrics || list_contains(metrics, METRICS[i].name);
	}
	if (metrics)
		list_check("--metric", metrics, names);
}

bool options_want_peer(const struct options *o, const char *peer) { return !o->peers || list_contains(o->peers, peer); }

uint32_t options_tune(const struct options *o, const char *key, uint32_t otherwise)
{
	char copy[256], *rest = copy, *item;
	size_t length = strlen(key);
	if (!o->tune)
		return otherwise;
	snprintf(copy, sizeof copy, "%s", o->tune);
	while ((item = strsep(&rest, ",")))
		if (!strncmp(item, key, length) && item[length] == '=')
			return (uint32_t)parse_number("--tune", item + length + 1, 0, 1 << 20);
	return otherwise;
}

void options_tune_check(const struct options *o, const char *const *keys)
{
	char copy[256], *rest = copy, *item;
	if (!o->tune)
		return;
	if (strlen(o->tune) >= sizeof copy)
		usage_error("--tune: too long");
	snprintf(copy, sizeof copy, "%s", o->tune);
	while ((item = strsep(&rest, ","))) {
		char *equals = strchr(item, '=');
		if (!equals)
			usage_error("--tune: '%s' is not KEY=NUMBER", item);
		*equals = '\0';
		list_check("--tune", item, keys);
	}
}

// ---------------------------------------------------------------------------------------------------------------
// Clean-up

static volatile sig_atomic_t signalled;
static char remove_at_exit[4][160];
static pid_t owner; // only the parent cleans up; a forked side ends with _exit and does not come here anyway

static void on_signal(int number) { signalled = number; }

static void remove_directories(void)
{
	for (size_t i = 0; i < 4 && getpid() == owner; i++) {
		DIR *directory = remove_at_exit[i][0] ? opendir(remove_at_exit[i]) : NULL;
		if (!directory)
			continue;
		for (struct dirent *entry; (entry = readdir(directory));)
			if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
				unlinkat(dirfd(directory), entry->d_name, 0);
		closedir(directory);
		rmdir(remove_at_exit[i]);
	}
}

void on_exit_remove_directory(const char *path)
{
	if (!owner)
		atexit(remove_directories);
	owner = getpid();
	for (size_t i = 0; i < 4; i++)
		if (!remove_at_exit[i][0]) {
			snprintf(remove_at_exit[i], sizeof remove_at_exit[i], "%s", path);
			return;
		}
}

// ---------------------------------------------------------------------------------------------------------------
// Huge pages

#define HUGE_TOTAL "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
#define HUGE_FREE "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

static unsigned huge_before;
static bool huge_changed;
static pid_t huge_owner;

static bool file_read_number(const char *path, unsigned *value)
{
	FILE *file = fopen(path, "r");
	bool ok = file && fscanf(file, "%u", value) == 1;
	if (file)
		fclose(file);
	return ok;
}

static void file_write_number(const char *path, unsigned value)
{
	FILE *file = fopen(path, "w");
	if (!file)
		return;
	fprintf(file, "%u\n", value);
	fclose(file);
}

static void huge_restore(void)
{
	if (huge_changed && getpid() == huge_owner)
		file_write_number(HUGE_TOTAL, huge_before);
	huge_changed = false;
}

unsigned huge_reserve(unsigned pages)
{
	unsigned total, available;
	if (!file_read_number(HUGE_TOTAL, &total) || !file_read_number(HUGE_FREE, &available))
		return 0; // a kernel without huge pages
	if (available >= pages || huge_changed)
		return available;
	huge_before = total;
	huge_owner = getpid();
	atexit(huge_restore);
	huge_changed = true;
	file_write_number(HUGE_TOTAL, total + pages - available);
	return file_read_number(HUGE_FREE, &available) ? available : 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Two processes

struct shared *shared_new(const struct options *o)
{
	struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		fprintf(stderr, "%s: cannot map the page that both sides share: %s\n", program_invocation_short_name,
			strerror(errno));
		exit(EXIT_FAILED);
	}
	// A little before the parent's own limit: a side that is out of time can still say what it was waiting for.
	shared->deadline = ticks() + ns_to_ticks(o->limit * 0.95e9);
	return shared;
}

void side_pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fprintf(stderr, "%s: warning: cannot pin to CPU %d: %s; numbers will be worse\n",
			program_invocation_short_name, cpu, strerror(errno));
}

void side_fail(struct shared *shared, enum side side, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(shared->error[side], sizeof shared->error[side], format, args);
	va_end(args);
	_exit(EXIT_FAILED);
}

void side_wait_for_go(struct shared *shared, enum side side)
{
	atomic_store(side == SIDE_CARD ? &shared->card_ready : &shared->app_ready, READY);
	while (!atomic_load(&shared->go)) {
		if (side_expired(shared))
			_exit(EXIT_TIME_LIMIT);
		sleep_ns(200000);
	}
}

void frame_fill(uint8_t *frame, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		frame[i] = (uint8_t)(i * 131 + 7);
}

struct pair {
	pid_t pid[2];
	int status[2]; // wait status, valid when pid is 0
};

static const char *const SIDE_NAMES[2] = { "card", "application" };

static void pair_kill(struct pair *pair)
{
	for (int i = 0; i < 2; i++)
		if (pair->pid[i] > 0) {
			kill(pair->pid[i], SIGKILL);
			waitpid(pair->pid[i], &pair->status[i], 0);
			pair->pid[i] = 0;
		}
}

// Takes note of sides that ended. Returns false when one ended badly.
static bool pair_reap(struct pair *pair)
{
	bool ok = true;
	for (int i = 0; i < 2; i++)
		if (pair->pid[i] > 0 && waitpid(pair->pid[i], &pair->status[i], WNOHANG) == pair->pid[i]) {
			pair->pid[i] = 0;
			ok = ok && WIFEXITED(pair->status[i]) && WEXITSTATUS(pair->status[i]) == 0;
		}
	return ok;
}

static pid_t side_start(side_fn *body, int cpu, struct shared *shared, const struct options *o,
			const struct metric *m, void *context)
{
	pid_t parent = getpid();
	fflush(NULL);
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL); // a killed parent must not leave a spinning child
	if (getppid() != parent)
		_exit(EXIT_FAILED);
	signal(SIGINT, SIG_IGN); // the terminal sends it to everybody; the parent decides
	signal(SIGTERM, SIG_DFL);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	dup2(STDERR_FILENO, STDOUT_FILENO); // standard output carries JSON only
	side_pin(cpu);
	body(shared, o, m, context);
	_exit(0);
}

// Sleeps until a child ends, a signal arrives or `ns` is over.
static void wait_for_event(uint64_t ns)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
	int number = sigtimedwait(&set, NULL, &t);
	if (number > 0 && number != SIGCHLD)
		signalled = number;
}

static int report_failure(const char *peer, const struct metric *m, const struct pair *pair,
			  const struct shared *shared)
{
	for (int i = 0; i < 2; i++) {
		int status = pair->status[i];
		char death[80];
		const char *reason = shared->error[i][0] ? shared->error[i] : "ended without a reason";
		if (pair->pid[i] > 0 || status == 0)
			continue; // still runs, or ended well
		if (WIFSIGNALED(status)) {
			snprintf(death, sizeof death, "died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
			reason = death;
		}
		fprintf(stderr, "%s: %s %s: the %s process: %s\n", program_invocation_short_name, peer, m->name,
			SIDE_NAMES[i], reason);
	}
	return EXIT_FAILED;
}

int measure(const char *peer, const struct metric *m, const struct options *o, side_fn *card, side_fn *app,
	    void *context, struct result *result, char note[128])
{
	// Blocked for the whole measurement and taken with sigtimedwait: nothing is lost between check and sleep.
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	struct sigaction action = { .sa_handler = on_signal };
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_IGN); // a reader that went away must not keep us from cleaning up
	sigprocmask(SIG_BLOCK, &set, &old);

	struct shared *shared = shared_new(o);
	struct pair pair = { { 0, 0 }, { 0, 0 } };
	uint64_t end = monotonic_ns() + (uint64_t)(o->limit * 1e9);
	int code = 0;

	// A side that is not ours is taken to be ready.
	atomic_store(&shared->card_ready, card ? 0 : READY);
	atomic_store(&shared->app_ready, app ? 0 : READY);
	if (card)
		pair.pid[SIDE_CARD] = side_start(card, o->cpu_card, shared, o, m, context);
	else if (app)
		pair.pid[SIDE_APP] = side_start(app, o->cpu_app, shared, o, m, context);
	bool going = false;
	while (pair.pid[SIDE_CARD] > 0 || pair.pid[SIDE_APP] > 0) {
		uint64_t now = monotonic_ns();
		if (signalled) {
			code = EXIT_INTERRUPTED;
			break;
		}
		if (now >= end) {
			fprintf(stderr, "%s: %s %s: not finished after %g s%s; raise --limit or look for other load\n",
				program_invocation_short_name, peer, m->name, o->limit,
				going ? "" : " (the two sides did not connect)");
			code = EXIT_TIME_LIMIT;
			break;
		}
		if (!going && app && atomic_load(&shared->card_ready) >= READY_FOR_PEER && !pair.pid[SIDE_APP])
			pair.pid[SIDE_APP] = side_start(app, o->cpu_app, shared, o, m, context);
		if (!going && atomic_load(&shared->card_ready) == READY && atomic_load(&shared->app_ready) == READY) {
			going = true;
			atomic_store(&shared->go, 1);
		}
		// Setting up: look often. Measuring: sleep until somebody ends.
		wait_for_event(going ? end - now : 1000000);
		if (!pair_reap(&pair)) {
			code = report_failure(peer, m, &pair, shared);
			break;
		}
		if (!going && card && !pair.pid[SIDE_CARD]) {
			fprintf(stderr, "%s: %s %s: the card process ended before the measurement began\n",
				program_invocation_short_name, peer, m->name);
			code = EXIT_FAILED;
			break;
		}
	}
	pair_kill(&pair);
	sigprocmask(SIG_SETMASK, &old, NULL);
	*result = shared->result;
	memcpy(note, shared->note, sizeof shared->note);
	munmap(shared, sizeof *shared);
	return code;
}

void print_result(const char *peer, const struct metric *m, uint32_t size, const struct options *o,
		  const struct result *r, const char *note)
{
	double mpps = r->pps / 1e6, gbps = r->pps * size * 8 / 1e9;
	double value = m->kind == METRIC_RTT ? r->p50_ns : !strcmp(m->unit, "Mpps") ? mpps : gbps;

	printf("{\"bench\":\"peers\",\"peer\":\"%s\",\"metric\":\"%s\",\"size\":%u,\"value\":%.*f,\"unit\":\"%s\"", peer,
	       m->name, size, m->kind == METRIC_RTT ? 1 : 3, value, m->unit);
	if (m->kind == METRIC_RTT)
		printf(",\"p50_ns\":%.1f,\"p99_ns\":%.1f,\"p999_ns\":%.1f,\"min_ns\":%.1f,\"max_ns\":%.1f,\"mean_ns\":%.1f",
		       r->p50_ns, r->p99_ns, r->p999_ns, r->min_ns, r->max_ns, r->mean_ns);
	else
		printf(",\"mpps\":%.3f,\"gbps\":%.3f,\"seconds\":%.3f,\"sent\":%llu,\"fill\":\"%s\"", mpps, gbps, r->seconds,
		       (unsigned long long)r->sent,
		       o->fill == FILL_ALL ? "all" : o->fill == FILL_SEQ ? "seq" : "none");
	printf(",\"count\":%llu,\"lost\":%llu,\"corrupt\":%llu,\"cpus\":[%d,%d],\"note\":\"%s\"}\n",
	       (unsigned long long)r->count, (unsigned long long)r->lost, (unsigned long long)r->corrupt, o->cpu_app,
	       o->cpu_card, note);
	fflush(stdout);
}
