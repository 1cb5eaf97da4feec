/*
 * Millrace: send and receive packets through a card, with the kernel off the data path.
 *
 * Eight steps: open the device, open a queue, start it, get a burst, put it back, stop, close the queue, close the
 * device. docs/c.md is the tour, examples/c/loopback.c a complete program.
 *
 * Results. A function that returns int returns 0 or a count, or a negative number of <errno.h> when it fails;
 * millrace_last_error() then says in words what to do. Results are written to places that the caller gives. What
 * millrace_..._open() has handed out is closed once, with the function of the same name, and not used afterwards; to
 * close NULL does nothing. After a fault of this library itself, which would be a bug, a call returns -ENOTRECOVERABLE.
 *
 * Threads. A queue belongs to one thread at a time: it may be handed over, but two calls must not overlap. Devices and
 * memory may be used by any number of threads at once. Nothing can be used in a child after fork().
 *
 * Units. Lengths are bytes, those of frames without FCS; times are nanoseconds.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef MILLRACE_H
#define MILLRACE_H

/* Made from crates/c/src/boundary by `make header`; do not edit. */

#include <stddef.h>
#include <stdint.h>

/**
 * Version of this header, major number: programs have to be compiled again when it changes.
 */
#define MILLRACE_VERSION_MAJOR 0

/**
 * Version of this header, minor number: something was added.
 */
#define MILLRACE_VERSION_MINOR 1

/**
 * Version of this header, patch number: something was mended.
 */
#define MILLRACE_VERSION_PATCH 0

/**
 * Version of this header as one number: major * 1000000 + minor * 1000 + patch.
 */
#define MILLRACE_VERSION 1000

/**
 * Most packets that one burst has.
 */
#define MILLRACE_MAX_BURST 1024

/**
 * Flags of millrace_flow_change(). 0: what it sets up belongs to the device, and goes when the device is closed or the
 * program ends.
 */
enum millrace_flow_flags {
    /**
     * The card keeps what is set up. Filters, and MILLRACE_FLOW_REPLACE, are then about what it keeps for this user.
     */
    MILLRACE_FLOW_KEEP = 1,
    /**
     * What belongs to other programs and users is meant as well; takes the right `admin`.
     */
    MILLRACE_FLOW_EVERYONE = 2,
    /**
     * What is added is to be all that there is: what else would be meant goes; rules that are there in the same words stay.
     */
    MILLRACE_FLOW_REPLACE = 4,
    /**
     * Only say what would be done.
     */
    MILLRACE_FLOW_DRY_RUN = 8,
};

/**
 * Which frames a tap hears: millrace_flow_tap_options.wants.
 */
enum millrace_flow_tap_wants {
    /**
     * All.
     */
    MILLRACE_FLOW_TAP_ALL = 0,
    /**
     * Those that come in at port value.
     */
    MILLRACE_FLOW_TAP_PORT = 1,
    /**
     * Those that RX queue value gets.
     */
    MILLRACE_FLOW_TAP_QUEUE = 2,
    /**
     * Those that meet the rule with the number value, as millrace_flow_list_json() says it.
     */
    MILLRACE_FLOW_TAP_RULE = 3,
    /**
     * Those that meet a rule whose cookie has the bits of mask as value has them.
     */
    MILLRACE_FLOW_TAP_COOKIE = 4,
    /**
     * Those of which a rule has found the time to live at its end (dec_ttl).
     */
    MILLRACE_FLOW_TAP_EXPIRED = 5,
};

/**
 * How an endpoint is opened: flags of millrace_message_open().
 */
enum millrace_message_flags {
    /**
     * Endpoints of all users may connect. Otherwise those of the same user and of root.
     */
    MILLRACE_MESSAGE_ANYBODY = 1,
    /**
     * Memory of messages of 64 KiB and more that is sent again becomes shared memory in place, where the system allows it, so that receivers
     * of the same user copy it once. Only for programs that do not count on zeros behind madvise(MADV_DONTNEED) in such memory.
     */
    MILLRACE_MESSAGE_ADOPT = 2,
    /**
     * The same with what malloc hands out again. Only for programs that do not fork while other threads allocate.
     */
    MILLRACE_MESSAGE_ADOPT_HEAP = 4,
};

/**
 * What happens to others.
 */
enum millrace_message_happening {
    /**
     * One has connected.
     */
    MILLRACE_MESSAGE_JOINED = 0,
    /**
     * One has gone. Short messages of it that are here can be received still.
     */
    MILLRACE_MESSAGE_GONE = 1,
    /**
     * One was lost because of what it did.
     */
    MILLRACE_MESSAGE_BROKEN = 2,
};

/**
 * What became of a message.
 */
enum millrace_message_outcome {
    /**
     * Its bytes are not needed here any more.
     */
    MILLRACE_MESSAGE_SENT = 0,
    /**
     * It is here.
     */
    MILLRACE_MESSAGE_RECEIVED = 1,
    /**
     * As millrace_message_cancel() wanted.
     */
    MILLRACE_MESSAGE_CANCELLED = 2,
    /**
     * It is longer than the room that the receiver has.
     */
    MILLRACE_MESSAGE_TOO_LONG = 3,
    /**
     * A copy or a move did not work.
     */
    MILLRACE_MESSAGE_FAILED = 4,
    /**
     * The other end is gone.
     */
    MILLRACE_MESSAGE_LOST = 5,
    /**
     * It is here, in memory that the other end has handed over: see given of struct millrace_message_end.
     */
    MILLRACE_MESSAGE_HELD = 6,
};

/**
 * Which way a message goes: way of millrace_message_send().
 */
enum millrace_message_way {
    /**
     * The way that is the fastest on this host.
     */
    MILLRACE_MESSAGE_FASTEST = 0,
    /**
     * In the ring, with its envelope; what is too long for that goes by one copy.
     */
    MILLRACE_MESSAGE_EAGER = 1,
    /**
     * Through buffers that both ends share.
     */
    MILLRACE_MESSAGE_ONE_COPY = 2,
    /**
     * The receiver reads the memory of the sender; where it may not, by one copy.
     */
    MILLRACE_MESSAGE_ZERO_COPY = 3,
};

/**
 * Flags of millrace_rx_open() and millrace_tx_open(). 0 is direct mode, and the queue for this opener alone: all that a
 * DD queue has.
 */
enum millrace_open_flags {
    /**
     * Mediated mode: the driver moves the pointers, with a request per burst. Slow, and there to be compared with.
     */
    MILLRACE_OPEN_MEDIATED = 1,
    /**
     * Up to 16 openers. RX: each sees every packet, and the queue waits for the slowest. TX: each direct writer has a
     * ring of its own, mediated ones take turns; the packets of one stay in order.
     */
    MILLRACE_OPEN_SHARED_BLOCK = 2,
    /**
     * RX: as above, but an opener that falls a whole ring behind loses the oldest packets; millrace_rx_lost() counts.
     */
    MILLRACE_OPEN_SHARED_DROP = 4,
    /**
     * RX: as above, but an opener that falls a whole ring behind is thrown out: its next call returns -ESTALE, and the
     * packets in its hands may have been overwritten.
     */
    MILLRACE_OPEN_SHARED_EVICT = 8,
    /**
     * RX, with one of MILLRACE_OPEN_SHARED_..., of the first who opens the queue: those who join it may choose
     * MILLRACE_OPEN_SHARED_BLOCK, and so make others wait for them. Without any MILLRACE_OPEN_JOINERS_... they may choose
     * anything else, and programs of the same user this too.
     */
    MILLRACE_OPEN_JOINERS_BLOCK = 16,
    /**
     * RX, as above: those who join may choose MILLRACE_OPEN_SHARED_DROP.
     */
    MILLRACE_OPEN_JOINERS_DROP = 32,
    /**
     * RX, as above: those who join may choose MILLRACE_OPEN_SHARED_EVICT.
     */
    MILLRACE_OPEN_JOINERS_EVICT = 64,
};

