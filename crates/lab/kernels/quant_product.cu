// Products with weights of four bits on tensor cores: y = x * wT, tokens by rows.
//
// Weights are the operand A (16 rows of w at a time), tokens are the columns of B: so a product
// of one token fills a tensor core as badly as it must, and none worse.
//
// The packed layout. A unit is 128 rows by 128 columns, 8 KiB in a piece; units of 128 rows
// follow each other along k, so a block of threads reads memory from one address to another.
// A unit is 8 strips of 16 rows (one for each warp), a strip is two halves of 64 columns, and
// of a half each lane has 16 bytes: four words for four steps of 16 columns, and a word is just
// the eight weights that the lane holds of A in mma.m16n8k16 (and in wgmma with A in registers,
// which is the same). Bits 4i..4i+3 and 4i+16..4i+19 are the pair in register i.
//
// A ring in shared memory is filled by two warps with bulk copies (one for weights, one for
// inputs) and emptied by eight warps. With UNITS=2 a tile is two units of 128 rows that share
// inputs: with mma each warp has a strip of both, with wgmma there are sixteen warps.
// Work is cut into equal ranges of units, one for each block ("stream-k"); a block whose range
// begins inside a tile leaves its sums for the one that has the beginning of the tile, which
// writes the result. With CLUSTER=2 two blocks have neighbouring tiles of rows and the same ranges:
// each brings half of the inputs, for both, so that these leave L2 half as often.

#ifndef FORMAT
#define FORMAT 4  // 4: INT4 with a bf16 scale for 128; 5: Q4_K
#endif
#ifndef TOKENS
#define TOKENS 8  // columns of a tile
#endif
#ifndef STAGES
#define STAGES 8
#endif
#ifndef UNITS
#define UNITS 1  // of 128 rows in a tile
#endif
#ifndef WGMMA
#define WGMMA 0
#endif
#ifndef BLOCKS
#define BLOCKS 1  // that must fit on a multiprocessor
#endif
#ifndef TALL
#define TALL 0  // a tile is 192 rows, a unit and a half; with wgmma, and UNITS is 1
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks that share inputs; 2 only where UNITS is 1
#endif

constexpr int STRIPS = WGMMA ? 1 : UNITS;  // of one warp
constexpr int CONSUMERS = TALL ? 384 : 256 * UNITS / STRIPS;  // threads
// Registers are given to four warps at a time: where many are needed, warps that copy give
// theirs back.
constexpr bool MOVES_REGISTERS = TOKENS >= 128 && UNITS == 1;
constexpr int PRODUCERS = MOVES_REGISTERS ? 128 : 64;
constexpr int X_BYTES = TOKENS * 256, X_HALF_BYTES = TOKENS * 128;
constexpr int WEIGHT_BYTES = 8192;
constexpr int SCALE_BYTES = FORMAT == 4 ? 256 : 2048;
constexpr int UNIT_BYTES = WEIGHT_BYTES + (SCALE_BYTES < 1024 ? 1024 : SCALE_BYTES);
// Strips of 16 rows in a tall tile, and its bytes; scales begin where wgmma may read no more.
constexpr int TALL_STRIPS = 12, TALL_SCALES = TALL_STRIPS * 1024, TALL_SCALE_BYTES = TALL_STRIPS * SCALE_BYTES / 8;
constexpr int TALL_BYTES = TALL_SCALES + (TALL_SCALE_BYTES < 1024 ? 1024 : TALL_SCALE_BYTES);
constexpr int STAGE_BYTES = X_BYTES + (TALL ? TALL_BYTES : UNITS * UNIT_BYTES);
static_assert(!TALL || (WGMMA && UNITS == 1), "only so");
static_assert(CLUSTER == 1 || (CLUSTER == 2 && UNITS == 1 && TOKENS >= 16), "only so");
constexpr int COLUMN_TILES = TOKENS / 8;
// With few tokens, weights go to tensor cores as 128 + q, and what that is too much is taken away
// after, from sums: for that, the sum of inputs is needed, which is a product with ones.
[[maybe_unused]] constexpr bool IS_RAW = !WGMMA && COLUMN_TILES <= (FORMAT == 4 ? 2 : 1);

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32) __cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// At the barrier of this number in a block of the cluster.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
    if (CLUSTER == 1) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
    else asm volatile("{ .reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" :: "r"(barrier), "r"(rank) : "memory");
}

