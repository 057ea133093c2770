// One kernel per way to be slow (or fast), so that what Nsight Compute says of each is known.
// nvcc -O3 -arch=sm_90 -lineinfo cases.cu -o cases ; each kernel is launched once.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t status = (call);                                                     \
        if (status != cudaSuccess) {                                                     \
            fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

// Healthy, memory wall.
__global__ void copy_coalesced(const float4 *__restrict__ in, float4 *__restrict__ out, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}

// Every lane of a warp reads another sector: 32 sectors a request.
__global__ void load_strided(const float *__restrict__ in, float *__restrict__ out, size_t n, size_t stride) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[(i * stride) & (64u * 1024 * 1024 - 1)];
}

__global__ void store_strided(const float *__restrict__ in, float *__restrict__ out, size_t n, size_t stride) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) out[(i * stride) & (64u * 1024 * 1024 - 1)] = in[i];
}

// All 32 lanes in one bank.
__global__ void bank_conflicts(float *__restrict__ out, int rounds) {
    __shared__ float tile[32 * 32 * 4];
    for (int i = threadIdx.x; i < 32 * 32 * 4; i += blockDim.x) tile[i] = i;
    __syncthreads();
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float sum = 0;
    int row = warp;
    for (int r = 0; r < rounds; r++) {
        sum += tile[(lane * 32 + row) & 4095];
        row = (row + 1) & 31;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Held to few registers by the bounds: the array goes to local memory.
__global__ void __launch_bounds__(1024, 2) register_spill(const float *__restrict__ in, float *__restrict__ out, int rounds) {
    float v[96];
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 96; k++) v[k] = in[(i + k * 37) & 0xfffff];
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int k = 0; k < 96; k++) v[k] = v[k] * 1.0001f + v[(k + 17) % 96];
    }
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 96; k++) sum += v[k];
    out[i] = sum;
}

// 200 KiB of shared memory a block: one block of four warps on a multiprocessor.
__global__ void low_occupancy(const float *__restrict__ in, float *__restrict__ out, size_t n) {
    extern __shared__ float room[];
    room[threadIdx.x] = 0;
    __syncthreads();
    float sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) sum += in[i];
    room[threadIdx.x] += sum;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = room[threadIdx.x];
}

