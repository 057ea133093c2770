// C = A × B in single precision, at the vendor's speed: the copies run by themselves.
//
// Here every block has several stages of shared memory. While its warps multiply one, the
// copies into the others are under way: by LDGSTS (kernel `async_copy`), by the copy engine TMA
// (`tma`, `multicast`), and across tiles (`persistent`). How the numbers are multiplied is the
// same for all and comes first.
//
// What limits it is the issue slot: a multiprocessor starts four instructions a clock and can
// start four FFMA a clock, so every instruction that is not an FFMA is speed lost. 8 × 16
// results a thread need 6 LDS.128 for 128 FFMA.
#ifndef TILE_M
#define TILE_M 128
#define TILE_N 128
#define DEPTH 16
#define STAGES 4
#endif
#ifndef EACH_N
#define EACH_N 16
#endif

constexpr int EACH_M = 8;
// A warp is 8 × 4 threads.
constexpr int WARP_M = 8 * EACH_M, WARP_N = 4 * EACH_N;
constexpr int WARPS_N = TILE_N / WARP_N, WARPS = TILE_M / WARP_M * WARPS_N, THREADS = 32 * WARPS;
// As many registers as there are: 8 × 16 sums and twice the operands take nearly all 255.
constexpr int BLOCKS_AT_ONCE = THREADS > 128 ? (EACH_N > 8 ? 1 : 2) : (EACH_N > 8 ? 2 : 3);
constexpr u32 A_BYTES = TILE_M * DEPTH * 4, B_BYTES = DEPTH * TILE_N * 4, STAGE_BYTES = A_BYTES + B_BYTES;

// A tile of A lies row by row, DEPTH numbers each, as it does in memory: a thread reads four
// numbers of a row at once, for four steps of k. So that eight rows are in different banks, the
// quarters of 16 bytes of each row are exchanged, as the copy engine can do it ("swizzle").
constexpr int QUARTERS = DEPTH / 4;
__device__ __forceinline__ u32 swizzled(int row, int quarter) {
    return row * (DEPTH * 4) + ((quarter ^ (row / (8 / QUARTERS) % QUARTERS)) * 16);
}

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32) __cvta_generic_to_shared(pointer); }

__device__ __forceinline__ float4 load_shared(u32 address) {
    float4 four;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w) : "r"(address));
    return four;
}

// Where a thread is in its block's tile. Bits of the lane are dealt out so that either
// neighbour 1 or neighbour 2 reads the same word: LDS.128 then takes two passes, not four.
struct Place {
    int row, column;  // of its first result
    u32 a, b;         // of its first operands in a stage

    __device__ Place() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int y = (lane >> 1 & 1) | (lane >> 2 & 6), x = (lane & 1) | (lane >> 1 & 2);
        row = warp / WARPS_N * WARP_M + y;
        column = warp % WARPS_N * WARP_N + x * 4;
        a = swizzled(row, 0);
        b = A_BYTES + column * 4;
    }
};

// The sums of one thread: rows 8 apart, columns in fours that are 16 apart.
typedef float Sums[EACH_M][EACH_N];

__device__ __forceinline__ void load_left(float4 (&left)[EACH_M], u32 address) {
#pragma unroll
    for (int i = 0; i < EACH_M; ++i) left[i] = load_shared(address + i * 8 * DEPTH * 4);
}

__device__ __forceinline__ void load_top(float (&top)[EACH_N], u32 address) {
#pragma unroll
    for (int j = 0; j < EACH_N; j += 4) {
        const float4 four = load_shared(address + j * 16);
        top[j] = four.x, top[j + 1] = four.y, top[j + 2] = four.z, top[j + 3] = four.w;
    }
}

__device__ __forceinline__ float one_of(float4 four, int i) { return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w; }

// One step of k. Neighbouring instructions share an operand, which then comes from the reuse
// cache: the banks of registers give two operands a clock, and an FFMA needs three.
__device__ __forceinline__ void multiply(Sums& sum, const float4 (&left)[EACH_M], const float (&top)[EACH_N], int k) {
#pragma unroll
    for (int j = 0; j < EACH_N; ++j)
#pragma unroll
        for (int y = 0; y < EACH_M; ++y) {
            const int i = j % 2 ? EACH_M - 1 - y : y;
            sum[i][j] = fmaf(one_of(left[i], k), top[j], sum[i][j]);
        }
}

