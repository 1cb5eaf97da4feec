// The same work as bare_ring over DPDK: virtio-user <-> vhost-user, and a memif pair.
//
// Each side is a DPDK primary process of its own on one pinned core. By itself the program forks both sides and prints
// one line per measurement; with --role it is one side, for running by hand. --in-memory keeps DPDK's memory in memfds:
// nothing is left on disk however a process ends, and the memory can still be handed to the other side, which is what
// vhost-user and memif need (that also takes --single-file-segments).
#define _GNU_SOURCE
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const PEERS[] = { "dpdk_vhost", "dpdk_memif", NULL };
static const char ABOUT[] = "DPDK between two pinned processes: virtio-user <-> vhost-user, and a memif pair.";
static const char EXTRA[] =
	"  --tune K=N,...   instead of what is fastest here (README.md): ring = descriptors, burst, mbufs = per side;\n"
	"                   0 or 1 for: packed = packed virtqueue, inorder = in-order feature, vectorized = AVX-512\n"
	"                   virtio, zerocopy = memif client without its own copy, swap = the application is the vhost\n"
	"                   (memif: server) side and the card the other\n"
	"  --role ROLE      be one side only: reflect or rx (the card), rtt or tx (the application); needs --socket,\n"
	"                   one --peer and, for the frame size, one --metric; start the card first. The side that\n"
	"                   measures prints; the other ends when --limit is over or with Ctrl-C\n"
	"  --socket PATH    Unix socket of the two sides, for --role\n"
	"  PEERS_VERBOSE=1 in the environment prints the EAL arguments and DPDK's debug log on standard error\n";

#ifdef WITHOUT_DPDK

int main(int argc, char **argv)
{
	struct options o;
	options_parse(&o, argc, argv, PEERS, ABOUT, EXTRA);
	fprintf(stderr, "dpdk_peer: built without DPDK, nothing measured. Install it and build again:\n"
			"  apt-get install --no-install-recommends dpdk libdpdk-dev pkg-config && make -C bench/peers\n");
	return EXIT_UNAVAILABLE;
}

#else

#include <errno.h>
#include <rte_common.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_version.h>
#include <unistd.h>

#define BURST_MAX 256u

struct context {
	const char *peer;
	bool vhost;
	char socket[100];
	uint32_t ring, burst, mbufs;
	bool packed, inorder, vectorized, zero_copy, swap;
	bool huge;
	int parent; // process id, part of the names that both sides use
};

struct port {
	uint16_t id;
	struct rte_mempool *pool;
};

// ---------------------------------------------------------------------------------------------------------------
// Set-up

// The side that listens: vhost-user back end, or memif server. It is the card unless swap=1.
static bool listens(const struct context *c, enum side side) { return (side == SIDE_CARD) != c->swap; }

static void device_argument(const struct context *c, enum side side, char *text, size_t size)
{
	bool server = listens(c, side);
	if (c->vhost && server)
		snprintf(text, size, "net_vhost0,iface=%s,queues=1", c->socket);
	else if (c->vhost)
		snprintf(text, size,
			 "net_virtio_user0,path=%s,mac=02:00:00:00:00:01,queues=1,queue_size=%u,mrg_rxbuf=0,in_order=%d,packed_vq=%d,vectorized=%d",
			 c->socket, c->ring, c->inorder, c->packed, c->vectorized);
	else
		snprintf(text, size, "net_memif0,role=%s,id=0,bsize=2048,rsize=%u,socket=%s,socket-abstract=no%s",
			 server ? "server" : "client", (unsigned)__builtin_ctz(c->ring), c->socket,
			 !server && c->zero_copy ? ",zero-copy=yes" : "");
}

static void file_prefix(const struct context *c, enum side side, char *text, size_t size)
{
	snprintf(text, size, "millrace-peers-%d-%s", c->parent, side == SIDE_CARD ? "card" : "app");
}