// All threads of all blocks that are here yet.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" :: "r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

__device__ __forceinline__ void copy_tile(u32 to, const TensorMap* map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// The same into both blocks of a cluster, at the same place in each.
__device__ __forceinline__ void copy_tile_for_both(u32 to, const TensorMap* map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
        :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"((u16) 3) : "memory");
}

// One lane of a warp whose lanes all are here.
__device__ __forceinline__ bool is_elected() {
    u32 result;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p; }" : "=r"(result));
    return result;
}

// The kernel before may still run when this one starts; what it writes is there after this.
__device__ __forceinline__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;"); }

__device__ __forceinline__ uint4 load_shared_16(u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address));
    return value;
}

__device__ __forceinline__ float load_shared_bf16(u32 address) {
    u16 bits;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(address));
    return from_bf16(bits);
}

__device__ __forceinline__ float from_f16(u32 bits) {
    float value;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(bits));
    return value;
}

// Of a lane's two rows, g and g + 8: what four-bit numbers are multiplied by and what is added,
// for one block of weights; each twice in a register, or as one float where IS_RAW.
struct Scales { u32 factor[2], summand[2]; };

// Scales of one strip in one unit, as this lane needs them.
struct StripScales {
#if FORMAT == 4
    float scale[2];

    __device__ __forceinline__ void load(u32 address, u32, u32 strip, u32 lane, u32) {
        scale[0] = load_shared_bf16(address + strip * 32 + lane / 4 * 2);
        scale[1] = load_shared_bf16(address + strip * 32 + lane / 4 * 2 + 16);
    }

    __device__ __forceinline__ void begin_half(int) {}

    // All blocks have the same.
    __device__ __forceinline__ Scales block(int) const {
        return {{to_bf16_pair(scale[0], scale[0]), to_bf16_pair(scale[1], scale[1])}, {0, 0}};
    }
#else
    u32 decoded_at;
    uint4 decoded[2];  // of both rows: factor and summand of two blocks

    // (2^23 + v) as a float has v in its last bits; a fused multiply-add takes 2^23 away again.
    static __device__ __forceinline__ float six_bits(u32 four, u32 shift, float factor) {
        u32 bits = (four >> shift & 63) | 0x4B000000;
        return fmaf(__uint_as_float(bits), factor, -8388608.0f * factor);
    }

    // A strip has 16 rows of four blocks here, and a warp 32 lanes: each decodes two blocks of
    // one row and puts them where the others find them.
    __device__ __forceinline__ void load(u32 address, u32 scratch, u32 strip, u32 lane, u32 is_second) {
        uint4 about = load_shared_16(address + (strip * 16 + lane / 2) * 16);
        float d = from_f16(about.x), least = from_f16(about.x >> 16);
        u32 scales = is_second ? about.z : about.y;
        u32 upper = __byte_perm(__byte_perm(about.y, about.z, 0x0073), about.w, 0x0710);
        u32 minima = is_second ? upper : about.w;
        u32 result[4];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 shift = lane % 2 * 12 + i * 6;
            float scale = six_bits(scales, shift, d), minimum = six_bits(minima, shift, least);
            if (IS_RAW) {
                // w = s q - m = s (128 + q) - (128 s + m)
                result[2 * i] = __float_as_uint(scale);
                result[2 * i + 1] = __float_as_uint(-128 * scale - minimum);
            } else {
                // w = s q - m = s (q - 8) + (8 s - m): the summand is small, so rounding it costs little.
                result[2 * i] = to_bf16_pair(scale, scale);
                result[2 * i + 1] = to_bf16_pair(8 * scale - minimum, 8 * scale - minimum);
            }
        }
        __syncwarp();
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
            :: "r"(scratch + lane * 16), "r"(result[0]), "r"(result[1]), "r"(result[2]), "r"(result[3]) : "memory");
        __syncwarp();
        decoded_at = scratch + lane / 4 * 32;
    }

    __device__ __forceinline__ void begin_half(int half) {
        decoded[0] = load_shared_16(decoded_at + half * 16);
        decoded[1] = load_shared_16(decoded_at + half * 16 + 256);
    }

    __device__ __forceinline__ Scales block(int part) const {
        const uint4 (&d)[2] = decoded;
        return part == 0 ? Scales{{d[0].x, d[1].x}, {d[0].y, d[1].y}} : Scales{{d[0].z, d[1].z}, {d[0].w, d[1].w}};
    }
