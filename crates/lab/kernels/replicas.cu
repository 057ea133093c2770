// Weights that keep the size of what passes through them: otherwise a chain of products grows
// beyond all numbers.
extern "C" __global__ void scale_weights(bf16* weights, u64 count, float factor) {
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x)
        weights[i] = to_bf16(from_bf16(weights[i]) * factor);
}
