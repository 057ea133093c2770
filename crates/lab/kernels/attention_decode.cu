// Attention of one new token: each of a sequence's queries against all keys and values that the
// sequence has so far. Every cached number is needed once, so the memory's speed is the limit.
//
// Cache: keys and values are [sequence][KV head][position][128], queries and results are
// [sequence][query head][128]. Four query heads share a KV head.

constexpr u32 HEAD = 128;      // numbers in a head
constexpr u32 QUERY_HEADS = 32;
constexpr u32 KV_HEADS = 8;
constexpr u32 GROUP = QUERY_HEADS / KV_HEADS;
constexpr u32 WARPS = 4;       // of a block, in all kernels but the first
constexpr u32 ALL = 0xffffffff;
// Below any score, but finite: the difference of two of them is 0, not NaN.
constexpr float LOWEST = -1e30f;
// The score of a key that is not there: its weight is 0 even against LOWEST.
constexpr float ABSENT = 2 * LOWEST;

// Of the steps with tensor cores: tiles of 16 keys that a warp takes at once, and blocks of one
// multiprocessor at the same time. One tile and three blocks: within 3 % at long contexts, up to
// 8 % slower at short ones. Four blocks do not have the registers.
constexpr u32 TILES = 2, BLOCKS = 2;

// ---- step 1: naive ----

template <typename F> __device__ __forceinline__ float over_warp(float value, F f) {
#pragma unroll
    for (u32 other = 16; other > 0; other /= 2)
        value = f(value, __shfl_xor_sync(ALL, value, other));
    return value;
}

template <typename F> __device__ float over_block(float value, F f) {
    __shared__ float of_warps[32];
    value = over_warp(value, f);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warps[0];
    for (u32 warp = 1; warp < blockDim.x / 32; warp++) value = f(value, of_warps[warp]);
    return value;
}

// A block for each query head; scores go to memory and come back twice. Grid: heads, sequences;
// 128 threads. `scale` holds log2(e), as everywhere here: exp2 is one instruction.
extern "C" __global__ void decode_naive(const bf16* queries, const bf16* keys, const bf16* values, bf16* out,
                                        float* scores, u32 context, float scale) {
    u32 head = blockIdx.x, sequence = blockIdx.y;
    u64 row = (sequence * QUERY_HEADS + head);
    u64 cache = (u64) (sequence * KV_HEADS + head / GROUP) * context * HEAD;
    queries += row * HEAD;
    keys += cache;
    values += cache;
    scores += row * context;

    float greatest = LOWEST;
    for (u32 at = threadIdx.x; at < context; at += blockDim.x) {
        float score = 0;
        for (u32 d = 0; d < HEAD; d++) score += from_bf16(queries[d]) * from_bf16(keys[(u64) at * HEAD + d]);
        score *= scale;
        scores[at] = score;
        greatest = fmaxf(greatest, score);
    }
    greatest = over_block(greatest, [](float a, float b) { return fmaxf(a, b); });

    float sum = 0;
    for (u32 at = threadIdx.x; at < context; at += blockDim.x) {
        float weight = exp2f(scores[at] - greatest);
        scores[at] = weight;
        sum += weight;
    }
    sum = over_block(sum, [](float a, float b) { return a + b; });

    float result = 0;
    for (u32 at = 0; at < context; at++)
        result += scores[at] * from_bf16(values[(u64) at * HEAD + threadIdx.x]);
    out[row * HEAD + threadIdx.x] = to_bf16(result / sum);
}

// ---- parts of a context, and how they become one result ----

// What a part found for a query: the greatest score, the sum of weights relative to it, and
// values weighted so. [pair of sequence and KV head][part][query of the group].
struct Parts {
    float* greatest;
    float* sum;
    float* result;  // 128 each
};

__device__ __forceinline__ Parts parts_in(float* memory, u32 pairs, u32 parts) {
    u64 count = (u64) pairs * parts * GROUP;
    return {memory, memory + count, memory + 2 * count};
}

// The same of each warp, in shared memory.
template <u32 HEADS> struct OfWarps {
    float greatest[WARPS][HEADS];
    float sum[WARPS][HEADS];
    float result[WARPS][HEADS][HEAD];
};

