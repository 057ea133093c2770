/* libcudart.so.13: the calls that llama.cpp's CUDA backend makes, and a few that a recorder may.
 * Numbers of callbacks are CUPTI's: first the runtime's, then the driver's. */

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL(runtime_number, name, driver_number, driver) \
    struct call call = { .runtime_id = runtime_number, .driver_id = driver_number, .runtime_name = name, .driver_name = driver }

static __thread int last_error;

static int say(int error) {
    if (error != OK) {
        last_error = error;
    }
    return error;
}

/* Registration: a fat binary has nothing that we need but the names of its kernels. */

void ** __cudaRegisterFatBinary(void * binary) {
    void ** handle = malloc(sizeof *handle);
    *handle = binary;
    return handle;
}
void __cudaRegisterFatBinaryEnd(void ** handle) { (void) handle; }
void __cudaUnregisterFatBinary(void ** handle) { free(handle); }
void __cudaRegisterVar(void ** handle, char * host, char * address, const char * name, int is_extern, size_t bytes, int is_constant,
                       int is_global) {
    (void) handle, (void) host, (void) address, (void) name, (void) is_extern, (void) bytes, (void) is_constant, (void) is_global;
}
void __cudaRegisterFunction(void ** handle, const char * host_function, char * device_function, const char * name, int threads, void * tid,
                            void * bid, void * block, void * grid, int * warp) {
    (void) handle, (void) device_function, (void) threads, (void) tid, (void) bid, (void) block, (void) grid, (void) warp;
    fake_kernel(host_function, name, false);
}
int __cudaGetKernel(void ** kernel, const void * host_function) {
    *kernel = fake_kernel_of(host_function);
    return *kernel == NULL ? say(INVALID_VALUE) : OK;
}

/* Launches */

static __thread struct {
    struct dimensions grid, block;
    size_t shared_bytes;
    void * stream;
} configuration;

unsigned __cudaPushCallConfiguration(struct dimensions grid, struct dimensions block, size_t shared_bytes, void * stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared_bytes = shared_bytes;
    configuration.stream = stream;
    return OK;
}
int __cudaPopCallConfiguration(struct dimensions * grid, struct dimensions * block, size_t * shared_bytes, void * stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *(void **) stream = configuration.stream;
    return OK;
}
int __cudaLaunchKernel(void * kernel, struct dimensions grid, struct dimensions block, void ** arguments, size_t shared_bytes,
                       void * stream) {
    CALL(211, "cudaLaunchKernel_v7000", 307, "cuLaunchKernel");
    return say(fake_launch(&call, kernel, grid, block, shared_bytes, stream, arguments, false));
}
int cudaLaunchKernel(const void * host_function, struct dimensions grid, struct dimensions block, void ** arguments, size_t shared_bytes,
                     void * stream) {
    return __cudaLaunchKernel(fake_kernel_of(host_function), grid, block, arguments, shared_bytes, stream);
}
int cudaLaunchCooperativeKernel(const void * host_function, struct dimensions grid, struct dimensions block, void ** arguments,
                                size_t shared_bytes, void * stream) {
    CALL(269, "cudaLaunchCooperativeKernel_v9000", 477, "cuLaunchCooperativeKernel");
    return say(fake_launch(&call, fake_kernel_of(host_function), grid, block, shared_bytes, stream, arguments, false));
}

struct attribute {
    int id;
    union {
        int number;
        char room[64];
    } value __attribute__((aligned(8)));
};
struct configuration {
    struct dimensions grid, block;
    size_t shared_bytes;
    void * stream;
    struct attribute * attributes;
    unsigned attribute_count;
};
#define PROGRAMMATIC_STREAM_SERIALIZATION 6

int cudaLaunchKernelExC(const struct configuration * config, const void * host_function, void ** arguments) {
    CALL(430, "cudaLaunchKernelExC_v11060", 652, "cuLaunchKernelEx");
    bool is_early = false;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct attribute * attribute = &config->attributes[i];
        is_early |= attribute->id == PROGRAMMATIC_STREAM_SERIALIZATION && attribute->value.number != 0;
    }
    /* A caller may name the kernel by its handle too. */
    struct kernel * kernel = fake_kernel_of(host_function);
    if (kernel == NULL && fake_is_kernel(host_function)) {
        kernel = (struct kernel *) host_function;
    }
    return say(fake_launch(&call, kernel, config->grid, config->block, config->shared_bytes, config->stream, arguments, is_early));
}
int cudaLaunchHostFunc(void * stream, void (*function)(void *), void * data) {
    struct work work = { .type = NODE_HOST, .host_call = function, .host_data = data };
    return say(fake_submit(fake_stream(stream), &work, 0));
}

/* What kernels are */

