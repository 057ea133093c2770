// Weights of four bits, one scale for 128 of them along k (INT4, symmetric: w = scale * (q - 8)):
// how they are made, and products without tensor cores.
//
// The plain layout: row after row, eight weights in a word, weight i of a word in bits 4i..4i+3;
// scales are bf16, row after row.

constexpr u32 GROUP = 128;

// One warp makes one group: the largest weight becomes 7 steps. A real one would look at errors.
extern "C" __global__ void quantise_int4(u32* weights, bf16* scales, u32 rows, u32 k, u32 seed) {
    u32 group = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (group >= rows * (k / GROUP)) return;
    u32 first = group * GROUP + lane * 4;
    float value[4], largest = 0;
    for (u32 i = 0; i < 4; i++) {
        value[i] = random_value(seed, first + i);
        largest = fmaxf(largest, fabsf(value[i]));
    }
    for (u32 step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    bf16 scale = to_bf16(largest / 7.0f);
    u32 mine = 0;
    for (u32 i = 0; i < 4; i++) {
        int q = __float2int_rn(value[i] / from_bf16(scale)) + 8;
        mine |= (u32) min(max(q, 0), 15) << (4 * i);
    }
    u32 other = __shfl_down_sync(~0u, mine, 1);
    if (lane % 2 == 0) weights[first / 8] = mine | other << 16;
    if (lane == 0) scales[group] = scale;
}

// The same weights as bf16, for the vendor's library.
extern "C" __global__ void dequantise_int4(const u32* weights, const bf16* scales, bf16* out, u32 rows, u32 k) {
    u64 count = (u64) rows * k;
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x) {
        int q = (int) (weights[i / 8] >> (4 * (i % 8)) & 15);
        out[i] = to_bf16((float) (q - 8) * from_bf16(scales[i / GROUP]));
    }
}

// Into the order in which threads of tensor cores want them (see quant_product.cu). One thread
// makes one word: the eight weights that one lane holds of a tile of 16 rows and 16 columns.
extern "C" __global__ void pack_weights(const u32* weights, u32* packed, u32 rows, u32 k) {
    u32 row_tiles = (rows + 767) / 768 * 6;
    u64 count = (u64) row_tiles * 128 * (k / 8);
    for (u64 word = blockIdx.x * (u64) blockDim.x + threadIdx.x; word < count; word += (u64) gridDim.x * blockDim.x) {
        u32 step = word % 4, lane = word / 4 % 32, half = word / 128 % 2, strip = word / 256 % 8;
        u32 unit = (u32) (word / 2048);
        u32 row_tile = unit / (k / 128), k_unit = unit % (k / 128);
        u32 result = 0;
        for (u32 i = 0; i < 4; i++) {
            u32 row = row_tile * 128 + strip * 16 + lane / 4 + 8 * (i % 2);
            u32 column = k_unit * 128 + half * 64 + step * 16 + 2 * (lane % 4) + 8 * (i / 2);
            if (row >= rows) continue;
            u32 pair = weights[((u64) row * k + column) / 8] >> (4 * (column % 8));
            result |= (pair & 15) << (4 * i) | (pair >> 4 & 15) << (4 * i + 16);
        }
        packed[word] = result;
    }
}

// Scales of 128 rows together; those of one row and block are `size` numbers of 16 bits.
extern "C" __global__ void pack_scales(const bf16* plain, bf16* packed, u32 rows, u32 blocks, u32 size) {
    u64 count = (u64) ((rows + 767) / 768) * 768 * blocks * size;
    for (u64 i = blockIdx.x * (u64) blockDim.x + threadIdx.x; i < count; i += (u64) gridDim.x * blockDim.x) {
        u32 part = i % size, in_tile = i / size % 128;
        u32 block = (u32) (i / size / 128) % blocks, row_tile = (u32) (i / size / 128 / blocks);
        u32 row = row_tile * 128 + in_tile;
        packed[i] = row < rows ? plain[((u64) row * blocks + block) * size + part] : (bf16) 0;
    }
}