// Warps become one part, or the result where there is only one part. `pair`, `first`: of sequence
// and KV head, and which of its queries is the block's first.
template <u32 HEADS>
__device__ __forceinline__ void join_warps(const OfWarps<HEADS>& warps, float* memory, bf16* out, u32 pair, u32 first) {
    u32 part = blockIdx.x, count = gridDim.x;
    Parts parts = parts_in(memory, gridDim.z * KV_HEADS, count);
    // The kernel that joins parts may be brought in: this block has nothing more to load.
    asm volatile("griddepcontrol.launch_dependents;");
    __syncthreads();
#pragma unroll
    for (u32 head = 0; head < HEADS; head++) {
        float greatest = LOWEST;
        for (u32 warp = 0; warp < WARPS; warp++) greatest = fmaxf(greatest, warps.greatest[warp][head]);
        float sum = 0, result = 0;
        for (u32 warp = 0; warp < WARPS; warp++) {
            float factor = exp2f(warps.greatest[warp][head] - greatest);
            sum += factor * warps.sum[warp][head];
            result += factor * warps.result[warp][head][threadIdx.x];
        }
        if (count == 1) {
            out[(u64) (pair * GROUP + first + head) * HEAD + threadIdx.x] = to_bf16(result / sum);
            continue;
        }
        u64 at = ((u64) pair * count + part) * GROUP + first + head;
        parts.result[at * HEAD + threadIdx.x] = result;
        if (threadIdx.x == 0) {
            parts.greatest[at] = greatest;
            parts.sum[at] = sum;
        }
    }
}

// Parts become the result. Grid: query heads, sequences. A block has 128 threads, one for each
// dimension, or several times that: then each 128 take some of the parts. All loads are asked for
// before the first is used.
constexpr u32 MOST_PARTS = 256, MOST_TEAMS = 8, PARTS_OF_TEAM = 8;
extern "C" __global__ void join_parts(float* memory, bf16* out, u32 count) {
    __shared__ float greatest_of[MOST_PARTS], sum_of[MOST_PARTS], of_teams[MOST_TEAMS][HEAD];
    u32 head = blockIdx.x, sequence = blockIdx.y;
    u32 team = threadIdx.x / HEAD, teams = blockDim.x / HEAD, dim = threadIdx.x % HEAD;
    Parts parts = parts_in(memory, gridDim.y * KV_HEADS, count);
    u64 first = (u64) (sequence * KV_HEADS + head / GROUP) * count * GROUP + head % GROUP;
    // It was started before the parts were complete.
    asm volatile("griddepcontrol.wait;" ::: "memory");

    float results[PARTS_OF_TEAM], greatest = LOWEST, sum = 0;
#pragma unroll
    for (u32 i = 0; i < PARTS_OF_TEAM; i++) {
        u32 part = team + i * teams;
        results[i] = part < count ? parts.result[(first + part * GROUP) * HEAD + dim] : 0;
    }
    for (u32 part = threadIdx.x; part < count; part += blockDim.x) {
        sum_of[part] = parts.sum[first + part * GROUP];
        greatest_of[part] = parts.greatest[first + part * GROUP];
        greatest = fmaxf(greatest, greatest_of[part]);
    }
    greatest = over_block(greatest, [](float a, float b) { return fmaxf(a, b); });
    float result = 0;
#pragma unroll
    for (u32 i = 0; i < PARTS_OF_TEAM; i++) {
        u32 part = team + i * teams;
        if (part < count) result += exp2f(greatest_of[part] - greatest) * results[i];
    }
    for (u32 part = team + PARTS_OF_TEAM * teams; part < count; part += teams)
        result += exp2f(greatest_of[part] - greatest) * parts.result[(first + part * GROUP) * HEAD + dim];
    for (u32 part = threadIdx.x % 32; part < count; part += 32) sum += exp2f(greatest_of[part] - greatest) * sum_of[part];
    sum = over_warp(sum, [](float a, float b) { return a + b; });
    of_teams[team][dim] = result;
    __syncthreads();
    if (team > 0) return;
    for (u32 other = 1; other < teams; other++) result += of_teams[other][dim];
    out[(u64) (sequence * QUERY_HEADS + head) * HEAD + dim] = to_bf16(result / sum);
}

// ---- steps 2 and 3: parts; and queries of a group together ----