struct function_attributes {
    size_t shared_bytes, constant_bytes, local_bytes;
    int most_threads, registers, ptx_version, binary_version, cache_mode, most_shared_bytes, carveout;
};
int cudaFuncGetAttributes(struct function_attributes * attributes, const void * function) {
    (void) function;
    memset(attributes, 0, 144);
    attributes->most_threads = 1024;
    attributes->registers = 64;
    attributes->ptx_version = attributes->binary_version = 90;
    attributes->most_shared_bytes = 232448;
    return OK;
}
int cudaFuncSetAttribute(const void * function, int attribute, int value) {
    (void) function, (void) attribute, (void) value;
    return OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int * blocks, const void * function, int threads, size_t shared, unsigned flags) {
    (void) function, (void) shared, (void) flags;
    *blocks = threads > 512 ? 1 : 2;
    return OK;
}
int cudaFuncGetName(const char ** name, const void * host_function) {
    struct kernel * kernel = fake_kernel_of(host_function);
    *name = kernel == NULL ? NULL : kernel->name;
    return kernel == NULL ? say(INVALID_VALUE) : OK;
}

/* Devices */

int cudaGetDeviceCount(int * count) {
    *count = fake_device_count();
    return *count > 0 ? OK : say(100);
}
int cudaGetDevice(int * device) {
    *device = fake_current_device();
    return OK;
}
int cudaSetDevice(int device) { return say(fake_set_current_device(device)); }
int cudaSetDeviceFlags(unsigned flags) {
    (void) flags;
    return OK;
}
int cudaDeviceGetAttribute(int * value, int attribute, int device) {
    *value = fake_device_attribute(attribute, device);
    return OK;
}
int cudaDeviceGetPCIBusId(char * text, int length, int device) {
    snprintf(text, (size_t) length, "0000:%02x:00.0", 0x18 + device);
    return OK;
}
int cudaDeviceSynchronize(void) { return say(fake_wait_for_device(fake_current_device())); }
int cudaDeviceCanAccessPeer(int * can, int device, int peer) {
    *can = device != peer;
    return OK;
}
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void) peer, (void) flags;
    return OK;
}
int cudaMemGetInfo(size_t * free_bytes, size_t * total_bytes) {
    fake_lock();
    *total_bytes = fake_device_bytes();
    *free_bytes = *total_bytes - fake_used_bytes(fake_current_device());
    fake_unlock();
    return OK;
}
int cudaRuntimeGetVersion(int * version) {
    *version = 13000;
    return OK;
}
int cudaDriverGetVersion(int * version) { return cudaRuntimeGetVersion(version); }

