// C = A × Bᵀ in bf16 with sums in f32, as Hopper wants it: tiles come by the copy engine (TMA),
// barriers in shared memory count their bytes, and four warps together drive the tensor cores.
// A is m × k, B is n × k, C is m × n, all row-major; k and n are multiples of 8 (the copy engine
// takes rows that begin at multiples of 16 bytes), m is anything.
//
// A block works on 128 × 256 of C, 64 of k at a time. Steps "persistent" to "order" are one
// kernel, compiled with more and more switched on:
#ifndef TMA_STORE
#define TMA_STORE 0  // 1: results leave by the copy engine too
#endif
#ifndef CLUSTER
#define CLUSTER 1    // 2: two blocks share tiles
#endif
#ifndef SHARE_A
#define SHARE_A 0    // 0: the two are one below the other and share tiles of B; 1: side by side, of A
#endif
#ifndef TILE_N
#define TILE_N 256   // 88 and 176 divide some weights more evenly among the multiprocessors
#endif
#ifndef GROUP
#define GROUP 0      // rows of tiles that are worked on together; 0: row after row
#endif
#ifndef LATER
#define LATER 0      // 1: results leave while the next tile is multiplied
#endif
#ifndef OVERLAP
#define OVERLAP 0    // 1: blocks begin while the kernel before still ends
#endif
#ifndef STAGES
#define STAGES 4     // tiles of A and B in flight
#endif
// With TOKENS (8, 16, 32, 64, 128 or 256) there is kernel gemm_tokens instead of the others; its
// tiles have WEIGHTS rows of weights (64 or 128).

#ifndef TILE_M
#define TILE_M 128   // 64: for few rows; one group of warps multiplies, not two
#endif
#define GROUPS (TILE_M / 64)
#define TILE_K 64    // 128 bytes: a row of a tile is as long as the swizzle
#define A_BYTES (TILE_M * TILE_K * 2)
#define B_BYTES (TILE_N * TILE_K * 2)

// Results leave in boxes of 16 rows. Rows of 64 columns are swizzled; rows of 88 columns begin in
// different banks by themselves.
#define BOX_N (TILE_N % 64 == 0 ? 64 : 88)
#define BOXES (TILE_N / BOX_N)
#define BOX_BYTES (16 * BOX_N * 2)
#define ROOMS (BOX_N == 64 ? 2 : 1)

// ---- Barriers ----

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32) __cvta_generic_to_shared(pointer); }

// The tile patterns of the copy engine repeat every 1024 bytes.
__device__ __forceinline__ u32 first_tile(const void* shared) { return (shared_address(shared) + 1023) & ~1023u; }

__device__ __forceinline__ void barrier_begin(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// After barriers begin: the copy engine and the other blocks of the cluster see them.
__device__ __forceinline__ void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives, and says how many bytes are on their way.
__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// At the same barrier of block `block` of the cluster. Without `.release.cluster`, which would
// make memory wait at every step: what is given back was only read, and reading is over.
__device__ __forceinline__ void arrive_at(u32 barrier, u32 block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" :: "r"(barrier), "r"(block) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Until the phase of this parity is over; threads sleep meanwhile.
__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
    u32 is_over;
    do {
        asm volatile("{\n.reg .pred over;\nmbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
            "selp.b32 %0, 1, 0, over;\n}" : "=r"(is_over) : "r"(barrier), "r"(parity) : "memory");
    } while (!is_over);
}

// All threads of the cluster are here, and what they wrote to shared memory is seen by all.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Only the first half of this, which is much quicker.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// With OVERLAP: the next kernel may begin on multiprocessors that have nothing to do any more.
__device__ __forceinline__ void let_next_begin() {
    if (OVERLAP) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// And what the kernel before wrote may be read only after this.
__device__ __forceinline__ void wait_for_kernel_before() {
    if (OVERLAP) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- The copy engine ----

__device__ __forceinline__ void prefetch(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// The tile that begins at this row and column; its bytes arrive at `barrier`.
__device__ __forceinline__ void load_tile(u32 to, const TensorMap* map, u32 row, u32 column, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// The same into both blocks of a cluster, at the same place in each.
__device__ __forceinline__ void load_tile_for_both(u32 to, const TensorMap* map, u32 row, u32 column, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
        :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"((u16) 3) : "memory");
}

__device__ __forceinline__ void store_tile(const TensorMap* map, u32 row, u32 column, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;"
        :: "l"(map), "r"(column), "r"(row), "r"(from) : "memory");
}

// Until all but `Left` of this thread's stores have been read out of shared memory.
template <int Left>
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(Left) : "memory"); }

// ---- Tensor cores ----

// How a tile lies in shared memory: rows of 128 bytes, swizzled, groups of 8 rows 1024 apart.
// In units of 16 bytes; 16 numbers further along k are 2 units.
__device__ __forceinline__ u64 descriptor(u32 tile) {
    return (u64) ((tile & 0x3ffff) >> 4) | (u64) 1 << 16 | (u64) (1024 >> 4) << 32 | (u64) 1 << 62;
}

// Registers are ready for the tensor cores.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the last `Left` groups are done.
template <int Left>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(Left) : "memory"); }