// A warp takes a key at a time, a lane four of its numbers (8 bytes). Softmax goes along: when
// a greater score comes, what was summed so far is made smaller.
template <u32 HEADS>
__device__ __forceinline__ void part_by_key(const bf16* queries, const bf16* keys, const bf16* values, float* memory,
                                            bf16* out, u32 context, u32 part_keys, float scale) {
    __shared__ OfWarps<HEADS> warps;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 part = blockIdx.x, first_query = blockIdx.y * HEADS, sequence = blockIdx.z;
    u32 pair = sequence * KV_HEADS + first_query / GROUP;
    u32 begin = part * part_keys, end = min(begin + part_keys, context);
    const uint2* key_rows = (const uint2*) (keys + (u64) pair * context * HEAD) + lane;
    const uint2* value_rows = (const uint2*) (values + (u64) pair * context * HEAD) + lane;

    float query[HEADS][4], result[HEADS][4] = {}, greatest[HEADS], sum[HEADS] = {};
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        greatest[h] = LOWEST;
#pragma unroll
        for (u32 d = 0; d < 4; d++)
            query[h][d] = scale * from_bf16(queries[(u64) (sequence * QUERY_HEADS + first_query + h) * HEAD + lane * 4 + d]);
    }
    for (u32 at = begin + warp; at < end; at += WARPS) {
        uint2 k = key_rows[at * (u64) (HEAD / 4)], v = value_rows[at * (u64) (HEAD / 4)];
        float key[4] = {from_bf16(k.x & 0xffff), from_bf16(k.x >> 16), from_bf16(k.y & 0xffff), from_bf16(k.y >> 16)};
        float value[4] = {from_bf16(v.x & 0xffff), from_bf16(v.x >> 16), from_bf16(v.y & 0xffff), from_bf16(v.y >> 16)};
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            float score = 0;
#pragma unroll
            for (u32 d = 0; d < 4; d++) score += query[h][d] * key[d];
            score = over_warp(score, [](float a, float b) { return a + b; });
            float now = fmaxf(greatest[h], score);
            float factor = exp2f(greatest[h] - now), weight = exp2f(score - now);
            greatest[h] = now;
            sum[h] = sum[h] * factor + weight;
#pragma unroll
            for (u32 d = 0; d < 4; d++) result[h][d] = result[h][d] * factor + weight * value[d];
        }
    }
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        warps.greatest[warp][h] = greatest[h];
        warps.sum[warp][h] = sum[h];
#pragma unroll
        for (u32 d = 0; d < 4; d++) warps.result[warp][h][lane * 4 + d] = result[h][d];
    }
    join_warps(warps, memory, out, pair, first_query % GROUP);
}

// Grid: parts, query heads, sequences; 128 threads.
extern "C" __global__ void decode_split(const bf16* queries, const bf16* keys, const bf16* values, float* memory,
                                        bf16* out, u32 context, u32 part_keys, float scale) {
    part_by_key<1>(queries, keys, values, memory, out, context, part_keys, scale);
}

// Grid: parts, KV heads, sequences; 128 threads, as for all steps that follow.
extern "C" __global__ void decode_packed(const bf16* queries, const bf16* keys, const bf16* values, float* memory,
                                         bf16* out, u32 context, u32 part_keys, float scale) {
    part_by_key<GROUP>(queries, keys, values, memory, out, context, part_keys, scale);
}

// ---- step 4: 16 bytes a load, and the next keys on their way ----

// Read once: kept out of L1. `volatile` keeps it where it is written, ahead of its use.
__device__ __forceinline__ uint4 load_once(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

__device__ __forceinline__ void eight_floats(uint4 bits, float* out) {
    u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
    }
}

// Sums each of 16 numbers over 16 lanes: half of the numbers go to the partner at each step, so
// there are 15 exchanges and not 64. Lane i of the sixteen ends with the sum of number i.
__device__ __forceinline__ float sums_over_16_lanes(float (&values)[16], u32 lane) {
#pragma unroll
    for (u32 half = 8; half > 0; half /= 2) {
        bool is_upper = lane & half;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            float keep = is_upper ? values[i + half] : values[i];
            float give = is_upper ? values[i] : values[i + half];
            values[i] = keep + __shfl_xor_sync(ALL, give, half);
        }
    }
    return values[0];
}