// DPDK makes this directory even with --in-memory and leaves it behind.
static void remove_runtime_directory_at_exit(const struct context *c, enum side side)
{
	char prefix[64], path[160];
	const char *base = getuid() == 0 ? "/var/run" : getenv("XDG_RUNTIME_DIR");
	file_prefix(c, side, prefix, sizeof prefix);
	snprintf(path, sizeof path, "%s/dpdk/%s", base ? base : "/tmp", prefix);
	on_exit_remove_directory(path);
}

static void eal_start(struct shared *shared, const struct context *c, enum side side, int cpu)
{
	char core[16], device[256], prefix[64];
	char *argv[24];
	int argc = 0;
	snprintf(core, sizeof core, "%d", cpu);
	device_argument(c, side, device, sizeof device);
	file_prefix(c, side, prefix, sizeof prefix);
	argv[argc++] = "dpdk_peer";
	argv[argc++] = "-l";
	argv[argc++] = core;
	argv[argc++] = "--file-prefix";
	argv[argc++] = prefix;
	argv[argc++] = "--no-pci";
	argv[argc++] = "--no-telemetry";
	argv[argc++] = "--iova-mode=va";
	argv[argc++] = "--force-max-simd-bitwidth=512";
	int argc_log = argc;
	argv[argc++] = "--log-level=error";
	if (c->huge) {
		argv[argc++] = "--in-memory";
		argv[argc++] = "--single-file-segments";
	} else {
		// --no-huge implies --legacy-mem, which excludes both options above; DPDK's memory is one memfd then.
		argv[argc++] = "--no-huge";
		argv[argc++] = "--no-shconf";
		argv[argc++] = "-m";
		argv[argc++] = "64";
	}
	argv[argc++] = "--vdev";
	argv[argc++] = device;
	argv[argc] = NULL;
	if (getenv("PEERS_VERBOSE")) {
		for (int i = 0; i < argc; i++)
			fprintf(stderr, "%s%c", argv[i], i + 1 < argc ? ' ' : '\n');
		argv[argc_log] = "--log-level=debug";
	}
	if (rte_eal_init(argc, argv) < 0)
		side_fail(shared, side, "DPDK did not start (%s) with --vdev %s; see its message above; if it is about memory "
			  "run as root or try --no-huge", rte_strerror(rte_errno), device);
}

static struct port port_start(struct shared *shared, const struct context *c, enum side side)
{
	struct port port = { .id = 0 };
	struct rte_eth_conf conf = { 0 };
	struct rte_eth_dev_info info;
	uint16_t rx_ring = (uint16_t)c->ring, tx_ring = (uint16_t)c->ring;
	int error;

	if (rte_eth_dev_count_avail() != 1) { // DPDK starts without the devices that it cannot make
		char device[256];
		device_argument(c, side, device, sizeof device);
		side_fail(shared, side, "no port from --vdev %.100s; DPDK's message is above; if there is none, a driver is "
			  "missing: apt-get install libdpdk-dev", device);
	}
	port.pool = rte_pktmbuf_pool_create("frames", c->mbufs, RTE_MEMPOOL_CACHE_MAX_SIZE, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
					    SOCKET_ID_ANY);
	if (!port.pool)
		side_fail(shared, side, "no memory for %u mbufs (%s); reserve huge pages: echo 128 > /proc/sys/vm/nr_hugepages",
			  c->mbufs, rte_strerror(rte_errno));
	if ((error = rte_eth_dev_info_get(port.id, &info)))
		side_fail(shared, side, "rte_eth_dev_info_get: %s", rte_strerror(-error));
	// All mbufs of a queue come from one pool and are never shared: let the driver free them in bulk if it can.
	conf.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	if ((error = rte_eth_dev_configure(port.id, 1, 1, &conf)))
		side_fail(shared, side, "rte_eth_dev_configure: %s", rte_strerror(-error));
	if ((error = rte_eth_dev_adjust_nb_rx_tx_desc(port.id, &rx_ring, &tx_ring)) ||
	    (error = rte_eth_rx_queue_setup(port.id, 0, rx_ring, SOCKET_ID_ANY, NULL, port.pool)) ||
	    (error = rte_eth_tx_queue_setup(port.id, 0, tx_ring, SOCKET_ID_ANY, NULL)))
		side_fail(shared, side, "cannot set up queues of %u descriptors: %s; try --tune ring=256", c->ring,
			  rte_strerror(-error));
	if ((error = rte_eth_dev_start(port.id)))
		side_fail(shared, side, "rte_eth_dev_start: %s", rte_strerror(-error));
	return port;
}