#endif
};
constexpr int SCRATCH_BYTES = FORMAT == 4 ? 0 : CONSUMERS / 32 * STRIPS * 512;

// Eight weights of a word as 128 + q in bf16, which is exact: four bits become the last bits of
// a number between 128 and 255, two of them by one instruction.
__device__ __forceinline__ void raw_of(u32 word, u32 (&a)[4]) {
    #pragma unroll
    for (int i = 0; i < 4; i++)
        asm("lop3.b32 %0, %1, 0x000F000F, %2, 0xEA;" : "=r"(a[i]) : "r"(word >> (4 * i)), "r"(0x43004300));
}

// The same as integers from -8 to 7, which is still exact.
__device__ __forceinline__ void integers_of(u32 word, u32 (&a)[4]) {
    raw_of(word, a);
    #pragma unroll
    for (int i = 0; i < 4; i++) asm("add.rn.bf16x2 %0, %0, %1;" : "+r"(a[i]) : "r"(0xC308C308));
}

__device__ __forceinline__ void weights_of(u32 word, const Scales& scales, u32 (&a)[4]) {
    integers_of(word, a);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORMAT == 4)
            asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(a[i]) : "r"(scales.factor[i % 2]));
        else
            asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a[i]) : "r"(scales.factor[i % 2]), "r"(scales.summand[i % 2]));
    }
}

#if !WGMMA
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A quarter of a unit, 32 columns: what one ldmatrix brings of 8 tokens.
__device__ __forceinline__ void load_inputs(u32 (&b)[COLUMN_TILES][4], u32 x, u32 lane, int half, int part) {
    #pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++) {
        // The copy engine exchanges 16-byte pieces of a row by the row's number.
        u32 token = lane % 8, piece = part * 4 + lane / 8;
        u32 address = x + half * X_HALF_BYTES + t * 1024 + token * 128 + ((piece ^ token) * 16);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(b[t][0]), "=r"(b[t][1]), "=r"(b[t][2]), "=r"(b[t][3]) : "r"(address));
    }
}

