/* A CUDA that computes nothing: what its libraries share.
 *
 * libcuda.so.1 holds the state (device.c, graph.c, work.c, log.c); libcudart, libcublas and
 * libcupti are thin and call it. Names that begin with `fake_` are ours and in no real library.
 *
 * Kept true:
 *  - what a program can see of order is real: launches, captures, graphs, copies, waits;
 *  - device memory cannot be read by the host. A device address is in a range that nobody may
 *    touch; its bytes lie elsewhere (`fake_bytes_at`). A recorder that reads one dies here as
 *    there;
 *  - times are on CLOCK_MONOTONIC. How long a kernel takes follows from its name and grid alone,
 *    and whoever waits for it really waits.
 *
 * No header of CUDA is used: handles are pointers to the structs below, results are ints. */

#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST_DEVICES 8
#define MOST_DEPENDENCIES 16

/* Numbers of CUresult and cudaError_t, which agree. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    DEINITIALIZED = 4,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURED_EVENT = 907,
    UPDATE_FAILED = 910,
};

enum node_type { NODE_KERNEL = 0, NODE_COPY = 1, NODE_FILL = 2, NODE_HOST = 3, NODE_RECORD = 7 };

/* A kernel by its name. Those of the runtime are a CUkernel to the driver, those of cuBLAS and
 * of modules a CUfunction. */
struct kernel {
    uint32_t magic;
    bool is_function;
    const char * name;
    const void * host_function;
};

struct dimensions {
    uint32_t x, y, z;
};

/* What a stream or a graph can be asked to do. */
struct work {
    enum node_type type;
    struct kernel * kernel;
    struct dimensions grid, block;
    uint32_t shared_bytes;
    /* Programmatic dependent launch: begins before what is before it has ended. */
    bool is_early;
    /* A copy of `height` rows of `width` bytes; a fill has no source. */
    void * to;
    const void * from;
    size_t width, height, to_pitch, from_pitch;
    uint32_t fill_value, fill_bytes;
    bool counts_as_logits;
    /* What the router's kernel was given: see routing.c. */
    void * expert_ids;
    uint32_t expert_rows, expert_count, experts_used, expert_row_length;
    struct event * event;
    void (*host_call)(void *);
    void * host_data;
};

struct node {
    uint32_t magic;
    struct graph * graph;
    uint32_t index;
    struct work work;
    uint32_t dependencies[MOST_DEPENDENCIES];
    uint32_t dependency_count;
};

/* Also a graph that can be launched: a clone with an identifier of its own. */
struct graph {
    uint32_t magic;
    uint32_t id;
    bool is_executable;
    struct node ** nodes;
    size_t node_count, node_room;
};

struct capture {
    uint64_t id;
    struct graph * graph;
    struct stream * origin;
    bool is_invalid, is_ended;
};

struct stream {
    uint32_t magic;
    int device;
    uint32_t id;
    /* When all that was asked of it will be done, and how long the last of it takes. */
    uint64_t end_nanos, last_nanos;
    struct capture * capture;
    uint32_t dependencies[MOST_DEPENDENCIES];
    uint32_t dependency_count;
    struct stream * next;
};

struct event {
    uint32_t magic;
    bool is_recorded;
    uint64_t at_nanos;
    struct capture * capture;
    uint32_t dependencies[MOST_DEPENDENCIES];
    uint32_t dependency_count;
};

/* One thing that the device did. */
struct done {
    const struct work * work;
    int device;
    uint32_t stream, correlation;
    /* 0 outside of graphs. */
    uint32_t graph;
    uint32_t node;
    uint64_t begin_nanos, end_nanos;
};

/* One call of an API, for those who asked to be told. */
struct call {
    int runtime_id, driver_id;
    const char * runtime_name, * driver_name;
    /* The driver's; for a call of the runtime nothing is given. */
    const void * parameters;
    const char * symbol;
    uint32_t correlation;
    uint64_t runtime_data, driver_data;
};

enum graph_change {
    GRAPH_CREATED = 9,
    GRAPH_DESTROYED = 10,
    NODE_CREATED = 13,
    EXECUTABLE_CREATED = 18,
    EXECUTABLE_DESTROYED = 19,
    NODE_CLONED = 20,
    NODE_UPDATED = 22,
};

