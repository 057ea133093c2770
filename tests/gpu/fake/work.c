/* When the fake does what a stream is asked to do, and how long that takes.
 *
 * A kernel's effects are none, a copy's happen at once; their times are the next free ones of
 * the stream. With programmatic dependent launch a kernel begins before the one before it has
 * ended, but ends its whole duration after it. */

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From the call to the first instruction, and from one kernel to the next. */
#define LAUNCH_NANOS 2200u
#define GAP_NANOS 700u
#define MOST_EARLY_NANOS 600u

static uint32_t last_correlation;

void fake_begin_call(struct call * call) {
    call->correlation = __atomic_add_fetch(&last_correlation, 1, __ATOMIC_RELAXED);
    call->runtime_data = call->driver_data = 0;
    if (fake_observer.call != NULL) {
        fake_observer.call(call, false);
    }
}

void fake_end_call(struct call * call) {
    if (fake_observer.call != NULL) {
        fake_observer.call(call, true);
    }
}

size_t fake_copy_bytes(const struct work * work) { return work->width * work->height; }

const char * fake_copy_direction(const struct work * work) {
    bool to = fake_is_device_address(work->to), from = fake_is_device_address(work->from);
    return to ? (from ? "dtod" : "htod") : (from ? "dtoh" : "htoh");
}

static uint32_t hash_of(const char * text) {
    uint32_t hash = 2166136261u;
    for (; *text != 0; text++) {
        hash = (hash ^ (uint8_t) *text) * 16777619u;
    }
    return hash;
}

static uint64_t plain_duration_nanos(const struct work * work) {
    switch (work->type) {
        case NODE_KERNEL: {
            uint64_t blocks = (uint64_t) work->grid.x * work->grid.y * work->grid.z;
            return 900 + hash_of(work->kernel->name) % 2000 + 2 * (blocks < 4000 ? blocks : 4000);
        }
        case NODE_COPY: return 900 + fake_copy_bytes(work) / (strcmp(fake_copy_direction(work), "dtod") == 0 ? 2000 : 50);
        case NODE_FILL: return 700 + fake_copy_bytes(work) / 2000;
        case NODE_HOST:
        case NODE_RECORD: break;
    }
    return 0;
}

uint64_t fake_duration_nanos(const struct work * work) {
    static int slowness = -1;
    if (slowness < 0) {
        slowness = fake_setting("FAKE_CUDA_SLOWNESS", 1);
    }
    return plain_duration_nanos(work) * (uint64_t) slowness;
}

static int copy(const struct work * work) {
    size_t to_bytes = work->to_pitch * (work->height - 1) + work->width;
    size_t from_bytes = work->from_pitch * (work->height - 1) + work->width;
    char * to = fake_bytes_at(work->to, to_bytes);
    const char * from = work->type == NODE_FILL ? NULL : fake_bytes_at(work->from, from_bytes);
    if (to == NULL || (work->type == NODE_COPY && from == NULL)) {
        fprintf(stderr, "fake CUDA: a copy of %zu bytes from %p to %p leaves what is allocated\n", fake_copy_bytes(work), work->from, work->to);
        return INVALID_VALUE;
    }
    for (size_t row = 0; row < work->height; row++) {
        char * at = to + row * work->to_pitch;
        if (work->type == NODE_COPY) {
            memmove(at, from + row * work->from_pitch, work->width);
        } else if (work->fill_bytes <= 1) {
            memset(at, (int) work->fill_value, work->width);
        } else {
            for (size_t i = 0; i + work->fill_bytes <= work->width; i += work->fill_bytes) {
                memcpy(at + i, &work->fill_value, work->fill_bytes);
            }
        }
    }
    if (work->type == NODE_COPY) {
        fake_make_logits(work, to);
    }
    return OK;
}

/* Its effects, and those who are told of it. */
void fake_perform(const struct done * done) {
    const struct work * work = done->work;
    fake_log_done(done);
    switch (work->type) {
        case NODE_KERNEL: fake_route(done); break;
        case NODE_COPY:
        case NODE_FILL:
            if (work->width * work->height > 0) {
                copy(work);
            }
            break;
        case NODE_HOST: work->host_call(work->host_data); break;
        case NODE_RECORD:
            work->event->is_recorded = true;
            work->event->capture = NULL;
            work->event->at_nanos = done->end_nanos;
            break;
    }
    if (fake_observer.done != NULL) {
        fake_observer.done(done);
    }
}

int fake_submit(struct stream * stream, const struct work * work, uint32_t correlation) {
    if (stream == NULL) {
        return INVALID_HANDLE;
    }
    fake_lock();
    if (stream->capture != NULL) {
        fake_add_node(stream, work);
        fake_unlock();
        return OK;
    }
    if (work->type != NODE_KERNEL && work->type != NODE_HOST) {
        size_t height = work->height == 0 ? 0 : work->height - 1;
        if (fake_bytes_at(work->to, work->to_pitch * height + work->width) == NULL
            || (work->type == NODE_COPY && fake_bytes_at(work->from, work->from_pitch * height + work->width) == NULL)) {
            fake_unlock();
            return INVALID_VALUE;
        }
    }
    uint64_t earliest = fake_now_nanos() + LAUNCH_NANOS;
    uint64_t nanos = fake_duration_nanos(work);
    struct done done = { .work = work, .device = stream->device, .stream = stream->id, .correlation = correlation };
    uint64_t previous_end = stream->end_nanos;
    if (previous_end + GAP_NANOS <= earliest) {
        done.begin_nanos = earliest;
        done.end_nanos = earliest + nanos;
    } else if (work->is_early && previous_end > earliest) {
        uint64_t early = stream->last_nanos / 3 < MOST_EARLY_NANOS ? stream->last_nanos / 3 : MOST_EARLY_NANOS;
        early = early < previous_end - earliest ? early : previous_end - earliest;
        done.begin_nanos = previous_end - early;
        done.end_nanos = previous_end + nanos;
    } else {
        done.begin_nanos = previous_end + GAP_NANOS;
        done.end_nanos = done.begin_nanos + nanos;
    }
    stream->end_nanos = done.end_nanos;
    stream->last_nanos = nanos;
    fake_perform(&done);
    fake_unlock();
    return OK;
}

