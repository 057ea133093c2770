// Weights as Q4_K has them: 256 along k are a super-block with two f16 numbers, each 32 of it a
// block with a scale and a minimum of six bits: w = d * scale * q - least * minimum, with q in
// 0..15. That is 4.5 bits a weight.
//
// What belongs to a super-block, 16 bytes: d and least (f16); then three words whose lower 24
// bits are four scales of blocks 0-3, four scales of blocks 4-7, four minima of blocks 0-3; the
// upper bytes of the three are the four minima of blocks 4-7.

constexpr u32 SUPER = 256;

__device__ __forceinline__ u16 to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float from_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u32 six_bits(uint4 about, u32 block, bool is_minimum) {
    u32 four = block < 4 ? (is_minimum ? about.w : about.y)
             : is_minimum ? about.y >> 24 | about.z >> 24 << 8 | about.w >> 24 << 16 : about.z;
    return four >> (6 * (block % 4)) & 63;
}

// One warp makes one super-block, a lane eight weights, four lanes a block.
extern "C" __global__ void quantise_q4k(u32* weights, uint4* abouts, u32 rows, u32 k, u32 seed) {
    u32 super = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (super >= rows * (k / SUPER)) return;
    u32 first = super * SUPER + lane * 8;
    float value[8], least = 0, most = 0;
    for (u32 i = 0; i < 8; i++) {
        value[i] = random_value(seed, first + i);
        least = fminf(least, value[i]);
        most = fmaxf(most, value[i]);
    }
    for (u32 step = 2; step > 0; step /= 2) {
        least = fminf(least, __shfl_xor_sync(~0u, least, step));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    }
    float scale = (most - least) / 15, largest_scale = scale, largest_minimum = -least;
    for (u32 step = 16; step > 0; step /= 2) {
        largest_scale = fmaxf(largest_scale, __shfl_xor_sync(~0u, largest_scale, step));
        largest_minimum = fmaxf(largest_minimum, __shfl_xor_sync(~0u, largest_minimum, step));
    }
    u16 d = to_f16(largest_scale / 63), d_least = to_f16(largest_minimum / 63);
    u32 scale_bits = min(max(__float2int_rn(scale / from_f16(d)), 1), 63);
    u32 minimum_bits = min(max(__float2int_rn(-least / from_f16(d_least)), 0), 63);
    u32 word = 0;
    for (u32 i = 0; i < 8; i++) {
        float q = (value[i] + from_f16(d_least) * minimum_bits) / (from_f16(d) * scale_bits);
        word |= (u32) min(max(__float2int_rn(q), 0), 15) << (4 * i);
    }
    weights[first / 8] = word;
    u32 scales[2] = {}, minima[2] = {};
    for (u32 block = 0; block < 8; block++) {
        scales[block / 4] |= __shfl_sync(~0u, scale_bits, block * 4) << (6 * (block % 4));
        minima[block / 4] |= __shfl_sync(~0u, minimum_bits, block * 4) << (6 * (block % 4));
    }
    if (lane == 0)
        abouts[super] = {(u32) d | (u32) d_least << 16,
                         scales[0] | (minima[1] & 255) << 24,
                         scales[1] | (minima[1] >> 8 & 255) << 24,
                         minima[0] | (minima[1] >> 16) << 24};
}

// The same weights as bf16.
extern "C" __global__ void dequantise_q4k(const u32* weights, const uint4* abouts, bf16* out, u32 rows, u32 k) {
    u64 count = (u64) rows * k;
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x) {
        uint4 about = abouts[i / SUPER];
        u32 block = i % SUPER / 32;
        float scale = from_f16((u16) about.x) * six_bits(about, block, false);
        float minimum = from_f16((u16) (about.x >> 16)) * six_bits(about, block, true);
        out[i] = to_bf16(scale * (weights[i / 8] >> (4 * (i % 8)) & 15) - minimum);
    }
}

