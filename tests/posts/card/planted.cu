// Three planted errors, for tools to find.
//
//     nvcc -g -lineinfo -arch=sm_90a -o planted tests/posts/card/planted.cu
//     ./planted quiet    a key is written one row behind the cache: nothing happens
//     ./planted far      a place is computed in 32 bits: an illegal address
//     ./planted race     a sum without its barrier: wrong results, sometimes
#include <cstdio>
#include <cstring>
#include <vector>

typedef unsigned short bf16;
constexpr int HEAD = 128, KV_HEADS = 8;

// Writes the key of a new token behind those that each sequence has.
// Grid: KV heads, sequences; 128 threads.
__global__ void append_key(bf16* cache, const bf16* key, int context, int position) {
    int row = blockIdx.y * KV_HEADS + blockIdx.x;
    int at = (row * context + position) * HEAD + threadIdx.x;
    cache[at] = key[row * HEAD + threadIdx.x];
}

// A block's sum of 256 numbers.
__global__ void sum_of_block(const float* numbers, float* sum) {
    __shared__ float parts[256];
    parts[threadIdx.x] = numbers[blockIdx.x * 256 + threadIdx.x];
    for (int half = 128; half > 0; half /= 2) {
        // Here __syncthreads() is missing.
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sum[blockIdx.x] = parts[0];
}

static int said(const char* what, cudaError_t result) {
    std::printf("%s: %s\n", what, cudaGetErrorString(result));
    return result != cudaSuccess;
}

static int append(int sequences, int context, int position) {
    size_t rows = (size_t) sequences * KV_HEADS * context;
    bf16 *cache, *key;
    if (cudaMalloc(&cache, rows * HEAD * sizeof(bf16)) || cudaMalloc(&key, sequences * KV_HEADS * HEAD * sizeof(bf16)))
        return said("memory", cudaGetLastError());
    std::printf("cache of %d sequences, %d positions: %zu bytes\n", sequences, context, rows * HEAD * sizeof(bf16));
    append_key<<<dim3(KV_HEADS, sequences), HEAD>>>(cache, key, context, position);
    return said("append_key", cudaDeviceSynchronize());
}

static int race() {
    constexpr int BLOCKS = 10000;
    float *numbers, *sum;
    std::vector<float> ones(BLOCKS * 256, 1.0f), sums(BLOCKS);
    cudaMalloc(&numbers, ones.size() * sizeof(float));
    cudaMalloc(&sum, sums.size() * sizeof(float));
    cudaMemcpy(numbers, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice);
    sum_of_block<<<BLOCKS, 256>>>(numbers, sum);
    int failed = said("sum_of_block", cudaMemcpy(sums.data(), sum, sums.size() * sizeof(float), cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (float one : sums) wrong += one != 256.0f;
    std::printf("%d of %d sums are wrong\n", wrong, BLOCKS);
    return failed;
}

int main(int count, char** words) {
    const char* what = count > 1 ? words[1] : "";
    if (!std::strcmp(what, "quiet")) return append(2, 1000, 1000);
    if (!std::strcmp(what, "far")) return append(64, 65536, 0);
    if (!std::strcmp(what, "race")) return race();
    std::printf("quiet, far or race?\n");
    return 2;
}