/**
 * What others may do in registered memory: access of millrace_slurpoe_register().
 */
enum millrace_slurpoe_access {
    /**
     * Reads and messages of this end may be stored there. Without any access it is only sent from.
     */
    MILLRACE_SLURPOE_LOCAL = 1,
    /**
     * Others may write there; this end too.
     */
    MILLRACE_SLURPOE_REMOTE_WRITE = 2,
    /**
     * Others may read there.
     */
    MILLRACE_SLURPOE_REMOTE_READ = 4,
};

/**
 * Why something failed; millrace_slurpoe_failed_name() has the name.
 */
enum millrace_slurpoe_failed {
    /**
     * It has not.
     */
    MILLRACE_SLURPOE_DONE = 0,
    /**
     * "remote-access": no such key, not all bytes in its memory, or not allowed.
     */
    MILLRACE_SLURPOE_FAILED_REMOTE_ACCESS = 1,
    /**
     * "unreachable": the other end has ended, or does not answer.
     */
    MILLRACE_SLURPOE_FAILED_UNREACHABLE = 2,
    /**
     * "flushed": an earlier transfer failed, or the connection was replaced.
     */
    MILLRACE_SLURPOE_FAILED_FLUSHED = 3,
    /**
     * "local-access": the memory of this end is not registered any more, or not for this.
     */
    MILLRACE_SLURPOE_FAILED_LOCAL_ACCESS = 4,
    /**
     * "length": the buffer is too short for the message.
     */
    MILLRACE_SLURPOE_FAILED_LENGTH = 5,
    /**
     * "remote": something else there.
     */
    MILLRACE_SLURPOE_FAILED_REMOTE = 6,
    /**
     * "local": something else here.
     */
    MILLRACE_SLURPOE_FAILED_LOCAL = 7,
};

/**
 * How a program is told of the end of what it posts: flags of millrace_slurpoe_post() and millrace_slurpoe_receive().
 * 0: millrace_slurpoe_poll() finds it.
 */
enum millrace_slurpoe_flags {
    /**
     * millrace_slurpoe_poll() finds it, and the descriptor of the endpoint becomes readable.
     */
    MILLRACE_SLURPOE_DESCRIPTOR = 1,
    /**
     * The function is called, and millrace_slurpoe_poll() does not find it.
     */
    MILLRACE_SLURPOE_CALLBACK = 2,
    /**
     * The end of each transfer of the list is told, with token plus its place in the list.
     */
    MILLRACE_SLURPOE_EACH = 4,
};

/**
 * What a transfer does, and what has ended.
 */
enum millrace_slurpoe_kind {
    /**
     * Bytes from here to memory of the other end.
     */
    MILLRACE_SLURPOE_WRITE = 0,
    /**
     * Bytes from there to here.
     */
    MILLRACE_SLURPOE_READ = 1,
    /**
     * Bytes from here to the first buffer that the other end has posted.
     */
    MILLRACE_SLURPOE_SEND = 2,
    /**
     * Only of ends: a message came to a posted buffer.
     */
    MILLRACE_SLURPOE_RECEIVE = 3,
};

/**
 * The clock of a card. Any number of threads may use it at once.
 */
struct millrace_clock;

/**
 * A lock on features of a component.
 */
struct millrace_component_lock;

/**
 * An open card. Any number of threads may use it at once.
 */
struct millrace_device;

/**
 * Frames on which rules decide. One thread at a time.
 */
struct millrace_flow_tap;

/**
 * What happens to the rules of a card. One thread at a time.
 */
struct millrace_flow_watch;

/**
 * Memory that program and card share. Any number of threads may use it at once.
 */
struct millrace_memory;

/**
 * An endpoint: a name, connections to other endpoints of this host and of others, messages and doorbells. Any number of threads may use it at once.
 * docs/message.md has the whole.
 */
struct millrace_message;

/**
 * Memory that is filled, and then handed over to another endpoint of this host.
 */
struct millrace_message_block;

/**
 * Memory of a message that another endpoint has handed over.
 */
struct millrace_message_given;

/**
 * Memory of another endpoint that this one writes and reads.
 */
struct millrace_message_window;

/**
 * An RX queue. One thread at a time.
 */
struct millrace_rx;

/**
 * An endpoint of SLURPoE: an address with registered memory, on a card or a port. Any number of threads may use it at once.
 * docs/slurpoe.md has the whole.
 */
struct millrace_slurpoe;

/**
 * An RX queue over buffers of the program. One thread at a time.
 */
struct millrace_supplied_rx;

/**
 * A TX queue over buffers of the program. One thread at a time.
 */
struct millrace_supplied_tx;

/**
 * A TX queue. One thread at a time.
 */
struct millrace_tx;

/**
 * What millrace_flow_change() has done.
 */
struct millrace_flow_done {
    /**
     * The version of the rules that it has made.
     */
    uint64_t version;
    /**
     * Rules that were added where none was with the same table, priority and match.
     */
    uint64_t added;
    /**
     * Rules that have other actions, or took the place of one with the same table, priority and match.
     */
    uint64_t modified;
    /**
     * Rules that went.
     */
    uint64_t removed;
};

/**
 * What became of keys that millrace_flow_keys() has handed over.
 */
struct millrace_flow_keys_done {
    /**
     * Secrets that are kept until their connection or this program goes.
     */
    uint64_t taken;
    /**
     * Secrets of no connection that the group knows.
     */
    uint64_t unknown;
    /**
     * Secrets for which there is no room.
     */
    uint64_t full;
    /**
     * Secrets of connections of which somebody else has handed over keys.
     */
    uint64_t foreign;
    /**
     * Lines with a secret that cannot be read.
     */
    uint64_t malformed;
    /**
     * Connections of which this program's keys are known now.
     */
    uint64_t connections;
};

/**
 * What a tap hears. All zero: every frame, whole, as it came in.
 */
struct millrace_flow_tap_options {
    /**
     * Of millrace_flow_tap_wants.
     */
    uint32_t wants;
    /**
     * At most so many bytes of each frame; 0 is all, up to 16384.
     */
    uint32_t snap;
    /**
     * A port, a queue, a rule or a cookie.
     */
    uint64_t value;
    /**
     * Of a cookie, the bits that count.
     */
    uint64_t mask;
    /**
     * At most so many frames per second; 0 is as many as may be, 100000.
     */
    uint32_t rate;
    /**
     * Not 0: frames as they are after all actions, not as they came in.
     */
    uint32_t after;
};

/**
 * Who gets a frame. There may be no room for it there.
 */
struct millrace_flow_sent {
    /**
     * 0: an RX queue; 1: a port; 2: the host's slow path.
     */
    uint32_t kind;
    /**
     * Of the queue or port.
     */
    uint32_t number;
};

