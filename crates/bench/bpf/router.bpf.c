/* Generator and sink of `millrace bench router`, a few instructions each.
 *
 * The generator is run by BPF_PROG_TEST_RUN with live frames. Their memory is used again, rewritten by whoever had it, and so it writes all
 * headers anew: a template, and of the flow its source port, a part of an address, and both checksums. The sink counts and drops.
 *
 * Needs no header of the kernel or of libbpf: what is used of them stands here. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/* linux/bpf.h */
struct xdp_md {
	u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
enum { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };
enum { BPF_MAP_TYPE_ARRAY = 2 };
static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static u32 (*const get_smp_processor_id)(void) = (void *)8;
static long (*const redirect)(u32 ifindex, u64 flags) = (void *)23;

#define SEC(name) __attribute__((section(name), used))
#define CORES 256
/* Ethernet, IPv4 and TCP, and two bytes more: whole words. */
#define HEADERS 56
#define PORTS 40000
#define FIRST_PORT 10000

/* What a core sends; `Job` of src/router/generator.rs. Numbers are in the byte order of the machine. */
struct job {
	u64 sent;
	u32 device;
	u32 flows;
	/* The next flow is so many further, modulo their number, to which this has no common divisor. */
	u32 stride;
	u32 flow;
	/* Where the half of an address stands to which FLOW / PORTS is added, and that half. */
	u32 half_at;
	u32 half;
	/* Sums over the headers without that half, that port and the checksums themselves. */
	u32 ip_sum;
	u32 l4_sum;
	u32 l4_sum_at;
	/* Where the port of the flow stands: of the source, or in answers of the destination. */
	u32 port_at;
	/* What is between Ethernet's addresses and its type: nothing, or four bytes of a tag. All of the above is without it. */
	u32 shift;
	u32 reserved;
	u64 headers[HEADERS / 8];
};

/* What came to a core; `Count` of src/router/sink.rs. */
struct count {
	u64 frames;
	u64 bytes;
	/* Those whose type or addresses are not the expected ones. */
	u64 wrong;
	/* Source and destination, in network byte order, where the mask has ones. */
	u32 source, source_mask;
	u32 destination, destination_mask;
	/* The Ethernet type that they should have, as on the wire. */
	u32 kind;
	u32 reserved;
};

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[CORES];
	u32 *key;
	struct job *value;
} jobs SEC(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[CORES];
	u32 *key;
	struct count *value;
} counts SEC(".maps");

static inline u16 swapped(u32 number)
{
	return __builtin_bswap16((u16)number);
}

static inline u16 folded(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return swapped(~sum);
}

/* What differs between flows. The verifier wants numbers. */
static inline __attribute__((always_inline)) void write_flow(u8 *data, const struct job *job, u32 flow)
{
	u32 port = FIRST_PORT + flow % PORTS, half = job->half + flow / PORTS;

	*(u16 *)(data + (job->half_at == 28 ? 28 : 32)) = swapped(half);
	*(u16 *)(data + (job->port_at == 34 ? 34 : 36)) = swapped(port);
	*(u16 *)(data + 24) = folded(job->ip_sum + half);
	*(u16 *)(data + (job->l4_sum_at == 40 ? 40 : 50)) = folded(job->l4_sum + half + port);
}

SEC("xdp") int generate(struct xdp_md *ctx)
{
	u32 core = get_smp_processor_id();
	struct job *job = map_lookup_elem(&jobs, &core);
	u8 *data = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	u32 flow, next;

	if (!job || data + HEADERS > end)
		return XDP_DROP;
	flow = job->flow;
	next = flow + job->stride;
	if (next >= job->flows)
		next -= job->flows;
	job->flow = next;

#pragma unroll
	for (u32 word = 0; word < HEADERS / 8; word++)
		*(u64 *)(data + 8 * word) = job->headers[word];
	if (job->shift == 4)
		write_flow(data + 4, job, flow);
	else
		write_flow(data, job, flow);
	job->sent++;
	return redirect(job->device, 0);
}

SEC("xdp") int sink(struct xdp_md *ctx)
{
	u32 core = get_smp_processor_id();
	struct count *count = map_lookup_elem(&counts, &core);
	u8 *data = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end, *ip;
	u16 kind;

	if (!count || data + 42 > end)
		return XDP_DROP;
	kind = *(u16 *)(data + 12);
	if (kind == swapped(0x8100))
		ip = data + 18;
	else if (kind == swapped(0x8864))
		ip = data + 22;
	else if (kind == swapped(0x0800))
		ip = data + 14;
	else
		return XDP_DROP; /* what Linux says by itself does not count */
	count->frames++;
	count->bytes += end - data;
	if (kind != count->kind || ((*(u32 *)(ip + 12) ^ count->source) & count->source_mask) ||
	    ((*(u32 *)(ip + 16) ^ count->destination) & count->destination_mask))
		count->wrong++;
	return XDP_DROP;
}

/* Where a veth has to have a program, and is to do nothing. */
SEC("xdp") int pass(struct xdp_md *ctx)
{
	return ctx ? XDP_PASS : XDP_DROP;
}

char terms[] SEC("license") = "Dual MIT/GPL";