/* Offsets of CUDA 13's cudaDeviceProp, of 1008 bytes. */
int cudaGetDeviceProperties(void * properties, int device) {
    char * at = properties;
    memset(at, 0, 1008);
    strcpy(at, fake_device_name());
    memset(at + 256, 0xfa, 16);
    at[271] = (char) device;
    *(size_t *) (at + 288) = fake_device_bytes();
    *(size_t *) (at + 312) = 2147483647;
    for (int i = 0; i < 3; i++) {
        ((int *) (at + 324))[i] = fake_device_attribute(2 + i, device);
        ((int *) (at + 336))[i] = fake_device_attribute(5 + i, device);
    }
    const struct { int offset, attribute; } numbers[] = {
        { 304, 12 }, { 308, 10 }, { 320, 1 }, { 360, 75 }, { 364, 76 }, { 384, 16 }, { 388, 18 }, { 392, 19 }, { 560, 31 }, { 568, 33 },
        { 584, 40 }, { 588, 41 }, { 592, 37 }, { 596, 38 }, { 604, 39 }, { 632, 82 }, { 636, 83 }, { 668, 95 }, { 688, 106 }, { 704, 99 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        *(int *) (at + numbers[i].offset) = fake_device_attribute(numbers[i].attribute, device);
    }
    const struct { int offset, attribute; } sizes[] = { { 296, 8 }, { 352, 9 }, { 624, 81 }, { 672, 97 }, { 696, 111 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *(size_t *) (at + sizes[i].offset) = (size_t) fake_device_attribute(sizes[i].attribute, device);
    }
    return OK;
}

/* Errors */

const char * cudaGetErrorString(int error) { return fake_error_name(error); }
const char * cudaGetErrorName(int error) { return fake_error_name(error); }
int cudaPeekAtLastError(void) { return last_error; }
int cudaGetLastError(void) {
    int error = last_error;
    last_error = OK;
    return error;
}

/* Memory */

int cudaMalloc(void ** address, size_t bytes) { return say(fake_allocate(address, bytes, false)); }
int cudaFree(void * address) { return say(fake_free(address)); }
int cudaMallocHost(void ** address, size_t bytes) { return say(fake_allocate_host(address, bytes)); }
int cudaHostAlloc(void ** address, size_t bytes, unsigned flags) {
    (void) flags;
    return say(fake_allocate_host(address, bytes));
}
int cudaMallocManaged(void ** address, size_t bytes, unsigned flags) {
    (void) flags;
    return say(fake_allocate_host(address, bytes));
}
int cudaFreeHost(void * address) { return say(fake_free_host(address)); }
int cudaHostGetDevicePointer(void ** device, void * host, unsigned flags) {
    (void) flags;
    *device = host;
    return OK;
}
int cudaHostRegister(void * address, size_t bytes, unsigned flags) {
    (void) address, (void) bytes, (void) flags;
    return OK;
}
int cudaHostUnregister(void * address) {
    (void) address;
    return OK;
}
int cudaMemcpyAsync(void * to, const void * from, size_t bytes, int kind, void * stream) {
    (void) kind;
    bool is_to = fake_is_device_address(to), is_from = fake_is_device_address(from);
    CALL(41, "cudaMemcpyAsync_v3020", is_to ? (is_from ? 281 : 277) : 279,
         is_to ? (is_from ? "cuMemcpyDtoDAsync_v2" : "cuMemcpyHtoDAsync_v2") : "cuMemcpyDtoHAsync_v2");
    return say(fake_copy(&call, to, bytes, from, bytes, bytes, 1, stream));
}
int cudaMemcpy(void * to, const void * from, size_t bytes, int kind) {
    int result = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return result == OK ? fake_wait_until(fake_stream(NULL)->end_nanos) : result;
}
int cudaMemcpy2DAsync(void * to, size_t to_pitch, const void * from, size_t from_pitch, size_t width, size_t height, int kind, void * stream) {
    (void) kind;
    CALL(44, "cudaMemcpy2DAsync_v3020", 289, "cuMemcpy2DAsync_v2");
    return say(fake_copy(&call, to, to_pitch, from, from_pitch, width, height, stream));
}
int cudaMemcpyPeerAsync(void * to, int to_device, const void * from, int from_device, size_t bytes, void * stream) {
    (void) to_device, (void) from_device;
    CALL(161, "cudaMemcpyPeerAsync_v4000", 281, "cuMemcpyDtoDAsync_v2");
    return say(fake_copy(&call, to, bytes, from, bytes, bytes, 1, stream));
}
int cudaMemsetAsync(void * to, int value, size_t bytes, void * stream) {
    CALL(51, "cudaMemsetAsync_v3020", 216, "cuMemsetD8Async");
    return say(fake_fill(&call, to, (uint8_t) value, 1, bytes, stream));
}
int cudaMemset(void * to, int value, size_t bytes) {
    int result = cudaMemsetAsync(to, value, bytes, NULL);
    return result == OK ? fake_wait_until(fake_stream(NULL)->end_nanos) : result;
}

/* Streams and events. That something is not ready is an error which `cudaGetLastError` returns
 * later, to whoever asks: llama.cpp does after each launch, and ends the program. */

int cudaStreamCreateWithFlags(void ** stream, unsigned flags) {
    (void) flags;
    *stream = fake_new_stream();
    return OK;
}
int cudaStreamCreate(void ** stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamDestroy(void * stream) { return say(fake_free_stream(stream)); }
int cudaStreamSynchronize(void * handle) {
    struct stream * stream = fake_stream(handle);
    if (stream == NULL) {
        return say(INVALID_HANDLE);
    }
    if (stream->capture != NULL) {
        stream->capture->is_invalid = true;
        return say(CAPTURE_UNSUPPORTED);
    }
    return fake_wait_until(stream->end_nanos);
}
int cudaStreamQuery(void * handle) {
    struct stream * stream = fake_stream(handle);
    return say(stream == NULL ? INVALID_HANDLE : fake_now_nanos() >= stream->end_nanos ? OK : NOT_READY);
}
int cudaStreamWaitEvent(void * stream, void * event, unsigned flags) {
    (void) flags;
    return say(fake_wait_for_event(fake_stream(stream), event));
}
int cudaEventCreateWithFlags(void ** event, unsigned flags) {
    (void) flags;
    *event = fake_new_event();
    return OK;
}
int cudaEventCreate(void ** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(struct event * event) {
    if (event == NULL || event->magic != MAGIC_EVENT) {
        return say(INVALID_HANDLE);
    }
    event->magic = 0;
    return OK;
}
int cudaEventRecordWithFlags(void * event, void * stream, unsigned flags) {
    return say(fake_record_event(event, fake_stream(stream), flags == 1));
}
int cudaEventRecord(void * event, void * stream) { return cudaEventRecordWithFlags(event, stream, 0); }
int cudaEventQuery(struct event * event) {
    bool is_done = !event->is_recorded || fake_now_nanos() >= event->at_nanos;
    return say(event->capture != NULL ? CAPTURED_EVENT : is_done ? OK : NOT_READY);
}
int cudaEventSynchronize(struct event * event) {
    return event->capture != NULL ? say(CAPTURED_EVENT) : event->is_recorded ? fake_wait_quietly(event->at_nanos) : OK;
}
int cudaEventElapsedTime(float * millis, const struct event * begin, const struct event * end) {
    if (!begin->is_recorded || !end->is_recorded) {
        return say(INVALID_HANDLE);
    }
    *millis = (float) ((double) (int64_t) (end->at_nanos - begin->at_nanos) / 1e6);
    return say(fake_now_nanos() >= end->at_nanos ? OK : NOT_READY);
}

/* Capture and graphs */

int cudaStreamBeginCapture(void * stream, int mode) {
    (void) mode;
    CALL(315, "cudaStreamBeginCapture_v10000", 0, NULL);
    fake_begin_call(&call);
    int result = fake_begin_capture(fake_stream(stream));
    fake_end_call(&call);
    return say(result);
}
int cudaStreamEndCapture(void * stream, struct graph ** graph) {
    CALL(319, "cudaStreamEndCapture_v10000", 0, NULL);
    fake_begin_call(&call);
    int result = fake_end_capture(fake_stream(stream), graph);
    fake_end_call(&call);
    return say(result);
}
int cudaStreamIsCapturing(void * handle, int * status) {
    struct stream * stream = fake_stream(handle);
    *status = stream == NULL || stream->capture == NULL ? 0 : stream->capture->is_invalid ? 2 : 1;
    return OK;
}
int cudaGraphInstantiate(struct graph ** executable, struct graph * graph, unsigned long long flags) {
    (void) flags;
    CALL(443, "cudaGraphInstantiate_v12000", 643, "cuGraphInstantiateWithFlags");
    fake_begin_call(&call);
    int result = fake_instantiate(graph, executable);
    fake_end_call(&call);
    return say(result);
}
int cudaGraphExecUpdate(struct graph * executable, struct graph * graph, void * result_info) {
    CALL(335, "cudaGraphExecUpdate_v10020", 696, "cuGraphExecUpdate_v2");
    fake_begin_call(&call);
    int result = fake_update(executable, graph);
    fake_end_call(&call);
    memset(result_info, 0, 24);
    *(int *) result_info = result == OK ? 0 : 2;
    return say(result);
}
int cudaGraphLaunch(struct graph * executable, void * stream) {
    CALL(311, "cudaGraphLaunch_v10000", 514, "cuGraphLaunch");
    struct { void * executable, * stream; } parameters = { executable, stream };
    call.parameters = &parameters;
    fake_begin_call(&call);
    int result = fake_launch_graph(executable, fake_stream(stream), call.correlation);
    fake_end_call(&call);
    return say(result);
}
int cudaGraphGetNodes(struct graph * graph, struct node ** nodes, size_t * count) {
    if (!fake_is_graph(graph)) {
        return say(INVALID_VALUE);
    }
    for (size_t i = 0; nodes != NULL && i < *count; i++) {
        nodes[i] = i < graph->node_count ? graph->nodes[i] : NULL;
    }
    *count = nodes == NULL || graph->node_count < *count ? graph->node_count : *count;
    return OK;
}
int cudaGraphNodeGetType(const struct node * node, int * type) {
    if (!fake_is_node(node)) {
        return say(INVALID_VALUE);
    }
    *type = (int) node->work.type;
    return OK;
}
/* cudaKernelNodeParams. A kernel of cuBLAS has no host function. */
#define INVALID_DEVICE_FUNCTION 98
struct kernel_node {
    const void * host_function;
    struct dimensions grid, block;
    unsigned shared_bytes;
    void ** arguments, ** extra;
};
int cudaGraphKernelNodeGetParams(const struct node * node, struct kernel_node * parameters) {
    if (!fake_is_node(node) || node->work.type != NODE_KERNEL) {
        return say(INVALID_VALUE);
    }
    if (node->work.kernel->host_function == NULL) {
        return say(INVALID_DEVICE_FUNCTION);
    }
    const struct work * work = &node->work;
    *parameters = (struct kernel_node) { work->kernel->host_function, work->grid, work->block, work->shared_bytes, NULL, NULL };
    return OK;
}
int cudaGraphDestroy(struct graph * graph) { return say(fake_free_graph(graph)); }
int cudaGraphExecDestroy(struct graph * executable) { return say(fake_free_graph(executable)); }