__device__ __forceinline__ u32 word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// One unit for this warp's strips.
__device__ __forceinline__ void multiply_unit(float (&sums)[STRIPS][COLUMN_TILES][4], u32 x, const uint4 (&words)[STRIPS][2], StripScales (&scales)[STRIPS], u32 lane) {
    const u32 ones[4] = {0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80};
    float of_unit[STRIPS][COLUMN_TILES][4] = {}, of_inputs[COLUMN_TILES][4] = {};
    #pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        int half = quarter / 2, part = quarter % 2;
        u32 b[COLUMN_TILES][4];
        load_inputs(b, x, lane, half, part);
        if (IS_RAW) {
            if (FORMAT != 4)
                #pragma unroll
                for (int t = 0; t < COLUMN_TILES; t++)
                    #pragma unroll
                    for (int j = 0; j < 4; j++) of_inputs[t][j] = 0;  // a block has its own
            #pragma unroll
            for (int t = 0; t < COLUMN_TILES; t++) {
                multiply(of_inputs[t], ones, b[t][0], b[t][1]);
                multiply(of_inputs[t], ones, b[t][2], b[t][3]);
            }
        }
        #pragma unroll
        for (int s = 0; s < STRIPS; s++) {
            u32 a[2][4];
            if (part == 0) scales[s].begin_half(half);
            Scales block = scales[s].block(part);
            float of_block[COLUMN_TILES][4] = {};
            #pragma unroll
            for (int step = 0; step < 2; step++) {
                u32 word = word_of(words[s][half], 2 * part + step);
                if (IS_RAW) raw_of(word, a[step]);
                else if (FORMAT == 4) integers_of(word, a[step]);
                else weights_of(word, block, a[step]);
            }
            #pragma unroll
            for (int t = 0; t < COLUMN_TILES; t++) {
                auto& into = FORMAT == 4 ? of_unit[s][t] : IS_RAW ? of_block[t] : sums[s][t];
                multiply(into, a[0], b[t][0], b[t][1]);
                multiply(into, a[1], b[t][2], b[t][3]);
                if (FORMAT != 4 && IS_RAW)
                    #pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sums[s][t][j] += __uint_as_float(block.factor[j / 2]) * of_block[t][j];
                        sums[s][t][j] += __uint_as_float(block.summand[j / 2]) * of_inputs[t][j];
                    }
            }
        }
    }
#if FORMAT == 4
    #pragma unroll
    for (int s = 0; s < STRIPS; s++)
        #pragma unroll
        for (int t = 0; t < COLUMN_TILES; t++)
            #pragma unroll
            for (int j = 0; j < 4; j++)
                sums[s][t][j] += scales[s].scale[j / 2] * (of_unit[s][t][j] - (IS_RAW ? 136.0f : 0.0f) * of_inputs[t][j]);
#endif
}
#else
// What wgmma reads from shared memory: rows of 128 bytes, swizzled, eight of them 1024 bytes.
__device__ __forceinline__ u64 describe(u32 address) {
    return (u64) (address >> 4 & 0x3FFF) | (u64) 1 << 16 | (u64) 64 << 32 | (u64) 1 << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

#define SUMS_4(t) "+f"(sums[t][0]), "+f"(sums[t][1]), "+f"(sums[t][2]), "+f"(sums[t][3])
#define SUMS_16(t) SUMS_4(t), SUMS_4(t + 1), SUMS_4(t + 2), SUMS_4(t + 3)
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(is_added)

// 64 rows (16 of each warp) times all tokens.
__device__ __forceinline__ void multiply_wide(float (&sums)[COLUMN_TILES][4], const u32 (&a)[4], u64 b) {
    const int is_added = 1;
#if TOKENS == 8
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %9, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
        : SUMS_4(0) : OPERANDS);
#elif TOKENS == 16
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0; }"
        : SUMS_4(0), SUMS_4(1) : OPERANDS);
#elif TOKENS == 32
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
        : SUMS_16(0) : OPERANDS);
#elif TOKENS == 64
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : SUMS_16(0), SUMS_16(4) : OPERANDS);
#elif TOKENS == 128
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0; }"
        : SUMS_16(0), SUMS_16(4), SUMS_16(8), SUMS_16(12) : OPERANDS);
#else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, 0; }"
        : SUMS_16(0), SUMS_16(4), SUMS_16(8), SUMS_16(12), SUMS_16(16), SUMS_16(20), SUMS_16(24), SUMS_16(28) : OPERANDS);
#endif
}

// Half a unit: four steps of 16 columns.
__device__ __forceinline__ void multiply_half(float (&sums)[COLUMN_TILES][4], const u32 (&a)[4][4], u32 x) {
    #pragma unroll
    for (int step = 0; step < 4; step++) multiply_wide(sums, a[step], describe(x + step * 32));
}

__device__ __forceinline__ void weights_of_half(uint4 words, StripScales& scales, int half, u32 (&a)[4][4]) {
    scales.begin_half(half);
    u32 word[4] = {words.x, words.y, words.z, words.w};
    #pragma unroll
    for (int part = 0; part < 2; part++) {
        Scales block = scales.block(part);
        weights_of(word[2 * part], block, a[2 * part]);
        weights_of(word[2 * part + 1], block, a[2 * part + 1]);
    }
}
#endif

