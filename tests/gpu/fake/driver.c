/* libcuda.so.1: what llama.cpp's CUDA backend, a recorder and a benchmark ask the driver for. */

#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL(number, name) struct call call = { .driver_id = number, .driver_name = name }

/* Devices and contexts */

int cuInit(unsigned flags) {
    (void) flags;
    return fake_device_count() > 0 ? OK : 100;
}
int cuDriverGetVersion(int * version) {
    *version = 13000;
    return OK;
}
int cuDeviceGetCount(int * count) {
    *count = fake_device_count();
    return OK;
}
int cuDeviceGet(int * device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < fake_device_count() ? OK : INVALID_DEVICE;
}
int cuDeviceGetName(char * name, int length, int device) {
    (void) device;
    snprintf(name, (size_t) length, "%s", fake_device_name());
    return OK;
}
int cuDeviceGetUuid_v2(char * uuid, int device) {
    memset(uuid, 0xfa, 16);
    uuid[15] = (char) device;
    return OK;
}
int cuDeviceGetPCIBusId(char * text, int length, int device) {
    snprintf(text, (size_t) length, "0000:%02x:00.0", 0x18 + device);
    return OK;
}
int cuDeviceTotalMem_v2(size_t * bytes, int device) {
    (void) device;
    *bytes = fake_device_bytes();
    return OK;
}
int cuDeviceGetAttribute(int * value, int attribute, int device) {
    *value = fake_device_attribute(attribute, device);
    return OK;
}
int cuMemGetInfo_v2(size_t * free_bytes, size_t * total_bytes) {
    fake_lock();
    *total_bytes = fake_device_bytes();
    *free_bytes = *total_bytes - fake_used_bytes(fake_current_device());
    fake_unlock();
    return OK;
}
int cuCtxGetCurrent(void ** context) {
    *context = fake_context(fake_current_device());
    return OK;
}
int cuCtxSetCurrent(void * context) {
    int device = fake_device_of_context(context);
    return context == NULL ? OK : device < 0 ? 201 : fake_set_current_device(device);
}
int cuCtxGetDevice(int * device) {
    *device = fake_current_device();
    return OK;
}
int cuCtxGetId(void * context, unsigned long long * id) {
    *id = 1 + (unsigned) fake_device_of_context(context == NULL ? fake_context(fake_current_device()) : context);
    return OK;
}
static __thread int pushed[64];
static __thread int pushed_count;
int cuCtxPushCurrent_v2(void * context) {
    pushed[pushed_count++ % 64] = fake_current_device();
    return cuCtxSetCurrent(context);
}
int cuCtxPopCurrent_v2(void ** context) {
    if (context != NULL) {
        *context = fake_context(fake_current_device());
    }
    return pushed_count > 0 ? fake_set_current_device(pushed[--pushed_count % 64]) : 201;
}
int cuCtxSynchronize(void) { return fake_has_ended() ? DEINITIALIZED : fake_wait_for_device(fake_current_device()); }
int cuDevicePrimaryCtxRetain(void ** context, int device) {
    *context = fake_context(device);
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void) device;
    return OK;
}
int cuDevicePrimaryCtxGetState(int device, unsigned * flags, int * is_active) {
    (void) device;
    *flags = 0;
    *is_active = 1;
    return OK;
}
int cuCtxCreate_v2(void ** context, unsigned flags, int device) {
    (void) flags;
    *context = fake_context(device);
    return fake_set_current_device(device);
}
int cuCtxCreate_v4(void ** context, void * parameters, unsigned flags, int device) {
    (void) parameters;
    return cuCtxCreate_v2(context, flags, device);
}
int cuCtxDestroy_v2(void * context) {
    (void) context;
    return OK;
}
int cuGetErrorString(int error, const char ** text) {
    *text = fake_error_name(error);
    return OK;
}
int cuGetErrorName(int error, const char ** text) { return cuGetErrorString(error, text); }

/* Memory */

