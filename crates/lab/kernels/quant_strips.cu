// Products of few tokens with INT4 weights: y = x * wT, tokens by rows. What counts is how long
// a product takes after the one before has ended, since its weights come before that.
//
// A strip is 16 rows. A piece is a strip by 128 columns: 1024 bytes of weights, then 16 scales,
// 1056 bytes together. A block has whole strips, so nobody waits for sums of others (or k is
// divided by the blocks of a cluster, which read each other's shared memory); pieces of a block
// lie in its order: along k, and for each 128 columns strip after strip. Warps of a block divide
// k: each has a ring of its own, filled by bulk copies that it asks for itself, and meets the
// others only at the end. There are as many blocks as multiprocessors (some have a strip less):
// with fewer, two blocks of the next product would come to rest on one that is free.
//
// Of 32 columns a lane reads 16 bytes of inputs, which are its operands B of two steps. So columns
// are in another order than mma numbers them, and weights are packed in the same order. Inputs go
// from memory to registers, one part ahead; with more tokens that is too late, and there are no
// registers for more: with DEPTH they pass through shared memory, where each lane has a queue of
// its own, of so many parts.

#ifndef TILES
#define TILES 1  // of 8 tokens
#endif
#ifndef STRIPS
#define STRIPS 6  // of a block, at most
#endif
#ifndef TOGETHER
#define TOGETHER 6  // pieces in a slot of the ring
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks that divide k
#endif
#ifndef COLUMNS
#define COLUMNS (TILES == 1 ? 128 : 64)  // of inputs in registers at a time
#endif
#ifndef BLOCKS
#define BLOCKS 2  // on a multiprocessor: the second one is the next product's
#endif
#ifndef AT_ONCE
#define AT_ONCE TOGETHER  // pieces that are multiplied together
#endif
#ifndef DEPTH
#define DEPTH 0
#endif
constexpr u32 PIECE_BYTES = 1056, SLOT_BYTES = TOGETHER * PIECE_BYTES, RING_BYTES = SLOTS * SLOT_BYTES;
constexpr int SLOTS_OF_UNIT = (STRIPS + TOGETHER - 1) / TOGETHER;
constexpr int LAST = (STRIPS - (SLOTS_OF_UNIT - 1) * TOGETHER) % AT_ONCE == 0 ? 1 : (STRIPS - (SLOTS_OF_UNIT - 1) * TOGETHER) % AT_ONCE;
static_assert(TOGETHER % AT_ONCE == 0, "a slot is used up in equal parts");
constexpr int PARTS = 128 / COLUMNS, LOADS = COLUMNS / 32, STEPS = COLUMNS / 16;
constexpr u32 PART_BYTES = TILES * LOADS * 512;  // of inputs, for a warp
static_assert(PARTS == 1 || SLOTS >= SLOTS_OF_UNIT, "the strips of a unit are in the ring together");
static_assert(STRIPS * TILES * 512 <= RING_BYTES, "sums are exchanged where weights were");

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32) __cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" :: "r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ uint4 load_shared_16(u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address));
    return value;
}

__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One lane of a warp whose lanes all are here.
__device__ __forceinline__ bool is_elected() {
    u32 result;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p; }" : "=r"(result));
    return result;
}

// Eight weights of a word as 128 + q in bf16, which is exact: four bits become the last bits of
// a number between 128 and 255, two of them by one instruction.
__device__ __forceinline__ void raw_of(u32 word, u32 (&a)[4]) {
    #pragma unroll
    for (int i = 0; i < 4; i++)
        asm("lop3.b32 %0, %1, 0x000F000F, %2, 0xEA;" : "=r"(a[i]) : "r"(word >> (4 * i)), "r"(0x43004300));
}

// Operands B of a lane, for some columns of all tokens.
struct Inputs {
    uint4 of[TILES][LOADS];