// A half-warp takes a key (16 lanes of 16 bytes), a warp eight keys at a time.
extern "C" __global__ __launch_bounds__(32 * WARPS, 3)
void decode_wide(const bf16* queries, const bf16* keys, const bf16* values, float* memory, bf16* out,
            u32 context, u32 part_keys, float scale) {
    constexpr u32 KEYS = 4;  // of a half-warp
    __shared__ OfWarps<GROUP> warps;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, side = lane / 16, dims = lane % 16 * 8;
    u32 part = blockIdx.x, sequence = blockIdx.z, pair = sequence * KV_HEADS + blockIdx.y;
    u32 begin = part * part_keys, end = min(begin + part_keys, context);
    keys += (u64) pair * context * HEAD + dims;
    values += (u64) pair * context * HEAD + dims;

    float query[GROUP][8], result[GROUP][8] = {}, greatest = LOWEST, sum = 0;
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
        eight_floats(load_once(queries + (u64) (pair * GROUP + h) * HEAD + dims), query[h]);
#pragma unroll
        for (u32 d = 0; d < 8; d++) query[h][d] *= scale;
    }
    // Past the end the last key is read again; its weight is zero.
    auto row = [&](u32 base, u32 i) { return min(base + 2 * i + side, end - 1) * HEAD; };
    uint4 key_bits[KEYS], value_bits[KEYS];
    u32 base = begin + warp * 2 * KEYS;
#pragma unroll
    for (u32 i = 0; i < KEYS; i++) key_bits[i] = load_once(keys + row(base, i));
#pragma unroll
    for (u32 i = 0; i < KEYS; i++) value_bits[i] = load_once(values + row(base, i));
    for (; base < end; base += WARPS * 2 * KEYS) {
        u32 next = base + WARPS * 2 * KEYS;
        float scores[16];
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            float key[8];
            eight_floats(key_bits[i], key);
#pragma unroll
            for (u32 h = 0; h < GROUP; h++) {
                float score = 0;
#pragma unroll
                for (u32 d = 0; d < 8; d++) score += query[h][d] * key[d];
                scores[i * GROUP + h] = score;
            }
        }
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) key_bits[i] = load_once(keys + row(next, i));

        // From here a lane has one score: of key lane % 16 / 4 and query lane % 4.
        float score = sums_over_16_lanes(scores, lane);
        if (base + 2 * (lane % 16 / GROUP) + side >= end) score = ABSENT;
        float now = fmaxf(greatest, score);
        for (u32 other = GROUP; other < 32; other *= 2) now = fmaxf(now, __shfl_xor_sync(ALL, now, other));
        float weight = exp2f(score - now), factor = exp2f(greatest - now);
        sum = sum * factor + weight;
        if (__any_sync(ALL, now > greatest)) {
#pragma unroll
            for (u32 h = 0; h < GROUP; h++) {
                float of_head = __shfl_sync(ALL, factor, h);
#pragma unroll
                for (u32 d = 0; d < 8; d++) result[h][d] *= of_head;
            }
        }
        greatest = now;
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            float value[8];
            eight_floats(value_bits[i], value);
#pragma unroll
            for (u32 h = 0; h < GROUP; h++) {
                float of_key = __shfl_sync(ALL, weight, side * 16 + i * GROUP + h);
#pragma unroll
                for (u32 d = 0; d < 8; d++) result[h][d] += of_key * value[d];
            }
        }
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) value_bits[i] = load_once(values + row(next, i));
    }
    // Both half-warps summed other keys.
    for (u32 other = GROUP; other < 32; other *= 2) sum += __shfl_xor_sync(ALL, sum, other);
    if (lane < GROUP) {
        warps.greatest[warp][lane] = greatest;
        warps.sum[warp][lane] = sum;
    }
#pragma unroll
    for (u32 h = 0; h < GROUP; h++)
#pragma unroll
        for (u32 d = 0; d < 8; d++) {
            float both = result[h][d] + __shfl_xor_sync(ALL, result[h][d], 16);
            if (side == 0) warps.result[warp][h][dims + d] = both;
        }
    join_warps(warps, memory, out, pair, 0);
}

// ---- step 5: tensor cores, fed from registers ----