/**
 * A frame on which rules have decided. The pointers are valid until the next call with the same tap.
 */
struct millrace_flow_frame {
    /**
     * When, in nanoseconds since 1970.
     */
    uint64_t time_ns;
    /**
     * The version of the rules that decided.
     */
    uint64_t version;
    /**
     * The port where it came in; 0xfffffffe: from a program.
     */
    uint32_t port;
    /**
     * The port queue where it came in, or the TX queue that has sent it.
     */
    uint32_t queue;
    /**
     * Its bytes, without FCS.
     */
    const uint8_t *data;
    /**
     * How many of them are here.
     */
    uint32_t data_len;
    /**
     * How many the frame has.
     */
    uint32_t len;
    /**
     * Numbers of the rules that it met, the first sixteen.
     */
    const uint64_t *rules;
    /**
     * Who gets it, the first eight.
     */
    const struct millrace_flow_sent *sent;
    /**
     * How many rules there are.
     */
    uint32_t rule_count;
    /**
     * How many there are in sent; none: it was dropped.
     */
    uint32_t sent_count;
};

/**
 * What the clock of a card shows, and how it does.
 */
struct millrace_clock_status {
    /**
     * The time, in ns, mostly since 1970.
     */
    uint64_t ns;
    /**
     * The clock less what it follows, in ns, when they were last compared; 0 before.
     */
    int64_t offset_ns;
    /**
     * The path to what it follows, one way, in ns; 0 when it is not known.
     */
    int64_t path_delay_ns;
    /**
     * How much faster than nominal it is told to go, in 2^-16 of a millionth.
     */
    int64_t scaled_ppm;
    /**
     * How long its state has been what it is, in ns.
     */
    uint64_t state_ns;
    /**
     * How often it was set or stepped.
     */
    uint64_t steps;
    /**
     * 0: nobody leads it. 1: it is being led, and not there yet. 2: it goes with what it follows. 3: holdover, it has lost that
     * and goes on at the speed that it had. 4: others follow it.
     */
    uint32_t state;
    /**
     * What it follows. 0: nothing. 1: the clock of the host. 2: a PTP master.
     */
    uint32_t source;
};

/**
 * One packet of a burst. The pointers are valid until the burst is put.
 */
struct millrace_packet {
    /**
     * The frame, without FCS. TX: a place for data_len bytes, to be written. RX: data_len bytes, to be read only;
     * writing to them is a segmentation fault.
     */
    uint8_t *data;
    /**
     * RX: metadata that the card gives with the frame, NULL if there is none. TX: NULL.
     */
    uint8_t *header;
    /**
     * Bytes of data.
     */
    uint32_t data_len;
    /**
     * Bytes of header.
     */
    uint16_t header_len;
    /**
     * RX: bits 1:0 say which kind of metadata it is. TX: 0.
     */
    uint16_t flags;
};

/**
 * One packet in a buffer of the program; see millrace_supplied_rx_peek().
 */
struct millrace_received {
    /**
     * Bytes in the buffer: metadata, then the frame without FCS.
     */
    uint16_t len;
    /**
     * Bytes of metadata before the frame, 0 if there are none.
     */
    uint8_t header_len;
    /**
     * Bits 1:0 say which kind of metadata it is.
     */
    uint8_t flags;
};

/**
 * A transfer.
 */
struct millrace_slurpoe_transfer {
    /**
     * One of enum millrace_slurpoe_kind.
     */
    uint32_t kind;
    /**
     * Bytes, 1 GiB at most.
     */
    uint32_t len;
    /**
     * Where they are, or go to: in memory registered with this endpoint, until the end is told.
     */
    void *local;
    /**
     * Offset in the memory of the other end; for a message nothing.
     */
    uint64_t offset;
    /**
     * The key of that memory.
     */
    uint32_t key;
    /**
     * 0.
     */
    uint32_t reserved;
};

/**
 * The end of a transfer, or of a list of them.
 */
struct millrace_slurpoe_end {
    /**
     * What was said when it was posted.
     */
    uint64_t token;
    /**
     * Bytes that came, of a message or a read.
     */
    uint32_t len;
    /**
     * One of enum millrace_slurpoe_failed.
     */
    uint32_t failed;
    /**
     * One of enum millrace_slurpoe_kind.
     */
    uint32_t kind;
    /**
     * Which transfer of the list: the last one, or the one that failed.
     */
    uint16_t index;
    /**
     * Address of the other end.
     */
    uint8_t other[6];
};

/**
 * A function that is told of an end: by the thread that posts or polls, or by a thread of the library. It may post; it must not close the
 * endpoint.
 */
typedef void (*millrace_slurpoe_callback)(const struct millrace_slurpoe_end *end, void *context);

/**
 * Another endpoint.
 */
struct millrace_message_other {
    /**
     * What it calls itself, "" if it has no name.
     */
    char name[65];
    /**
     * Whose it is.
     */
    uint32_t user;
    /**
     * Its process; 0: it has no number in this container, or is on another host.
     */
    uint32_t pid;
    /**
     * Its host, if that is another one, as it is called there; otherwise "". Between hosts nobody vouches for what an endpoint says of itself.
     */
    char host[65];
};

/**
 * A piece of the memory of a message.
 */
struct millrace_message_piece {
    /**
     * Where it is.
     */
    void *bytes;
    /**
     * How many.
     */
    size_t len;
};

/**
 * A message that has ended: its memory is the program's again.
 */
struct millrace_message_end {
    /**
     * What millrace_message_send() or millrace_message_receive() gave.
     */
    uint64_t request;
    /**
     * Of a message that was received: from whom.
     */
    uint64_t peer;
    /**
     * And what for.
     */
    uint64_t tag;
    /**
     * And how many bytes. Of one that was too long: how many it has.
     */
    uint64_t len;
    /**
     * The memory of the program that the message was sent from, or received into; of several pieces the first. Of MILLRACE_MESSAGE_HELD: where it
     * is, len bytes that the other end could still change.
     */
    void *bytes;
    /**
     * One of enum millrace_message_outcome.
     */
    uint32_t outcome;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Of MILLRACE_MESSAGE_HELD, for millrace_message_give_back(): until then the memory is not the other end's again. Otherwise NULL.
     */
    struct millrace_message_given *given;
};

/**
 * A function that is told of the end of a message, by a thread of the library. It may begin other messages; it must not close the endpoint.
 */
typedef void (*millrace_message_callback)(const struct millrace_message_end *end, void *context);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library in use, as MILLRACE_VERSION. Never fails.
 */
uint32_t millrace_version(void);

/**
 * What went wrong in the last call of this thread that failed, in words that say what to do; "" if none has.
 *
 * Valid until the next call of this thread that fails. Never NULL. Calls that succeed do not change it.
 */
const char *millrace_last_error(void);

/**
 * Opens the card with this name: "embedded", with options "embedded:port=loopback,rx=4", builds one inside this
 * process; "unix:PATH" connects to a card started with `millrace card --listen PATH`.
 *
 * device: where to put the device, NULL after an error. To be closed with millrace_close().
 *
 * Returns 0; -EINVAL: the name means nothing; -ENOENT, -ECONNREFUSED, -EACCES: nobody listens there, or not for us;
 * -ENOMEM, -EMFILE and others of the system: an embedded card cannot be built.
 */
int millrace_open(const char *name, struct millrace_device **device);