// Of warps that compute, without the one that copies.
__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory"); }

// Where a range of units is: counted on, because dividing takes long.
struct Place {
    u32 k_unit, token_tile, row_tile;

    __device__ __forceinline__ Place(u32 unit, u32 k_units, u32 token_tiles)
        : k_unit(unit % k_units), token_tile(unit / k_units % token_tiles), row_tile(unit / k_units / token_tiles) {}

    __device__ __forceinline__ void next(u32 k_units, u32 token_tiles) {
        if (++k_unit < k_units) return;
        k_unit = 0;
        if (++token_tile < token_tiles) return;
        token_tile = 0;
        row_tile++;
    }
};

// A stage of the ring, and whether it is used for an even or odd time.
struct Stage {
    u32 number = 0, parity = 0;

    __device__ __forceinline__ void next() {
        if (++number < STAGES) return;
        number = 0;
        parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, BLOCKS) quant_product(
    const u8* weights, const u8* scales, const __grid_constant__ TensorMap x, bf16* y,
    float4* partial, u32* flags, u32 n, u32 batch, u32 k_units, u32 row_tiles, u32 token_tiles) {
    extern __shared__ u8 shared[];
    __shared__ u64 barriers[2 * STAGES];
    u32 ring = (shared_address(shared) + SCRATCH_BYTES + 1023) & ~1023u;
    u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    // All lanes of a warp have the same number; the compiler knows only if told.
    u32 thread = threadIdx.x, warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
    u32 total = k_units * row_tiles * token_tiles;
    // Blocks of a cluster have the same range; `row_tiles` counts the tiles of both as one.
    u32 clusters = gridDim.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    auto begin_of = [&](u32 cluster) { return (u32) ((u64) total * cluster / clusters); };
    // A block waits for sums of blocks that have later work. Turned around, those are the ones
    // that the card started before this one, so the wait always ends.
    u32 me = clusters - 1 - blockIdx.x / CLUSTER;
    u32 begin = begin_of(me), end = begin_of(me + 1);

    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 2);
            barrier_init(empty + 8 * i, CLUSTER * CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER == 1) __syncthreads();
    else cluster_meet();
    let_next_kernel_start();