static void port_wait_for_link(struct shared *shared, const struct port *port, enum side side)
{
	struct rte_eth_link link = { 0 };
	while (rte_eth_link_get_nowait(port->id, &link) == 0 && !link.link_status) {
		if (side_expired(shared))
			side_fail(shared, side, "the other side did not connect");
		rte_delay_us_sleep(1000);
	}
}

static struct port side_start_up(struct shared *shared, const struct options *o, const struct context *c,
				 enum side side)
{
	int cpu = side == SIDE_CARD ? o->cpu_card : o->cpu_app;
	bool server = listens(c, side);
	struct port port;
	// The two sides start one after the other, so the listening one must not wait for the link before it says that
	// it is ready. With swap=1 the listening side is the application, which starts second: the card waits for its
	// socket before it connects.
	if (!server && side == SIDE_CARD) {
		atomic_store(&shared->card_ready, READY_FOR_PEER);
		while (access(c->socket, F_OK)) {
			if (side_expired(shared))
				side_fail(shared, side, "no socket at %s", c->socket);
			rte_delay_us_sleep(1000);
		}
	}
	eal_start(shared, c, side, cpu);
	port = port_start(shared, c, side);
	if (server && side == SIDE_CARD)
		atomic_store(&shared->card_ready, READY_FOR_PEER);
	port_wait_for_link(shared, &port, side);
	side_pin(cpu);
	return port;
}

// ---------------------------------------------------------------------------------------------------------------
// Roles

// Whether the card has read the whole frame when DPDK hands it over. Where the card is the side that owns the memory
// (virtio-user, or a memif client without its own copy), the application's core wrote the frame there and DPDK has not
// looked at it: the card would count frames that it never fetched.
static bool received_without_reading(const struct context *c)
{
	return c->swap && (c->vhost || c->zero_copy);
}

static void fetch(const struct rte_mbuf *mbuf) { frame_fetch(rte_pktmbuf_mtod(mbuf, const void *), mbuf->data_len); }

static bool told_to_stop(const struct shared *shared)
{
	return atomic_load_explicit(&shared->stop, memory_order_relaxed) || side_expired(shared) ;
}

// Role reflect: sends back what arrives.
static void card_reflect(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct context *c = context;
	struct rte_mbuf *burst[BURST_MAX];
	struct port port = side_start_up(shared, o, c, SIDE_CARD);
	side_wait_for_go(shared, SIDE_CARD);
	bool reads = received_without_reading(c);
	// With many frames on their way the application takes back all of them after the end.
	const atomic_uint *end = m->kind == METRIC_RTT ? &shared->stop : &shared->receiver_done;
	for (uint32_t idle = 0;;) {
		uint16_t count = rte_eth_rx_burst(port.id, 0, burst, (uint16_t)c->burst), sent;
		if (!count) {
			if (++idle % 1024 == 0 && (atomic_load_explicit(end, memory_order_relaxed) || side_expired(shared)))
				return;
			continue;
		}
		for (uint16_t i = 0; i < count && reads; i++)
			fetch(burst[i]);
		for (sent = 0; sent < count && !side_expired(shared) &&
			       !atomic_load_explicit(end, memory_order_relaxed);)
			sent += rte_eth_tx_burst(port.id, 0, burst + sent, count - sent);
	}
}

static struct rte_mbuf *frame_alloc(struct shared *shared, const struct port *port, uint32_t size)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(port->pool);
	if (!mbuf)
		side_fail(shared, SIDE_APP, "out of mbufs; raise --tune mbufs");
	mbuf->data_len = (uint16_t)size;
	mbuf->pkt_len = size;
	return mbuf;
}