/**
 * Opens the card named by the environment variable MILLRACE_DEVICE, or an embedded loopback card if that is not set.
 *
 * Otherwise as millrace_open().
 */
int millrace_open_default(struct millrace_device **device);

/**
 * Closes a device; NULL is closed already. Its queues, locks and memory may be closed before or after it: the card is
 * left with the last of them.
 *
 * Returns 0.
 */
int millrace_close(struct millrace_device *device);

/**
 * The name under which the device was opened, completed; NULL for NULL. Valid until the device is closed.
 */
const char *millrace_name(const struct millrace_device *device);

/**
 * Process id of the card; our own if it is embedded.
 *
 * Returns it, or -EINVAL for NULL.
 */
int millrace_card_pid(const struct millrace_device *device);

/**
 * Number of RX queues: their indices begin at 0.
 *
 * Returns it, or -EINVAL for NULL.
 */
int millrace_rx_queues(const struct millrace_device *device);

/**
 * Number of TX queues: their indices begin at 0.
 *
 * Returns it, or -EINVAL for NULL.
 */
int millrace_tx_queues(const struct millrace_device *device);

/**
 * Shortest and longest frame of the card, in bytes without FCS. Shorter frames are padded with zeros when they are
 * sent. Either place may be NULL.
 *
 * Returns 0, or -EINVAL: device is NULL.
 */
int millrace_frame_limits(const struct millrace_device *device, uint16_t *shortest, uint16_t *longest);

/**
 * The flattened device tree of the card: what libfdt reads. Valid until the device is closed.
 *
 * blob: where to put the address of the first byte. len: where to put how many bytes it has.
 *
 * Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_device_tree(const struct millrace_device *device, const void **blob, size_t *len);

/**
 * All counters of the card as one JSON object, the one that `millrace stats --json` prints.
 *
 * json: where to put the string, NULL after an error. To be freed with millrace_free_string().
 *
 * Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_stats_json(const struct millrace_device *device, char **json);

/**
 * Frees a string that this library has handed out; NULL is free already.
 */
void millrace_free_string(char *string);

/**
 * Does changes to the rules of the card, all of them or none. Frames that come in after it returns meet the new version.
 *
 * changes: one on a line: "add RULE", "modify FILTER,actions=...", "delete FILTER", "delete group=N", "delete meter=N"; what
 * begins with none of these words is added: a rule, a group, a meter or miss, as text or JSON. # begins a comment.
 * flags: MILLRACE_FLOW_..., or 0.
 * done: where to put what was done, or NULL.
 *
 * Returns 0; -EINVAL: an argument is NULL, or a change cannot be, which the text names, from 1 on; -EACCES: this program has
 * not the right `configure:rules`, or a rule or group is somebody else's; -EDQUOT: too many rules; -ENODEV: the card is gone.
 */
int millrace_flow_change(const struct millrace_device *device,
                         const char *changes,
                         uint32_t flags,
                         struct millrace_flow_done *done);

/**
 * The rules that a filter means, as a JSON array: each has "line", "owner", and "rule" with what it has had. With an empty
 * filter miss, groups and meters come before them.
 *
 * json: where to put the string, NULL after an error. To be freed with millrace_free_string().
 *
 * Returns 0; -EINVAL: an argument is NULL, or the filter cannot be; -ENODEV: the card is gone.
 */
int millrace_flow_list_json(const struct millrace_device *device,
                            const char *filter,
                            char **json);

/**
 * What becomes of a frame that comes in at a port, and why, in words.
 *
 * frame, len: the frame without FCS; at most 16384 bytes.
 * version: of the rules; UINT64_MAX is the newest.
 * text: where to put the string, NULL after an error. To be freed with millrace_free_string().
 *
 * Returns 0; -EINVAL: an argument is NULL, or the frame is too long; -ENOENT: that version is not kept any more; -ENODEV: the
 * card is gone.
 */
int millrace_flow_explain(const struct millrace_device *device,
                          const void *frame,
                          size_t len,
                          uint32_t port,
                          uint64_t version,
                          char **text);

/**
 * Hands over keys of QUIC connections, so that a group with `keys` can steer by their streams. The card forgets them with their
 * connection, with the group, and when the device is closed or the program ends; nobody can read them from it.
 *
 * group: the number of a QUIC group.
 * log: lines of SSLKEYLOGFILE; secrets that are not of packets behind the handshake are passed over.
 * done: where to put what became of them, or NULL.
 *
 * Returns 0, also when secrets were not taken, which done says; -EINVAL: an argument is NULL, or the group takes no keys;
 * -ENOENT: there is no such group; -EACCES: this program has not the right `configure:rules`, or the group is somebody else's;
 * -EDQUOT: too many, each connection with keys counts as a rule; -ENODEV: the card is gone.
 */
int millrace_flow_keys(const struct millrace_device *device,
                       uint32_t group,
                       const char *log,
                       struct millrace_flow_keys_done *done);

/**
 * Watches what happens to the rules of the card from now on. Of the watches of one device, the last one alone is woken.
 *
 * watch: where to put it, NULL after an error. To be closed with millrace_flow_watch_close().
 *
 * Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_flow_watch_open(const struct millrace_device *device, struct millrace_flow_watch **watch);

/**
 * What has happened since the last call, as JSON: {"events": [...], "lost": N, ...}; waits at most timeout_ns for something.
 * An event has "kind" (added, modified, removed), "line", "owner", "version", "time_ns", and of a rule that has gone "reason"
 * (idle, hard, delete, owner-gone) and "rule" with what it has had. lost is how many events this program was too slow for.
 *
 * json: where to put the string, NULL after an error. To be freed with millrace_free_string().
 *
 * Returns 0, also when nothing has happened; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_flow_watch_next(struct millrace_flow_watch *watch,
                             uint64_t timeout_ns,
                             char **json);

/**
 * Ends a watch; NULL has ended already.
 *
 * Returns 0.
 */
int millrace_flow_watch_close(struct millrace_flow_watch *watch);

/**
 * Hears frames on which rules decide, from now on; takes the right `capture`. Of the taps of one device, the last one alone
 * hears something.
 *
 * options: what it hears.
 * tap: where to put it, NULL after an error. To be closed with millrace_flow_tap_close().
 *
 * Returns 0; -EINVAL: an argument is NULL, or the options cannot be; -EACCES: this program has not the right `capture`;
 * -ENODEV: the card is gone.
 */
int millrace_flow_tap_open(const struct millrace_device *device,
                           const struct millrace_flow_tap_options *options,
                           struct millrace_flow_tap **tap);

/**
 * The next frame; waits at most timeout_ns for one.
 *
 * frame: where to put it.
 *
 * Returns 1; 0: there was none; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_flow_tap_next(struct millrace_flow_tap *tap, uint64_t timeout_ns, struct millrace_flow_frame *frame);

/**
 * How many frames were not brought, as of the last time that millrace_flow_tap_next() had to ask the card.
 *
 * lost: those for which there was no room, because this program was too slow. limited: those beyond the rate. Each may be NULL.
 *
 * Returns 0; -EINVAL: tap is NULL.
 */
int millrace_flow_tap_missed(const struct millrace_flow_tap *tap,
                             uint64_t *lost,
                             uint64_t *limited);

/**
 * Ends a tap; NULL has ended already.
 *
 * Returns 0.
 */
int millrace_flow_tap_close(struct millrace_flow_tap *tap);

