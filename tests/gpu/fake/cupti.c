/* libcupti.so.13: callbacks, activity records, timestamps; records laid out as CUPTI 11.1 to 13
 * lay them out.
 *
 * As the real one is meant to (README.md says what of it was measured): records are handed over from a thread of CUPTI's own; one that is flushed
 * by force before its kernel has ended has no times; who switches kinds of activity before the
 * records were flushed gets wrong times for the last launch; without a timestamp callback times
 * are on another clock; `cuptiFinalize` forgets what was not flushed.
 *
 * Misbehaviour for tests is in README.md, under FAKE_CUPTI_…. */

#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_PARAMETER = 1, LIMIT_REACHED = 12, NOT_INITIALIZED = 15, INVALID_KIND = 21, OTHER_SUBSCRIBER = 39 };
enum { KIND_COPY = 1, KIND_FILL = 2, KIND_KERNEL = 3, KIND_CONCURRENT_KERNEL = 10, KIND_GRAPH = 51, KINDS = 64 };
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2, DOMAIN_RESOURCE = 3, DOMAINS = 8 };

#define MOST_CALLBACKS 1024
/* So many records are handed over without being asked for, when somebody waits for the device. */
#define MOST_PENDING 2048
/* How wrong times are that belong to another launch. */
#define STRAY_NANOS 3000000

/* A record's bytes, with what decides over them until it is handed over. */
struct pending {
    struct pending * next;
    uint64_t end_nanos;
    uint32_t correlation, bytes;
    char record[224];
};

typedef void (*callback)(void *, int, uint32_t, const void *);
typedef void (*request_buffer)(uint8_t **, size_t *, size_t *);
typedef void (*complete_buffer)(void *, uint32_t, uint8_t *, size_t, size_t);

static struct {
    callback function;
    void * data;
    uint8_t is_on[DOMAINS][MOST_CALLBACKS];
} subscriber;
static bool is_subscribed;
static bool kinds[KINDS];
static request_buffer request;
static complete_buffer complete;
static uint64_t (*timestamp)(void);
static struct pending * first, ** last = &first;
static size_t pending_count, dropped;
static uint64_t record_number;

static bool is_absent(void) { return fake_setting("FAKE_CUDA_NO_CUPTI", 0) != 0; }

static uint64_t other_clock_nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

/* ---- what the device did */

#define PUT(offset, type, value) (*(type *) (pending->record + (offset)) = (type) (value))

static void add(struct pending * pending) {
    record_number++;
    if (record_number == (uint64_t) fake_setting("FAKE_CUPTI_DROP", 0)) {
        dropped++;
        free(pending);
        return;
    }
    if (record_number == (uint64_t) fake_setting("FAKE_CUPTI_WRONG_NAME", 0) && *(int *) pending->record == KIND_CONCURRENT_KERNEL) {
        PUT(104, const char *, "a_kernel_that_was_never_launched");
    }
    *last = pending;
    last = &pending->next;
    pending_count++;
}

static struct pending * new_record(const struct done * done, int kind, uint32_t bytes) {
    struct pending * pending = calloc(1, sizeof *pending);
    pending->end_nanos = done->end_nanos;
    pending->correlation = done->correlation;
    pending->bytes = bytes;
    PUT(0, int, kind);
    return pending;
}

static uint64_t node_id(const struct done * done) { return done->graph == 0 ? 0 : (uint64_t) done->graph << 32 | done->node; }

static void on_kernel(const struct done * done, int kind) {
    const struct work * work = done->work;
    struct pending * pending = new_record(done, kind, 216);
    PUT(16, uint64_t, done->begin_nanos), PUT(24, uint64_t, done->end_nanos);
    PUT(40, uint32_t, done->device), PUT(44, uint32_t, done->device + 1), PUT(48, uint32_t, done->stream);
    memcpy(pending->record + 52, &work->grid, 12), memcpy(pending->record + 64, &work->block, 12);
    PUT(80, uint32_t, work->shared_bytes), PUT(92, uint32_t, done->correlation);
    PUT(104, const char *, work->kernel->name);
    PUT(144, uint64_t, node_id(done)), PUT(156, uint32_t, done->graph);
    add(pending);
}