// A 16 × 8 tile: out += a × b. Of `a` (16 × 16) a lane has rows lane/4 and lane/4 + 8, of `b`
// (16 × 8) column lane/4, of the result those rows and columns lane%4*2 and the next.
__device__ __forceinline__ void multiply_bf16(float (&out)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void multiply_f16(float (&out)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// An 8 × 8 tile of 16-bit numbers over a warp, transposed.
__device__ __forceinline__ u32 transposed(u32 tile) {
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(tile));
    return tile;
}

__device__ __forceinline__ u32 to_f16_pair(float low, float high) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Softmax of TILES tiles of scores, 16 keys × 8 queries each (only four of them are real), as
// it goes along. A lane has queries lane%4*2 and the next, of keys lane/4 and lane/4 + 8.
struct Softmax {
    float greatest[2] = {LOWEST, LOWEST}, sum[2] = {};

    // Scores become weights. `keys_left`: how many keys of the tiles there are.
    __device__ __forceinline__ void weigh(float (&scores)[TILES][4], float (&results)[8][4], float scale, int keys_left) {
        u32 lane = threadIdx.x % 32;
        float now[2] = {greatest[0], greatest[1]};
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                bool is_there = (int) (tile * 16 + lane / 4 + i / 2 * 8) < keys_left;
                scores[tile][i] = is_there ? scores[tile][i] * scale : ABSENT;
                now[i % 2] = fmaxf(now[i % 2], scores[tile][i]);
            }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 other = 4; other < 32; other *= 2)
                now[i] = fmaxf(now[i], __shfl_xor_sync(ALL, now[i], other));
        if (__any_sync(ALL, now[0] > greatest[0] || now[1] > greatest[1])) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float factor = exp2f(greatest[i] - now[i]);
                greatest[i] = now[i];
                sum[i] *= factor;
#pragma unroll
                for (u32 tile = 0; tile < 8; tile++) {
                    results[tile][i] *= factor;
                    results[tile][i + 2] *= factor;
                }
            }
        }
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                scores[tile][i] = exp2f(scores[tile][i] - greatest[i % 2]);
                sum[i % 2] += scores[tile][i];
            }
    }

    // Into shared memory; `dim(tile)` is where a tile's rows lane/4 and lane/4 + 8 lie: next to
    // each other.
    template <typename F>
    __device__ __forceinline__ void keep(OfWarps<GROUP>& warps, const float (&results)[8][4], F dim) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, query = lane % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            for (u32 other = 4; other < 32; other *= 2) sum[i] += __shfl_xor_sync(ALL, sum[i], other);
            if (query >= GROUP) continue;
            if (lane < 4) {
                warps.greatest[warp][query + i] = greatest[i];
                warps.sum[warp][query + i] = sum[i];
            }
#pragma unroll
            for (u32 tile = 0; tile < 8; tile++) {
                warps.result[warp][query + i][dim(tile)] = results[tile][i];
                warps.result[warp][query + i][dim(tile) + 1] = results[tile][i + 2];
            }
        }
    }
};