/**
 * Reads len bytes of registers, from this address of the card's bus on. No alignment is needed.
 *
 * Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_reg_read(const struct millrace_device *device, uint32_t address, void *to, size_t len);

/**
 * Writes len bytes to registers, from this address of the card's bus on. No alignment is needed.
 *
 * Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_reg_write(const struct millrace_device *device, uint32_t address, const void *from, size_t len);

/**
 * Reads a 32-bit register.
 *
 * Returns as millrace_reg_read().
 */
int millrace_reg_read32(const struct millrace_device *device, uint32_t address, uint32_t *value);

/**
 * Reads a 64-bit register.
 *
 * Returns as millrace_reg_read().
 */
int millrace_reg_read64(const struct millrace_device *device, uint32_t address, uint64_t *value);

/**
 * Writes a 32-bit register.
 *
 * Returns as millrace_reg_write().
 */
int millrace_reg_write32(const struct millrace_device *device, uint32_t address, uint32_t value);

/**
 * Writes a 64-bit register, as one update where its two halves belong together.
 *
 * Returns as millrace_reg_write().
 */
int millrace_reg_write64(const struct millrace_device *device, uint32_t address, uint64_t value);

/**
 * Locks features (a bit each) of a component of the card against everybody who asks for the same lock, this program
 * too. A component is what its users agree to call it: usually its path in the device tree. Waits up to timeout_ns
 * nanoseconds.
 *
 * lock: where to put the lock, NULL after an error. To be ended with millrace_unlock(); it ends with the process too.
 *
 * Returns 0; -EBUSY: somebody has one of the features; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
 */
int millrace_lock(const struct millrace_device *device,
                  const char *component,
                  uint64_t features,
                  uint64_t timeout_ns,
                  struct millrace_component_lock **lock);

/**
 * Ends a lock; NULL has ended already.
 *
 * Returns 0.
 */
int millrace_unlock(struct millrace_component_lock *lock);

/**
 * Maps the page that the card's clock is read from.
 *
 * clock: where to put the clock, NULL after an error. To be closed with millrace_clock_close(), before or after the device.
 *
 * Returns 0; -EINVAL: an argument is NULL; -EOPNOTSUPP: the clock cannot be read here, which the text says more of; -ENODEV:
 * the card is gone.
 */
int millrace_clock_open(const struct millrace_device *device,
                        struct millrace_clock **clock);

/**
 * The time that the card's clock shows, in ns, mostly since 1970. No system call where the kernel has CLOCK_MONOTONIC in its
 * vDSO. A card that is gone does not stop it.
 *
 * Returns 0; -EINVAL: an argument is NULL; -EOPNOTSUPP: the card has ended in the very moment in which it set the clock.
 */
int millrace_clock_now(const struct millrace_clock *clock,
                       uint64_t *ns);

/**
 * What the clock shows and how it does, of one moment.
 *
 * Returns as millrace_clock_now().
 */
int millrace_clock_read(const struct millrace_clock *clock, struct millrace_clock_status *status);

/**
 * Sets the clock.
 *
 * Returns 0; -EINVAL: an argument is NULL, or more than a clock of 32 bits of seconds can show; -EACCES: this program has not
 * the right `configure:clock`; -EBUSY: another program leads the clock; -ENODEV: the card is gone.
 */
int millrace_clock_set(const struct millrace_clock *clock,
                       uint64_t ns);

/**
 * Moves the clock by so many ns at once, forward or, if they are less than 0, back.
 *
 * Returns as millrace_clock_set().
 */
int millrace_clock_step(const struct millrace_clock *clock, int64_t ns);

/**
 * Has the clock go faster than its nominal speed from now on, by so much, in 2^-16 of a millionth each as in the `freq` of
 * clock_adjtime(2): at most a tenth. 0 is nominal.
 *
 * Returns as millrace_clock_set().
 */
int millrace_clock_frequency(const struct millrace_clock *clock,
                             int64_t scaled_ppm);

/**
 * Closes a clock; NULL is closed already.
 *
 * Returns 0.
 */
int millrace_clock_close(struct millrace_clock *clock);

/**
 * Opens RX queue number index. Packets come after millrace_rx_start().
 *
 * flags: 0 or those of enum millrace_open_flags. rx: where to put the queue, NULL after an error. To be closed with
 * millrace_rx_close().
 *
 * Returns 0; -EBUSY: somebody else has the queue, and the text says who; -EACCES: this program may not use the queue, or
 * not share it like that; -EDQUOT: this user, or this program, has as much as it may have; -ENOENT: there is no such queue; -EINVAL: an
 * argument is NULL, or the flags do not go together, or the queue's engine has no such mode; -ENOMEM: no memory for it;
 * -ENODEV: the card is gone.
 */
int millrace_rx_open(const struct millrace_device *device,
                     uint32_t index,
                     uint32_t flags,
                     struct millrace_rx **rx);

/**
 * Starts the queue: from now on packets arrive.
 *
 * Returns 0; -EINVAL: rx is NULL, or started already; -ENODEV: the card is gone. After any other error the queue can
 * only be closed.
 */
int millrace_rx_start(struct millrace_rx *rx);

/**
 * Takes up to count packets (at most MILLRACE_MAX_BURST). Never waits, and makes no system call in direct mode.
 *
 * packets: where to describe them. They stay where they are until millrace_rx_burst_put(), so several bursts can be
 * taken before one put; a mediated queue yields nothing more until then.
 *
 * Returns how many were taken, 0 if there are none; -EINVAL: an argument is NULL; -ESHUTDOWN: the queue is not
 * started; -EIO: the card has stopped it, and the text says why; -ESTALE: it went on without us, because we fell
 * behind; -ENODEV: the card is gone.
 */
int millrace_rx_burst_get(struct millrace_rx *rx, struct millrace_packet *packets, size_t count);

/**
 * Gives all packets back that were taken. Without any it does nothing.
 *
 * Returns 0; -EINVAL: rx is NULL; -ESHUTDOWN: the queue is not started.
 */
int millrace_rx_burst_put(struct millrace_rx *rx);

/**
 * Waits until there are packets beyond those taken, at most timeout_ns nanoseconds. Spins for some microseconds, then
 * sleeps without missing one. Signals do not end it.
 *
 * Returns 1: there are; 0: none came; otherwise as millrace_rx_burst_get().
 */
int millrace_rx_wait(struct millrace_rx *rx, uint64_t timeout_ns);

/**
 * How much a queue opened with MILLRACE_OPEN_SHARED_DROP has skipped because this program was too slow, since it was
 * started: packets, or units of 8 bytes (SZE).
 *
 * Returns 0; -EINVAL: an argument is NULL; -ESHUTDOWN: the queue is not started.
 */
int millrace_rx_lost(struct millrace_rx *rx, uint64_t *lost);

/**
 * Stops the queue; it can be started again. Packets that were not taken are lost, and pointers to those that were
 * become invalid.
 *
 * Returns 0; -EINVAL: rx is NULL; -ESHUTDOWN: the queue is not started; -ENODEV: the card is gone. After the last one
 * the queue can only be closed.
 */
int millrace_rx_stop(struct millrace_rx *rx);

/**
 * Stops the queue if it is started, and closes it; NULL is closed already. rx is invalid afterwards, whatever is
 * returned.
 *
 * Returns 0; -ENODEV: the card is gone.
 */
int millrace_rx_close(struct millrace_rx *rx);