// Role rtt: one frame in flight.
static void app_round_trip(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct context *c = context;
	uint32_t size = o->size ? o->size : m->size;
	uint64_t corrupt = 0, lost = 0, loss_ticks = ns_to_ticks(LOSS_TIMEOUT_NS);
	uint8_t frame[MAX_FRAME];
	struct port port = side_start_up(shared, o, c, SIDE_APP);
	struct histogram *h = histogram_new();
	if (!h)
		side_fail(shared, SIDE_APP, "no memory for the histogram");
	frame_fill(frame, size);

	side_wait_for_go(shared, SIDE_APP);
	uint64_t warm_up_end = ticks() + ns_to_ticks(0.2e9);
	uint64_t end = warm_up_end + ns_to_ticks(o->seconds * 1e9);
	bool warm = false;
	for (uint64_t sequence = 0; !warm || h->count < o->count; sequence++) {
		if (!warm && ticks() >= warm_up_end) {
			warm = true;
			corrupt = lost = 0;
			histogram_reset(h);
		}
		memcpy(frame, &sequence, sizeof sequence);
		struct rte_mbuf *mbuf = frame_alloc(shared, &port, size), *back;

		uint64_t t0 = ticks(), t1;
		if (t0 >= end)
			break;
		memcpy(rte_pktmbuf_mtod(mbuf, uint8_t *), frame, size);
		if (rte_eth_tx_burst(port.id, 0, &mbuf, 1) != 1) {
			rte_pktmbuf_free(mbuf);
			lost++;
			continue;
		}
		for (;;) {
			if (rte_eth_rx_burst(port.id, 0, &back, 1) == 0) {
				if (ticks() - t0 > loss_ticks) {
					back = NULL;
					break;
				}
				continue;
			}
			uint64_t seen = *(const volatile uint64_t *)rte_pktmbuf_mtod(back, const uint64_t *);
			t1 = ticks_after_loads();
			if (seen == sequence)
				break;
			rte_pktmbuf_free(back); // came after it was given up
		}
		if (!back) {
			lost++;
			if (side_expired(shared))
				side_fail(shared, SIDE_APP, "no frame comes back");
			continue;
		}
		histogram_add(h, t1 - t0);

		// Outside the measured time.
		if (back->pkt_len != size || back->nb_segs != 1 ||
		    memcmp(rte_pktmbuf_mtod(back, uint8_t *) + 8, frame + 8, size - 8))
			corrupt++;
		rte_pktmbuf_free(back);
	}
	atomic_store(&shared->stop, 1);
	if (!h->count)
		side_fail(shared, SIDE_APP, "no frame came back (%llu sent)", (unsigned long long)lost);
	result_from_histogram(&shared->result, h);
	shared->result.lost = lost;
	shared->result.corrupt = corrupt;
}

// Counts and frees. DPDK's receive call has copied the frame into this side's own memory by then, or this side reads it.
static void receive(struct shared *shared, const struct options *o, const struct context *c, enum side side, bool reads)
{
	struct rte_mbuf *burst[BURST_MAX];
	struct meter meter = { 0 };
	uint64_t last = 0, quiet = ns_to_ticks(5e6);
	struct port port = side_start_up(shared, o, c, side);
	side_wait_for_go(shared, side);
	for (;;) {
		bool is_last = atomic_load_explicit(&shared->sender_done, memory_order_acquire);
		uint16_t count = rte_eth_rx_burst(port.id, 0, burst, (uint16_t)c->burst);
		if (!count) {
			uint64_t now = ticks();
			if (now > shared->deadline)
				break;
			// Drain: everything that the sender handed over before it stopped must arrive.
			if (meter.done && now - last > quiet && is_last)
				break;
			continue;
		}
		last = ticks();
		for (uint16_t i = 0; i < count && reads; i++)
			fetch(burst[i]);
		rte_pktmbuf_free_bulk(burst, count);
		if (meter_add(&meter, shared, o, count) && o->role)
			break; // the sender is somebody else's: nobody tells how many were sent
	}
	if (!meter.done)
		side_fail(shared, side, meter.total ? "interrupted or out of time" : "no frame arrived");
	atomic_store(&shared->receiver_done, 1);
	shared->result.sent = shared->sent;
	shared->result.lost = o->role ? 0 : shared->sent - meter.total;
}