// One instruction of a warpgroup: 64 × N sums, 16 of k, both operands from shared memory.
// Where `keep` is 0 the sums begin at zero: registers need no clearing.
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)

__device__ __forceinline__ void wgmma(float (&d)[4], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, keeps, 1, 1, 0, 0;\n}"
        : SUMS_4(0) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[8], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, keeps, 1, 1, 0, 0;\n}"
        : SUMS_4(0), SUMS_4(4) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[16], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, keeps, 1, 1, 0, 0;\n}"
        : SUMS_16(0) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[32], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, keeps, 1, 1, 0, 0;\n}"
        : SUMS_16(0), SUMS_16(16) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[44], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %46, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n88k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43"
        "}, %44, %45, keeps, 1, 1, 0, 0;\n}"
        : SUMS_16(0), SUMS_16(16), SUMS_4(32), SUMS_4(36), SUMS_4(40) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[64], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, keeps, 1, 1, 0, 0;\n}"
        : SUMS_64(0) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[88], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %90, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87"
        "}, %88, %89, keeps, 1, 1, 0, 0;\n}"
        : SUMS_64(0), SUMS_16(64), SUMS_4(80), SUMS_4(84) : "l"(a), "l"(b), "r"(keep));
}

__device__ __forceinline__ void wgmma(float (&d)[128], u64 a, u64 b, u32 keep) {
    asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, keeps, 1, 1, 0, 0;\n}"
        : SUMS_64(0), SUMS_64(64) : "l"(a), "l"(b), "r"(keep));
}

// A tile of 64 × 64 of A with one of N × 64 of B: four instructions, one group.
template <int N>
__device__ __forceinline__ void multiply(float (&sums)[N / 2], u32 a_tile, u32 b_tile, bool is_first) {
    u64 a = descriptor(a_tile), b = descriptor(b_tile);
    wgmma_begin();
#pragma unroll
    for (u32 part = 0; part < TILE_K / 16; part++) wgmma(sums, a + 2 * part, b + 2 * part, !(is_first && part == 0));
    wgmma_commit();
}

#ifndef TOKENS

// Straight from registers: a thread holds two neighbours of row lane / 4 of its warp's 16 rows,
// and two of the row eight below, for every eight columns.
__device__ __forceinline__ void store_sums(const float (&sums)[TILE_N / 2], bf16* c, u32 m, u32 n, u32 warp_row, u32 first_column) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 row = warp_row + lane / 4 + 8 * half;
#pragma unroll
        for (u32 j = 0; j < TILE_N / 8; j++) {
            u32 column = first_column + 8 * j + lane % 4 * 2;
            if (row < m && column < n) *(u32*) (c + (u64) row * n + column) = to_bf16_pair(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
        }
    }
}