static void on_copy(const struct done * done) {
    const struct work * work = done->work;
    bool is_fill = work->type == NODE_FILL;
    struct pending * pending = new_record(done, is_fill ? KIND_FILL : KIND_COPY, is_fill ? 88 : 96);
    if (is_fill) {
        PUT(4, uint32_t, work->fill_value), PUT(50, uint16_t, 3);
    } else {
        bool to = fake_is_device_address(work->to), from = fake_is_device_address(work->from);
        PUT(4, uint8_t, to ? (from ? 8 : 1) : (from ? 2 : 9));
        PUT(5, uint8_t, from ? 3 : fake_is_pinned(work->from) ? 2 : 1), PUT(6, uint8_t, to ? 3 : fake_is_pinned(work->to) ? 2 : 1);
        PUT(48, uint32_t, done->correlation);
    }
    PUT(8, uint64_t, fake_copy_bytes(work)), PUT(16, uint64_t, done->begin_nanos), PUT(24, uint64_t, done->end_nanos);
    PUT(32, uint32_t, done->device), PUT(36, uint32_t, done->device + 1), PUT(40, uint32_t, done->stream);
    PUT(44, uint32_t, done->correlation), PUT(64, uint64_t, node_id(done)), PUT(72, uint32_t, done->graph);
    add(pending);
}

/* With records of whole graphs there are none of what is in them. */
static void on_done(const struct done * done) {
    if (complete == NULL || (done->graph != 0 && kinds[KIND_GRAPH])) {
        return;
    }
    switch (done->work->type) {
        case NODE_KERNEL:
            if (kinds[KIND_CONCURRENT_KERNEL] || kinds[KIND_KERNEL]) {
                on_kernel(done, kinds[KIND_CONCURRENT_KERNEL] ? KIND_CONCURRENT_KERNEL : KIND_KERNEL);
            }
            break;
        case NODE_COPY:
        case NODE_FILL:
            if (kinds[done->work->type == NODE_FILL ? KIND_FILL : KIND_COPY]) {
                on_copy(done);
            }
            break;
        case NODE_HOST:
        case NODE_RECORD: break;
    }
}

static void on_launched(const struct done * launch) {
    if (complete != NULL && kinds[KIND_GRAPH]) {
        struct pending * pending = new_record(launch, KIND_GRAPH, 56);
        PUT(4, uint32_t, launch->correlation), PUT(8, uint64_t, launch->begin_nanos), PUT(16, uint64_t, launch->end_nanos);
        PUT(24, uint32_t, launch->device), PUT(28, uint32_t, launch->graph), PUT(32, uint32_t, launch->device + 1);
        PUT(36, uint32_t, launch->stream);
        add(pending);
    }
}

/* ---- callbacks */

struct callback_data {
    int site;
    const char * name;
    const void * parameters;
    void * result;
    const char * symbol;
    void * context;
    uint32_t context_id;
    uint64_t * correlation_data;
    uint32_t correlation;
};
struct resource_data {
    void * context, * handle, * descriptor;
};
struct graph_data {
    void * graph, * original_graph, * node, * original_node;
    int type;
    void * dependency, * executable;
};

static bool is_wanted(int domain, int number) {
    return is_subscribed && number > 0 && number < MOST_CALLBACKS && subscriber.is_on[domain][number];
}

static void tell(int domain, int number, const char * name, struct call * call, bool is_end) {
    if (!is_wanted(domain, number)) {
        return;
    }
    static int no_error;
    int device = fake_current_device();
    struct callback_data data = { is_end, name, domain == DOMAIN_DRIVER ? call->parameters : NULL, &no_error, call->symbol, fake_context(device),
                                  (uint32_t) device + 1, domain == DOMAIN_DRIVER ? &call->driver_data : &call->runtime_data,
                                  call->correlation };
    subscriber.function(subscriber.data, domain, (uint32_t) number, &data);
}

