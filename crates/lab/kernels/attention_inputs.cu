// Caches of attention: random numbers, the same in 8 bits, and a copy to compare with.

// The same as `cache_value` on the host: random_value, for more than 2^32 places.
__device__ __forceinline__ float cache_value(u32 seed, u64 index) {
    return random_value(seed + (u32) (index >> 32) * 0x632BE5ABu, (u32) index);
}

extern "C" __global__ void fill_cache(bf16* out, u64 count, u32 seed) {
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x)
        out[i] = to_bf16(cache_value(seed, i));
}

// As llama.cpp's q8_0: 32 numbers share a scale (f16), the greatest becomes 127. Here the scales
// lie in an array of their own, so that numbers stay aligned to 16 bytes. A warp takes 32 numbers.
extern "C" __global__ void quantise(const bf16* in, i8* out, u16* scales, u64 count) {
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x) {
        float value = from_bf16(in[i]);
        float greatest = fabsf(value);
        for (u32 other = 16; other > 0; other /= 2)
            greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffff, greatest, other));
        float scale = greatest / 127.0f;
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        out[i] = (i8) rintf(value * inverse);
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(scale));
        if (i % 32 == 0) scales[i / 32] = bits;
    }
}

// ---- the reference: a copy ----

// 16 bytes a load, four loads before the first store.
extern "C" __global__ void copy_wide(const uint4* from, uint4* to, u64 count) {
    u64 stride = (u64) gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
        uint4 values[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (i + j * stride < count) values[j] = __ldcs(from + i + j * stride);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (i + j * stride < count) __stcs(to + i + j * stride, values[j]);
    }
}