// Sums of two neighbours in one register, in the order of the sums.
__device__ __forceinline__ void round_sums(const float (&sums)[TILE_N / 2], u32 (&pairs)[TILE_N / 4]) {
#pragma unroll
    for (u32 i = 0; i < TILE_N / 4; i++) pairs[i] = to_bf16_pair(sums[2 * i], sums[2 * i + 1]);
}

// Through shared memory: one box of C, in rooms that every warp has for itself, so that it waits
// for no other. The copy engine writes whole lines while the warp goes on.
__device__ __forceinline__ void store_box(const u32 (&pairs)[TILE_N / 4], u32 box, const TensorMap* c, u32 rooms, u32 warp_row, u32 first_column) {
    u32 lane = threadIdx.x % 32, row = lane % 16;
    u32 room = rooms + box % ROOMS * BOX_BYTES;
    // What was in this room has left it.
    if (lane == 0) wait_for_stores<ROOMS - 1>();
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < BOX_N / 16; i++) {
        const u32* d = pairs + box * (BOX_N / 4) + i * 4;
        u32 piece = i * 2 + lane / 16;
        u32 to = room + row * BOX_N * 2 + ((BOX_N == 64 ? piece ^ (row & 7) : piece) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
            :: "r"(to), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]) : "memory");
    }
    if (BOX_N % 16 != 0) {
        const u32* d = pairs + (box + 1) * (BOX_N / 4) - 2;
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
            :: "r"(room + row * BOX_N * 2 + (BOX_N - 8) * 2), "r"(d[0]), "r"(d[1]) : "memory");
    }
    // What threads wrote is not seen by the copy engine without this.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) store_tile(c, warp_row, first_column + box * BOX_N, room);
}

// Step "wgmma": two groups of four warps, each with 64 × 256 of C. Thread 0 asks for tiles
// three steps ahead; all wait for each other at every step.
extern "C" __global__ void __launch_bounds__(256, 1) gemm_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, bf16* c, u32 m, u32 n, u32 k) {
    extern __shared__ u8 shared[];
    __shared__ u64 full[STAGES];
    u32 a_tiles = first_tile(shared), b_tiles = a_tiles + STAGES * A_BYTES;
    u32 first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N;
    u32 group = threadIdx.x / 128, steps = (k + TILE_K - 1) / TILE_K;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) barrier_begin(shared_address(&full[i]), 1);
        barriers_are_ready();
    }
    __syncthreads();

    auto load = [&](u32 step) {
        u32 stage = step % STAGES, barrier = shared_address(&full[stage]);
        expect_bytes(barrier, A_BYTES + B_BYTES);
        load_tile(a_tiles + stage * A_BYTES, &a, first_row, step * TILE_K, barrier);
        load_tile(b_tiles + stage * B_BYTES, &b, first_column, step * TILE_K, barrier);
    };
    if (threadIdx.x == 0)
        for (u32 step = 0; step < STAGES - 1 && step < steps; step++) load(step);

    float sums[TILE_N / 2];
    for (u32 step = 0; step < steps; step++) {
        u32 stage = step % STAGES;
        wait_for(shared_address(&full[stage]), step / STAGES & 1);
        multiply<TILE_N>(sums, a_tiles + stage * A_BYTES + group * (A_BYTES / GROUPS), b_tiles + stage * B_BYTES, step == 0);
        // This step goes on while the place of the one before is filled again.
        wgmma_wait<1>();
        __syncthreads();
        if (threadIdx.x == 0 && step + STAGES - 1 < steps) load(step + STAGES - 1);
    }
    wgmma_wait<0>();
    store_sums(sums, c, m, n, first_row + threadIdx.x / 32 * 16, first_column);
}

// Which tile of C comes next. `GROUP` rows of tiles are worked on together, column after column:
// what runs at the same time is about a square, which needs the fewest rows of A and B, and they
// are still in the second-level cache when the next tiles ask for them. Every other group runs
// backwards, because the last columns were read just now.
__device__ __forceinline__ void place_of(u32 index, u32 rows, u32 columns, u32& row, u32& column) {
    if (GROUP == 0) {
        row = index / columns;
        column = index % columns;
        return;
    }
    u32 group = index / (GROUP * columns), within = index % (GROUP * columns);
    u32 height = min((u32) GROUP, rows - group * GROUP);
    row = group * GROUP + within % height;
    column = group % 2 ? columns - 1 - within / height : within / height;
}