// A product does not care in which order its inner numbers come, if both sides have the same
// order. So a lane takes 16 bytes in a row from memory as its share of a tile, and nothing goes
// through shared memory. Scores: keys × queries; results: dimensions × queries.
extern "C" __global__ __launch_bounds__(32 * WARPS, BLOCKS)
void decode_tensor(const bf16* queries, const bf16* keys, const bf16* values, float* memory, bf16* out,
            u32 context, u32 part_keys, float scale) {
    __shared__ OfWarps<GROUP> warps;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, column = lane % 4;
    u32 part = blockIdx.x, sequence = blockIdx.z, pair = sequence * KV_HEADS + blockIdx.y;
    u32 begin = part * part_keys, end = min(begin + part_keys, context);
    // A lane has eight numbers of each 32 of a key, and of a value eight of each 64.
    keys += (u64) pair * context * HEAD + column * 8;
    values += (u64) pair * context * HEAD + row * 8;

    uint4 query[4];
#pragma unroll
    for (u32 c = 0; c < 4; c++) {
        const bf16* from = queries + (u64) (pair * GROUP + row % GROUP) * HEAD + c * 32 + column * 8;
        query[c] = row < GROUP ? load_once(from) : make_uint4(0, 0, 0, 0);
    }
    auto place = [&](u32 key) { return min(key, end - 1) * HEAD; };
    // Keys lane/4 and lane/4 + 8 of a tile; values lane%4*2, the next, and both + 8.
    uint4 key_bits[TILES][2][4], value_bits[TILES][4][2];
    auto load_keys = [&](u32 base) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 8; i++)
                key_bits[tile][i / 4][i % 4] = load_once(keys + place(base + tile * 16 + row + i / 4 * 8) + i % 4 * 32);
    };
    auto load_values = [&](u32 base) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                u32 key = base + tile * 16 + column * 2 + i / 2 % 2 + i / 4 * 8;
                value_bits[tile][i / 2][i % 2] = load_once(values + place(key) + i % 2 * 64);
            }
    };
    Softmax softmax;
    float results[8][4] = {};
    u32 base = begin + warp * 16 * TILES;
    load_keys(base);
    load_values(base);
    for (; base < end; base += WARPS * 16 * TILES) {
        float scores[TILES][4] = {};
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                uint4 low = key_bits[tile][0][c], high = key_bits[tile][1][c];
                multiply_bf16(scores[tile], {low.x, high.x, low.y, high.y}, {query[c].x, query[c].y});
                multiply_bf16(scores[tile], {low.z, high.z, low.w, high.w}, {query[c].z, query[c].w});
            }
        load_keys(base + WARPS * 16 * TILES);
        softmax.weigh(scores, results, scale, end - base);
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const float* w = scores[tile];
            u32 weights[2] = {transposed(to_bf16_pair(w[0], w[1])), transposed(to_bf16_pair(w[2], w[3]))};
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                auto word = [&](u32 key) {
                    uint4 bits = value_bits[tile][key][c / 4];
                    return c % 4 == 0 ? bits.x : c % 4 == 1 ? bits.y : c % 4 == 2 ? bits.z : bits.w;
                };
                // Two keys of a dimension side by side: lower halves, then upper halves.
                u32 a[4] = {__byte_perm(word(0), word(1), 0x5410), __byte_perm(word(0), word(1), 0x7632),
                            __byte_perm(word(2), word(3), 0x5410), __byte_perm(word(2), word(3), 0x7632)};
                multiply_bf16(results[c], a, weights);
            }
        }
        load_values(base + WARPS * 16 * TILES);
    }
    softmax.keep(warps, results, [&](u32 c) { return c / 4 * 64 + row * 8 + c % 4 * 2; });
    join_warps(warps, memory, out, pair, 0);
}

// ---- step 6: a cache of 8 bits ----

__device__ __forceinline__ u32 add_f16_pair(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

__device__ __forceinline__ u32 multiply_f16_pair(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// Two of four bytes, which `which` names, become two f16 numbers: 0x6400 in front of a byte b is
// 1024 + b, exactly; signed bytes had 128 added by their highest bit.
__device__ __forceinline__ u32 two_f16(u32 biased_bytes, u32 which) {
    constexpr u32 MINUS_1152 = 0xe480e480;
    return add_f16_pair(__byte_perm(biased_bytes, 0x64646464, which), MINUS_1152);
}
constexpr u32 LOWER_TWO = 0x4140, UPPER_TWO = 0x4342;
constexpr u32 SIGNS = 0x80808080;

__device__ __forceinline__ u32 load_u16(const u16* from) {
    u16 v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(from));
    return v;
}

__device__ __forceinline__ uint2 load_scales(const u16* from) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}