static void on_call(struct call * call, bool is_end) {
    if (is_end) {
        tell(DOMAIN_DRIVER, call->driver_id, call->driver_name, call, true);
        tell(DOMAIN_RUNTIME, call->runtime_id, call->runtime_name, call, true);
    } else {
        tell(DOMAIN_RUNTIME, call->runtime_id, call->runtime_name, call, false);
        tell(DOMAIN_DRIVER, call->driver_id, call->driver_name, call, false);
    }
}

static void on_graph_changed(enum graph_change what, struct graph * graph, struct node * node, struct node * original) {
    if (is_wanted(DOMAIN_RESOURCE, what)) {
        struct graph_data of_graph = { graph, original == NULL ? NULL : original->graph, node, original,
                                       node == NULL ? 0 : (int) node->work.type, NULL, graph->is_executable ? graph : NULL };
        struct resource_data data = { fake_context(fake_current_device()), NULL, &of_graph };
        subscriber.function(subscriber.data, DOMAIN_RESOURCE, what, &data);
    }
}

static void forget_all(void) {
    while (first != NULL) {
        struct pending * next = first->next;
        free(first);
        first = next;
    }
    last = &first;
    pending_count = 0;
}

static void on_waited(void);

static void attach(void) {
    fake_lock();
    fake_observer = (struct observer) { on_call, on_done, on_launched, on_waited, on_graph_changed };
    fake_unlock();
}

int cuptiGetVersion(uint32_t * version) {
    *version = (uint32_t) fake_setting("FAKE_CUPTI_VERSION", 130001);
    return is_absent() ? NOT_INITIALIZED : SUCCESS;
}
int cuptiSubscribe(void ** handle, callback function, void * data) {
    if (is_absent()) {
        return NOT_INITIALIZED;
    }
    if (is_subscribed || fake_setting("FAKE_CUPTI_OTHER_SUBSCRIBER", 0)) {
        return OTHER_SUBSCRIBER;
    }
    attach();
    memset(&subscriber, 0, sizeof subscriber);
    subscriber.function = function;
    subscriber.data = data;
    is_subscribed = true;
    *handle = &subscriber;
    return SUCCESS;
}
int cuptiUnsubscribe(void * handle) {
    if (!is_subscribed || handle != &subscriber) {
        return INVALID_PARAMETER;
    }
    is_subscribed = false;
    return SUCCESS;
}
int cuptiEnableCallback(uint32_t is_on, void * handle, int domain, uint32_t number) {
    if (!is_subscribed || handle != &subscriber || domain < 1 || domain >= DOMAINS || number >= MOST_CALLBACKS) {
        return INVALID_PARAMETER;
    }
    subscriber.is_on[domain][number] = is_on != 0;
    return SUCCESS;
}
int cuptiEnableDomain(uint32_t is_on, void * handle, int domain) {
    if (!is_subscribed || handle != &subscriber || domain < 1 || domain >= DOMAINS) {
        return INVALID_PARAMETER;
    }
    memset(subscriber.is_on[domain], is_on != 0, MOST_CALLBACKS);
    return SUCCESS;
}

/* ---- activity */

static int switch_kind(int kind, bool is_on) {
    if (is_absent()) {
        return NOT_INITIALIZED;
    }
    if (kind <= 0 || kind >= KINDS) {
        return INVALID_KIND;
    }
    attach();
    fake_lock();
    if (first != NULL && kinds[kind] != is_on && (kind == KIND_GRAPH || kind == KIND_CONCURRENT_KERNEL)) {
        uint32_t last_correlation = 0;
        for (struct pending * pending = first; pending != NULL; pending = pending->next) {
            last_correlation = pending->correlation;
        }
        for (struct pending * pending = first; pending != NULL; pending = pending->next) {
            if (pending->correlation == last_correlation && *(int *) pending->record == KIND_CONCURRENT_KERNEL) {
                *(uint64_t *) (pending->record + 16) += STRAY_NANOS;
                *(uint64_t *) (pending->record + 24) += STRAY_NANOS;
            }
        }
    }
    kinds[kind] = is_on;
    fake_unlock();
    return SUCCESS;
}
int cuptiActivityEnable(int kind) { return switch_kind(kind, true); }
int cuptiActivityDisable(int kind) { return switch_kind(kind, false); }
int cuptiActivityRegisterCallbacks(request_buffer on_request, complete_buffer on_complete) {
    request = on_request;
    complete = on_complete;
    return is_absent() ? NOT_INITIALIZED : SUCCESS;
}
int cuptiActivityRegisterTimestampCallback(uint64_t (*function)(void)) {
    timestamp = function;
    return is_absent() ? NOT_INITIALIZED : SUCCESS;
}
int cuptiActivitySetAttribute(int attribute, size_t * bytes, void * value) {
    (void) attribute, (void) bytes, (void) value;
    return SUCCESS;
}
int cuptiActivityFlushPeriod(uint32_t millis) {
    (void) millis;
    return SUCCESS;
}