int cuMemAlloc_v2(void ** address, size_t bytes) { return fake_allocate(address, bytes, false); }
int cuMemFree_v2(void * address) { return fake_free(address); }
int cuMemHostAlloc(void ** address, size_t bytes, unsigned flags) {
    (void) flags;
    return fake_allocate_host(address, bytes);
}
int cuMemAllocHost_v2(void ** address, size_t bytes) { return fake_allocate_host(address, bytes); }
int cuMemFreeHost(void * address) { return fake_free_host(address); }
int cuMemHostGetDevicePointer_v2(void ** device, void * host, unsigned flags) {
    (void) flags;
    *device = host;
    return OK;
}
int cuMemHostRegister_v2(void * address, size_t bytes, unsigned flags) {
    (void) address, (void) bytes, (void) flags;
    return OK;
}
int cuMemHostUnregister(void * address) {
    (void) address;
    return OK;
}
int cuMemGetAddressRange_v2(void ** base, size_t * bytes, void * address) {
    void * found_base;
    size_t found_bytes;
    if (!fake_range_of(address, &found_base, &found_bytes)) {
        return NOT_FOUND;
    }
    if (base != NULL) {
        *base = found_base;
    }
    if (bytes != NULL) {
        *bytes = found_bytes;
    }
    return OK;
}
/* Attribute 2 is the kind of memory (1 host, 2 device), 9 the device's number. */
int cuPointerGetAttribute(void * value, int attribute, void * address) {
    bool is_device = fake_is_device_address(address);
    if (!is_device && !fake_is_pinned(address)) {
        return INVALID_VALUE;
    }
    switch (attribute) {
        case 2: *(int *) value = is_device ? 2 : 1; return OK;
        case 9: *(int *) value = fake_current_device(); return OK;
        default: return INVALID_VALUE;
    }
}

/* Addresses first, memory later: what llama.cpp's pool does. A handle is the size. */
int cuMemAddressReserve(void ** address, size_t bytes, size_t alignment, void * wish, unsigned long long flags) {
    (void) alignment, (void) wish, (void) flags;
    return fake_allocate(address, bytes, true);
}
int cuMemAddressFree(void * address, size_t bytes) {
    (void) bytes;
    return fake_free(address);
}
int cuMemCreate(uint64_t * handle, size_t bytes, const void * properties, unsigned long long flags) {
    (void) properties, (void) flags;
    *handle = bytes;
    return OK;
}
int cuMemRelease(uint64_t handle) {
    (void) handle;
    return OK;
}
int cuMemMap(void * address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
    (void) offset, (void) flags;
    return bytes > handle ? INVALID_VALUE : fake_map(address, bytes, true);
}
int cuMemUnmap(void * address, size_t bytes) { return fake_map(address, bytes, false); }
int cuMemSetAccess(void * address, size_t bytes, const void * access, size_t count) {
    (void) address, (void) bytes, (void) access, (void) count;
    return OK;
}
int cuMemGetAllocationGranularity(size_t * bytes, const void * properties, int option) {
    (void) properties, (void) option;
    *bytes = 2u << 20;
    return OK;
}

/* Copies. Those that are not asynchronous wait. */

static int wait_for(void * stream, int result) { return result == OK ? fake_wait_until(fake_stream(stream)->end_nanos) : result; }

int cuMemcpyHtoDAsync_v2(void * to, const void * from, size_t bytes, void * stream) {
    CALL(277, "cuMemcpyHtoDAsync_v2");
    return fake_copy(&call, to, bytes, from, bytes, bytes, 1, stream);
}
int cuMemcpyDtoHAsync_v2(void * to, const void * from, size_t bytes, void * stream) {
    CALL(279, "cuMemcpyDtoHAsync_v2");
    return fake_copy(&call, to, bytes, from, bytes, bytes, 1, stream);
}
int cuMemcpyDtoDAsync_v2(void * to, const void * from, size_t bytes, void * stream) {
    CALL(281, "cuMemcpyDtoDAsync_v2");
    return fake_copy(&call, to, bytes, from, bytes, bytes, 1, stream);
}
int cuMemcpyAsync(void * to, const void * from, size_t bytes, void * stream) {
    CALL(306, "cuMemcpyAsync");
    return fake_copy(&call, to, bytes, from, bytes, bytes, 1, stream);
}
int cuMemcpyHtoD_v2(void * to, const void * from, size_t bytes) { return wait_for(NULL, cuMemcpyHtoDAsync_v2(to, from, bytes, NULL)); }
int cuMemcpyDtoH_v2(void * to, const void * from, size_t bytes) { return wait_for(NULL, cuMemcpyDtoHAsync_v2(to, from, bytes, NULL)); }
int cuMemcpyDtoD_v2(void * to, const void * from, size_t bytes) { return wait_for(NULL, cuMemcpyDtoDAsync_v2(to, from, bytes, NULL)); }
int cuMemcpy(void * to, const void * from, size_t bytes) { return wait_for(NULL, cuMemcpyAsync(to, from, bytes, NULL)); }
int cuMemsetD8Async(void * to, unsigned char value, size_t count, void * stream) {
    CALL(216, "cuMemsetD8Async");
    return fake_fill(&call, to, value, 1, count, stream);
}
int cuMemsetD32Async(void * to, unsigned value, size_t count, void * stream) {
    CALL(220, "cuMemsetD32Async");
    return fake_fill(&call, to, value, 4, count, stream);
}
int cuMemsetD8_v2(void * to, unsigned char value, size_t count) { return wait_for(NULL, cuMemsetD8Async(to, value, count, NULL)); }
int cuMemsetD32_v2(void * to, unsigned value, size_t count) { return wait_for(NULL, cuMemsetD32Async(to, value, count, NULL)); }