// Role rx.
static void card_receive(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)m;
	receive(shared, o, context, SIDE_CARD, received_without_reading(context));
}

// The program reads every frame, whoever has copied it.
static void app_receive(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	(void)m;
	receive(shared, o, context, SIDE_APP, true);
}

// Frames already hold the pattern, as they do in bare_ring.
static void fill_pool(const struct context *c, const struct port *port, const uint8_t *frame, uint32_t size)
{
	struct rte_mbuf **all = calloc(c->mbufs, sizeof *all);
	uint32_t got = 0;
	for (; all && got < c->mbufs && (all[got] = rte_pktmbuf_alloc(port->pool)); got++)
		memcpy(rte_pktmbuf_mtod(all[got], uint8_t *), frame, size);
	for (uint32_t i = 0; i < got; i++)
		rte_pktmbuf_free(all[i]);
	free(all);
}

// The next burst of frames, written as --fill says.
static void make_burst(struct shared *shared, const struct options *o, enum side side, const struct port *port,
		       struct rte_mbuf **burst, uint32_t count, const uint8_t *frame, uint32_t size, uint64_t sequence)
{
	if (rte_pktmbuf_alloc_bulk(port->pool, burst, count))
		side_fail(shared, side, "out of mbufs; raise --tune mbufs");
	for (uint32_t i = 0; i < count; i++) {
		burst[i]->data_len = (uint16_t)size;
		burst[i]->pkt_len = size;
		frame_write(rte_pktmbuf_mtod(burst[i], uint8_t *), frame, size, sequence + i, o->fill);
	}
}

// Sends as fast as the other side takes.
static void transmit(struct shared *shared, const struct options *o, const struct metric *m, const struct context *c,
		     enum side side)
{
	uint32_t size = o->size ? o->size : m->size, burst_size = c->burst;
	uint64_t sequence = 0, handed_over = 0;
	struct rte_mbuf *burst[BURST_MAX];
	uint8_t frame[MAX_FRAME];
	struct port port = side_start_up(shared, o, c, side);
	frame_fill(frame, size);
	fill_pool(c, &port, frame, size);

	side_wait_for_go(shared, side);
	while (!told_to_stop(shared)) {
		make_burst(shared, o, side, &port, burst, burst_size, frame, size, sequence);
		sequence += burst_size;
		uint16_t sent = rte_eth_tx_burst(port.id, 0, burst, (uint16_t)burst_size);
		while (sent < burst_size && !told_to_stop(shared))
			sent += rte_eth_tx_burst(port.id, 0, burst + sent, (uint16_t)(burst_size - sent));
		handed_over += sent;
	}
	shared->sent = handed_over;
	atomic_store(&shared->sender_done, 1);
	// Leaving now would take the ring from the receiver, which still drains it.
	while (!o->role && !atomic_load(&shared->receiver_done) && !side_expired(shared))
		rte_delay_us_sleep(1000);
	if (o->role)
		rte_delay_us_sleep(100000);
}

// Role tx.
static void app_transmit(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	transmit(shared, o, m, context, SIDE_APP);
}

static void card_generate(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	transmit(shared, o, m, context, SIDE_CARD);
}