    __device__ __forceinline__ void load(const bf16* const (&from)[TILES], const bool (&is_token)[TILES], u32 column) {
        #pragma unroll
        for (int t = 0; t < TILES; t++)
            #pragma unroll
            for (int i = 0; i < LOADS; i++) {
                uint4& into = of[t][i];
                into = make_uint4(0, 0, 0, 0);
                if (is_token[t])
                    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                        : "=r"(into.x), "=r"(into.y), "=r"(into.z), "=r"(into.w) : "l"(from[t] + column + i * 32));
            }
    }

    // From the queue of this lane. The result depends on all that was read.
    __device__ __forceinline__ u32 take(u32 at) {
        u32 seen = 0;
        #pragma unroll
        for (int i = 0; i < TILES * LOADS; i++) {
            of[i / LOADS][i % LOADS] = load_shared_16(at + i * 512);
            seen |= of[i / LOADS][i % LOADS].w;
        }
        return seen;
    }

    // Asks for what `take` finds there later; tokens that are not there are zeros.
    static __device__ __forceinline__ void ask(u32 at, const bf16* const (&from)[TILES], const bool (&is_token)[TILES], u32 column) {
        #pragma unroll
        for (int i = 0; i < TILES * LOADS; i++)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                :: "r"(at + i * 512), "l"(from[i / LOADS] + column + i % LOADS * 32), "r"(is_token[i / LOADS] ? 16 : 0) : "memory");
    }

    __device__ __forceinline__ u32 b0(int t, int step) const { return step % 2 ? of[t][step / 2].z : of[t][step / 2].x; }
    __device__ __forceinline__ u32 b1(int t, int step) const { return step % 2 ? of[t][step / 2].w : of[t][step / 2].y; }
};

// Some pieces, or halves of them where inputs are only half there: all at once, so that
// there is always an instruction that need not wait. `surplus` is what weights that are 136 too
// large give too much. The result depends on all that was read of the pieces, and on nothing else
// that matters.
template <int COUNT>
__device__ __forceinline__ u32 multiply_pieces(float (*sums)[TILES][4], u32 first, int part, const Inputs& inputs, const float (&surplus)[TILES][2], u32 lane) {
    float of_piece[COUNT][TILES][4] = {};
    u32 scales[COUNT], seen = 0;
    #pragma unroll
    for (int i = 0; i < STEPS / 4; i++) {
        uint4 four[COUNT];
        #pragma unroll
        for (int p = 0; p < COUNT; p++) four[p] = load_shared_16(first + p * PIECE_BYTES + (part + i) * 512 + lane * 16);
        if (i == 0)
            #pragma unroll
            for (int p = 0; p < COUNT; p++)
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(scales[p]) : "r"(first + p * PIECE_BYTES + 1024 + lane / 4 * 4));
        #pragma unroll
        for (int p = 0; p < COUNT; p++)
            if (i == STEPS / 4 - 1) seen |= four[p].w | scales[p];
        #pragma unroll
        for (int j = 0; j < 4; j++)
            #pragma unroll
            for (int p = 0; p < COUNT; p++) {
                u32 a[4];
                raw_of(j == 0 ? four[p].x : j == 1 ? four[p].y : j == 2 ? four[p].z : four[p].w, a);
                #pragma unroll
                for (int t = 0; t < TILES; t++)
                    multiply(of_piece[p][t], a, inputs.b0(t, i * 4 + j), inputs.b1(t, i * 4 + j));
            }
    }
    #pragma unroll
    for (int p = 0; p < COUNT; p++) {
        float factor[2] = {__uint_as_float(scales[p] << 16), __uint_as_float(scales[p] & 0xFFFF0000u)};
        #pragma unroll
        for (int t = 0; t < TILES; t++)
            #pragma unroll
            for (int j = 0; j < 4; j++) sums[p][t][j] += factor[j / 2] * (of_piece[p][t][j] - surplus[t][j % 2]);
    }
    return seen;
}

__device__ __forceinline__ void all_meet() {
    if (CLUSTER == 1) __syncthreads();
    else asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// 16 bytes of shared memory of a block of the cluster.
__device__ __forceinline__ float4 load_sums(u32 address, u32 rank) {
    float4 value;
    u32 there = address;
    if (CLUSTER > 1) asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(there) : "memory");
    return value;
}