// Multiplies `steps` stages. Operands of the next step of k are read while the current ones
// are multiplied, over the border of stages too. `feed.wait(i)` gives the address of stage i
// when it is full, `feed.done(i)` says that this thread needs it no longer.
template <class Feed>
__device__ __forceinline__ void multiply_all(Sums& sum, const Feed& feed, const Place& place, int steps) {
    float4 left[2][EACH_M];
    float top[2][EACH_N];
    u32 stage = feed.wait(0);
    load_left(left[0], stage + place.a);
    load_top(top[0], stage + place.b);
    // Four steps of k, while the operands after them are read from `next_left` and `next_top`.
    auto multiply_four = [&](int quarter, u32 next_left, u32 next_top) {
        load_left(left[(quarter + 1) % 2], next_left);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            load_top(top[(k + 1) % 2], k < 3 ? stage + place.b + (quarter * 4 + k + 1) * TILE_N * 4 : next_top);
            multiply(sum, left[quarter % 2], top[k % 2], k);
        }
    };
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        // Written out: the compiler does not unroll so large a loop.
        auto multiply_inner = [&](int quarter) {
            multiply_four(quarter, stage + (place.a ^ (quarter + 1) * 16), stage + place.b + (quarter + 1) * 4 * TILE_N * 4);
        };
        multiply_inner(0);
        if (QUARTERS > 2) multiply_inner(1), multiply_inner(2);
        // After the last step there is nothing more to read; the same stage again does no harm.
        const u32 next = step + 1 < steps ? feed.wait(step + 1) : stage;
        multiply_four(QUARTERS - 1, next + place.a, next + place.b);
        feed.done(step);
        stage = next;
    }
}

// Writes row number `row` of a thread's sums, columns in fours that are 16 apart, as far as it
// lies inside of C. Sums could be written from registers 16 bytes at a time; but then the
// compiler must keep them in fours all the time, and cannot choose a bank for each. So they take
// the way through a corner of shared memory that belongs to this thread.
__device__ __forceinline__ void store_row(const float (&sum)[EACH_N], float* c, int m, int n, int row, int column, u32 corner) {
#pragma unroll
    for (int j = 0; j < EACH_N; ++j)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(corner + j / 4 * THREADS * 16 + j % 4 * 4), "f"(sum[j]) : "memory");
    if (row >= m) return;
#pragma unroll
    for (int j = 0; j < EACH_N; j += 4) {
        const float4 four = load_shared(corner + j / 4 * THREADS * 16);
        const int to_column = column + j * 4;
        float* to = c + (u64) row * n + to_column;
        if (n % 4 == 0) {
            if (to_column < n) *(float4*) to = four;
        } else {
            if (to_column < n) to[0] = four.x;
            if (to_column + 1 < n) to[1] = four.y;
            if (to_column + 2 < n) to[2] = four.z;
            if (to_column + 3 < n) to[3] = four.w;
        }
    }
}

// All threads of the block have read their stages.
__device__ __forceinline__ void store(const Sums& sum, float* c, int m, int n, int row, int column, u32 memory) {
#pragma unroll
    for (int i = 0; i < EACH_M; ++i) store_row(sum[i], c, m, n, row + i * 8, column, memory + threadIdx.x * 16);
}

// ---- 8. async_copy: warp tiles, and copies past the registers (LDGSTS) -----------------------
// Takes any size: where rows do not begin at 16 bytes, words are copied one by one.
struct Copies {
    const float *a, *b;
    int m, n, k, row, column, steps;
    u32 memory;

