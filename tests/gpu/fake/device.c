/* The fake's devices, contexts, streams and the clock. */

#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <time.h>

/* As NVIDIA gives them for an H200. */
#define DEVICE_NAME "NVIDIA H200 (FAKE, computes nothing)"
#define DEVICE_BYTES 150121545728ull
#define SPIN_NANOS 50000

struct observer fake_observer;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct stream * streams;
static struct stream * default_streams[MOST_DEVICES];
static struct { uint32_t magic; int device; } contexts[MOST_DEVICES];
static __thread int current_device;

void fake_lock(void) { pthread_mutex_lock(&lock); }
void fake_unlock(void) { pthread_mutex_unlock(&lock); }

uint64_t fake_now_nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

int fake_setting(const char * name, int otherwise) {
    const char * value = getenv(name);
    return value != NULL && *value != 0 ? atoi(value) : otherwise;
}

static bool has_ended;

static void end_driver(void) { has_ended = true; }

bool fake_has_ended(void) { return has_ended; }

int fake_device_count(void) {
    static int count = -1;
    if (count < 0) {
        atexit(end_driver);
        int asked = fake_setting("FAKE_CUDA_DEVICES", 1);
        count = asked < 0 ? 0 : asked > MOST_DEVICES ? MOST_DEVICES : asked;
    }
    return count;
}

int fake_current_device(void) { return current_device; }

int fake_set_current_device(int device) {
    if (device < 0 || device >= fake_device_count()) {
        return INVALID_DEVICE;
    }
    current_device = device;
    return OK;
}

void * fake_context(int device) {
    contexts[device].device = device;
    return &contexts[device];
}

int fake_device_of_context(const void * context) {
    for (int device = 0; device < MOST_DEVICES; device++) {
        if (context == &contexts[device]) {
            return device;
        }
    }
    return -1;
}

size_t fake_device_bytes(void) { return DEVICE_BYTES; }
size_t fake_used_bytes(int device) { return (512u << 20) + fake_allocated_bytes(device); }
const char * fake_device_name(void) { return DEVICE_NAME; }

/* By the numbers of CUdevice_attribute, which cudaDeviceAttr shares. */
int fake_device_attribute(int attribute, int device) {
    switch (attribute) {
        case 1: case 2: case 3: return 1024;          /* threads of a block, its x and y */
        case 4: return 64;                            /* its z */
        case 5: return 2147483647;                    /* blocks of a grid in x */
        case 6: case 7: return 65535;                 /* in y and z */
        case 8: return 49152;                         /* shared memory of a block */
        case 9: return 65536;                         /* constant memory */
        case 10: return 32;                           /* warp */
        case 11: return 2147483647;                   /* pitch */
        case 12: case 82: return 65536;               /* registers of a block, of a multiprocessor */
        case 13: return 1980000;                      /* kHz */
        case 14: return 512;                          /* alignment of textures */
        case 16: return 132;                          /* multiprocessors */
        case 19: case 31: case 32: return 1;          /* maps host memory, concurrent kernels, ECC */
        case 33: return 0x18 + device;                /* PCI bus */
        case 36: return 3201000;                      /* kHz of the memory */
        case 37: return 6144;                         /* bits of its bus */
        case 38: return 62914560;                     /* L2 */
        case 39: return 2048;                         /* threads of a multiprocessor */
        case 40: return 3;                            /* copy engines */
        case 41: return 1;                            /* one address space */
        case 75: return 9;                            /* compute capability */
        case 76: return 0;
        case 78: case 79: case 80: case 83: return 1; /* stream priorities, caching, managed memory */
        case 81: return 233472;                       /* shared memory of a multiprocessor */
        case 89: case 95: case 96: case 99: return 1; /* concurrent managed access, cooperative launch, registering */
        case 97: return 232448;                       /* shared memory of a block that asks */
        case 102: return fake_setting("FAKE_CUDA_NO_VMM", 0) ? 0 : 1;
        case 106: return 32;                          /* blocks of a multiprocessor */
        case 111: return 1024;                        /* shared memory that the system takes */
        case 115: return 1;                           /* memory pools */
        default: return 0;
    }
}