/* Streams and events */

int cuStreamCreate(void ** stream, unsigned flags) {
    (void) flags;
    *stream = fake_new_stream();
    return OK;
}
int cuStreamCreateWithPriority(void ** stream, unsigned flags, int priority) {
    (void) priority;
    return cuStreamCreate(stream, flags);
}
int cuStreamDestroy_v2(void * stream) { return fake_free_stream(stream); }
int cuStreamSynchronize(void * handle) {
    struct stream * stream = fake_stream(handle);
    if (stream == NULL) {
        return INVALID_HANDLE;
    }
    if (stream->capture != NULL) {
        stream->capture->is_invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    return fake_wait_until(stream->end_nanos);
}
int cuStreamQuery(void * handle) {
    struct stream * stream = fake_stream(handle);
    return stream == NULL ? INVALID_HANDLE : fake_now_nanos() >= stream->end_nanos ? OK : NOT_READY;
}
int cuStreamGetId(void * handle, unsigned long long * id) {
    struct stream * stream = fake_stream(handle);
    *id = stream == NULL ? 0 : stream->id;
    return stream == NULL ? INVALID_HANDLE : OK;
}
int cuStreamGetCtx(void * handle, void ** context) {
    struct stream * stream = fake_stream(handle);
    *context = stream == NULL ? NULL : fake_context(stream->device);
    return stream == NULL ? INVALID_HANDLE : OK;
}
int cuStreamWaitEvent(void * stream, void * event, unsigned flags) {
    (void) flags;
    return fake_wait_for_event(fake_stream(stream), event);
}
int cuLaunchHostFunc(void * stream, void (*function)(void *), void * data) {
    struct work work = { .type = NODE_HOST, .host_call = function, .host_data = data };
    return fake_submit(fake_stream(stream), &work, 0);
}
int cuEventCreate(void ** event, unsigned flags) {
    (void) flags;
    *event = fake_new_event();
    return OK;
}
int cuEventDestroy_v2(struct event * event) {
    if (event == NULL || event->magic != MAGIC_EVENT) {
        return INVALID_HANDLE;
    }
    event->magic = 0;
    return OK;
}
int cuEventRecord(void * event, void * stream) { return fake_record_event(event, fake_stream(stream), false); }
int cuEventRecordWithFlags(void * event, void * stream, unsigned flags) { return fake_record_event(event, fake_stream(stream), flags == 1); }
int cuEventQuery(struct event * event) {
    if (fake_has_ended()) {
        return DEINITIALIZED;
    }
    return event->capture != NULL ? CAPTURED_EVENT : !event->is_recorded || fake_now_nanos() >= event->at_nanos ? OK : NOT_READY;
}
int cuEventSynchronize(struct event * event) {
    return event->capture != NULL ? CAPTURED_EVENT : event->is_recorded ? fake_wait_quietly(event->at_nanos) : OK;
}
int cuEventElapsedTime(float * millis, const struct event * begin, const struct event * end) {
    if (fake_has_ended()) {
        return DEINITIALIZED;
    }
    if (!begin->is_recorded || !end->is_recorded) {
        return INVALID_HANDLE;
    }
    if (fake_now_nanos() < end->at_nanos) {
        return NOT_READY;
    }
    *millis = (float) ((double) (int64_t) (end->at_nanos - begin->at_nanos) / 1e6);
    return OK;
}
int cuEventElapsedTime_v2(float * millis, const struct event * begin, const struct event * end) {
    return cuEventElapsedTime(millis, begin, end);
}

/* Kernels. A module has every name that it is asked for. */

int cuModuleLoadData(void ** module, const void * image) {
    *module = (void *) image;
    return image == NULL ? INVALID_VALUE : OK;
}
int cuModuleLoadDataEx(void ** module, const void * image, unsigned count, void * options, void ** values) {
    (void) count, (void) options, (void) values;
    return cuModuleLoadData(module, image);
}
int cuModuleUnload(void * module) {
    (void) module;
    return OK;
}
int cuModuleGetFunction(struct kernel ** function, void * module, const char * name) {
    (void) module;
    *function = fake_kernel(NULL, name, true);
    return OK;
}
int cuFuncGetAttribute(int * value, int attribute, void * function) {
    (void) function;
    *value = attribute == 0 ? 1024 : attribute == 4 ? 64 : 0;
    return OK;
}
int cuFuncSetAttribute(void * function, int attribute, int value) {
    (void) function, (void) attribute, (void) value;
    return OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int * blocks, void * function, int threads, size_t shared_bytes) {
    (void) function, (void) shared_bytes;
    *blocks = threads > 512 ? 1 : 2;
    return OK;
}
/* Drivers before CUDA 12.3 have neither. */
#ifndef WITHOUT_NAMES
static int name_of(const char ** name, const struct kernel * kernel, bool is_function) {
    if (!fake_is_kernel(kernel) || kernel->is_function != is_function) {
        return INVALID_HANDLE;
    }
    *name = kernel->name;
    return OK;
}
int cuKernelGetName(const char ** name, void * kernel) { return name_of(name, kernel, false); }
int cuFuncGetName(const char ** name, void * function) { return name_of(name, function, true); }
#endif
int cuLaunchKernel(void * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
                   void * stream, void ** arguments, void ** extra) {
    (void) extra;
    CALL(307, "cuLaunchKernel");
    struct dimensions grid = { gx, gy, gz }, block = { bx, by, bz };
    return fake_launch(&call, function, grid, block, shared_bytes, stream, arguments, false);
}

/* Capture and graphs */

int cuStreamIsCapturing(void * handle, int * status) {
    struct stream * stream = fake_stream(handle);
    *status = stream == NULL || stream->capture == NULL ? 0 : stream->capture->is_invalid ? 2 : 1;
    return stream == NULL ? INVALID_HANDLE : OK;
}
/* Which nodes the next one will depend on is not told: nobody has asked so far. */
int cuStreamGetCaptureInfo_v2(void * handle, int * status, uint64_t * id, void ** graph, const void *** dependencies, size_t * count) {
    struct stream * stream = fake_stream(handle);
    int result = cuStreamIsCapturing(handle, status);
    if (result == OK && *status != 0) {
        if (id != NULL) {
            *id = stream->capture->id;
        }
        if (graph != NULL) {
            *graph = stream->capture->graph;
        }
    }
    if (dependencies != NULL) {
        *dependencies = NULL;
    }
    if (count != NULL) {
        *count = 0;
    }
    return result;
}
int cuStreamGetCaptureInfo_v3(void * handle, int * status, uint64_t * id, void ** graph, const void *** dependencies, const void ** edges,
                              size_t * count) {
    if (edges != NULL) {
        *edges = NULL;
    }
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, dependencies, count);
}
int cuThreadExchangeStreamCaptureMode(int * mode) {
    static __thread int current;
    int before = current;
    current = *mode;
    *mode = before;
    return OK;
}
int cuGraphGetNodes(struct graph * graph, struct node ** nodes, size_t * count) {
    if (!fake_is_graph(graph)) {
        return INVALID_VALUE;
    }
    fake_lock();
    if (nodes != NULL) {
        for (size_t i = 0; i < *count; i++) {
            nodes[i] = i < graph->node_count ? graph->nodes[i] : NULL;
        }
    }
    *count = nodes == NULL || graph->node_count < *count ? graph->node_count : *count;
    fake_unlock();
    return OK;
}
int cuGraphNodeGetType(const struct node * node, int * type) {
    if (!fake_is_node(node)) {
        return INVALID_VALUE;
    }
    *type = node->work.type;
    return OK;
}
/* CUDA_KERNEL_NODE_PARAMS_v2. The arguments are not kept: their sizes are not known here. */
struct kernel_node {
    void * function;
    uint32_t grid[3], block[3], shared_bytes;
    void ** arguments, ** extra;
    void * kernel, * context;
};
int cuGraphKernelNodeGetParams_v2(const struct node * node, struct kernel_node * parameters) {
    if (!fake_is_node(node) || node->work.type != NODE_KERNEL) {
        return INVALID_VALUE;
    }
    const struct work * work = &node->work;
    *parameters = (struct kernel_node) {
        .function = work->kernel->is_function ? work->kernel : NULL,
        .grid = { work->grid.x, work->grid.y, work->grid.z },
        .block = { work->block.x, work->block.y, work->block.z },
        .shared_bytes = work->shared_bytes,
        .kernel = work->kernel->is_function ? NULL : work->kernel,
        .context = fake_context(fake_current_device()),
    };
    return OK;
}

/* A name stands for the newest version that was there in the CUDA which is asked for. */
int cuGetProcAddress_v2(const char * symbol, void ** address, int version, uint64_t flags, int * status) {
    (void) flags;
    char name[128];
    void * self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *address = NULL;
    if (version >= 12030 && strcmp(symbol, "cuStreamGetCaptureInfo") == 0) {
        *address = dlsym(self, "cuStreamGetCaptureInfo_v3");
    }
    const char * endings[] = { "_v2", "" };
    for (int i = 0; i < 2 && *address == NULL; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        *address = dlsym(self, name);
    }
    if (status != NULL) {
        *status = *address == NULL ? 1 : 0;
    }
    return *address == NULL ? NOT_FOUND : OK;
}
int cuGetProcAddress(const char * symbol, void ** address, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}