/* Size of a record of this kind in a buffer. */
static uint32_t bytes_of(int kind) {
    return kind == KIND_COPY ? 96 : kind == KIND_FILL ? 88 : kind == KIND_GRAPH ? 56 : 216;
}
int cuptiActivityGetNextRecord(uint8_t * buffer, size_t valid_bytes, void ** record) {
    uint8_t * next = *record == NULL ? buffer : (uint8_t *) *record + bytes_of(*(int *) *record);
    if (next >= buffer + valid_bytes) {
        return LIMIT_REACHED;
    }
    *record = next;
    return SUCCESS;
}
int cuptiActivityGetNumDroppedRecords(void * context, uint32_t stream, size_t * count) {
    (void) context, (void) stream;
    *count = dropped;
    dropped = 0;
    return SUCCESS;
}

/* From the fake's clock to the one that the program asked for. */
static void set_times(char * record, int64_t distance, bool has_ended) {
    int kind = *(int *) record;
    uint64_t * times = (uint64_t *) (record + (kind == KIND_GRAPH ? 8 : 16));
    for (int i = 0; i < 2; i++) {
        times[i] = has_ended ? times[i] + (uint64_t) distance : 0;
    }
}

struct batch {
    struct pending * records;
    uint64_t now_nanos;
    request_buffer request;
    complete_buffer complete;
};

/* Batches that are being handed over. */
static pthread_mutex_t hand_over_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hand_over_ended = PTHREAD_COND_INITIALIZER;
static int hand_overs;

static void * hand_over(void * argument) {
    struct batch * batch = argument;
    int64_t distance = (int64_t) ((timestamp != NULL ? timestamp() : other_clock_nanos()) - fake_now_nanos());
    /* Two readings of one clock differ by how long that takes: no distance at all. */
    distance = distance > -100000000 && distance < 100000000 ? 0 : distance;
    uint8_t * buffer = NULL;
    size_t room = 0, used = 0, most_records = 0, count = 0;
    while (batch->records != NULL) {
        struct pending * pending = batch->records;
        bool is_full = used + pending->bytes > room || (most_records != 0 && count >= most_records);
        if (buffer != NULL && is_full) {
            batch->complete(NULL, 0, buffer, room, used);
            buffer = NULL;
        }
        if (buffer == NULL) {
            used = room = most_records = count = 0;
            batch->request(&buffer, &room, &most_records);
        }
        if (buffer == NULL || used + pending->bytes > room) {
            dropped++;
        } else {
            set_times(pending->record, distance, pending->end_nanos <= batch->now_nanos);
            memcpy(buffer + used, pending->record, pending->bytes);
            used += pending->bytes;
            count++;
        }
        batch->records = pending->next;
        free(pending);
    }
    if (buffer != NULL) {
        batch->complete(NULL, 0, buffer, room, used);
    }
    free(batch);
    pthread_mutex_lock(&hand_over_lock);
    hand_overs--;
    pthread_cond_broadcast(&hand_over_ended);
    pthread_mutex_unlock(&hand_over_lock);
    return NULL;
}