    if (warp >= CONSUMERS / 32) {
        if constexpr (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(TALL ? 56 : 40));
        Place place(begin, k_units, token_tiles);
        Stage stage;
        if (warp == CONSUMERS / 32) {
            // Weights depend on nobody: they are copied before the kernel before has ended.
            auto weights_at = [&](u32 row_tile, int i) {
                return weights + ((u64) (row_tile * UNITS + i) * k_units + place.k_unit) * WEIGHT_BYTES;
            };
            auto scales_at = [&](u32 row_tile, int i) {
                // Both halves of a super-block of Q4_K use the same scales.
                u32 blocks = FORMAT == 4 ? k_units : k_units / 2, block = FORMAT == 4 ? place.k_unit : place.k_unit / 2;
                return scales + ((u64) (row_tile * UNITS + i) * blocks + block) * SCALE_BYTES;
            };
            for (u32 unit = begin; unit < end; unit++) {
                if (unit >= begin + STAGES) barrier_wait(empty + 8 * stage.number, stage.parity ^ 1);
                u32 to = ring + stage.number * STAGE_BYTES + X_BYTES, barrier = full + 8 * stage.number;
                u32 row_tile = place.row_tile * CLUSTER + rank;
                if (TALL && is_elected()) {
                    barrier_expect(barrier, TALL_SCALES + TALL_SCALE_BYTES);
                    // A unit and half of its neighbour, or half of one and the next.
                    u32 strip = row_tile * TALL_STRIPS, first = 8 - strip % 8, here = strip / 8;
                    copy_bulk(to, weights_at(here, 0) + strip % 8 * 1024, first * 1024, barrier);
                    copy_bulk(to + first * 1024, weights_at(here, 1), (TALL_STRIPS - first) * 1024, barrier);
                    constexpr u32 ONE = SCALE_BYTES / 8;
                    copy_bulk(to + TALL_SCALES, scales_at(here, 0) + strip % 8 * ONE, first * ONE, barrier);
                    copy_bulk(to + TALL_SCALES + first * ONE, scales_at(here, 1), (TALL_STRIPS - first) * ONE, barrier);
                } else if (!TALL && is_elected()) {
                    barrier_expect(barrier, UNITS * (WEIGHT_BYTES + SCALE_BYTES));
                    #pragma unroll
                    for (int i = 0; i < UNITS; i++) {
                        copy_bulk(to + i * UNIT_BYTES, weights_at(row_tile, i), WEIGHT_BYTES, barrier);
                        copy_bulk(to + i * UNIT_BYTES + WEIGHT_BYTES, scales_at(row_tile, i), SCALE_BYTES, barrier);
                    }
                }
                __syncwarp();
                place.next(k_units, token_tiles);
                stage.next();
            }
        } else if (warp == CONSUMERS / 32 + 1) {
            asm volatile("prefetch.tensormap [%0];" :: "l"(&x) : "memory");
            wait_for_kernel_before();
            for (u32 unit = begin; unit < end; unit++) {
                if (unit >= begin + STAGES) barrier_wait(empty + 8 * stage.number, stage.parity ^ 1);
                u32 to = ring + stage.number * STAGE_BYTES, barrier = full + 8 * stage.number;
                if (is_elected()) {
                    barrier_expect(barrier, X_BYTES);
                    u32 column = place.k_unit * 128, token = place.token_tile * TOKENS + rank * (TOKENS / CLUSTER);
                    to += rank * (X_HALF_BYTES / CLUSTER);
                    auto copy = CLUSTER == 1 ? copy_tile : copy_tile_for_both;
                    copy(to, &x, column, token, barrier);
                    copy(to + X_HALF_BYTES, &x, column + 64, token, barrier);
                }
                __syncwarp();
                place.next(k_units, token_tiles);
                stage.next();
            }
        }
        return;
    }

    if constexpr (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(TALL ? 152 : 232));
    u32 strip = TALL ? warp : warp % 8, first_unit = TALL ? 0 : warp / 8;
    u32 at_words = X_BYTES + first_unit * UNIT_BYTES + strip * 1024 + lane * 16;
    u32 at_scales = X_BYTES + (TALL ? TALL_SCALES : first_unit * UNIT_BYTES + WEIGHT_BYTES);
    u32 scratch = shared_address(shared) + warp * STRIPS * 512;
    auto release = [&](u32 stage) {
        if (lane < CLUSTER) barrier_arrive(empty + 8 * stage, lane);
    };
    // Where the block with this block's rank in a cluster leaves sums.
    auto slot_of = [&](u32 cluster) { return cluster * CLUSTER + rank; };
    u32 unit = begin;
    Stage stage;
    while (unit < end) {
        u32 tile = unit / k_units, tile_begin = tile * k_units, tile_end = tile_begin + k_units;
        u32 segment_begin = unit, segment_end = min(end, tile_end);
        float sums[STRIPS][COLUMN_TILES][4] = {};
#if WGMMA
        u32 a[2][4][4];
        u32 before = stage.number;
        for (; unit < segment_end; unit++) {
            u32 at = ring + stage.number * STAGE_BYTES;
            barrier_wait(full + 8 * stage.number, stage.parity);
            StripScales unit_scales;
            unit_scales.load(at + at_scales, scratch, strip, lane, (unit - tile_begin) % 2);
            // While tensor cores work on one half, the other is made of four-bit numbers.
            uint4 words[2] = {load_shared_16(at + at_words), load_shared_16(at + at_words + 512)};
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                weights_of_half(words[half], unit_scales, half, a[half]);
                wgmma_fence();
                multiply_half(sums[0], a[half], at + half * X_HALF_BYTES);
                wgmma_commit();
                wgmma_wait<1>();
                // Now the half before this one is done; with it, the unit before.
                if (half == 0 && unit > segment_begin) release(before);
            }
            before = stage.number;
            stage.next();
        }
        wgmma_wait<0>();
        release(before);
#else
        for (; unit < segment_end; unit++) {
            u32 at = ring + stage.number * STAGE_BYTES;
            barrier_wait(full + 8 * stage.number, stage.parity);
            StripScales strip_scales[STRIPS];
            uint4 words[STRIPS][2];
            #pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                words[s][0] = load_shared_16(at + at_words + s * UNIT_BYTES);
                words[s][1] = load_shared_16(at + at_words + s * UNIT_BYTES + 512);
                strip_scales[s].load(at + at_scales + s * UNIT_BYTES, scratch + s * 512, strip, lane, (unit - tile_begin) % 2);
            }
            multiply_unit(sums, at, words, strip_scales, lane);
            __syncwarp();
            release(stage.number);
            stage.next();
        }