// Steps "persistent" to "overlap": as many blocks as there are
// multiprocessors, each with tile after tile. One thread only asks for tiles (its group of warps
// gives its registers away), two groups of warps only multiply; barriers "full" and "empty" let
// them run apart by `STAGES` tiles, across the ends of the tiles of C.
//
// A cluster of two has two tiles one below the other. Each block asks for one half of the tile
// of B and the copy engine writes it to both: a third less is read from the second-level cache.
// (With SHARE_A they lie side by side, and A is shared: for few rows.)
extern "C" __global__ void __launch_bounds__(128 + GROUPS * 128, 1) gemm_persistent(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map, bf16* c, u32 m, u32 n, u32 k) {
    extern __shared__ u8 shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    u32 a_tiles = first_tile(shared), b_tiles = a_tiles + STAGES * A_BYTES;
    u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    // Of a cluster, in tiles, and where this block is in it.
    const u32 height = SHARE_A ? 1 : CLUSTER, width = SHARE_A ? CLUSTER : 1;
    u32 rank_row = SHARE_A ? 0 : rank, rank_column = SHARE_A ? rank : 0;
    u32 rows = (m + TILE_M * height - 1) / (TILE_M * height), columns = (n + TILE_N * width - 1) / (TILE_N * width);
    u32 steps = (k + TILE_K - 1) / TILE_K;
    if (threadIdx.x == 0) {
        prefetch(&a);
        prefetch(&b);
        prefetch(&c_map);
        for (u32 i = 0; i < STAGES; i++) {
            barrier_begin(shared_address(&full[i]), 1);
            // Every warp that multiplies, of both blocks: what one asks for lands in both.
            barrier_begin(shared_address(&empty[i]), 4 * GROUPS * CLUSTER);
        }
        barriers_are_ready();
    }
    if (CLUSTER > 1) cluster_meet();
    else __syncthreads();
    let_next_begin();

    if (threadIdx.x < 128) {
        if (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            u32 stage = 0, parity = 1;
            wait_for_kernel_before();
            for (u32 index = blockIdx.x / CLUSTER; index < rows * columns; index += gridDim.x / CLUSTER) {
                u32 row, column;
                place_of(index, rows, columns, row, column);
                for (u32 step = 0; step < steps; step++) {
                    u32 barrier = shared_address(&full[stage]);
                    wait_for(shared_address(&empty[stage]), parity);
                    expect_bytes(barrier, A_BYTES + B_BYTES);
                    u32 a_row = (row * height + rank_row) * TILE_M, b_row = (column * width + rank_column) * TILE_N;
                    u32 a_tile = a_tiles + stage * A_BYTES, b_tile = b_tiles + stage * B_BYTES;
                    if (CLUSTER == 1 || !SHARE_A) load_tile(a_tile, &a, a_row, step * TILE_K, barrier);
                    else load_tile_for_both(a_tile + rank * (A_BYTES / 2), &a, a_row + rank * (TILE_M / 2), step * TILE_K, barrier);
                    if (CLUSTER == 1 || SHARE_A) load_tile(b_tile, &b, b_row, step * TILE_K, barrier);
                    else load_tile_for_both(b_tile + rank * (B_BYTES / 2), &b, b_row + rank * (TILE_N / 2), step * TILE_K, barrier);
                    if (++stage == STAGES) {
                        stage = 0;
                        parity ^= 1;
                    }
                }
            }
        }
    } else {
        if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        u32 warp = threadIdx.x / 32 - 4, group = warp / 4, lane = threadIdx.x % 32;
        u32 rooms = b_tiles + STAGES * B_BYTES + warp * (ROOMS * BOX_BYTES);
        u32 stage = 0, parity = 0;
        float sums[TILE_N / 2];
        // With LATER: results of the tile before, and where they belong.
        u32 pairs[TILE_N / 4], pairs_row = 0, pairs_column = 0;
        bool has_pairs = false;
        u32 before = 0;
        auto give_back = [&](u32 which) {
            if (CLUSTER > 1) {
                if (lane < CLUSTER) arrive_at(shared_address(&empty[which]), lane);
            } else if (lane == 0) {
                arrive(shared_address(&empty[which]));
            }
        };
        auto begin_step = [&](bool is_first) {
            wait_for(shared_address(&full[stage]), parity);
            multiply<TILE_N>(sums, a_tiles + stage * A_BYTES + group * (A_BYTES / GROUPS), b_tiles + stage * B_BYTES, is_first);
        };
        auto end_step = [&](bool is_first) {
            // One group stays in flight, so that the tensor cores never wait.
            wgmma_wait<1>();
            if (!is_first) give_back(before);
            before = stage;
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        };
        for (u32 index = blockIdx.x / CLUSTER; index < rows * columns; index += gridDim.x / CLUSTER) {
            u32 row, column;
            place_of(index, rows, columns, row, column);
            u32 step = 0;
            if (LATER) {
                // While the tensor cores do the first steps, what was kept is stored, a box a step.
#pragma unroll
                for (u32 box = 0; box < BOXES; box++) {
                    if (box < steps) begin_step(box == 0);
                    if (has_pairs) store_box(pairs, box, &c_map, rooms, pairs_row, pairs_column);
                    if (box < steps) end_step(box == 0);
                }
                step = BOXES;
            }
            for (; step < steps; step++) {
                begin_step(step == 0);
                end_step(step == 0);
            }
            wgmma_wait<0>();
            give_back(before);
            u32 warp_row = (row * height + rank_row) * TILE_M + warp * 16, first_column = (column * width + rank_column) * TILE_N;
            if (!TMA_STORE) {
                store_sums(sums, c, m, n, warp_row, first_column);
                continue;
            }
            round_sums(sums, pairs);
            pairs_row = warp_row;
            pairs_column = first_column;
            has_pairs = true;
            if (!LATER) {
#pragma unroll
                for (u32 box = 0; box < BOXES; box++) store_box(pairs, box, &c_map, rooms, pairs_row, pairs_column);
            }
        }
        if (LATER && has_pairs) {
#pragma unroll
            for (u32 box = 0; box < BOXES; box++) store_box(pairs, box, &c_map, rooms, pairs_row, pairs_column);
        }
        // Shared memory must stay until the copy engine has read it.
        if (TMA_STORE && lane == 0) wait_for_stores<0>();
    }
    // And until the other block writes and arrives here no more.
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_meet();
    }
}