// `zero` is 0, which the compiler must not know.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) quant_strips(
    const u8* weights, const bf16* x, bf16* y, u32 n, u32 k, u32 batch, u32 zero) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 barriers[WARPS * SLOTS];
    u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    u32 rank = blockIdx.x % CLUSTER, block = blockIdx.x / CLUSTER;
    u32 k_units = k / 128, block_unit = k_units * rank / CLUSTER, unit_end = k_units * (rank + 1) / CLUSTER;
    // Units of this warp. Blocks begin with different ones: the same inputs, asked for by all at
    // the same time, would come from the same places of L2.
    u32 first_unit = block_unit + warp, unit_count = first_unit < unit_end ? (unit_end - first_unit + WARPS - 1) / WARPS : 0;
    u32 last_unit = first_unit + (unit_count - 1) * WARPS, begin_unit = first_unit + block % max(unit_count, 1) * WARPS;
    auto unit_after = [&](u32 unit) { return unit == last_unit ? first_unit : unit + WARPS; };
    u32 all_strips = (n + 15) / 16, blocks = gridDim.x / CLUSTER, first_strip = all_strips * block / blocks;
    u32 strips = all_strips * (block + 1) / blocks - first_strip;
    u32 ring = shared_address(shared) + warp * RING_BYTES, barrier = shared_address(barriers) + warp * SLOTS * 8;
    if (lane < SLOTS) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier + 8 * lane));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();

    const u8* of_block = weights + (u64) first_strip * k_units * PIECE_BYTES;
    u32 fill_unit = begin_unit, fills = unit_count * SLOTS_OF_UNIT, fill_strip = 0, fill_slot = 0;
    // Copies overwrite what ordinary instructions have read: not before these have their values,
    // which `seen` proves.
    auto fill = [&](u32 seen) {
        if (fills == 0) return;
        fills--;
        // A block with fewer strips leaves the last slot of a unit empty, or nearly.
        u32 count = fill_strip < strips ? min((u32) TOGETHER, strips - fill_strip) : 0, at = barrier + 8 * fill_slot;
        u32 to = ring + fill_slot * SLOT_BYTES + (seen & zero);
        if (is_elected()) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(count * PIECE_BYTES) : "memory");
            if (count > 0)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                    :: "r"(to), "l"(of_block + (u64) (fill_unit * strips + fill_strip) * PIECE_BYTES), "r"(count * PIECE_BYTES), "r"(at) : "memory");
        }
        __syncwarp();
        if (++fill_slot == SLOTS) fill_slot = 0;
        fill_strip += TOGETHER;
        if (fill_strip >= STRIPS) {
            fill_strip = 0;
            fill_unit = unit_after(fill_unit);
        }
    };
    #pragma unroll 1
    for (int i = 0; i < SLOTS; i++) fill(0);
    // The kernel before may still run; what it writes is there after this.
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");

    const bf16* from[TILES];
    bool is_token[TILES];
    #pragma unroll
    for (int t = 0; t < TILES; t++) {
        is_token[t] = t * 8 + lane / 4 < batch;
        from[t] = x + (u64) (DEPTH == 0 || is_token[t] ? t * 8 + lane / 4 : 0) * k + lane % 4 * 8;
    }
    const u32 ones[4] = {0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80};
    Inputs next;
    [[maybe_unused]] u32 queue = shared_address(shared) + WARPS * RING_BYTES + warp * DEPTH * PART_BYTES + lane * 16;
    u32 ask_unit = begin_unit, asks = unit_count * PARTS, ask_part = 0, queued = 0;
    // The next part, into place `queued` of the queue. There is a group for every part, even if it
    // is empty: they are counted.
    [[maybe_unused]] auto ask = [&](u32 seen) {
        if (asks > 0) {
            Inputs::ask(queue + queued * PART_BYTES + (seen & zero), from, is_token, ask_unit * 128 + ask_part * COLUMNS);
            asks--;
            if (++ask_part == PARTS) {
                ask_part = 0;
                ask_unit = unit_after(ask_unit);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++queued == DEPTH) queued = 0;
    };
    if (DEPTH > 0) {
        #pragma unroll 1
        for (int i = 0; i < DEPTH; i++) ask(0);
    } else if (unit_count > 0) {
        next.load(from, is_token, begin_unit * 128);
    }
    u32 slot = 0, parity = 0;
    float sums[STRIPS][TILES][4] = {};
    u32 unit = begin_unit;
    #pragma unroll 1
    for (u32 left = unit_count; left > 0; left--) {
        u32 unit_slot = slot, unit_parity = parity;
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            Inputs inputs;
            if constexpr (DEPTH > 0) {
                asm volatile("cp.async.wait_group %0;" :: "n"(DEPTH - 1) : "memory");
                ask(inputs.take(queue + queued * PART_BYTES));
            } else {
                inputs = next;
                u32 next_unit = part + 1 < PARTS ? unit : unit_after(unit);
                next.load(from, is_token, next_unit * 128 + (part + 1) % PARTS * COLUMNS);
            }
            float of_inputs[2][TILES][4] = {}, surplus[TILES][2];
            #pragma unroll
            for (int step = 0; step < STEPS; step++)
                #pragma unroll
                for (int t = 0; t < TILES; t++) multiply(of_inputs[step % 2][t], ones, inputs.b0(t, step), inputs.b1(t, step));
            #pragma unroll
            for (int t = 0; t < TILES; t++)
                #pragma unroll
                for (int j = 0; j < 2; j++) surplus[t][j] = 136 * (of_inputs[0][t][j] + of_inputs[1][t][j]);
            slot = unit_slot;
            parity = unit_parity;
            #pragma unroll
            for (int s = 0; s < SLOTS_OF_UNIT; s++) {
                if (part == 0) barrier_wait(barrier + 8 * slot, parity);
                u32 seen = 0;
                #pragma unroll
                for (int p = 0; p < TOGETHER; p += AT_ONCE) {
                    int strip = s * TOGETHER + p, count = min(AT_ONCE, min(TOGETHER - p, STRIPS - strip));
                    u32 at = ring + slot * SLOT_BYTES + p * PIECE_BYTES;
                    // With many sums, a branch keeps the compiler from loading more than it has
                    // registers for.
                    if ((TILES > 1 || STRIPS > 8) && strip >= strips) break;
                    if (count == AT_ONCE) seen |= multiply_pieces<AT_ONCE>(sums + strip, at, part, inputs, surplus, lane);
                    else if (count > 0) seen |= multiply_pieces<LAST>(sums + strip, at, part, inputs, surplus, lane);
                }
                if (part == PARTS - 1) fill(seen);
                if (++slot == SLOTS) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
        unit = unit_after(unit);
    }
    // All weights of the ring are used up, by all lanes: sums take their place. Those of strips that
    // are not there are sums of anything, and read by nobody.
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < STRIPS * TILES; i++) {
        const float (&four)[4] = sums[i / TILES][i % TILES];
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
            :: "r"(ring + i * 512 + lane * 16), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]) : "memory");
    }
    all_meet();
    for (u32 i = warp * CLUSTER + rank; i < strips * TILES; i += WARPS * CLUSTER) {
        u32 at = shared_address(shared) + i * 512 + lane * 16;
        float total[4] = {};
        #pragma unroll
        for (u32 other = 0; other < CLUSTER; other++)
            #pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                float4 more = load_sums(at + w * RING_BYTES, other);
                total[0] += more.x; total[1] += more.y; total[2] += more.z; total[3] += more.w;
            }
        // A lane has two tokens of a row, its neighbour the same two of the next row: exchanged,
        // each has two rows of a token, which are neighbours in memory (n is even).
        bool is_odd = lane / 4 % 2;
        u32 token = i % TILES * 8 + 2 * (lane % 4) + is_odd;
        #pragma unroll
        for (int j = 0; j < 4; j += 2) {
            u32 mine = to_bf16_pair(total[j], total[j + 1]), other = __shfl_xor_sync(~0u, mine, 4);
            u32 both = is_odd ? __byte_perm(other, mine, 0x7632) : __byte_perm(mine, other, 0x5410);
            u32 row = (first_strip + i / TILES) * 16 + lane / 4 - is_odd + j * 4;
            if (token < batch && row < n) *(u32*) (y + (u64) token * n + row) = both;
        }
    }
    if (CLUSTER > 1) all_meet();
}