// Four blocks on 132 multiprocessors.
__global__ void tiny_grid(const float *__restrict__ in, float *__restrict__ out, size_t n) {
    float sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) sum += in[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Each load waits for the one before it: long scoreboard.
__global__ void pointer_chase(const unsigned *__restrict__ next, unsigned *__restrict__ out, int hops) {
    unsigned at = (blockIdx.x * blockDim.x + threadIdx.x) * 977u & 0xffffffu;
    for (int h = 0; h < hops; h++) at = next[at];
    out[blockIdx.x * blockDim.x + threadIdx.x] = at;
}

// Healthy, math wall.
__global__ void fma_bound(float *__restrict__ out, int rounds) {
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
    for (int r = 0; r < rounds; r++) {
        a = a * 1.0001f + 0.5f; b = b * 1.0001f + 0.5f; c = c * 1.0001f + 0.5f; d = d * 1.0001f + 0.5f;
        e = e * 1.0001f + 0.5f; f = f * 1.0001f + 0.5f; g = g * 1.0001f + 0.5f; h = h * 1.0001f + 0.5f;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d + e + f + g + h;
}

// Shuffles and shared atomics: the queue of the memory pipe is full.
__global__ void mio_throttle(int *__restrict__ out, int rounds) {
    __shared__ int counts[1024];
    counts[threadIdx.x] = 0;
    __syncthreads();
    int v = threadIdx.x, w = v * 3;
    for (int r = 0; r < rounds; r++) {
        v += __shfl_xor_sync(0xffffffffu, v, 1 + (r & 15));
        w += __shfl_xor_sync(0xffffffffu, w, 16 - (r & 15));
        atomicAdd(&counts[(threadIdx.x + r) & 1023], 1);
        v += __shfl_down_sync(0xffffffffu, w, 3);
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = v + w + counts[threadIdx.x];
}

// A barrier after every few instructions, and one warp with more to do.
__global__ void barrier_heavy(float *__restrict__ out, int rounds) {
    __shared__ float box[1024];
    float v = threadIdx.x;
    for (int r = 0; r < rounds; r++) {
        box[threadIdx.x] = v;
        __syncthreads();
        v += box[(threadIdx.x + 33) & 1023];
        if (threadIdx.x < 32) {
            for (int k = 0; k < 40; k++) v = v * 1.0001f + 0.5f;
        }
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

// Each lane its own number of turns: few threads of a warp are active.
__global__ void divergent(float *__restrict__ out, int rounds) {
    int lane = threadIdx.x & 31;
    float v = threadIdx.x;
    int turns = (lane % 8 == 0) ? rounds * 8 : rounds / 8;
    for (int r = 0; r < turns; r++) {
        if ((r + lane) & 1) v = sinf(v) * 1.5f;
        else v = sqrtf(fabsf(v)) + 0.25f;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

// All threads add to one address, with a returned value so that no reduction hides it.
__global__ void atomics_one_address(unsigned *__restrict__ counter, unsigned *__restrict__ out) {
    unsigned old = 0;
    for (int r = 0; r < 4; r++) old ^= atomicExch(counter, old + threadIdx.x);
    out[blockIdx.x * blockDim.x + threadIdx.x] = old;
}

// Very many narrow accesses of global memory that hit L1: LG throttle.
__global__ void lg_throttle(const unsigned char *__restrict__ in, unsigned *__restrict__ out, int rounds) {
    unsigned sum = 0;
    const volatile unsigned char *from = in;
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int k = 0; k < 32; k++) sum += from[(threadIdx.x * 4 + r * 64 + k) & 0x3fff];
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A product of matrices without tiles and without tensor cores.
__global__ void gemm_naive(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int n) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

// One query against a long cache: reads all keys once. Memory bound, as decoding is.
__global__ void attention_decode(const float4 *__restrict__ keys, const float4 *__restrict__ query, float *__restrict__ scores, int tokens) {
    int lane = threadIdx.x & 31;
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = gridDim.x * blockDim.x >> 5;
    float4 q = query[lane];
    for (int t = warp; t < tokens; t += warps) {
        float4 k = keys[(size_t)t * 32 + lane];
        float dot = q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
        for (int o = 16; o; o >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, o);
        if (lane == 0) scores[t] = dot;
    }
}

int main() {
    const size_t floats = 64u * 1024 * 1024;  // 256 MiB each, well above L2
    float *a, *b;
    unsigned *next;
    CHECK(cudaMalloc(&a, floats * 4));
    CHECK(cudaMalloc(&b, floats * 4));
    CHECK(cudaMalloc(&next, (1u << 24) * 4));
    CHECK(cudaMemset(a, 0, floats * 4));
    CHECK(cudaMemset(b, 0, floats * 4));
    unsigned *host = (unsigned *)malloc((1u << 24) * 4);
    for (unsigned i = 0; i < 1u << 24; i++) host[i] = (i * 1664525u + 1013904223u) & 0xffffffu;
    CHECK(cudaMemcpy(next, host, (1u << 24) * 4, cudaMemcpyHostToDevice));

    copy_coalesced<<<(floats / 4 + 255) / 256, 256>>>((float4 *)a, (float4 *)b, floats / 4);
    load_strided<<<(floats / 8) / 256, 256>>>(a, b, floats / 8, 1031);
    store_strided<<<(floats / 8) / 256, 256>>>(a, b, floats / 8, 1031);
    bank_conflicts<<<132 * 4, 256>>>(b, 400);
    register_spill<<<132 * 2, 1024>>>(a, b, 6);
    CHECK(cudaFuncSetAttribute(low_occupancy, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    low_occupancy<<<132, 128, 200 * 1024>>>(a, b, floats / 4);
    tiny_grid<<<4, 256>>>(a, b, floats / 64);
    pointer_chase<<<132, 128>>>(next, (unsigned *)b, 300);
    fma_bound<<<132 * 8, 256>>>(b, 2000);
    mio_throttle<<<132 * 2, 1024>>>((int *)b, 150);
    barrier_heavy<<<132 * 2, 1024>>>(b, 200);
    divergent<<<132 * 4, 256>>>(b, 64);
    atomics_one_address<<<132 * 2, 256>>>(next, (unsigned *)b);
    lg_throttle<<<132 * 8, 256>>>((unsigned char *)a, (unsigned *)b, 20);
    gemm_naive<<<dim3(1024 / 32, 1024 / 8), dim3(32, 8)>>>(a, a + 1024 * 1024, b, 1024);
    attention_decode<<<132 * 8, 256>>>((float4 *)a, (float4 *)(a + floats - 128), b, 400000);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    puts("done");
    return 0;
}
