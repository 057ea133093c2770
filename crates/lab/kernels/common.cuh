// In front of every source: types without CUDA's headers, which nobody has to have.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef u16 bf16;  // its bits

struct alignas(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ float from_bf16(bf16 bits) { return __uint_as_float((u32) bits << 16); }

// Rounded to the nearest, ties to even; the lower half of the result.
__device__ __forceinline__ bf16 to_bf16(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two at once: `low` in the lower half.
__device__ __forceinline__ u32 to_bf16_pair(float low, float high) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// The same numbers as `inputs::value` on the host: in [-1, 1), from a seed and a place.
__device__ __forceinline__ float random_value(u32 seed, u32 index) {
    u32 x = index * 0x9E3779B9u + seed;
    x ^= x >> 16; x *= 0x7FEB352Du;
    x ^= x >> 15; x *= 0x846CA68Bu;
    x ^= x >> 16;
    return (float) (x >> 8) * (1.0f / 8388608.0f) - 1.0f;
}
