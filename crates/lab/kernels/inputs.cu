// Inputs that are random and can be computed again on the host, and a look at outputs.

extern "C" __global__ void fill_f32(float* out, u64 count, u32 seed) {
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x)
        out[i] = random_value(seed, (u32) i);
}

extern "C" __global__ void fill_bf16(bf16* out, u64 count, u32 seed) {
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x)
        out[i] = to_bf16(random_value(seed, (u32) i));
}

// How many are NaN or infinite: what a kernel did not write still is, because outputs are poisoned.
extern "C" __global__ void count_not_finite_f32(const float* values, u64 count, u32* found) {
    u32 mine = 0;
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x)
        mine += ((__float_as_uint(values[i]) >> 23) & 0xff) == 0xff;
    if (mine) atomicAdd(found, mine);
}

extern "C" __global__ void count_not_finite_bf16(const bf16* values, u64 count, u32* found) {
    u32 mine = 0;
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x)
        mine += ((values[i] >> 7) & 0xff) == 0xff;
    if (mine) atomicAdd(found, mine);
}