/**
 * Opens TX queue number index. Packets go after millrace_tx_start().
 *
 * flags: 0 or those of enum millrace_open_flags. tx: where to put the queue, NULL after an error. To be closed with
 * millrace_tx_close().
 *
 * Returns as millrace_rx_open().
 */
int millrace_tx_open(const struct millrace_device *device, uint32_t index, uint32_t flags, struct millrace_tx **tx);

/**
 * Starts the queue.
 *
 * Returns 0; -EINVAL: tx is NULL, or started already; -ENODEV: the card is gone. After any other error the queue can
 * only be closed.
 */
int millrace_tx_start(struct millrace_tx *tx);

/**
 * Longest frame that can be sent here, in bytes without FCS.
 *
 * Returns it; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started.
 */
int millrace_tx_longest(struct millrace_tx *tx);

/**
 * Takes one slot for each of count lengths (bytes without FCS), all or none. Never waits, and makes no system call in
 * direct mode.
 *
 * packets: where to describe the count slots. What is in a slot is what lay there before; write all of it, and then
 * call millrace_tx_burst_put(). Several bursts can be taken before one put. What was taken is sent: it cannot be
 * given back unsent.
 *
 * Returns count, or 0 if there is no room for all of them now: call millrace_tx_flush() or millrace_tx_wait();
 * -EINVAL: an argument is NULL; -E2BIG: more than MILLRACE_MAX_BURST, or than the ring has; -EMSGSIZE: a frame is
 * longer than millrace_tx_longest(); -ESHUTDOWN: the queue is not started; -EIO: the card has stopped it, and the
 * text says why; -ENODEV: the card is gone.
 */
int millrace_tx_burst_get(struct millrace_tx *tx,
                          const uint16_t *lengths,
                          struct millrace_packet *packets,
                          size_t count);

/**
 * All slots that were taken have been written: they will be sent, at the latest at the next millrace_tx_flush().
 *
 * Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; in mediated mode also -ENODEV: the card is
 * gone.
 */
int millrace_tx_burst_put(struct millrace_tx *tx);

/**
 * Sends everything now that was taken, put or not.
 *
 * Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; -EIO: the card has stopped it, and the text
 * says why; -ENODEV: the card is gone.
 */
int millrace_tx_flush(struct millrace_tx *tx);

/**
 * Flushes, and waits until the card has taken at least a quarter of the ring, or everything, at most timeout_ns
 * nanoseconds. Signals do not end it.
 *
 * Returns 1: there is room; 0: the time is over; otherwise as millrace_tx_flush().
 */
int millrace_tx_wait(struct millrace_tx *tx, uint64_t timeout_ns);

/**
 * Flushes, waits up to a second until the card has taken everything, and stops the queue; it can be started again.
 *
 * Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; -ETIMEDOUT: the card did not take everything,
 * and the rest is lost; -ENODEV: the card is gone. After the last two the queue can only be closed.
 */
int millrace_tx_stop(struct millrace_tx *tx);

/**
 * Stops the queue if it is started, as millrace_tx_stop() does, and closes it; NULL is closed already. tx is invalid
 * afterwards, whatever is returned.
 *
 * Returns 0; -ETIMEDOUT: the card did not take everything, and the rest is lost; -ENODEV: the card is gone.
 */
int millrace_tx_close(struct millrace_tx *tx);

/**
 * Allocates size bytes of memory, all zero, which the card can reach too.
 *
 * memory: where to put it, NULL after an error. To be closed with millrace_memory_close().
 *
 * Returns 0; -EINVAL: an argument is NULL, or size is 0; -ENOMEM: there is not so much; -ENODEV: the card is gone.
 */
int millrace_memory_open(const struct millrace_device *device, size_t size, struct millrace_memory **memory);

/**
 * Where the program finds the first byte; NULL for NULL. Valid until the memory is closed.
 */
void *millrace_memory_data(const struct millrace_memory *memory);

/**
 * Where the card finds the first byte: what is posted to a queue; 0 for NULL.
 */
uint64_t millrace_memory_iova(const struct millrace_memory *memory);

/**
 * Takes the memory away from the card and frees it; NULL is closed already. Close first the queues that have buffers
 * in it. memory is invalid afterwards, whatever is returned.
 *
 * Returns 0; -ENODEV: the card is gone.
 */
int millrace_memory_close(struct millrace_memory *memory);

/**
 * Opens RX queue number index (Medusa only, direct, for this opener alone) and starts it, with a ring of so many
 * descriptors (a power of two) for buffers that the program posts.
 *
 * rx: where to put the queue, NULL after an error. To be closed with millrace_supplied_rx_close().
 *
 * Returns as millrace_rx_open().
 */
int millrace_supplied_rx_open(const struct millrace_device *device,
                              uint32_t index,
                              uint32_t descriptors,
                              struct millrace_supplied_rx **rx);

/**
 * Gives the card a buffer of len bytes at iova. It sees it after millrace_supplied_rx_flush(), and puts exactly one
 * packet into each buffer, in the order of posting.
 *
 * Returns 1: posted; 0: the ring is full; -EINVAL: rx is NULL.
 */
int millrace_supplied_rx_post(struct millrace_supplied_rx *rx, uint64_t iova, uint16_t len);

/**
 * Tells the card of posted buffers and of packets released.
 *
 * Returns 0, or -EINVAL: rx is NULL.
 */
int millrace_supplied_rx_flush(struct millrace_supplied_rx *rx);

/**
 * Describes up to count packets, the first that were not released, in the order in which their buffers were posted.
 *
 * Returns how many were described; -EINVAL: an argument is NULL; -EIO: the card has stopped the queue, and the text
 * says why; -ENODEV: the card is gone.
 */
int millrace_supplied_rx_peek(struct millrace_supplied_rx *rx, struct millrace_received *packets, size_t count);

/**
 * Releases the first count packets: their buffers are the program's again.
 *
 * Returns 0; -EINVAL: rx is NULL, or the last peek has not found so many.
 */
int millrace_supplied_rx_release(struct millrace_supplied_rx *rx, uint32_t count);

/**
 * Waits for a packet that was not released, at most timeout_ns nanoseconds. Signals do not end it.
 *
 * Returns 1: there is one; 0: none came; otherwise as millrace_supplied_rx_peek().
 */
int millrace_supplied_rx_wait(struct millrace_supplied_rx *rx, uint64_t timeout_ns);

/**
 * Stops and closes the queue; NULL is closed already. The card is done with all buffers when this returns. rx is
 * invalid afterwards, whatever is returned.
 *
 * Returns 0; -ENODEV: the card is gone.
 */
int millrace_supplied_rx_close(struct millrace_supplied_rx *rx);

/**
 * Opens TX queue number index (Medusa only, direct, for this opener alone) and starts it, with a ring of so many
 * descriptors (a power of two) for buffers that the program posts.
 *
 * tx: where to put the queue, NULL after an error. To be closed with millrace_supplied_tx_close().
 *
 * Returns as millrace_rx_open().
 */
int millrace_supplied_tx_open(const struct millrace_device *device,
                              uint32_t index,
                              uint32_t descriptors,
                              struct millrace_supplied_tx **tx);

/**
 * Queues the len bytes at iova for sending. The card sees them after millrace_supplied_tx_flush().
 *
 * Returns 1: queued; 0: the ring is full; -EINVAL: tx is NULL.
 */