// Sends, and receives and reads what the card sends back; at most WINDOW frames are on their way.
static void app_echo(struct shared *shared, const struct options *o, const struct metric *m, void *context)
{
	const struct context *c = context;
	uint32_t size = o->size ? o->size : m->size, pending = 0, at = 0;
	uint64_t made = 0, last = 0;
	struct rte_mbuf *out[BURST_MAX], *back[BURST_MAX];
	struct meter meter = { 0 };
	uint8_t frame[MAX_FRAME];
	struct port port = side_start_up(shared, o, c, SIDE_APP);
	frame_fill(frame, size);
	fill_pool(c, &port, frame, size);

	side_wait_for_go(shared, SIDE_APP);
	while (!meter.done || made - pending != meter.total) {
		if (!pending && !meter.done && made - meter.total + c->burst <= WINDOW) {
			make_burst(shared, o, SIDE_APP, &port, out, c->burst, frame, size, made);
			made += c->burst;
			pending = c->burst;
			at = 0;
		}
		if (pending) {
			uint16_t sent = rte_eth_tx_burst(port.id, 0, out + at, (uint16_t)pending);
			at += sent;
			pending -= sent;
		}
		uint16_t count = rte_eth_rx_burst(port.id, 0, back, (uint16_t)c->burst);
		if (count) {
			last = ticks();
			for (uint16_t i = 0; i < count; i++)
				fetch(back[i]);
			rte_pktmbuf_free_bulk(back, count);
			meter_add(&meter, shared, o, count);
			continue;
		}
		uint64_t now = ticks();
		if (now > shared->deadline)
			side_fail(shared, SIDE_APP, "no frame comes back");
		if (meter.done && now - last > ns_to_ticks(LOSS_TIMEOUT_NS))
			break;
	}
	shared->result.sent = made - pending;
	shared->result.lost = made - pending - meter.total;
	atomic_store(&shared->receiver_done, 1);
}

// ---------------------------------------------------------------------------------------------------------------

// One side of one metric.
static int run_role(const struct options *o, const struct metric *m, struct context *c, struct result *result,
		    char note[128], bool *print)
{
	static const struct {
		const char *name;
		side_fn *body;
		enum metric_kind kind;
		enum side side;
		bool measures;
	} roles[] = {
		{ "reflect", card_reflect, METRIC_RTT, SIDE_CARD, false },
		{ "rtt", app_round_trip, METRIC_RTT, SIDE_APP, true },
		{ "rx", card_receive, METRIC_TX, SIDE_CARD, true },
		{ "tx", app_transmit, METRIC_TX, SIDE_APP, false },
	};
	for (size_t i = 0; i < RTE_DIM(roles); i++) {
		if (strcmp(roles[i].name, o->role))
			continue;
		if (roles[i].kind != m->kind) {
			fprintf(stderr, "dpdk_peer: --role %s does not take part in %s; give another --metric\n", o->role, m->name);
			return EXIT_USAGE;
		}
		snprintf(c->socket, sizeof c->socket, "%s", o->socket);
		bool card = roles[i].side == SIDE_CARD;
		int code = measure(c->peer, m, o, card ? roles[i].body : NULL, card ? NULL : roles[i].body, c, result, note);
		if (listens(c, roles[i].side))
			unlink(c->socket); // a killed side leaves it behind
		*print = code == 0 && roles[i].measures;
		return code;
	}
	fprintf(stderr, "dpdk_peer: --role: '%s' is not reflect, rtt, rx or tx\n", o->role);
	return EXIT_USAGE;
}

// What made DPDK fastest here, per peer and metric; README.md has the comparison.
static void choose(struct context *c, const struct options *o, const char *peer, const struct metric *m, bool huge)
{
	bool vhost = !strcmp(peer, "dpdk_vhost"), rtt = m->kind == METRIC_RTT;
	*c = (struct context){
		.peer = peer,
		.parent = (int)getpid(),
		.huge = huge,
		.vhost = vhost,
		.ring = options_tune(o, "ring", 1024),
		.burst = options_tune(o, "burst", !rtt && m->size < 512 ? 64 : 32),
		.mbufs = options_tune(o, "mbufs", 8191),
		.packed = options_tune(o, "packed", 1),
		.inorder = options_tune(o, "inorder", 1),
		.vectorized = options_tune(o, "vectorized", 1),
		.zero_copy = options_tune(o, "zerocopy", rtt && huge), // needs --single-file-segments
		.swap = options_tune(o, "swap", 0),
	};
}