// One warp a row, four bytes a load, scales decoded for each of them again.
extern "C" __global__ void q4k_naive(const u32* weights, const uint4* abouts, const bf16* x, bf16* y, u32 n, u32 k, u32 batch) {
    u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    for (u32 token = 0; token < batch; token++) {
        float sum = 0;
        for (u32 word = lane; word < k / 8; word += 32) {
            u32 eight = weights[(u64) row * (k / 8) + word], block = word / 4 % 8;
            uint4 about = abouts[(u64) row * (k / SUPER) + word / 32];
            float scale = from_f16((u16) about.x) * six_bits(about, block, false);
            float minimum = from_f16((u16) (about.x >> 16)) * six_bits(about, block, true);
            for (u32 i = 0; i < 8; i++)
                sum += (scale * (eight >> (4 * i) & 15) - minimum) * from_bf16(x[(u64) token * k + word * 8 + i]);
        }
        for (u32 step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) y[(u64) token * n + row] = to_bf16(sum);
    }
}

// As `two_of` in quant.cu, but 0 stays 0.
__device__ __forceinline__ u32 two_of(u32 word, u32 i) {
    u32 two;
    asm("lop3.b32 %0, %1, 0x000F000F, %2, 0xEA;" : "=r"(two) : "r"(word >> (4 * i)), "r"(0x43004300));
    asm("add.rn.bf16x2 %0, %0, %1;" : "+r"(two) : "r"(0xC300C300));  // -128
    return two;
}

__device__ __forceinline__ float low(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high(u32 two) { return __uint_as_float(two & 0xFFFF0000u); }

#ifndef TOKENS
#define TOKENS 1
#endif

// One warp two rows, 32 weights a load: just one block, so its scale and minimum are decoded
// once, and the minimum is multiplied by the sum of the inputs.
extern "C" __global__ void __launch_bounds__(256) q4k_gemv(const uint4* weights, const uint4* abouts, const bf16* x, bf16* y, u32 n, u32 k, u32 batch) {
    u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 2, lane = threadIdx.x % 32;
    if (row >= n) return;
    u32 rows[2] = {row, min(row + 1, n - 1)};
    float sums[2][TOKENS] = {};
    for (u32 at = lane; at < k / 32; at += 32) {
        uint4 four[2];
        float scale[2], minimum[2];
        #pragma unroll
        for (u32 r = 0; r < 2; r++) {
            four[r] = weights[(u64) rows[r] * (k / 32) + at];
            uint4 about = abouts[(u64) rows[r] * (k / SUPER) + at / 8];
            scale[r] = from_f16((u16) about.x) * six_bits(about, at % 8, false);
            minimum[r] = from_f16((u16) (about.x >> 16)) * six_bits(about, at % 8, true);
        }
        float part[2][TOKENS] = {}, of_inputs[TOKENS] = {};
        #pragma unroll
        for (u32 word = 0; word < 4; word++) {
            u32 pairs[2][4];
            #pragma unroll
            for (u32 r = 0; r < 2; r++) {
                u32 eight = word == 0 ? four[r].x : word == 1 ? four[r].y : word == 2 ? four[r].z : four[r].w;
                #pragma unroll
                for (u32 i = 0; i < 4; i++) pairs[r][i] = two_of(eight, i);
            }
            #pragma unroll
            for (u32 token = 0; token < TOKENS; token++) {
                if (token >= batch) break;
                uint4 input = *(const uint4*) (x + (u64) token * k + at * 32 + word * 8);
                u32 inputs[4] = {input.x, input.y, input.z, input.w};
                #pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float a = i % 2 ? high(inputs[i / 2]) : low(inputs[i / 2]);
                    float b = i % 2 ? high(inputs[i / 2 + 2]) : low(inputs[i / 2 + 2]);
                    of_inputs[token] += a + b;
                    #pragma unroll
                    for (u32 r = 0; r < 2; r++)
                        part[r][token] += low(pairs[r][i]) * a + high(pairs[r][i]) * b;
                }
            }
        }
        #pragma unroll
        for (u32 r = 0; r < 2; r++)
            #pragma unroll
            for (u32 token = 0; token < TOKENS; token++)
                sums[r][token] += scale[r] * part[r][token] - minimum[r] * of_inputs[token];
    }
    #pragma unroll
    for (u32 token = 0; token < TOKENS; token++) {
        if (token >= batch) break;
        #pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float sum = sums[r][token];
            for (u32 step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (lane == 0) y[(u64) token * n + rows[r]] = to_bf16(sum);
        }
    }
}
