// One launch of the lab's fastest attention kernel, for a debugger to stop in.
//
//     nvcc -g -G -arch=sm_90a -I crates/lab/kernels -o decode tests/posts/card/decode.cu
//
// Every number of the key at position p is p, so that what a thread has loaded says where from.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common.cuh"
#include "attention_decode.cu"

static void must(cudaError_t result) {
    if (result == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(result));
    std::exit(1);
}

template <typename T> static T* on_card(const std::vector<T>& host) {
    T* memory;
    must(cudaMalloc(&memory, host.size() * sizeof(T)));
    must(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

static float value_of(bf16 bits) {
    const u32 word = (u32) bits << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

static bf16 bits_of(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits >> 16;
}

int main() {
    constexpr u32 SEQUENCES = 2, CONTEXT = 256;
    std::vector<bf16> keys((size_t) SEQUENCES * KV_HEADS * CONTEXT * HEAD), queries(SEQUENCES * QUERY_HEADS * HEAD, bits_of(0.125f));
    for (size_t i = 0; i < keys.size(); i++) keys[i] = bits_of((float) (i / HEAD % CONTEXT));
    std::vector<float> memory(SEQUENCES * QUERY_HEADS * (HEAD + 2));
    std::vector<bf16> out(queries.size());
    bf16 *on_queries = on_card(queries), *on_keys = on_card(keys), *on_values = on_card(keys), *on_out = on_card(out);
    decode_tensor<<<dim3(1, KV_HEADS, SEQUENCES), 32 * WARPS>>>(on_queries, on_keys, on_values, on_card(memory), on_out, CONTEXT, CONTEXT, 0.1f);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(out.data(), on_out, out.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
    std::printf("first result: %g\n", value_of(out[0]));
}