#else

// Step "tokens": few rows of A (tokens) and many weights. The operands change places: rows of
// weights are the 64-row side of the instruction (one group or two), and tokens, 8 to 256 of
// them, are its N. So no row is multiplied for nothing, and each weight is read once. Blocks of a
// cluster share a tile and divide k; then each adds up a part of the tile out of all their
// shared memories.
#define WEIGHT_BYTES (WEIGHTS * TILE_K * 2)
#define TOKEN_BYTES (TOKENS * TILE_K * 2)
#define SUM_ROW (WEIGHTS + 4)  // sums of a token and 4 for nothing: no two threads meet in a bank
#define WORKERS (WEIGHTS / 16)  // warps that multiply

extern "C" __global__ void __launch_bounds__(WORKERS * 32 + 32, TOKENS > 128 ? 1 : 2) gemm_tokens(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, bf16* c, u32 m, u32 n, u32 k) {
    extern __shared__ u8 shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    u32 weights = first_tile(shared), tokens = weights + STAGES * WEIGHT_BYTES;
    // The grid is: parts of k, tiles of tokens, tiles of weights.
    u32 parts = gridDim.x, part = blockIdx.x;
    u32 first_token = blockIdx.y * TOKENS, first_weight = blockIdx.z * WEIGHTS;
    u32 all_steps = (k + TILE_K - 1) / TILE_K;
    u32 begin = all_steps * part / parts, end = all_steps * (part + 1) / parts;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        prefetch(&a);
        prefetch(&b);
        for (u32 i = 0; i < STAGES; i++) {
            barrier_begin(shared_address(&full[i]), 1);
            barrier_begin(shared_address(&empty[i]), WORKERS);
        }
        barriers_are_ready();
    }
    __syncthreads();

    let_next_begin();

    if (warp == WORKERS) {
        if (lane == 0) {
            auto place = [&](u32 step) { return (step - begin) % STAGES; };
            auto load_tokens = [&](u32 step) {
                load_tile(tokens + place(step) * TOKEN_BYTES, &a, first_token, step * TILE_K, shared_address(&full[place(step)]));
            };
            for (u32 step = begin; step < end; step++) {
                u32 barrier = shared_address(&full[place(step)]);
                wait_for(shared_address(&empty[place(step)]), ~((step - begin) / STAGES) & 1);
                expect_bytes(barrier, WEIGHT_BYTES + TOKEN_BYTES);
                load_tile(weights + place(step) * WEIGHT_BYTES, &b, first_weight, step * TILE_K, barrier);
                // Weights do not come from the kernel before; tokens do, so the first wait for it.
                u32 early = OVERLAP ? min(begin + STAGES, end) : begin;
                if (step + 1 == early) {
                    wait_for_kernel_before();
                    for (u32 of = begin; of < early; of++) load_tokens(of);
                } else if (step >= early) {
                    load_tokens(step);
                }
            }
        }
        __syncwarp();
    } else {
        float sums[TOKENS / 2];
        if (begin == end) {
#pragma unroll
            for (u32 i = 0; i < TOKENS / 2; i++) sums[i] = 0;
        }
        for (u32 step = begin; step < end; step++) {
            u32 stage = (step - begin) % STAGES, round = (step - begin) / STAGES;
            wait_for(shared_address(&full[stage]), round & 1);
            multiply<TOKENS>(sums, weights + stage * WEIGHT_BYTES + warp / 4 * (64 * TILE_K * 2), tokens + stage * TOKEN_BYTES, step == begin);
            wgmma_wait<1>();
            if (step > begin && lane == 0) arrive(shared_address(&empty[(step - 1 - begin) % STAGES]));
        }
        wgmma_wait<0>();
        // The tiles are not needed any more: sums take their place, a row for each token.
        asm volatile("bar.sync 1, %0;" :: "n"(WORKERS * 32) : "memory");
        u32 at = weights + (warp * 16 + lane / 4) * 4;
#pragma unroll
        for (u32 j = 0; j < TOKENS / 8; j++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                u32 token = 8 * j + lane % 4 * 2 + e % 2;
                asm volatile("st.shared.f32 [%0], %1;" :: "r"(at + token * SUM_ROW * 4 + e / 2 * 32), "f"(sums[4 * j + e]) : "memory");
            }
    }
    if (parts > 1) cluster_sync();
    else __syncthreads();
    // Every block has some of the tokens; neighbouring threads write four weights each of one.
    u32 four = threadIdx.x % (WEIGHTS / 4) * 4, column = first_weight + four;
    const u32 at_once = (WORKERS * 32 + 32) / (WEIGHTS / 4);
    for (u32 token = part + parts * (threadIdx.x / (WEIGHTS / 4)); token < TOKENS && first_token + token < m; token += parts * at_once) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (u32 block = 0; block < parts; block++) {
            float4 more;
            asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
                "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
                : "=f"(more.x), "=f"(more.y), "=f"(more.z), "=f"(more.w)
                : "r"(weights + (token * SUM_ROW + four) * 4), "r"(block) : "memory");
            sum.x += more.x; sum.y += more.y; sum.z += more.z; sum.w += more.w;
        }
        if (column < n) *(uint2*) (c + (u64) (first_token + token) * n + column) = make_uint2(to_bf16_pair(sum.x, sum.y), to_bf16_pair(sum.z, sum.w));
    }
    // Others may still read here.
    if (parts > 1) cluster_meet();
}

#endif