    // 16 bytes, or what is left of the row; zeros after it.
    __device__ __forceinline__ static void copy4(u32 to, const float* matrix, int rows, int columns, int row, int column, bool is_wide) {
        const bool is_row = row < rows;
        const float* from = matrix + (is_row ? (u64) row * columns : 0);
        if (is_wide) {
            const bool is_there = is_row && column < columns;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from + (is_there ? column : 0)), "r"(is_there ? 16 : 0) : "memory");
        } else {
            for (int i = 0; i < 4; ++i) {
                const bool is_there = is_row && column + i < columns;
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * i), "l"(from + (is_there ? column + i : 0)), "r"(is_there ? 4 : 0) : "memory");
            }
        }
    }

    // Always one group of copies, perhaps empty: they are waited for by their number.
    __device__ __forceinline__ void start(int step) const {
        const u32 stage = memory + step % STAGES * STAGE_BYTES;
        if (step < steps) {
#pragma unroll
            for (int i = 0; i < TILE_M * QUARTERS / THREADS; ++i) {
                const int y = (threadIdx.x + i * THREADS) / QUARTERS, quarter = threadIdx.x % QUARTERS;
                copy4(stage + swizzled(y, quarter), a, m, k, row + y, step * DEPTH + quarter * 4, k % 4 == 0);
            }
#pragma unroll
            for (int i = 0; i < DEPTH * TILE_N / 4 / THREADS; ++i) {
                const int at = threadIdx.x + i * THREADS, y = at / (TILE_N / 4), x = at % (TILE_N / 4) * 4;
                copy4(stage + A_BYTES + at * 16, b, k, n, step * DEPTH + y, column + x, n % 4 == 0);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    __device__ __forceinline__ u32 wait(int step) const {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
        __syncthreads();
        return memory + step % STAGES * STAGE_BYTES;
    }

    // All threads have passed `wait(step + 1)`, so none reads stage `step - 1` any more.
    __device__ __forceinline__ void done(int step) const {
        if (step > 0) start(step - 1 + STAGES);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
async_copy(const float* a, const float* b, float* c, int m, int n, int k) {
    extern __shared__ __align__(1024) u8 memory[];
    const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N, steps = (k + DEPTH - 1) / DEPTH;
    const Copies copies = {a, b, m, n, k, row, column, steps, shared_address(memory)};
    for (int step = 0; step < STAGES; ++step) copies.start(step);
    const Place place;
    Sums sum = {};
    multiply_all(sum, copies, place, steps);
    __syncthreads();
    store(sum, c, m, n, row + place.row, column + place.column, copies.memory);
}

// ---- 9. tma: the copy engine -----------------------------------------------------------------
__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and the phase ends only after so many bytes were copied too.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void copy_tile(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// One thread asks for whole tiles; addresses and borders are the engine's work. A barrier says
// when a stage is full, another when all warps have read it.
struct Engine {
    const TensorMap *a, *b;
    int row, column, steps;
    u32 memory, full, empty;

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < STAGES; ++stage) {
                barrier_init(full + 8 * stage, 1);
                barrier_init(empty + 8 * stage, WARPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            for (int step = 0; step < STAGES && step < steps; ++step) start(step);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void start(int step) const {
        const u32 stage = memory + step % STAGES * STAGE_BYTES, barrier = full + step % STAGES * 8;
        barrier_expect(barrier, STAGE_BYTES);
        copy_tile(stage, a, step * DEPTH, row, barrier);
        copy_tile(stage + A_BYTES, b, column, step * DEPTH, barrier);
    }

    __device__ __forceinline__ u32 wait(int step) const {
        barrier_wait(full + step % STAGES * 8, step / STAGES & 1);
        return memory + step % STAGES * STAGE_BYTES;
    }

    // The stage before this one is filled again: by now even the slowest warp should have read
    // it, so that nobody waits for anybody.
    __device__ __forceinline__ void done(int step) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + step % STAGES * 8);
        if (threadIdx.x == 0 && step > 0 && step - 1 + STAGES < steps) {
            barrier_wait(empty + (step - 1) % STAGES * 8, (step - 1) / STAGES & 1);
            start(step - 1 + STAGES);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
tma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N, steps = (k + DEPTH - 1) / DEPTH;
    const u32 full = shared_address(barriers);
    const Engine engine = {&a, &b, row, column, steps, shared_address(memory), full, full + 8 * STAGES};
    engine.init();
    const Place place;
    Sums sum = {};
    multiply_all(sum, engine, place, steps);
    __syncthreads();
    store(sum, c, m, n, row + place.row, column + place.column, engine.memory);
}

// ---- 10. multicast: two blocks share what they both read -------------------------------------
// Blocks one above the other need the same tile of B. In a cluster each asks for one half of
// it, and the engine writes that half to both: L2 is read less.
struct SharedEngine {
    const TensorMap *a, *b;
    u32 memory, full, empty, rank;
    int row, column, steps;

    __device__ __forceinline__ static void meet() {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < STAGES; ++stage) {
                barrier_init(full + 8 * stage, 1);
                barrier_init(empty + 8 * stage, 2 * WARPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        meet();
        if (threadIdx.x == 0)
            for (int step = 0; step < STAGES && step < steps; ++step) start(step);
    }

    __device__ __forceinline__ void start(int step) const {
        const u32 stage = memory + step % STAGES * STAGE_BYTES, barrier = full + step % STAGES * 8;
        barrier_expect(barrier, STAGE_BYTES);
        copy_tile(stage, a, step * DEPTH, row, barrier);
        const int half = rank * (DEPTH / 2);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
            " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(stage + A_BYTES + half * TILE_N * 4),
            "l"(b), "r"(column), "r"(step * DEPTH + half), "r"(barrier), "h"((u16) 3)
            : "memory");
    }

    __device__ __forceinline__ u32 wait(int step) const {
        barrier_wait(full + step % STAGES * 8, step / STAGES & 1);
        return memory + step % STAGES * STAGE_BYTES;
    }

    // Both blocks write into this stage, so both must know that it was read.
    __device__ __forceinline__ void done(int step) const {
        __syncwarp();
        if (threadIdx.x % 32 < 2)
            asm volatile(
                "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(empty + step % STAGES * 8),
                "r"(threadIdx.x % 32)
                : "memory");
        if (threadIdx.x == 0 && step > 0 && step - 1 + STAGES < steps) {
            barrier_wait(empty + (step - 1) % STAGES * 8, (step - 1) / STAGES & 1);
            start(step - 1 + STAGES);
        }
    }
};

extern "C" __global__ void __cluster_dims__(1, 2, 1) __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
multicast(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N, steps = (k + DEPTH - 1) / DEPTH;
    const u32 full = shared_address(barriers);
    const SharedEngine engine = {&a, &b, shared_address(memory), full, full + 8 * STAGES, blockIdx.y % 2, row, column, steps};
    engine.init();
    const Place place;
    Sums sum = {};
    multiply_all(sum, engine, place, steps);
    // The other block may still write here, or say that it has read.
    SharedEngine::meet();
    store(sum, c, m, n, row + place.row, column + place.column, engine.memory);
}

// ---- 11. turned: operands in both banks of registers ------------------------------------------
// Registers have two banks, and each gives one operand a clock: odd and even numbers. An FFMA
// reads its sum, one new operand, and one from the reuse cache; sum and new operand must be in
// different banks. Above, four numbers of a ROW of A came with one load, and of one step of k
// all were in the same bank. Here A is turned around in shared memory: four numbers of a COLUMN
// come with one load and are in both banks.
//
// The copy engine cannot turn tiles around. Each thread does it for 4 × 4 numbers of the next
// stage while the current one is multiplied: 8 instructions for 2048 FFMA.
constexpr u32 TURNED_BYTES = A_BYTES;
constexpr int APART = TILE_M / 4;  // rows that lie side by side in the turned tile are so far apart

struct TurnedPlace {
    int row, column;
    u32 a, b;

    __device__ TurnedPlace() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int y = (lane >> 1 & 1) | (lane >> 2 & 6), x = (lane & 1) | (lane >> 1 & 2);
        row = warp / WARPS_N * (WARP_M / 4) + y;
        column = warp % WARPS_N * WARP_N + x * 4;
        a = row * 16;
        b = A_BYTES + column * 4;
    }

    // Of sum number i.
    __device__ static constexpr int row_of(int i) { return i / 4 * 8 + i % 4 * APART; }
};

// Stages by the copy engine, and two turned tiles of A behind them. Steps are counted on from
// tile to tile where a block has several; `first` is the number of this tile's first one.
struct TurningEngine {
    const TensorMap *a, *b;
    u32 memory, full;
    int row, column, k, first, end;

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < STAGES; ++stage) barrier_init(full + 8 * stage, 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }

    // The results from (row, column), over `steps` stages of k from number `from`. Everybody has
    // read the stages of the tile before.
    __device__ __forceinline__ void begin(int to_row, int to_column, int from, int steps) {
        row = to_row, column = to_column, k = from * DEPTH, first = end, end += steps;
        if (threadIdx.x == 0)
            for (int step = first; step < first + STAGES && step < end; ++step) start(step);
    }

    __device__ __forceinline__ void start(int step) const {
        const u32 stage = memory + step % STAGES * STAGE_BYTES, barrier = full + step % STAGES * 8;
        const int from = k + (step - first) * DEPTH;
        barrier_expect(barrier, STAGE_BYTES);
        copy_tile(stage, a, from, row, barrier);
        copy_tile(stage + A_BYTES, b, column, from, barrier);
    }

    __device__ __forceinline__ u32 stage(int step) const { return memory + step % STAGES * STAGE_BYTES; }
    __device__ __forceinline__ u32 turned(int step) const { return memory + STAGES * STAGE_BYTES + step % 2 * TURNED_BYTES; }

    // Waits for the stage, and turns the tile of A in it.
    __device__ __forceinline__ void turn(int step) const {
        barrier_wait(full + step % STAGES * 8, step / STAGES & 1);
#pragma unroll
        for (int i = 0; i < (APART * QUARTERS + THREADS - 1) / THREADS; ++i) {
            const int at = threadIdx.x + i * THREADS, y = at % APART, quarter = at / APART;
            if (APART * QUARTERS % THREADS != 0 && at >= APART * QUARTERS) break;
            float4 rows[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) rows[j] = load_shared(stage(step) + swizzled(y + j * APART, quarter));
            const u32 to = turned(step) + quarter * 4 * TILE_M * 4 + y * 16;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * TILE_M * 4),
                             "f"(one_of(rows[0], j)), "f"(one_of(rows[1], j)), "f"(one_of(rows[2], j)), "f"(one_of(rows[3], j))
                             : "memory");
        }
    }
};

// As `multiply`, with numbers of a column of A.
__device__ __forceinline__ void multiply_turned(Sums& sum, const float (&left)[EACH_M], const float (&top)[EACH_N]) {
#pragma unroll
    for (int j = 0; j < EACH_N; ++j)
#pragma unroll
        for (int y = 0; y < EACH_M; ++y) {
            const int i = j % 2 ? EACH_M - 1 - y : y;
            sum[i][j] = fmaf(left[i], top[j], sum[i][j]);
        }
}

__device__ __forceinline__ void load_both(float (&left)[EACH_M], float (&top)[EACH_N], u32 a, u32 b) {
#pragma unroll
    for (int i = 0; i < EACH_M; i += 4) {
        const float4 four = load_shared(a + i / 4 * 128);
        left[i] = four.x, left[i + 1] = four.y, left[i + 2] = four.z, left[i + 3] = four.w;
    }
    load_top(top, b);
}

// One barrier a step: behind it all have read the current stage, so it can be filled again, and
// the turned tile of the next one is there.
__device__ __forceinline__ void multiply_all_turned(Sums& sum, const TurningEngine& engine, const TurnedPlace& place) {
    float left[2][EACH_M], top[2][EACH_N];
    engine.turn(engine.first);
    __syncthreads();
    load_both(left[0], top[0], engine.turned(engine.first) + place.a, engine.stage(engine.first) + place.b);
#pragma unroll 1
    for (int step = engine.first; step < engine.end; ++step) {
        const bool is_last = step + 1 == engine.end;
        if (!is_last) engine.turn(step + 1);
        const u32 a = engine.turned(step) + place.a, b = engine.stage(step) + place.b;
#pragma unroll
        for (int i = 1; i < DEPTH; ++i) {
            load_both(left[i % 2], top[i % 2], a + i * TILE_M * 4, b + i * TILE_N * 4);
            multiply_turned(sum, left[(i + 1) % 2], top[(i + 1) % 2]);
        }
        __syncthreads();
        if (threadIdx.x == 0 && step + STAGES < engine.end) engine.start(step + STAGES);
        // After the last step these are old numbers that nobody uses.
        load_both(left[0], top[0], engine.turned(step + 1) + place.a, engine.stage(step + 1) + place.b);
        multiply_turned(sum, left[1], top[1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
turned(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[STAGES];
    TurningEngine engine = {&a, &b, shared_address(memory), shared_address(barriers)};
    engine.init();
    engine.begin(blockIdx.y * TILE_M, blockIdx.x * TILE_N, 0, (k + DEPTH - 1) / DEPTH);
    const TurnedPlace place;
    Sums sum = {};
    multiply_all_turned(sum, engine, place);
    __syncthreads();
    const u32 corner = engine.memory + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < EACH_M; ++i)
        store_row(sum[i], c, m, n, engine.row + place.row + place.row_of(i), engine.column + place.column, corner);
}

// ---- 12. stream_k: as many blocks as fit, and the same work for each -------------------------
// 1024 tiles on 264 places are 3.9 rounds: in the last one some places are idle. Here the first
// rounds are whole tiles; what is left is cut into equal parts by steps of k, so that all blocks
// end together. A tile that was cut has a part that begins at k = 0: its block waits for the
// others, who leave their sums in `parts` and raise their flag to `epoch`.
__device__ __forceinline__ void tile_place(int tile, int tiles_m, int tiles_n, int& row, int& column) {
    // Eight rows of tiles together: what runs at the same time is nearly a square, which reads
    // the least of A and B.
    constexpr int GROUP = 8;
    const int group = tile / (GROUP * tiles_n), above = group * GROUP;
    const int height = min(GROUP, tiles_m - above), rest = tile - group * GROUP * tiles_n;
    row = (above + rest % height) * TILE_M;
    column = rest / height * TILE_N;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
stream_k(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k,
         float* parts, u32* flags, u32 epoch) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[STAGES];
    constexpr int EACH = EACH_M * EACH_N;
    const int steps = (k + DEPTH - 1) / DEPTH, blocks = gridDim.x, block = blockIdx.x;
    const int tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N, tiles = tiles_m * tiles_n;
    // Whole tiles, unless that leaves places idle: then the last two rounds are cut.
    const int whole = tiles % blocks == 0 ? tiles : max(tiles / blocks - 1, 0) * blocks;
    const i64 cut = (i64) (tiles - whole) * steps;
    auto part_begin = [&](int of) { return (i64) whole * steps + cut * of / blocks; };

    TurningEngine engine = {&a, &b, shared_address(memory), shared_address(barriers)};
    engine.init();
    const TurnedPlace place;
    const u32 corner = engine.memory + threadIdx.x * 16;
    // Work is counted in steps: tile t has those from t * steps.
    i64 at = block < whole ? (i64) block * steps : part_begin(block);
    const i64 end = part_begin(block + 1);
    while (at < end) {
        const int tile = (int) (at / steps), from = (int) (at % steps);
        const bool is_whole = tile < whole;
        const int count = is_whole ? steps : (int) min((i64) (steps - from), end - at);
        int row, column;
        tile_place(tile, tiles_m, tiles_n, row, column);
        engine.begin(row, column, from, count);
        Sums sum = {};
        multiply_all_turned(sum, engine, place);
        __syncthreads();
        if (from > 0) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) __stcg(&parts[((u64) block * EACH + i) * THREADS + threadIdx.x], sum[i / EACH_N][i % EACH_N]);
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + block), "r"(epoch) : "memory");
        } else {
            // Who has the rest of this tile comes next in line.
            for (int other = block + 1; !is_whole && part_begin(other) < (i64) (tile + 1) * steps; ++other) {
                if (part_begin(other) == part_begin(other + 1)) continue;
                if (threadIdx.x == 0) {
                    u32 seen;
                    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flags + other) : "memory");
                    while (seen != epoch);
                }
                __syncthreads();
#pragma unroll
                for (int i = 0; i < EACH; ++i) sum[i / EACH_N][i % EACH_N] += __ldcg(&parts[((u64) other * EACH + i) * THREADS + threadIdx.x]);
            }
#pragma unroll
            for (int i = 0; i < EACH_M; ++i)
                store_row(sum[i], c, m, n, row + place.row + place.row_of(i), column + place.column, corner);
            // The next tile is copied over the corners, by the engine, which sees memory otherwise.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
        }
        if (is_whole) at = tile + blocks < whole ? at + (i64) blocks * steps : part_begin(block);
        else at += count;
    }
}