#endif

        // Sums of this thread, four at a time: as they are left for another block.
        constexpr int FOURS = STRIPS * COLUMN_TILES;
        float (&fours)[FOURS][4] = reinterpret_cast<float (&)[FOURS][4]>(sums);
        if (segment_begin > tile_begin) {
            // The tile's beginning is another block's: that one writes the result.
            #pragma unroll
            for (int i = 0; i < FOURS; i++)
                __stcg(&partial[((u64) slot_of(me) * FOURS + i) * CONSUMERS + thread], make_float4(fours[i][0], fours[i][1], fours[i][2], fours[i][3]));
            consumers_meet();
            if (thread == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flags + slot_of(me)) : "memory");
        } else {
            // All blocks that have other parts of this tile; each thread asks for one of them.
            u32 last = me;
            while (last + 1 < clusters && begin_of(last + 1) < tile_end) last++;
            if (last > me) {
                for (u32 other = me + 1 + thread; other <= last; other += CONSUMERS) {
                    u32 is_there = 0;
                    while (!is_there) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_there) : "l"(flags + slot_of(other)) : "memory");
                    flags[slot_of(other)] = 0;  // for the next kernel
                }
                consumers_meet();
            }
            #pragma unroll (FOURS <= 2 ? 4 : 1)
            for (u32 other = me + 1; other <= last; other++) {
                #pragma unroll
                for (int i = 0; i < FOURS; i++) {
                    float4 more = __ldcg(&partial[((u64) slot_of(other) * FOURS + i) * CONSUMERS + thread]);
                    fours[i][0] += more.x; fours[i][1] += more.y; fours[i][2] += more.z; fours[i][3] += more.w;
                }
            }
            // A lane has two tokens of a row, its neighbour the same two of the next row: exchanged,
            // each has two rows of a token, which are neighbours in memory (n is even).
            u32 row = ((tile / token_tiles * CLUSTER + rank) * UNITS + first_unit) * (TALL ? TALL_STRIPS * 16 : 128) + strip * 16 + lane / 4;
            u32 token = tile % token_tiles * TOKENS + 2 * (lane % 4);
            bool is_odd = lane / 4 % 2;
            #pragma unroll
            for (int i = 0; i < FOURS; i++)
                #pragma unroll
                for (int j = 0; j < 4; j += 2) {
                    u32 mine = to_bf16_pair(fours[i][j], fours[i][j + 1]), other = __shfl_xor_sync(~0u, mine, 4);
                    u32 both = is_odd ? __byte_perm(other, mine, 0x7632) : __byte_perm(mine, other, 0x5410);
                    u32 this_token = token + i % COLUMN_TILES * 8 + is_odd;
                    u32 this_row = row + i / COLUMN_TILES * 128 - is_odd + j * 4;
                    if (this_token < batch && this_row < n) *(u32*) (y + (u64) this_token * n + this_row) = both;
                }
        }
    }
    // The other block may still arrive at barriers of this one.
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_meet();
    }
}