int millrace_supplied_tx_post(struct millrace_supplied_tx *tx, uint64_t iova, uint16_t len);

/**
 * Sends everything posted.
 *
 * Returns 0, or -EINVAL: tx is NULL.
 */
int millrace_supplied_tx_flush(struct millrace_supplied_tx *tx);

/**
 * How many more buffers the card is done with since the last call, in the order of posting.
 *
 * Returns it; -EINVAL: tx is NULL; -EIO: the card has stopped the queue, and the text says why; -ENODEV: the card is
 * gone.
 */
int millrace_supplied_tx_completed(struct millrace_supplied_tx *tx);

/**
 * Stops and closes the queue, whether all was sent or not; NULL is closed already. The card is done with all buffers
 * when this returns. tx is invalid afterwards, whatever is returned.
 *
 * Returns 0; -ENODEV: the card is gone.
 */
int millrace_supplied_tx_close(struct millrace_supplied_tx *tx);

/**
 * Opens an endpoint: on a card (NULL: the one that commands would find), or on a port, which this process works on itself
 * ("vhost-user:PATH", "virtio-user:PATH", "af_xdp:INTERFACE"; docs/ports.md). One of both is NULL.
 * address: 6 bytes, NULL: a random one. mtu: bytes of payload of a packet, 256 to 8192, a power of two; 0: what is usual.
 * depth: transfers to one other end that have not ended, 1 to 8192; 0: 256.
 */
int millrace_slurpoe_open(const char *card,
                          const char *port,
                          const uint8_t *address,
                          uint32_t mtu,
                          uint32_t depth,
                          struct millrace_slurpoe **endpoint);

/**
 * Closes an endpoint. Other ends are told, its memory is deregistered, and what has not ended is not told of any more.
 */
int millrace_slurpoe_close(struct millrace_slurpoe *endpoint);

/**
 * Its address: 6 bytes.
 */
int millrace_slurpoe_address(const struct millrace_slurpoe *endpoint, uint8_t (*address)[6]);

/**
 * Registers memory, for flags of enum millrace_slurpoe_access. Others who are given the key reach it, byte 0 being its first.
 */
int millrace_slurpoe_register(const struct millrace_slurpoe *endpoint,
                              void *memory,
                              size_t len,
                              uint32_t access,
                              uint32_t *key);

/**
 * Deregisters memory: when this returns nobody reaches it any more.
 */
int millrace_slurpoe_deregister(const struct millrace_slurpoe *endpoint, uint32_t key);

/**
 * Makes a connection to another endpoint (6 bytes), unless there is one; after a failure a new one. One of both has to do it.
 * -ETIMEDOUT when it has not answered for so many nanoseconds, -ECONNREFUSED when it does not want it.
 */
int millrace_slurpoe_connect(const struct millrace_slurpoe *endpoint,
                             const uint8_t *other,
                             uint64_t patience);

/**
 * Ends a connection: what is on its way fails.
 */
int millrace_slurpoe_disconnect(const struct millrace_slurpoe *endpoint, const uint8_t *other);

/**
 * Posts a list of transfers with one doorbell; they are done in their order. One end is told, when all are done or one has failed;
 * with MILLRACE_SLURPOE_EACH one for each. -EAGAIN: there is no room, poll first. -ENOTCONN: connect first.
 */
int millrace_slurpoe_post(const struct millrace_slurpoe *endpoint,
                          const uint8_t *other,
                          const struct millrace_slurpoe_transfer *list,
                          size_t count,
                          uint64_t token,
                          uint32_t flags,
                          millrace_slurpoe_callback callback,
                          void *context);

/**
 * Posts a buffer for a message of any other end. Buffers are used in their order.
 */
int millrace_slurpoe_receive(const struct millrace_slurpoe *endpoint,
                             void *buffer,
                             uint32_t len,
                             uint64_t token,
                             uint32_t flags,
                             millrace_slurpoe_callback callback,
                             void *context);

/**
 * Takes up to count ends, the oldest first; how many. It never waits, and moves everything on.
 */
int millrace_slurpoe_poll(const struct millrace_slurpoe *endpoint, struct millrace_slurpoe_end *ends, size_t count);

/**
 * An eventfd that becomes readable by ends with MILLRACE_SLURPOE_DESCRIPTOR: read its 8 bytes, then poll until there is nothing. It is the
 * endpoint's, and closed with it.
 */
int millrace_slurpoe_descriptor(const struct millrace_slurpoe *endpoint);

/**
 * How often this end has refused another one because of a key, of bounds and of a missing permission, in this order.
 */
int millrace_slurpoe_refused(const struct millrace_slurpoe *endpoint, uint64_t (*counts)[3]);

/**
 * The name of one of enum millrace_slurpoe_failed, such as "remote-access"; "done" for 0, "unknown" for others.
 */
const char *millrace_slurpoe_failed_name(uint32_t failed);

/**
 * Opens an endpoint that others find by name: 1 to 64 letters, digits, '.', '_' and '-'. NULL: others do not find it, it connects. For flags
 * of enum millrace_message_flags. -EADDRINUSE: another one of this user has the name.
 */
int millrace_message_open(const char *name,
                          uint32_t flags,
                          struct millrace_message **endpoint);

/**
 * The same with rails, by which endpoints of other hosts are reached, and by which they find this one if it has a name: cards ("unix:PATH") and ports
 * ("virtio-user:PATH"; docs/ports.md), up to 8, which are used together. host: what this host is called by others; NULL: its own name. Names of other hosts are
 * those of millrace_message_connect() with the host before: "b:solver".
 */
int millrace_message_open_between(const char *name,
                                  uint32_t flags,
                                  const char *const *rails,
                                  size_t count,
                                  const char *host,
                                  struct millrace_message **endpoint);

/**
 * Closes an endpoint. What has not ended is not sent, or received, any more, and its memory is the program's again.
 */
int millrace_message_close(struct millrace_message *endpoint);

/**
 * Connects to the endpoint of that name, of this user, or of the one that stands before it ("1000/solver"). One that is not there yet is
 * waited for, for so many nanoseconds: -ECONNREFUSED. -EACCES: it does not take endpoints of this user; -EUSERS: it has as many as it may; -EPROTO: it is of
 * another version; -ETIMEDOUT: it is there, and does not answer, for which it has a second at least.
 */
int millrace_message_connect(const struct millrace_message *endpoint,
                             const char *name,
                             uint64_t patience,
                             uint64_t *peer);

/**
 * Waits for somebody who connects, for so many nanoseconds: -ETIMEDOUT.
 */
int millrace_message_accept(const struct millrace_message *endpoint, uint64_t patience, uint64_t *peer);

/**
 * Ends a connection. What waits for the other end, or it has left, is lost.
 */
int millrace_message_leave(const struct millrace_message *endpoint, uint64_t peer);

/**
 * Who that is. -ENOTCONN: nobody, or it is gone and forgotten.
 */
int millrace_message_who(const struct millrace_message *endpoint, uint64_t peer, struct millrace_message_other *who);

/**
 * Waits for what happens to others: one of enum millrace_message_happening, and to whom. -ETIMEDOUT: nothing in so many nanoseconds.
 */
int millrace_message_event(const struct millrace_message *endpoint,
                           uint64_t patience,
                           uint64_t *peer);

/**
 * Sends a message, by a way of enum millrace_message_way. Its memory is not to be changed until it has ended. -ENOTCONN: the other end is
 * gone.
 */