__device__ __forceinline__ u32 word_of(uint4 v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// As before with half of the bytes; numbers become f16 in registers, times their scale.
extern "C" __global__ __launch_bounds__(32 * WARPS, BLOCKS)
void decode_q8(const bf16* queries, const i8* keys, const u16* key_scales, const i8* values, const u16* value_scales,
          float* memory, bf16* out, u32 context, u32 part_keys, float scale) {
    constexpr u32 SCALES = HEAD / 32;
    __shared__ OfWarps<GROUP> warps;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, column = lane % 4;
    u32 part = blockIdx.x, sequence = blockIdx.z, pair = sequence * KV_HEADS + blockIdx.y;
    u32 begin = part * part_keys, end = min(begin + part_keys, context);
    // A lane has 16 numbers of each 64 of a key, and 16 numbers of a value.
    keys += (u64) pair * context * HEAD + column * 16;
    values += (u64) pair * context * HEAD + row * 16;
    key_scales += (u64) pair * context * SCALES;
    value_scales += (u64) pair * context * SCALES + row / 2;

    u32 query[2][8];
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        const bf16* from = queries + (u64) (pair * GROUP + row % GROUP) * HEAD + i / 8 * 64 + column * 16 + i % 8 * 2;
        query[i / 8][i % 8] = row < GROUP ? to_f16_pair(from_bf16(from[0]), from_bf16(from[1])) : 0;
    }
    auto place = [&](u32 key) { return min(key, end - 1); };
    uint4 key_bits[TILES][2][2], value_bits[TILES][4];
    uint2 key_scale[TILES][2];
    u32 value_scale[TILES][4];
    auto load_keys = [&](u32 base) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 at = place(base + tile * 16 + row + i * 8);
                key_bits[tile][i][0] = load_once(keys + at * HEAD);
                key_bits[tile][i][1] = load_once(keys + at * HEAD + 64);
                key_scale[tile][i] = load_scales(key_scales + at * SCALES);
            }
    };
    auto load_values = [&](u32 base) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 at = place(base + tile * 16 + column * 2 + i % 2 + i / 2 * 8);
                value_bits[tile][i] = load_once(values + at * HEAD);
                value_scale[tile][i] = load_u16(value_scales + at * SCALES);
            }
    };
    Softmax softmax;
    float results[8][4] = {};
    u32 base = begin + warp * 16 * TILES;
    load_keys(base);
    load_values(base);
    for (; base < end; base += WARPS * 16 * TILES) {
        float scores[TILES][4] = {};
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                // 16 numbers of a lane lie in one block of 32: the lower one for columns 0 and 1.
                u32 which = column < 2 ? 0x1010 : 0x3232;
                u32 low_scale = half ? key_scale[tile][0].y : key_scale[tile][0].x;
                u32 high_scale = half ? key_scale[tile][1].y : key_scale[tile][1].x;
                low_scale = __byte_perm(low_scale, 0, which);
                high_scale = __byte_perm(high_scale, 0, which);
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    u32 low = word_of(key_bits[tile][0][half], c) ^ SIGNS;
                    u32 high = word_of(key_bits[tile][1][half], c) ^ SIGNS;
                    u32 a[4] = {multiply_f16_pair(two_f16(low, LOWER_TWO), low_scale),
                                multiply_f16_pair(two_f16(high, LOWER_TWO), high_scale),
                                multiply_f16_pair(two_f16(low, UPPER_TWO), low_scale),
                                multiply_f16_pair(two_f16(high, UPPER_TWO), high_scale)};
                    multiply_f16(scores[tile], a, {query[half][c * 2], query[half][c * 2 + 1]});
                }
            }
        load_keys(base + WARPS * 16 * TILES);
        softmax.weigh(scores, results, scale, end - base);
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const float* w = scores[tile];
            u32 weights[2] = {transposed(to_f16_pair(w[0], w[1])), transposed(to_f16_pair(w[2], w[3]))};
            u32 scale_pairs[2] = {value_scale[tile][0] | value_scale[tile][1] << 16,
                                  value_scale[tile][2] | value_scale[tile][3] << 16};
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                // Four dimensions of two keys: bytes side by side, then each pair as f16.
                u32 a[4][2];
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    u32 first = word_of(value_bits[tile][2 * i], c) ^ SIGNS;
                    u32 second = word_of(value_bits[tile][2 * i + 1], c) ^ SIGNS;
                    u32 lower = __byte_perm(first, second, 0x5140), upper = __byte_perm(first, second, 0x7362);
                    a[0][i] = multiply_f16_pair(two_f16(lower, LOWER_TWO), scale_pairs[i]);
                    a[1][i] = multiply_f16_pair(two_f16(lower, UPPER_TWO), scale_pairs[i]);
                    a[2][i] = multiply_f16_pair(two_f16(upper, LOWER_TWO), scale_pairs[i]);
                    a[3][i] = multiply_f16_pair(two_f16(upper, UPPER_TWO), scale_pairs[i]);
                }
                multiply_f16(results[c * 2], {a[0][0], a[1][0], a[0][1], a[1][1]}, weights);
                multiply_f16(results[c * 2 + 1], {a[2][0], a[3][0], a[2][1], a[3][1]}, weights);
            }
        }
        load_values(base + WARPS * 16 * TILES);
    }
    softmax.keep(warps, results, [&](u32 c) { return row * 16 + c * 2; });
    join_warps(warps, memory, out, pair, 0);
}