static void wait_for_hand_overs(void) {
    pthread_mutex_lock(&hand_over_lock);
    while (hand_overs > 0) {
        pthread_cond_wait(&hand_over_ended, &hand_over_lock);
    }
    pthread_mutex_unlock(&hand_over_lock);
}

static struct batch * take_pending(bool is_forced) {
    struct batch * batch = calloc(1, sizeof *batch);
    struct pending ** batch_last = &batch->records;
    fake_lock();
    batch->now_nanos = fake_now_nanos();
    batch->request = request;
    batch->complete = complete;
    for (struct pending ** at = &first; *at != NULL;) {
        struct pending * pending = *at;
        if (is_forced || pending->end_nanos <= batch->now_nanos) {
            *at = pending->next;
            pending->next = NULL;
            *batch_last = pending;
            batch_last = &pending->next;
            pending_count--;
        } else {
            at = &pending->next;
        }
    }
    for (last = &first; *last != NULL; last = &(*last)->next) {
    }
    fake_unlock();
    return batch;
}

/* Does not wait: the program may hold what the receiver needs. */
static void begin_hand_over(bool is_forced) {
    struct batch * batch = take_pending(is_forced);
    pthread_t thread;
    if (batch->records == NULL) {
        free(batch);
        return;
    }
    pthread_mutex_lock(&hand_over_lock);
    hand_overs++;
    pthread_mutex_unlock(&hand_over_lock);
    if (pthread_create(&thread, NULL, hand_over, batch) != 0) {
        hand_over(batch);
    } else {
        pthread_detach(thread);
    }
}

static void on_waited(void) {
    if (pending_count >= MOST_PENDING && request != NULL && complete != NULL) {
        begin_hand_over(false);
    }
}

int cuptiActivityFlushAll(uint32_t flags) {
    if (is_absent()) {
        return NOT_INITIALIZED;
    }
    if (fake_has_ended()) {
        /* The real one reads what is gone, and the program dies. */
        abort();
    }
    if (request != NULL && complete != NULL) {
        begin_hand_over(flags & 1);
        wait_for_hand_overs();
    }
    return SUCCESS;
}

int cuptiFinalize(void) {
    if (is_absent()) {
        return NOT_INITIALIZED;
    }
    wait_for_hand_overs();
    fake_lock();
    memset(&fake_observer, 0, sizeof fake_observer);
    forget_all();
    memset(kinds, 0, sizeof kinds);
    is_subscribed = false;
    request = NULL;
    complete = NULL;
    timestamp = NULL;
    fake_unlock();
    return SUCCESS;
}

/* ---- identifiers */

int cuptiGetGraphNodeId(const struct node * node, uint64_t * id) {
    if (!fake_is_node(node)) {
        return INVALID_PARAMETER;
    }
    *id = (uint64_t) node->graph->id << 32 | node->index;
    return SUCCESS;
}
int cuptiGetGraphId(const struct graph * graph, uint32_t * id) {
    if (!fake_is_graph(graph)) {
        return INVALID_PARAMETER;
    }
    *id = graph->id;
    return SUCCESS;
}
int cuptiGetGraphExecId(const struct graph * executable, uint32_t * id) { return cuptiGetGraphId(executable, id); }
int cuptiGetTimestamp(uint64_t * nanos) {
    *nanos = timestamp != NULL ? timestamp() : other_clock_nanos();
    return SUCCESS;
}
int cuptiGetResultString(int result, const char ** text) {
    switch (result) {
        case SUCCESS: *text = "CUPTI_SUCCESS"; break;
        case INVALID_PARAMETER: *text = "CUPTI_ERROR_INVALID_PARAMETER"; break;
        case LIMIT_REACHED: *text = "CUPTI_ERROR_MAX_LIMIT_REACHED"; break;
        case NOT_INITIALIZED: *text = "CUPTI_ERROR_NOT_INITIALIZED"; break;
        case INVALID_KIND: *text = "CUPTI_ERROR_INVALID_KIND"; break;
        case OTHER_SUBSCRIBER: *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"; break;
        default: *text = "CUPTI_ERROR_UNKNOWN";
    }
    return SUCCESS;
}