int main(int argc, char **argv)
{
	static const char *const keys[] = { "ring",       "burst",    "mbufs", "packed", "inorder",
					    "vectorized", "zerocopy", "swap",  NULL };
	char directory[] = "/tmp/millrace-peers-XXXXXX";
	struct options o;
	int code = 0;

	options_parse(&o, argc, argv, PEERS, ABOUT, EXTRA);
	options_tune_check(&o, keys);
	clock_calibrate();
	// Two processes of at most 40 MiB each.
	unsigned wanted = 48;
	bool huge = o.huge && huge_reserve(wanted) >= wanted;
	if (o.huge && !huge)
		fprintf(stderr, "dpdk_peer: no huge pages (want %u of 2 MiB, run as root or reserve them); using 4 KiB pages, "
				"which is slower for DPDK\n", wanted);
	if (o.role && !o.socket) {
		fprintf(stderr, "dpdk_peer: --role needs --socket PATH, the same on both sides\n");
		return EXIT_USAGE;
	}
	if (!o.role) {
		if (!mkdtemp(directory)) {
			fprintf(stderr, "dpdk_peer: cannot make a directory for sockets in /tmp: %s\n", strerror(errno));
			return EXIT_FAILED;
		}
		on_exit_remove_directory(directory);
	}
	const struct context names = { .parent = (int)getpid() };
	remove_runtime_directory_at_exit(&names, SIDE_CARD);
	remove_runtime_directory_at_exit(&names, SIDE_APP);
	bool done = false; // --role does one thing
	for (int i = 0; i < METRIC_COUNT && !code && !done; i++) {
		for (const char *const *peer = PEERS; *peer && !code && !done; peer++) {
			const struct metric *m = &METRICS[i];
			struct context c;
			struct result result;
			char note[128];
			if (!o.metrics[i] || m->kind == METRIC_QUEUES || !options_want_peer(&o, *peer))
				continue;
			choose(&c, &o, *peer, m, huge);
			if (c.ring < 64 || c.ring > 16384 || (c.ring & (c.ring - 1)) || c.burst < 1 || c.burst > BURST_MAX ||
			    c.mbufs < 2 * c.ring + 1024) {
				fprintf(stderr, "dpdk_peer: --tune: ring must be a power of two from 64 to 16384, burst 1 to %u, mbufs "
						"at least 2 x ring + 1024\n", BURST_MAX);
				return EXIT_USAGE;
			}
			bool print = true;
			static const struct { side_fn *card, *app; } sides[] = {
				[METRIC_RTT] = { card_reflect, app_round_trip },
				[METRIC_TX] = { card_receive, app_transmit },
				[METRIC_RX] = { card_generate, app_receive },
				[METRIC_BOTH] = { card_reflect, app_echo },
			};
			if (!o.role) {
				snprintf(c.socket, sizeof c.socket, "%s/%s%d", directory, *peer, i);
				code = measure(*peer, m, &o, sides[m->kind].card, sides[m->kind].app, &c, &result, note);
			} else {
				code = run_role(&o, m, &c, &result, note, &print);
			}
			done = o.role != NULL;
			if (code || !print)
				break;
			char layout[64];
			if (c.vhost)
				snprintf(layout, sizeof layout, "%s%s%s", c.packed ? "packed" : "split",
					 c.inorder ? ",in-order" : "", c.vectorized ? ",vectorized" : "");
			else
				snprintf(layout, sizeof layout, "%s", c.zero_copy ? "zero-copy client" : "copying client");
			snprintf(note, sizeof note, "%s, %s ring=%u burst=%u pages=%s%s", rte_version(), layout,
				 c.ring, c.burst, huge ? "2M" : "4K", c.swap ? " swapped" : "");
			print_result(*peer, m, o.size ? o.size : m->size, &o, &result, note);
		}
	}
	return code;
}

#endif