/* As the driver lays out what CUPTI hands to a callback of cuLaunchKernel and cuLaunchKernelEx. */
struct launch_parameters {
    void * function;
    uint32_t grid[3], block[3], shared_bytes;
    void * stream;
    void ** arguments, ** extra;
};
struct launch_config {
    uint32_t grid[3], block[3], shared_bytes;
    void * stream, * attributes;
    uint32_t attribute_count;
};
struct launch_ex_parameters {
    const struct launch_config * config;
    void * function;
    void ** arguments, ** extra;
};
#define LAUNCH_KERNEL_EX 652

int fake_launch(struct call * call, struct kernel * kernel, struct dimensions grid, struct dimensions block, size_t shared_bytes,
                void * stream, void ** arguments, bool is_early) {
    struct stream * on = fake_stream(stream);
    if (!fake_is_kernel(kernel) || on == NULL) {
        return INVALID_HANDLE;
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x * block.y * block.z == 0 || block.x * block.y * block.z > 1024) {
        return INVALID_VALUE;
    }
    struct launch_config config = { { grid.x, grid.y, grid.z }, { block.x, block.y, block.z }, (uint32_t) shared_bytes, stream, NULL, 0 };
    struct launch_parameters plain = { kernel, { grid.x, grid.y, grid.z }, { block.x, block.y, block.z }, (uint32_t) shared_bytes, stream,
                                       arguments, NULL };
    struct launch_ex_parameters extended = { &config, kernel, arguments, NULL };
    call->parameters = call->driver_id == LAUNCH_KERNEL_EX ? (void *) &extended : (void *) &plain;
    call->symbol = kernel->name;
    struct work work = { .type = NODE_KERNEL, .kernel = kernel, .grid = grid, .block = block, .shared_bytes = (uint32_t) shared_bytes,
                         .is_early = is_early };
    fake_note_router(&work, arguments);
    fake_begin_call(call);
    int result = fake_submit(on, &work, call->correlation);
    fake_end_call(call);
    return result;
}

int fake_copy(struct call * call, void * to, size_t to_pitch, const void * from, size_t from_pitch, size_t width, size_t height,
              void * stream) {
    struct work work = { .type = NODE_COPY, .to = to, .from = from, .width = width, .height = height, .to_pitch = to_pitch,
                         .from_pitch = from_pitch, .counts_as_logits = call->runtime_id != 0 && fake_is_device_address(from)
                                                                        && !fake_is_device_address(to) };
    fake_begin_call(call);
    int result = width * height == 0 ? OK : fake_submit(fake_stream(stream), &work, call->correlation);
    fake_end_call(call);
    return result;
}

int fake_fill(struct call * call, void * to, uint32_t value, uint32_t value_bytes, size_t count, void * stream) {
    struct work work = { .type = NODE_FILL, .to = to, .width = count * value_bytes, .height = 1, .fill_value = value,
                         .fill_bytes = value_bytes };
    fake_begin_call(call);
    int result = count == 0 ? OK : fake_submit(fake_stream(stream), &work, call->correlation);
    fake_end_call(call);
    return result;
}

int fake_record_event(struct event * event, struct stream * stream, bool is_external) {
    if (stream == NULL || event == NULL || event->magic != MAGIC_EVENT) {
        return INVALID_HANDLE;
    }
    fake_lock();
    if (stream->capture != NULL && is_external) {
        struct work work = { .type = NODE_RECORD, .event = event };
        fake_add_node(stream, &work);
    } else if (stream->capture != NULL) {
        event->capture = stream->capture;
        event->is_recorded = false;
        event->dependency_count = stream->dependency_count;
        memcpy(event->dependencies, stream->dependencies, sizeof event->dependencies);
    } else {
        uint64_t now = fake_now_nanos();
        event->capture = NULL;
        event->is_recorded = true;
        event->at_nanos = stream->end_nanos > now ? stream->end_nanos : now;
    }
    fake_unlock();
    return OK;
}

/* A stream that waits for an event of a capture joins the capture. */
int fake_wait_for_event(struct stream * stream, struct event * event) {
    if (stream == NULL || event == NULL || event->magic != MAGIC_EVENT) {
        return INVALID_HANDLE;
    }
    fake_lock();
    if (event->capture != NULL && !event->capture->is_ended) {
        if (stream->capture == NULL) {
            stream->capture = event->capture;
            stream->dependency_count = 0;
        }
        for (uint32_t i = 0; i < event->dependency_count; i++) {
            bool is_known = false;
            for (uint32_t j = 0; j < stream->dependency_count; j++) {
                is_known |= stream->dependencies[j] == event->dependencies[i];
            }
            if (!is_known && stream->dependency_count < MOST_DEPENDENCIES) {
                stream->dependencies[stream->dependency_count++] = event->dependencies[i];
            }
        }
    } else if (event->is_recorded && stream->capture == NULL && event->at_nanos > stream->end_nanos) {
        stream->end_nanos = event->at_nanos;
        stream->last_nanos = 0;
    }
    fake_unlock();
    return OK;
}
