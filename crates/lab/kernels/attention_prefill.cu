// Attention of a whole prompt, causal: query i sees keys 0 to i.
//
// Queries and results are [query head][position][128], keys and values [KV head][position][128].
// Four query heads share a KV head.

constexpr u32 HEAD = 128;
constexpr u32 GROUP = 4;
constexpr u32 ALL = 0xffffffff;
// Below any score, but finite: the difference of two of them is 0, not NaN.
constexpr float LOWEST = -1e30f;
constexpr float ABSENT = 2 * LOWEST;

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- tiles in shared memory, for mma ----

// 16-byte pieces of a row are exchanged by the row's number, so that eight rows of a column
// lie in different banks. PIECES: in a row, at least eight.
template <u32 PIECES> __device__ __forceinline__ u32 place(u32 row, u32 piece) {
    return (row * PIECES + (piece ^ (row & 7))) * 16;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32) __cvta_generic_to_shared(pointer); }

// Copies rows of memory to shared memory without registers; what is not there becomes zero.
template <u32 ROWS, u32 PIECES, u32 THREADS>
__device__ __forceinline__ void copy_tile(u32 to, const bf16* from, u64 stride, u32 rows_there) {
#pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        u32 row = i / PIECES, piece = i % PIECES;
        u32 bytes = row < rows_there ? 16 : 0;
        const bf16* source = from + (bytes ? row * stride + piece * 8 : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + place<PIECES>(row, piece)), "l"(source), "r"(bytes));
    }
}

__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;"); }

template <u32 LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
    __syncthreads();
}

// Four 8 × 8 tiles; lanes 0 to 7 give the rows of the first one, and so on.
__device__ __forceinline__ void four_tiles(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address));
}

__device__ __forceinline__ void four_tiles_transposed(u32 (&out)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address));
}

