// One launch of the lab's matrix product with tiles in shared memory, for a debugger to stop in.
//
//     nvcc -g -G -arch=sm_90a -I crates/lab/kernels -o product tests/posts/card/product.cu
//
// A[i][j] is i + j / 1000, and B is the unit matrix, so that C must be A.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common.cuh"
#include "gemm_f32.cu"

static void must(cudaError_t result) {
    if (result == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(result));
    std::exit(1);
}

int main() {
    constexpr int SIZE = 128;
    std::vector<float> a(SIZE * SIZE), b(SIZE * SIZE), c(SIZE * SIZE);
    for (int i = 0; i < SIZE * SIZE; i++) {
        a[i] = i / SIZE + i % SIZE / 1000.0f;
        b[i] = i / SIZE == i % SIZE;
    }
    float* on_card[3];
    const size_t bytes = a.size() * sizeof(float);
    for (float*& memory : on_card) must(cudaMalloc(&memory, bytes));
    must(cudaMemcpy(on_card[0], a.data(), bytes, cudaMemcpyHostToDevice));
    must(cudaMemcpy(on_card[1], b.data(), bytes, cudaMemcpyHostToDevice));
    shared<<<dim3(SIZE / 32, SIZE / 32), 1024>>>(on_card[0], on_card[1], on_card[2], SIZE, SIZE, SIZE);
    must(cudaMemcpy(c.data(), on_card[2], bytes, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < SIZE * SIZE; i++) wrong += c[i] != a[i];
    std::printf("%d of %d results are wrong\n", wrong, SIZE * SIZE);
}