int millrace_message_send(const struct millrace_message *endpoint,
                          uint64_t peer,
                          uint64_t tag,
                          const void *bytes,
                          size_t len,
                          uint32_t way,
                          uint64_t *request);

/**
 * The same with a message in several pieces. The list is not used afterwards.
 */
int millrace_message_send_pieces(const struct millrace_message *endpoint,
                                 uint64_t peer,
                                 uint64_t tag,
                                 const struct millrace_message_piece *pieces,
                                 size_t count,
                                 uint32_t way,
                                 uint64_t *request);

/**
 * Waits for a message of len bytes or fewer from peer, or from anybody (0), with those bits of tag that are set in mask. Its memory is not
 * to be used until it has ended.
 */
int millrace_message_receive(const struct millrace_message *endpoint,
                             uint64_t peer,
                             uint64_t tag,
                             uint64_t mask,
                             void *bytes,
                             size_t len,
                             uint64_t *request);

/**
 * The same, of a message that may have been handed over (millrace_message_give()): that is not copied, but ends as MILLRACE_MESSAGE_HELD. Others
 * come to bytes.
 */
int millrace_message_receive_held(const struct millrace_message *endpoint,
                                  uint64_t peer,
                                  uint64_t tag,
                                  uint64_t mask,
                                  void *bytes,
                                  size_t len,
                                  uint64_t *request);

/**
 * The same into several pieces. The list is not used afterwards.
 */
int millrace_message_receive_pieces(const struct millrace_message *endpoint,
                                    uint64_t peer,
                                    uint64_t tag,
                                    uint64_t mask,
                                    const struct millrace_message_piece *pieces,
                                    size_t count,
                                    uint64_t *request);

/**
 * Waits until that message has ended, or any (0), for so many nanoseconds: -ETIMEDOUT. 0 nanoseconds: only looks, and moves everything on. An end
 * is told once.
 */
int millrace_message_wait(const struct millrace_message *endpoint,
                          uint64_t request,
                          uint64_t patience,
                          struct millrace_message_end *end);

/**
 * Has a function called when that message has ended, instead of waiting for it. -ENOENT: there is no such message, or its end was told already.
 * Functions that were not called when the endpoint is closed are not called.
 */
int millrace_message_then(const struct millrace_message *endpoint,
                          uint64_t request,
                          millrace_message_callback callback,
                          void *context);

/**
 * Ends a message before its time, if that is possible; its end says what came of it. 1: it is too late.
 */
int millrace_message_cancel(const struct millrace_message *endpoint, uint64_t request);

/**
 * Sends a short message that is not waited for, and whose memory is the program's at once. -EAGAIN: it cannot go now, and
 * millrace_message_send() takes it.
 */
int millrace_message_send_short(const struct millrace_message *endpoint,
                                uint64_t peer,
                                uint64_t tag,
                                const void *bytes,
                                size_t len);

/**
 * Takes the first short message of peer with those bits of tag that nobody waits for; how many bytes it has. -EAGAIN: there is none.
 * -EMSGSIZE: it has more than len, and is gone.
 */
int millrace_message_receive_short(const struct millrace_message *endpoint,
                                   uint64_t peer,
                                   uint64_t tag,
                                   uint64_t mask,
                                   void *bytes,
                                   size_t len);

/**
 * This program wants the doorbells first to last, for one of its parts, which it calls owner. -EBUSY: some of them are wanted already.
 */
int millrace_message_claim(const struct millrace_message *endpoint,
                           uint16_t first,
                           uint16_t last,
                           uint32_t owner);

/**
 * It does not want those of that owner any more.
 */
int millrace_message_release(const struct millrace_message *endpoint, uint32_t owner);

/**
 * Rings a doorbell of peer. once: unless the last one was the same, was rung so too, and waits; 1 then. -EAGAIN: as many wait as may.
 * -ENXIO: nobody there wants it.
 */
int millrace_message_ring(const struct millrace_message *endpoint,
                          uint64_t peer,
                          uint16_t number,
                          int once);

/**
 * Waits for a doorbell of anybody, for so many nanoseconds: -ETIMEDOUT. Its number; who has rung goes to peer.
 */
int millrace_message_bell(const struct millrace_message *endpoint, uint64_t patience, uint64_t *peer);

/**
 * A descriptor for poll(): readable as long as a message has ended, something has happened or a doorbell waits that was not taken. It is not to
 * be read, and is closed with the endpoint.
 */
int millrace_message_descriptor(const struct millrace_message *endpoint);

/**
 * Allocates a block for a message to peer, which has to be on this host: 16 MiB at most. If what was handed over before has not been given
 * back, it waits for so many nanoseconds: -EAGAIN. *bytes is its memory, which peer can see from now on.
 */
int millrace_message_allocate(const struct millrace_message *endpoint,
                              uint64_t peer,
                              size_t len,
                              uint64_t patience,
                              struct millrace_message_block **block,
                              void **bytes);

/**
 * Hands a block over to the peer that it was allocated for, as a message. It is gone for this program, also when this fails. -ENOTCONN: the
 * other end is gone; -EINVAL: it was allocated for another one.
 */
int millrace_message_give(const struct millrace_message *endpoint,
                          uint64_t peer,
                          uint64_t tag,
                          struct millrace_message_block *block);

/**
 * Frees a block that is not handed over.
 */
int millrace_message_block_free(struct millrace_message_block *block);

/**
 * Gives back what another endpoint has handed over (given of struct millrace_message_end). Its memory is not to be used any more.
 */
int millrace_message_give_back(struct millrace_message_given *given);

/**
 * By which number the endpoint that a block was allocated for finds it: for millrace_message_window(), as long as the block is neither given
 * nor freed.
 */
int millrace_message_block_number(const struct millrace_message_block *block,
                                  uint64_t *number);

/**
 * Opens memory of peer: len bytes of the block with that number, which it has allocated for this endpoint, and whose number it has told. -ENXIO: there
 * is none.
 */
int millrace_message_window_open(const struct millrace_message *endpoint,
                                 uint64_t peer,
                                 uint64_t number,
                                 uint64_t len,
                                 struct millrace_message_window **window);

/**
 * Writes bytes to memory of another endpoint, without a response (NWRITE). A doorbell or message of this thread arrives behind them. -ERANGE: they
 * are not in the window.
 */
int millrace_message_nwrite(const struct millrace_message_window *window,
                            size_t offset,
                            const void *bytes,
                            size_t len);

/**
 * The same with a response (NWRITE_R): when it returns, whoever looks there sees them.
 */
int millrace_message_nwrite_r(const struct millrace_message_window *window,
                              size_t offset,
                              const void *bytes,
                              size_t len);

/**
 * Writes whole double words, without a response (SWRITE). -EINVAL: offset or len is no multiple of 8.
 */
int millrace_message_swrite(const struct millrace_message_window *window, size_t offset, const void *bytes, size_t len);

/**
 * Reads bytes of memory of another endpoint (NREAD). -ERANGE: they are not in the window.
 */
int millrace_message_nread(const struct millrace_message_window *window, size_t offset, void *bytes, size_t len);

/**
 * Closes a window.
 */
int millrace_message_window_close(struct millrace_message_window *window);

#ifdef __cplusplus
} // extern "C"
#endif // __cplusplus

#endif /* MILLRACE_H */
