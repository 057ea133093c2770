// A driver for a card that is not there: the calls that tensorscope makes, answered by the
// processor. Memory of the card is memory; a kernel is a function here that does what the PTX of
// the same name says. Tests put it into LD_LIBRARY_PATH as libcuda.so.1.
//
// FAKE_CUDA_INIT: what cuInit answers. FAKE_CUDA_WRONG: the kernel whose results are spoilt.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Answer;
typedef uint64_t Address;

static const uint64_t MEMORY = 256u << 20;

static int is_set(const char * name, const char * value) {
    const char * found = getenv(name);
    return found && strcmp(found, value) == 0;
}

Answer cuInit(unsigned flags) {
    (void) flags;
    const char * answer = getenv("FAKE_CUDA_INIT");
    return answer ? atoi(answer) : 0;
}
Answer cuDriverGetVersion(int * version) { *version = 12080; return 0; }
Answer cuDeviceGetCount(int * count) { *count = 1; return 0; }
Answer cuDeviceGet(int * device, int number) { *device = number; return number == 0 ? 0 : 101; }
Answer cuDeviceGetName(char * name, int bytes, int device) {
    (void) device;
    strncpy(name, "Fake Card", bytes);
    return 0;
}
Answer cuDeviceGetAttribute(int * value, int which, int device) {
    (void) device;
    switch (which) {
        case 75: *value = 9; break;       // capability
        case 76: *value = 0; break;
        case 16: *value = 2; break;       // multiprocessors
        case 38: *value = 1 << 20; break; // L2
        case 97: *value = 1 << 16; break; // shared memory
        default: return 1;
    }
    return 0;
}
Answer cuDeviceTotalMem_v2(size_t * bytes, int device) { (void) device; *bytes = MEMORY; return 0; }
Answer cuGetErrorString(int code, const char ** text) {
    *text = code == 999 ? "unknown error" : code == 803 ? "system has unsupported display driver / cuda driver combination" : NULL;
    return *text ? 0 : 1;
}
Answer cuDevicePrimaryCtxRetain(void ** context, int device) { (void) device; *context = (void *) 1; return 0; }
Answer cuCtxSetCurrent(void * context) { (void) context; return 0; }
Answer cuCtxSynchronize(void) { return 0; }
Answer cuMemAlloc_v2(Address * address, size_t bytes) {
    void * memory = NULL;
    if (posix_memalign(&memory, 256, bytes)) return 2;
    *address = (Address) memory;
    return 0;
}
Answer cuMemFree_v2(Address address) { free((void *) address); return 0; }
Answer cuMemGetInfo_v2(size_t * unused, size_t * all) { *unused = 32u << 20; *all = MEMORY; return 0; }
Answer cuMemHostAlloc(void ** memory, size_t bytes, unsigned flags) {
    (void) flags;
    *memory = malloc(bytes);
    return *memory ? 0 : 2;
}
Answer cuMemFreeHost(void * memory) { free(memory); return 0; }
Answer cuMemcpyHtoD_v2(Address to, const void * from, size_t bytes) { memcpy((void *) to, from, bytes); return 0; }
Answer cuMemcpyDtoH_v2(void * to, Address from, size_t bytes) { memcpy(to, (void *) from, bytes); return 0; }
Answer cuMemcpyHtoDAsync_v2(Address to, const void * from, size_t bytes, void * stream) {
    (void) stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}
Answer cuMemcpyDtoHAsync_v2(void * to, Address from, size_t bytes, void * stream) {
    (void) stream;
    return cuMemcpyDtoH_v2(to, from, bytes);
}
Answer cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void * stream) {
    (void) stream;
    memcpy((void *) to, (void *) from, bytes);
    if (is_set("FAKE_CUDA_WRONG", "copy")) ++*(unsigned char *) to;
    return 0;
}
Answer cuMemsetD8_v2(Address to, unsigned char byte, size_t bytes) { memset((void *) to, byte, bytes); return 0; }