const char * fake_error_name(int error) {
    switch (error) {
        case OK: return "no error";
        case INVALID_VALUE: return "invalid value (fake CUDA)";
        case OUT_OF_MEMORY: return "out of memory (fake CUDA)";
        case INVALID_DEVICE: return "invalid device (fake CUDA)";
        case INVALID_HANDLE: return "invalid handle (fake CUDA)";
        case NOT_FOUND: return "not found (fake CUDA)";
        case NOT_READY: return "not ready (fake CUDA)";
        case CAPTURE_UNSUPPORTED: return "not permitted while the stream is captured (fake CUDA)";
        case CAPTURE_INVALIDATED: return "the capture was invalidated (fake CUDA)";
        case CAPTURE_UNMATCHED: return "the capture was not begun here (fake CUDA)";
        case CAPTURED_EVENT: return "the event was recorded in a capture (fake CUDA)";
        case UPDATE_FAILED: return "the graph cannot be updated (fake CUDA)";
        default: return "unknown error (fake CUDA)";
    }
}

static struct stream * add_stream(int device) {
    static uint32_t last_id = 6;
    struct stream * stream = calloc(1, sizeof *stream);
    stream->magic = MAGIC_STREAM;
    stream->device = device;
    stream->id = ++last_id;
    stream->next = streams;
    streams = stream;
    return stream;
}

struct stream * fake_new_stream(void) {
    fake_lock();
    struct stream * stream = add_stream(current_device);
    fake_unlock();
    return stream;
}

/* Never given back: whoever still uses it is told so instead of reading other memory. */
int fake_free_stream(struct stream * stream) {
    fake_lock();
    int result = stream != NULL && stream->magic == MAGIC_STREAM ? OK : INVALID_HANDLE;
    if (result == OK) {
        stream->magic = 0;
        for (struct stream ** at = &streams; *at != NULL; at = &(*at)->next) {
            if (*at == stream) {
                *at = stream->next;
                break;
            }
        }
    }
    fake_unlock();
    return result;
}

/* NULL, 1 and 2 are the default streams of the current device. NULL if it is none. */
struct stream * fake_stream(void * handle) {
    if ((uintptr_t) handle <= 2) {
        fake_lock();
        if (default_streams[current_device] == NULL) {
            default_streams[current_device] = add_stream(current_device);
        }
        struct stream * stream = default_streams[current_device];
        fake_unlock();
        return stream;
    }
    struct stream * stream = handle;
    return stream->magic == MAGIC_STREAM ? stream : NULL;
}

/* The streams that joined a capture which is now at its end. */
void fake_release_joined(const struct capture * capture) {
    for (struct stream * stream = streams; stream != NULL; stream = stream->next) {
        if (stream->capture == capture) {
            stream->capture = NULL;
            stream->dependency_count = 0;
        }
    }
}

struct event * fake_new_event(void) {
    struct event * event = calloc(1, sizeof *event);
    event->magic = MAGIC_EVENT;
    return event;
}

/* Nothing is written: whoever waits for an event may want to know when. */
int fake_wait_quietly(uint64_t nanos) {
    for (uint64_t now; (now = fake_now_nanos()) < nanos;) {
        if (nanos - now > SPIN_NANOS) {
            struct timespec pause = { 0, (long) (nanos - now - SPIN_NANOS / 2) };
            pause.tv_sec = pause.tv_nsec / 1000000000;
            pause.tv_nsec %= 1000000000;
            nanosleep(&pause, NULL);
        } else {
            sched_yield();
        }
    }
    fake_lock();
    void (*waited)(void) = fake_observer.waited;
    fake_unlock();
    if (waited != NULL) {
        waited();
    }
    return OK;
}

int fake_wait_until(uint64_t nanos) {
    fake_wait_quietly(nanos);
    fake_flush_log();
    return OK;
}

int fake_wait_for_device(int device) {
    uint64_t end_nanos = 0;
    fake_lock();
    for (struct stream * stream = streams; stream != NULL; stream = stream->next) {
        if (stream->device == device && stream->end_nanos > end_nanos) {
            end_nanos = stream->end_nanos;
        }
    }
    fake_unlock();
    return fake_wait_until(end_nanos);
}