__device__ __forceinline__ void multiply(float (&out)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- standard: three kernels, and scores in memory between them ----

// Scores of 128 queries × 128 keys, where there is something below the diagonal. Grid: tiles of
// keys, tiles of queries, query heads; 256 threads; 64 KiB of shared memory. A row of scores has
// `width` places.
extern "C" __global__ __launch_bounds__(256, 2)
void standard_scores(const bf16* queries, const bf16* keys, float* scores, u32 prompt, u32 width, float scale) {
    extern __shared__ __align__(1024) u8 shared[];
    u32 first_key = blockIdx.x * 128, first_query = blockIdx.y * 128, head = blockIdx.z;
    if (first_key > first_query) return;
    u32 query_tile = shared_address(shared), key_tile = query_tile + 128 * 256;
    copy_tile<128, 16, 256>(query_tile, queries + ((u64) head * prompt + first_query) * HEAD, HEAD, prompt - first_query);
    copy_tile<128, 16, 256>(key_tile, keys + ((u64) (head / GROUP) * prompt + first_key) * HEAD, HEAD, prompt - first_key);
    end_of_copies();
    wait_for_copies<0>();

    // Warps are 2 × 4, each has 64 × 32 scores.
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp / 4 * 64, column0 = warp % 4 * 32;
    float out[4][4][4] = {};
#pragma unroll
    for (u32 k = 0; k < HEAD / 16; k++) {
        u32 b[2][4];
#pragma unroll
        for (u32 j = 0; j < 2; j++)
            four_tiles(b[j], key_tile + place<16>(column0 + j * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 a[4];
            four_tiles(a, query_tile + place<16>(row0 + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
            for (u32 j = 0; j < 4; j++) multiply(out[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 query = first_query + row0 + i * 16 + half * 8 + lane / 4;
            if (query >= prompt) continue;
            float* row = scores + ((u64) head * prompt + query) * width + first_key + column0 + lane % 4 * 2;
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                *(float2*) (row + j * 8) = make_float2(out[i][j][half * 2] * scale, out[i][j][half * 2 + 1] * scale);
        }
}

// A block for each row: its scores are read twice (the second time they are in a cache) and
// become weights of 16 bits, zero up to the next multiple of 64. Grid: queries, query heads.
extern "C" __global__ __launch_bounds__(256)
void standard_softmax(const float* scores, bf16* weights, u32 prompt, u32 width) {
    __shared__ float greatest_of[8], sum_of[8];
    u32 query = blockIdx.x, head = blockIdx.y, there = query + 1;
    u64 row = ((u64) head * prompt + query) * width;
    float greatest = LOWEST, sum = 0;
    for (u32 at = threadIdx.x; at < there; at += 256) {
        float score = scores[row + at], now = fmaxf(greatest, score);
        sum = sum * exp2_fast(greatest - now) + exp2_fast(score - now);
        greatest = now;
    }
    float of_warp = greatest;
    for (u32 other = 16; other > 0; other /= 2) of_warp = fmaxf(of_warp, __shfl_xor_sync(ALL, of_warp, other));
    sum *= exp2_fast(greatest - of_warp);
    for (u32 other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(ALL, sum, other);
    if (threadIdx.x % 32 == 0) {
        greatest_of[threadIdx.x / 32] = of_warp;
        sum_of[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    greatest = LOWEST, sum = 0;
    for (u32 warp = 0; warp < 8; warp++) greatest = fmaxf(greatest, greatest_of[warp]);
    for (u32 warp = 0; warp < 8; warp++) sum += sum_of[warp] * exp2_fast(greatest_of[warp] - greatest);
    float inverse = 1.0f / sum;
    for (u32 at = threadIdx.x * 2; at < (there + 63) / 64 * 64; at += 512) {
        float2 score = *(const float2*) (scores + row + at);
        float low = at < there ? exp2_fast(score.x - greatest) * inverse : 0;
        float high = at + 1 < there ? exp2_fast(score.y - greatest) * inverse : 0;
        *(u32*) (weights + row + at) = to_bf16_pair(low, high);
    }
}

// Weights × values, 128 queries at a time. Grid: tiles of queries, query heads; 256 threads;
// 64 KiB of shared memory: two tiles of weights and of values, one is used, one on its way.
extern "C" __global__ __launch_bounds__(256, 2)
void standard_values(const bf16* weights, const bf16* values, bf16* out, u32 prompt, u32 width) {
    extern __shared__ __align__(1024) u8 shared[];
    u32 first_query = (gridDim.x - 1 - blockIdx.x) * 128, head = blockIdx.y;
    weights += ((u64) head * prompt + first_query) * width;
    values += (u64) (head / GROUP) * prompt * HEAD;
    u32 weight_tiles = shared_address(shared), value_tiles = weight_tiles + 2 * 128 * 128;
    u32 queries_there = min(128, prompt - first_query);
    u32 tiles = (first_query + queries_there + 63) / 64;
    // Rows above the diagonal have no weights in the last tile: what is there was not written.
    auto copy = [&](u32 tile) {
        u32 to = tile % 2;
#pragma unroll
        for (u32 i = threadIdx.x; i < 128 * 8; i += 256) {
            u32 row = i / 8, piece = i % 8;
            bool is_there = row < queries_there && first_query + row >= tile * 64;
            const bf16* source = weights + (is_there ? row * (u64) width + tile * 64 + piece * 8 : 0);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(weight_tiles + to * 128 * 128 + place<8>(row, piece)),
                         "l"(source), "r"(is_there ? 16 : 0));
        }
        copy_tile<64, 16, 256>(value_tiles + to * 64 * 256, values + (u64) tile * 64 * HEAD, HEAD, prompt - tile * 64);
        end_of_copies();
    };
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp / 4 * 64, column0 = warp % 4 * 32;
    float result[4][4][4] = {};
    copy(0);
    for (u32 tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) copy(tile + 1);
        else end_of_copies();
        wait_for_copies<1>();
        u32 a_tile = weight_tiles + tile % 2 * 128 * 128, b_tile = value_tiles + tile % 2 * 64 * 256;
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 b[2][4];
#pragma unroll
            for (u32 j = 0; j < 2; j++)
                four_tiles_transposed(b[j], b_tile + place<16>(k * 16 + lane % 16, column0 / 8 + j * 2 + lane / 16));
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 a[4];
                four_tiles(a, a_tile + place<8>(row0 + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
                for (u32 j = 0; j < 4; j++) multiply(result[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 query = first_query + row0 + i * 16 + half * 8 + lane / 4;
            if (query >= prompt) continue;
            bf16* row = out + ((u64) head * prompt + query) * HEAD + column0 + lane % 4 * 2;
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                *(u32*) (row + j * 8) = to_bf16_pair(result[i][j][half * 2], result[i][j][half * 2 + 1]);
        }
}

// ---- block-wise: scores never leave the registers ----

// The softmax of a row as its keys come by: when a greater score comes, what was summed so far is
// made smaller. A thread has two rows (lane / 4 of its warp's 16, and 8 further), four lanes
// share them. TILES: of 8 keys each.
template <u32 TILES> struct OnlineSoftmax {
    float greatest[2] = {LOWEST, LOWEST}, sum[2] = {};

    // Scores become weights; the factors are what older sums are to be multiplied by.
    __device__ __forceinline__ void weigh(float (&scores)[TILES * 4], float (&factors)[2], float scale) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float now = greatest[half];
#pragma unroll
            for (u32 i = 0; i < TILES; i++)
                now = fmaxf(now, fmaxf(scores[i * 4 + half * 2], scores[i * 4 + half * 2 + 1]));
            now = fmaxf(now, __shfl_xor_sync(ALL, now, 1));
            now = fmaxf(now, __shfl_xor_sync(ALL, now, 2));
            factors[half] = exp2_fast((greatest[half] - now) * scale);
            greatest[half] = now;
            float scaled = now * scale, of_tile = 0;
#pragma unroll
            for (u32 i = 0; i < TILES; i++)
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    float& score = scores[i * 4 + half * 2 + j];
                    score = exp2_fast(score * scale - scaled);
                    of_tile += score;
                }
            sum[half] = sum[half] * factors[half] + of_tile;
        }
    }

    // 1 / the sum over all four lanes of a row.
    __device__ __forceinline__ float inverse(u32 half) {
        float all = sum[half] + __shfl_xor_sync(ALL, sum[half], 1);
        all += __shfl_xor_sync(ALL, all, 2);
        return 1.0f / all;
    }
};

// Scores above the diagonal are absent. `first_key` is the first of the tile, `query` the first
// of the thread's two rows.
template <u32 TILES> __device__ __forceinline__ void hide_future(float (&scores)[TILES * 4], u32 first_key, u32 query) {
    u32 column = threadIdx.x % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < TILES; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (first_key + i * 8 + column + j % 2 > query + j / 2 * 8) scores[i * 4 + j] = ABSENT;
}

// Results of a thread's two rows, 32 numbers each.
__device__ __forceinline__ void write_rows(bf16* out, const float (&result)[64], float first, float second, u32 rows_there) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        if (lane / 4 + half * 8 >= rows_there) continue;
        bf16* row = out + (lane / 4 + half * 8) * HEAD + lane % 4 * 2;
        float factor = half ? second : first;
#pragma unroll
        for (u32 i = 0; i < 16; i++)
            *(u32*) (row + i * 8) = to_bf16_pair(result[i * 4 + half * 2] * factor, result[i * 4 + half * 2 + 1] * factor);
    }
}

// 128 queries of a head, 64 keys at a time: a warp has 16 queries in registers, with their scores
// and results; keys and values come through two tiles each. Grid: query heads, tiles of queries
// (the last ones first, they have the most to do); 256 threads; 64 KiB of shared memory.
extern "C" __global__ __launch_bounds__(256, 1)
void blockwise(const bf16* queries, const bf16* keys, const bf16* values, bf16* out, u32 prompt, float scale) {
    extern __shared__ __align__(1024) u8 shared[];
    constexpr u32 TILE = 64 * 256;
    u32 head = blockIdx.x, first_query = (gridDim.y - 1 - blockIdx.y) * 128;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    queries += ((u64) head * prompt + first_query) * HEAD;
    keys += (u64) (head / GROUP) * prompt * HEAD;
    values += (u64) (head / GROUP) * prompt * HEAD;
    u32 key_tiles = shared_address(shared), value_tiles = key_tiles + 2 * TILE;

    // Queries pass through the tiles of keys, which are not needed yet.
    copy_tile<128, 16, 256>(key_tiles, queries, HEAD, prompt - first_query);
    end_of_copies();
    wait_for_copies<0>();
    u32 query[8][4];
#pragma unroll
    for (u32 k = 0; k < 8; k++) four_tiles(query[k], key_tiles + place<16>(warp * 16 + lane % 16, k * 2 + lane / 16));
    __syncthreads();

    auto copy = [&](u32 tile) {
        u64 from = (u64) tile * 64 * HEAD;
        copy_tile<64, 16, 256>(key_tiles + tile % 2 * TILE, keys + from, HEAD, prompt - tile * 64);
        end_of_copies();
        copy_tile<64, 16, 256>(value_tiles + tile % 2 * TILE, values + from, HEAD, prompt - tile * 64);
        end_of_copies();
    };
    u32 tiles = (min(first_query + 128, prompt) + 63) / 64;
    u32 my_query = first_query + warp * 16 + lane / 4;
    OnlineSoftmax<8> softmax;
    float result[64] = {};
    copy(0);
    for (u32 tile = 0; tile < tiles; tile++) {
        // This tile's values may still be on their way, the next tile's keys too.
        wait_for_copies<1>();
        u32 key_tile = key_tiles + tile % 2 * TILE, value_tile = value_tiles + tile % 2 * TILE;
        if (tile + 1 < tiles) copy(tile + 1);
        else {
            end_of_copies();
            end_of_copies();
        }
        float scores[32] = {};
#pragma unroll
        for (u32 k = 0; k < 8; k++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 b[4];
                four_tiles(b, key_tile + place<16>(j * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
                multiply(*(float(*)[4]) &scores[j * 8], query[k], b[0], b[1]);
                multiply(*(float(*)[4]) &scores[j * 8 + 4], query[k], b[2], b[3]);
            }
        if (tile * 64 + 63 > first_query + warp * 16) hide_future<8>(scores, tile * 64, my_query);
        float factors[2];
        softmax.weigh(scores, factors, scale);
#pragma unroll
        for (u32 i = 0; i < 64; i++) result[i] *= factors[i / 2 % 2];
        wait_for_copies<2>();
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            const float* w = scores + k * 8;
            u32 a[4] = {to_bf16_pair(w[0], w[1]), to_bf16_pair(w[2], w[3]), to_bf16_pair(w[4], w[5]), to_bf16_pair(w[6], w[7])};
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                u32 b[4];
                four_tiles_transposed(b, value_tile + place<16>(k * 16 + lane % 16, j * 2 + lane / 16));
                multiply(*(float(*)[4]) &result[j * 8], a, b[0], b[1]);
                multiply(*(float(*)[4]) &result[j * 8 + 4], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    u32 first_row = first_query + warp * 16;
    u32 rows_there = first_row < prompt ? prompt - first_row : 0;
    write_rows(out + ((u64) head * prompt + first_row) * HEAD, result, softmax.inverse(0), softmax.inverse(1), rows_there);
}

// ---- block-wise on Hopper: wgmma and the copy engine ----

constexpr u32 ROWS = 128;    // queries of a block: 64 for each of two warpgroups
constexpr u32 KEYS = 128;    // of a tile
constexpr u32 STAGES = 2;
constexpr u32 HALF_TILE = 128 * 128;     // bytes: 128 rows of 64 numbers, as the engine swizzles
constexpr u32 WHOLE_TILE = 2 * HALF_TILE;

// Where a tile in shared memory lies and how, for wgmma: rows of 128 bytes, swizzled; eight rows
// are 1024 bytes. `leading`: bytes from the first 64 numbers of a row to the next 64, where rows
// are the inner dimension (values).
__device__ __forceinline__ u64 describe(u32 address, u32 leading) {
    return (u64) ((address & 0x3ffff) >> 4) | (u64) (leading >> 4) << 16 | (u64) (1024 >> 4) << 32 | 1ull << 62;
}

// 64 × 128 scores of a warpgroup: queries × keys, both in shared memory. 0 for `keep` begins anew.
__device__ __forceinline__ void multiply_shared(float (&out)[64], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, keep, 1, 1, 0, 0;\n}"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3]), "+f"(out[4]), "+f"(out[5]), "+f"(out[6]), "+f"(out[7]),
          "+f"(out[8]), "+f"(out[9]), "+f"(out[10]), "+f"(out[11]), "+f"(out[12]), "+f"(out[13]), "+f"(out[14]), "+f"(out[15]),
          "+f"(out[16]), "+f"(out[17]), "+f"(out[18]), "+f"(out[19]), "+f"(out[20]), "+f"(out[21]), "+f"(out[22]), "+f"(out[23]),
          "+f"(out[24]), "+f"(out[25]), "+f"(out[26]), "+f"(out[27]), "+f"(out[28]), "+f"(out[29]), "+f"(out[30]), "+f"(out[31]),
          "+f"(out[32]), "+f"(out[33]), "+f"(out[34]), "+f"(out[35]), "+f"(out[36]), "+f"(out[37]), "+f"(out[38]), "+f"(out[39]),
          "+f"(out[40]), "+f"(out[41]), "+f"(out[42]), "+f"(out[43]), "+f"(out[44]), "+f"(out[45]), "+f"(out[46]), "+f"(out[47]),
          "+f"(out[48]), "+f"(out[49]), "+f"(out[50]), "+f"(out[51]), "+f"(out[52]), "+f"(out[53]), "+f"(out[54]), "+f"(out[55]),
          "+f"(out[56]), "+f"(out[57]), "+f"(out[58]), "+f"(out[59]), "+f"(out[60]), "+f"(out[61]), "+f"(out[62]), "+f"(out[63])
        : "l"(a), "l"(b), "r"(keep));
}

// The same with 64 × 16 weights in registers, times 16 values of 128 numbers, whose rows are the
// inner dimension (the last 1 says so).
__device__ __forceinline__ void multiply_weights(float (&out)[64], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3]), "+f"(out[4]), "+f"(out[5]), "+f"(out[6]), "+f"(out[7]),
          "+f"(out[8]), "+f"(out[9]), "+f"(out[10]), "+f"(out[11]), "+f"(out[12]), "+f"(out[13]), "+f"(out[14]), "+f"(out[15]),
          "+f"(out[16]), "+f"(out[17]), "+f"(out[18]), "+f"(out[19]), "+f"(out[20]), "+f"(out[21]), "+f"(out[22]), "+f"(out[23]),
          "+f"(out[24]), "+f"(out[25]), "+f"(out[26]), "+f"(out[27]), "+f"(out[28]), "+f"(out[29]), "+f"(out[30]), "+f"(out[31]),
          "+f"(out[32]), "+f"(out[33]), "+f"(out[34]), "+f"(out[35]), "+f"(out[36]), "+f"(out[37]), "+f"(out[38]), "+f"(out[39]),
          "+f"(out[40]), "+f"(out[41]), "+f"(out[42]), "+f"(out[43]), "+f"(out[44]), "+f"(out[45]), "+f"(out[46]), "+f"(out[47]),
          "+f"(out[48]), "+f"(out[49]), "+f"(out[50]), "+f"(out[51]), "+f"(out[52]), "+f"(out[53]), "+f"(out[54]), "+f"(out[55]),
          "+f"(out[56]), "+f"(out[57]), "+f"(out[58]), "+f"(out[59]), "+f"(out[60]), "+f"(out[61]), "+f"(out[62]), "+f"(out[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until so many groups at most are under way. The registers are named so that the compiler does
// not use them before.
template <u32 LEFT> __device__ __forceinline__ void wait_for_products(float (&out)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (u32 i = 0; i < 64; i++) asm volatile("" : "+f"(out[i])::"memory");
}

__device__ __forceinline__ void new_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of this parity is over.
__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// 128 rows of 128 numbers, in two halves of 64.
__device__ __forceinline__ void copy_by_engine(u32 to, const TensorMap* map, u32 row, u32 barrier) {
#pragma unroll
    for (u32 half = 0; half < 2; half++)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                to + half * HALF_TILE), "l"(map), "r"(half * 64), "r"(row), "r"(barrier) : "memory");
}

// 128 queries × 128 keys at a time. One warp only asks the copy engine for tiles; two warpgroups
// compute, 64 queries each. The next scores are under way while a tile's values are added, and
// the softmax of those scores is computed while the tensor cores still add. Grid: query heads,
// tiles of queries, the last ones first; 384 threads; 161 KiB of shared memory.
extern "C" __global__ __launch_bounds__(384, 1)
void blockwise_hopper(const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
                 const __grid_constant__ TensorMap values, bf16* out, u32 prompt, float scale) {
    extern __shared__ __align__(1024) u8 shared[];
    u32 query_tile = (shared_address(shared) + 1023) & ~1023u;
    u32 key_tiles = query_tile + WHOLE_TILE, value_tiles = key_tiles + STAGES * WHOLE_TILE;
    u32 barriers = value_tiles + STAGES * WHOLE_TILE;
    u32 queries_come = barriers;
    // Of keys: full, free; of values: full, free.
    auto barrier = [&](u32 kind, u32 stage) { return barriers + 8 + (kind * STAGES + stage) * 8; };
    constexpr u32 KEYS_COME = 0, KEYS_FREE = 1, VALUES_COME = 2, VALUES_FREE = 3;
    u32 head = blockIdx.x, first_query = (gridDim.y - 1 - blockIdx.y) * ROWS;
    u32 group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    // From the tile on the diagonal down to the first: only the one that comes first has a future
    // to hide.
    u32 tiles = first_query / KEYS + 1;
    if (threadIdx.x == 0) {
        new_barrier(queries_come, 1);
        for (u32 stage = 0; stage < STAGES; stage++) {
            new_barrier(barrier(KEYS_COME, stage), 1);
            new_barrier(barrier(VALUES_COME, stage), 1);
            // Eight warps compute.
            new_barrier(barrier(KEYS_FREE, stage), 8);
            new_barrier(barrier(VALUES_FREE, stage), 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            expect_bytes(queries_come, WHOLE_TILE);
            copy_by_engine(query_tile, &queries, head * prompt + first_query, queries_come);
            u32 first_row = head / GROUP * prompt;
            for (u32 i = 0; i < tiles; i++) {
                u32 stage = i % STAGES, parity = i / STAGES % 2, row = first_row + (tiles - 1 - i) * KEYS;
                // The first time all stages are free: the phase before the first one is over.
                wait_for(barrier(KEYS_FREE, stage), parity ^ 1);
                expect_bytes(barrier(KEYS_COME, stage), WHOLE_TILE);
                copy_by_engine(key_tiles + stage * WHOLE_TILE, &keys, row, barrier(KEYS_COME, stage));
                wait_for(barrier(VALUES_FREE, stage), parity ^ 1);
                expect_bytes(barrier(VALUES_COME, stage), WHOLE_TILE);
                copy_by_engine(value_tiles + stage * WHOLE_TILE, &values, row, barrier(VALUES_COME, stage));
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        u32 first_row = first_query + (group - 1) * 64;
        u32 my_query = first_row + warp * 16 + lane / 4;
        float scores[64], result[64] = {};
        u32 weights[8][4];
        OnlineSoftmax<16> softmax;
        float factors[2];

        auto score = [&](u32 i) {
            u32 stage = i % STAGES;
            wait_for(barrier(KEYS_COME, stage), i / STAGES % 2);
            begin_products();
#pragma unroll
            for (u32 k = 0; k < 8; k++) {
                // 16 numbers are 32 bytes of a row; the second half of the numbers lies behind.
                u32 along = k / 4 * HALF_TILE + k % 4 * 32;
                u64 a = describe(query_tile + (group - 1) * 64 * 128 + along, 16);
                u64 b = describe(key_tiles + stage * WHOLE_TILE + along, 16);
                multiply_shared(scores, a, b, k > 0);
            }
            end_products();
        };
        auto pack = [&]() {
#pragma unroll
            for (u32 i = 0; i < 32; i++) weights[i / 4][i % 4] = to_bf16_pair(scores[i * 2], scores[i * 2 + 1]);
        };
        auto add_values = [&](u32 i) {
            u32 stage = i % STAGES;
            wait_for(barrier(VALUES_COME, stage), i / STAGES % 2);
            begin_products();
#pragma unroll
            for (u32 k = 0; k < 8; k++)
                multiply_weights(result, weights[k], describe(value_tiles + stage * WHOLE_TILE + k * 16 * 128, HALF_TILE));
            end_products();
        };

        wait_for(queries_come, 0);
        score(0);
        wait_for_products<0>(scores);
        if (lane == 0) arrive(barrier(KEYS_FREE, 0));
        hide_future<16>(scores, (tiles - 1) * KEYS, my_query);
        softmax.weigh(scores, factors, scale);
        pack();
        for (u32 i = 1; i < tiles; i++) {
            score(i);
            add_values(i - 1);
            wait_for_products<1>(scores);
            if (lane == 0) arrive(barrier(KEYS_FREE, i % STAGES));
            softmax.weigh(scores, factors, scale);
            wait_for_products<0>(result);
            if (lane == 0) arrive(barrier(VALUES_FREE, (i - 1) % STAGES));
#pragma unroll
            for (u32 j = 0; j < 64; j++) result[j] *= factors[j / 2 % 2];
            pack();
        }
        add_values(tiles - 1);
        wait_for_products<0>(result);
        u32 my_rows = first_row + warp * 16;
        u32 rows_there = my_rows < prompt ? prompt - my_rows : 0;
        write_rows(out + ((u64) head * prompt + my_rows) * HEAD, result, softmax.inverse(0), softmax.inverse(1), rows_there);
    }
}