// What the kernels of crates/bench/kernels do, for a grid of so many threads.
static void fill(uint64_t threads, void ** with) {
    (void) threads;
    uint32_t * to = *(uint32_t **) with[0];
    uint64_t count = *(uint64_t *) with[1];
    for (uint64_t i = 0; i < count; ++i) to[i] = (uint32_t) i * 0x9e3779b9u + 12345u;
}
static void read_sum(uint64_t threads, void ** with) {
    (void) threads;
    const uint32_t * from = *(uint32_t **) with[0];
    uint64_t count = *(uint64_t *) with[1];
    uint32_t sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += from[i];
    **(uint32_t **) with[2] += sum;
}
static void fma_f32(uint64_t threads, void ** with) {
    static float known[1024];
    static uint32_t rounds_known;
    float * out = *(float **) with[0];
    uint32_t rounds = *(uint32_t *) with[1];
    for (uint64_t t = 0; t < 1024 && t < threads && rounds != rounds_known; ++t) {
        float sum = 0;
        for (int chain = 0; chain < 8; ++chain) {
            float x = (float) t / 1024.0f + (float) chain / 8.0f;
            for (uint32_t i = 0; i < 16 * rounds; ++i) x = fmaf(x, 0.99951171875f, 0.03125f);
            sum = chain ? sum + x : x;
        }
        known[t] = sum;
    }
    rounds_known = rounds;
    for (uint64_t t = 0; t < threads; ++t) out[t] = known[t & 1023];
}
static float of_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t) bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static float of_f16(uint16_t bits) {
    if ((bits & 0x7fff) == 0) return 0;
    uint32_t wide = (uint32_t) (bits & 0x8000) << 16 | ((bits >> 10 & 31) + 112u) << 23 | (uint32_t) (bits & 1023) << 13;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static void mma(uint64_t threads, void ** with, float (*of)(uint16_t)) {
    const uint16_t * a = *(uint16_t **) with[0];
    const uint16_t * b = *(uint16_t **) with[1];
    float * out = *(float **) with[2];
    uint32_t rounds = *(uint32_t *) with[3];
    for (int at = 0; at < 8 * 128; ++at) {
        int product = at / 128, row = at % 128 / 8, column = at % 8;
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += of(a[row * 16 + k]) * of(b[product * 128 + column * 16 + k]);
        for (uint64_t warp = 0; warp < threads / 32; ++warp) out[warp * 1024 + at] = sum * rounds;
    }
}
static void mma_bf16(uint64_t threads, void ** with) { mma(threads, with, of_bf16); }
static void mma_f16(uint64_t threads, void ** with) { mma(threads, with, of_f16); }

static const struct Kernel {
    const char * name;
    void (*run)(uint64_t threads, void ** with);
    // Which of its parameters is the result.
    int result;
} KERNELS[] = {
    {"fill", fill, 0}, {"read_sum", read_sum, 2}, {"fma_f32", fma_f32, 0}, {"mma_bf16", mma_bf16, 2}, {"mma_f16", mma_f16, 2},
};

Answer cuModuleLoadData(void ** module, const void * image) {
    // The text itself, so that kernels can be looked for in it.
    *module = strdup(image);
    return strstr(image, ".version") ? 0 : 218;
}
Answer cuModuleUnload(void * module) { free(module); return 0; }
Answer cuModuleGetFunction(void ** function, void * module, const char * name) {
    char entry[64] = ".visible .entry ";
    strncat(entry, name, 40);
    strcat(entry, "(");
    for (unsigned i = 0; i < sizeof KERNELS / sizeof *KERNELS; ++i) {
        if (strcmp(KERNELS[i].name, name) == 0 && strstr(module, entry)) {
            *function = (void *) &KERNELS[i];
            return 0;
        }
    }
    return 500;
}
Answer cuFuncGetAttribute(int * value, int which, void * function) { (void) which; (void) function; *value = 0; return 0; }
Answer cuFuncSetAttribute(void * function, int which, int value) { (void) which; (void) function; (void) value; return 0; }
Answer cuOccupancyMaxActiveBlocksPerMultiprocessor(int * blocks, void * function, int threads, size_t bytes) {
    (void) function; (void) threads; (void) bytes;
    *blocks = 1;
    return 0;
}
Answer cuLaunchKernelEx(const unsigned * how, void * function, void ** with, void ** extra) {
    (void) extra;
    const struct Kernel * kernel = function;
    uint64_t threads = (uint64_t) how[0] * how[1] * how[2] * how[3] * how[4] * how[5];
    kernel->run(threads, with);
    if (is_set("FAKE_CUDA_WRONG", kernel->name)) ++**(uint32_t **) with[kernel->result];
    return 0;
}
Answer cuStreamBeginCapture_v2(void * stream, int mode) { (void) stream; (void) mode; return 801; }
Answer cuStreamEndCapture(void * stream, void ** graph) { (void) stream; (void) graph; return 801; }
Answer cuGraphInstantiateWithFlags(void ** made, void * graph, uint64_t flags) { (void) made; (void) graph; (void) flags; return 801; }
Answer cuGraphLaunch(void * graph, void * stream) { (void) graph; (void) stream; return 801; }
Answer cuGraphDestroy(void * graph) { (void) graph; return 0; }
Answer cuGraphExecDestroy(void * graph) { (void) graph; return 0; }
Answer cuStreamCreate(void ** stream, unsigned flags) { (void) flags; *stream = malloc(1); return 0; }
Answer cuStreamSynchronize(void * stream) { (void) stream; return 0; }
Answer cuStreamDestroy_v2(void * stream) { free(stream); return 0; }
Answer cuEventCreate(void ** event, unsigned flags) { (void) flags; *event = malloc(sizeof(struct timespec)); return 0; }
Answer cuEventRecord(void * event, void * stream) { (void) stream; return clock_gettime(CLOCK_MONOTONIC, event); }
Answer cuEventSynchronize(void * event) { (void) event; return 0; }
Answer cuEventElapsedTime(float * milliseconds, void * from, void * to) {
    const struct timespec * begin = from, * end = to;
    *milliseconds = (end->tv_sec - begin->tv_sec) * 1e3f + (end->tv_nsec - begin->tv_nsec) / 1e6f;
    return 0;
}
Answer cuEventDestroy_v2(void * event) { free(event); return 0; }
Answer cuProfilerStart(void) { return 0; }
Answer cuProfilerStop(void) { return 0; }