/* libcupti, once it is loaded. */
struct observer {
    void (*call)(struct call * call, bool is_end);
    void (*done)(const struct done * done);
    void (*launched)(const struct done * launch);
    void (*waited)(void);
    void (*graph_changed)(enum graph_change what, struct graph * graph, struct node * node, struct node * original);
};
extern struct observer fake_observer;

/* device.c */
void fake_lock(void);
void fake_unlock(void);
uint64_t fake_now_nanos(void);
int fake_setting(const char * name, int otherwise);
int fake_device_count(void);
/* Whether the program's exit has ended the driver: it registers that when it is first used. */
bool fake_has_ended(void);
int fake_current_device(void);
int fake_set_current_device(int device);
void * fake_context(int device);
int fake_device_of_context(const void * context);
int fake_device_attribute(int attribute, int device);
size_t fake_device_bytes(void);
size_t fake_used_bytes(int device);
const char * fake_device_name(void);
const char * fake_error_name(int error);
struct stream * fake_new_stream(void);
int fake_free_stream(struct stream * stream);
struct stream * fake_stream(void * handle);
struct event * fake_new_event(void);
void fake_release_joined(const struct capture * capture);
int fake_wait_until(uint64_t nanos);
int fake_wait_quietly(uint64_t nanos);
int fake_wait_for_device(int device);

/* memory.c */
int fake_allocate(void ** address, size_t bytes, bool is_reserved_only);
int fake_free(void * address);
int fake_map(void * address, size_t bytes, bool is_mapped);
bool fake_is_device_address(const void * address);
bool fake_range_of(const void * address, void ** base, size_t * bytes);
/* Where the bytes are that a device address stands for; a host address stands for itself.
 * NULL if the device has not all of them. */
void * fake_bytes_at(const void * address, size_t bytes);
int fake_allocate_host(void ** address, size_t bytes);
int fake_free_host(void * address);
bool fake_is_pinned(const void * address);
size_t fake_allocated_bytes(int device);

/* work.c */
void fake_begin_call(struct call * call);
void fake_end_call(struct call * call);
int fake_launch(struct call * call, struct kernel * kernel, struct dimensions grid, struct dimensions block, size_t shared_bytes,
                void * stream, void ** arguments, bool is_early);
int fake_copy(struct call * call, void * to, size_t to_pitch, const void * from, size_t from_pitch, size_t width, size_t height,
              void * stream);
int fake_fill(struct call * call, void * to, uint32_t value, uint32_t value_bytes, size_t count, void * stream);
int fake_submit(struct stream * stream, const struct work * work, uint32_t correlation);
uint64_t fake_duration_nanos(const struct work * work);
void fake_perform(const struct done * done);
int fake_record_event(struct event * event, struct stream * stream, bool is_external);
int fake_wait_for_event(struct stream * stream, struct event * event);
const char * fake_copy_direction(const struct work * work);
size_t fake_copy_bytes(const struct work * work);

/* graph.c */
int fake_begin_capture(struct stream * stream);
int fake_end_capture(struct stream * stream, struct graph ** graph);
void fake_add_node(struct stream * stream, const struct work * work);
int fake_instantiate(struct graph * graph, struct graph ** executable);
int fake_update(struct graph * executable, struct graph * graph);
int fake_launch_graph(struct graph * executable, struct stream * stream, uint32_t correlation);
int fake_free_graph(struct graph * graph);
bool fake_is_graph(const struct graph * graph);
bool fake_is_node(const struct node * node);

/* routing.c */
void fake_note_router(struct work * work, void ** arguments);
void fake_route(const struct done * done);
void fake_make_logits(const struct work * work, void * to);

/* log.c */
void fake_log(const char * format, ...) __attribute__((format(printf, 1, 2)));
void fake_log_done(const struct done * done);
void fake_flush_log(void);

/* kernels.c */
struct kernel * fake_kernel(const void * host_function, const char * name, bool is_function);
struct kernel * fake_kernel_of(const void * host_function);
bool fake_is_kernel(const void * handle);

#define MAGIC_KERNEL 0x4b45524eu
#define MAGIC_STREAM 0x53545245u
#define MAGIC_EVENT 0x4556454eu
#define MAGIC_GRAPH 0x47524150u
#define MAGIC_NODE 0x4e4f4445u

#endif