// Into the order of quant_strips.cu: pieces of 16 rows by 128 columns, 264 words each, strips of
// a block together. One thread makes one word.
extern "C" __global__ void pack_strips(const u32* weights, const bf16* scales, u32* packed, u32 rows, u32 k, u32 blocks) {
    u32 strips = (rows + 15) / 16, k_units = k / 128;
    u64 count = (u64) strips * k_units * 264;
    for (u64 word = blockIdx.x * (u64) blockDim.x + threadIdx.x; word < count; word += (u64) gridDim.x * blockDim.x) {
        u32 in_piece = word % 264, unit = (u32) (word / 264) % k_units, strip = (u32) (word / 264 / k_units);
        u32 block = ((strip + 1) * blocks - 1) / strips, first = strips * block / blocks;
        u32 of_block = strips * (block + 1) / blocks - first;
        u32 result = 0;
        if (in_piece < 256) {
            u32 step = in_piece / 128 * 4 + in_piece % 4, lane = in_piece % 128 / 4;
            for (u32 i = 0; i < 4; i++) {
                u32 row = strip * 16 + lane / 4 + 8 * (i % 2);
                u32 column = unit * 128 + step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + 2 * (i / 2);
                if (row >= rows) continue;
                u32 pair = weights[((u64) row * k + column) / 8] >> (4 * (column % 8));
                result |= (pair & 15) << (4 * i) | (pair >> 4 & 15) << (4 * i + 16);
            }
        } else {
            for (u32 i = 0; i < 2; i++) {
                u32 row = strip * 16 + in_piece - 256 + 8 * i;
                if (row < rows) result |= (u32) scales[(u64) row * k_units + unit] << (16 * i);
            }
        }
        packed[((u64) first * k_units + (u64) unit * of_block + strip - first) * 264 + in_piece] = result;
    }
}

// One warp a row, four bytes a load, one weight after the other, each token alone.
extern "C" __global__ void int4_naive(const u32* weights, const bf16* scales, const bf16* x, bf16* y, u32 n, u32 k, u32 batch) {
    u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    for (u32 token = 0; token < batch; token++) {
        float sum = 0;
        for (u32 word = lane; word < k / 8; word += 32) {
            u32 eight = weights[(u64) row * (k / 8) + word];
            float scale = from_bf16(scales[(u64) row * (k / GROUP) + word / (GROUP / 8)]);
            for (u32 i = 0; i < 8; i++) {
                float weight = (float) ((int) (eight >> (4 * i) & 15) - 8) * scale;
                sum += weight * from_bf16(x[(u64) token * k + word * 8 + i]);
            }
        }
        for (u32 step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) y[(u64) token * n + row] = to_bf16(sum);
    }
}

// Weights i and i+4 of a word as two bf16, still with 8 too much. A bf16 between 128 and 255 has
// its last integer bit in its last bit: four bits put there are a number without a conversion.
__device__ __forceinline__ u32 two_of(u32 word, u32 i) {
    u32 two;
    asm("lop3.b32 %0, %1, 0x000F000F, %2, 0xEA;" : "=r"(two) : "r"(word >> (4 * i)), "r"(0x43004300));
    asm("add.rn.bf16x2 %0, %0, %1;" : "+r"(two) : "r"(0xC308C308));  // -136
    return two;
}

__device__ __forceinline__ float low(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high(u32 two) { return __uint_as_float(two & 0xFFFF0000u); }

#ifndef TOKENS
#define TOKENS 1
#endif

// One warp two rows, 32 weights a load, inputs read once for both rows and all tokens.
extern "C" __global__ void __launch_bounds__(256) int4_gemv(const uint4* weights, const bf16* scales, const bf16* x, bf16* y, u32 n, u32 k, u32 batch) {
    u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 2, lane = threadIdx.x % 32;
    if (row >= n) return;
    u32 second = min(row + 1, n - 1);  // of an odd number, the last row is computed twice
    float sums[2][TOKENS] = {};
    #pragma unroll 2
    for (u32 at = lane; at < k / 32; at += 32) {
        uint4 four[2] = {weights[(u64) row * (k / 32) + at], weights[(u64) second * (k / 32) + at]};
        float scale[2] = {from_bf16(scales[(u64) row * (k / GROUP) + at / 4]),
                          from_bf16(scales[(u64) second * (k / GROUP) + at / 4])};
        float part[2][TOKENS] = {};
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
                    // A pair is weights i and i + 4; inputs lie in twos (0, 1), (2, 3), …
                    float a = i % 2 ? high(inputs[i / 2]) : low(inputs[i / 2]);
                    float b = i % 2 ? high(inputs[i / 2 + 2]) : low(inputs[i / 2 + 2]);
                    #pragma unroll
                    for (u32 r = 0; r < 2; r++)
                        part[r][token] += low(pairs[r][i]) * a + high(pairs[r][i]) * b;
                }
            }
        }
        #pragma unroll
        for (u32 r = 0; r < 2; r++)
            #pragma unroll
            for (u32 token = 0; token < TOKENS; token++) sums[r][token] += scale[r] * part[r][token];
    }
    #pragma unroll
    for (u32 token = 0; token < TOKENS; token++) {
        if (token >= batch) break;
        #pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float sum = sums[r][token];
            for (u32 step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (lane == 0) y[(u64) token * n + (r ? second : row)] = to_bf16(sum);
        }
    }
}
