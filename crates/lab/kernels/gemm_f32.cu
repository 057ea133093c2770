// C = A × B in single precision: A is m × k, B is k × n, C is m × n, all row-major.
//
// Seven steps from one thread a result to large tiles with vector loads. Every kernel takes any
// size; rows count in 64 bits where they are multiplied by a width.

// ---- 1. naive: one thread a result -----------------------------------------------------------
// Neighbours in a warp take neighbouring ROWS, so each load of A and each store of C touches 32
// different lines of memory.
extern "C" __global__ void naive(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * 32 + threadIdx.x % 32;
    const int column = blockIdx.x * 32 + threadIdx.x / 32;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += a[(u64) row * k + i] * b[(u64) i * n + column];
    c[(u64) row * n + column] = sum;
}

// ---- 2. coalesced: neighbours take neighbouring columns --------------------------------------
// A warp now reads one word of A (broadcast) and 128 bytes of B in a row.
extern "C" __global__ void coalesced(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * 32 + threadIdx.x / 32;
    const int column = blockIdx.x * 32 + threadIdx.x % 32;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += a[(u64) row * k + i] * b[(u64) i * n + column];
    c[(u64) row * n + column] = sum;
}

// ---- 3. shared: tiles in shared memory -------------------------------------------------------
// A block reads 32 × 32 tiles of A and B once and uses every number 32 times.
extern "C" __global__ void shared(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int TILE = 32;
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int y = threadIdx.x / TILE, x = threadIdx.x % TILE;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int from = 0; from < k; from += TILE) {
        a_tile[y][x] = row < m && from + x < k ? a[(u64) row * k + from + x] : 0;
        b_tile[y][x] = from + y < k && column < n ? b[(u64) (from + y) * n + column] : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[(u64) row * n + column] = sum;
}

// ---- 4. tile_1d: a column of eight results a thread ------------------------------------------
// One load of B from shared memory now serves eight multiplications.
extern "C" __global__ void __launch_bounds__(512)
tile_1d(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int TILE = 64, SLICE = 8, EACH = 8;
    __shared__ float a_tile[TILE][SLICE], b_tile[SLICE][TILE];
    const int y = threadIdx.x / TILE * EACH, x = threadIdx.x % TILE;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    const int a_y = threadIdx.x / SLICE, a_x = threadIdx.x % SLICE;
    const int b_y = threadIdx.x / TILE, b_x = threadIdx.x % TILE;
    float sum[EACH] = {};
    for (int from = 0; from < k; from += SLICE) {
        a_tile[a_y][a_x] = row + a_y < m && from + a_x < k ? a[(u64) (row + a_y) * k + from + a_x] : 0;
        b_tile[b_y][b_x] = from + b_y < k && column + b_x < n ? b[(u64) (from + b_y) * n + column + b_x] : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SLICE; ++i) {
            const float mine = b_tile[i][x];
#pragma unroll
            for (int j = 0; j < EACH; ++j) sum[j] += a_tile[y + j][i] * mine;
        }
        __syncthreads();
    }
    for (int j = 0; j < EACH; ++j)
        if (row + y + j < m && column + x < n) c[(u64) (row + y + j) * n + column + x] = sum[j];
}

// ---- 5. tile_2d: eight by eight results a thread ---------------------------------------------
// 16 loads from shared memory serve 64 multiplications.
extern "C" __global__ void __launch_bounds__(256)
tile_2d(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int TILE = 128, SLICE = 8, EACH = 8, THREADS = 256;
    __shared__ float a_tile[TILE][SLICE], b_tile[SLICE][TILE];
    const int y = threadIdx.x / (TILE / EACH) * EACH, x = threadIdx.x % (TILE / EACH) * EACH;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sum[EACH][EACH] = {};
    for (int from = 0; from < k; from += SLICE) {
        for (int i = threadIdx.x; i < TILE * SLICE; i += THREADS) {
            const int a_y = i / SLICE, a_x = i % SLICE;
            a_tile[a_y][a_x] = row + a_y < m && from + a_x < k ? a[(u64) (row + a_y) * k + from + a_x] : 0;
            const int b_y = i / TILE, b_x = i % TILE;
            b_tile[b_y][b_x] = from + b_y < k && column + b_x < n ? b[(u64) (from + b_y) * n + column + b_x] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SLICE; ++i) {
            float left[EACH], top[EACH];
#pragma unroll
            for (int j = 0; j < EACH; ++j) left[j] = a_tile[y + j][i], top[j] = b_tile[i][x + j];
#pragma unroll
            for (int j = 0; j < EACH; ++j)
#pragma unroll
                for (int l = 0; l < EACH; ++l) sum[j][l] += left[j] * top[l];
        }
        __syncthreads();
    }
    for (int j = 0; j < EACH; ++j)
        for (int l = 0; l < EACH; ++l)
            if (row + y + j < m && column + x + l < n) c[(u64) (row + y + j) * n + column + x + l] = sum[j][l];
}

// ---- 6. vector, and 7. tuned: four numbers a load --------------------------------------------
// Global and shared memory are read 16 bytes at a time. A is turned around on its way into
// shared memory, so that the rows of a thread lie side by side there. The next tile is on its
// way (in registers) while the current one is multiplied. The sizes are given to the compiler;
// step 7 measures which are best.
#ifndef TILE_M
#define TILE_M 128
#define TILE_N 128
#define DEPTH 8
#define EACH_M 8
#define EACH_N 8
#endif

// Four numbers of a row of a matrix, zero where it ends. `wide`: rows begin at 16 bytes.
__device__ __forceinline__ float4 load4(const float* matrix, int rows, int columns, int row, int column, bool wide) {
    float4 four = make_float4(0, 0, 0, 0);
    if (row >= rows) return four;
    const float* at = matrix + (u64) row * columns + column;
    if (wide) return column < columns ? *(const float4*) at : four;
    if (column < columns) four.x = at[0];
    if (column + 1 < columns) four.y = at[1];
    if (column + 2 < columns) four.z = at[2];
    if (column + 3 < columns) four.w = at[3];
    return four;
}

extern "C" __global__ void __launch_bounds__((TILE_M / EACH_M) * (TILE_N / EACH_N))
vector(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int THREADS = (TILE_M / EACH_M) * (TILE_N / EACH_N);
    constexpr int A_LOADS = TILE_M * DEPTH / 4 / THREADS, B_LOADS = TILE_N * DEPTH / 4 / THREADS;
    static_assert(A_LOADS * THREADS * 4 == TILE_M * DEPTH && B_LOADS * THREADS * 4 == TILE_N * DEPTH, "");
    // A thread's results are in quarters of four, a stride apart: neighbours then read
    // neighbouring words of shared memory and no bank twice.
    constexpr int STRIDE_M = TILE_M / EACH_M * 4, STRIDE_N = TILE_N / EACH_N * 4;
    __shared__ __align__(16) float a_tile[2][DEPTH][TILE_M + 4];
    __shared__ __align__(16) float b_tile[2][DEPTH][TILE_N];
    const int y = threadIdx.x / (TILE_N / EACH_N) * 4, x = threadIdx.x % (TILE_N / EACH_N) * 4;
    const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N;
    const bool a_wide = k % 4 == 0, b_wide = n % 4 == 0;
    float4 a_next[A_LOADS], b_next[B_LOADS];

    auto fetch = [&](int from) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int place = threadIdx.x + i * THREADS;
            a_next[i] = load4(a, m, k, row + place / (DEPTH / 4), from + place % (DEPTH / 4) * 4, a_wide);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int place = threadIdx.x + i * THREADS;
            b_next[i] = load4(b, k, n, from + place / (TILE_N / 4), column + place % (TILE_N / 4) * 4, b_wide);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int place = threadIdx.x + i * THREADS;
            const int a_y = place / (DEPTH / 4), a_x = place % (DEPTH / 4) * 4;
            a_tile[buffer][a_x][a_y] = a_next[i].x;
            a_tile[buffer][a_x + 1][a_y] = a_next[i].y;
            a_tile[buffer][a_x + 2][a_y] = a_next[i].z;
            a_tile[buffer][a_x + 3][a_y] = a_next[i].w;
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int place = threadIdx.x + i * THREADS;
            *(float4*) &b_tile[buffer][place / (TILE_N / 4)][place % (TILE_N / 4) * 4] = b_next[i];
        }
    };

    float sum[EACH_M][EACH_N] = {};
    fetch(0);
    put(0);
    __syncthreads();
    int buffer = 0;
    for (int from = 0; from < k; from += DEPTH) {
        const bool is_last = from + DEPTH >= k;
        if (!is_last) fetch(from + DEPTH);
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            float left[EACH_M], top[EACH_N];
#pragma unroll
            for (int j = 0; j < EACH_M; j += 4) *(float4*) &left[j] = *(const float4*) &a_tile[buffer][i][y + j / 4 * STRIDE_M];
#pragma unroll
            for (int l = 0; l < EACH_N; l += 4) *(float4*) &top[l] = *(const float4*) &b_tile[buffer][i][x + l / 4 * STRIDE_N];
#pragma unroll
            for (int j = 0; j < EACH_M; ++j)
#pragma unroll
                for (int l = 0; l < EACH_N; ++l) sum[j][l] += left[j] * top[l];
        }
        if (!is_last) put(buffer ^ 1);
        __syncthreads();
        buffer ^= 1;
    }
#pragma unroll
    for (int j = 0; j < EACH_M; ++j) {
        const int to_row = row + y + j / 4 * STRIDE_M + j % 4;
        if (to_row >= m) continue;
#pragma unroll
        for (int l = 0; l < EACH_N; l += 4) {
            const int to_column = column + x + l / 4 * STRIDE_N;
            float* to = c + (u64) to_row * n + to_column;
            if (b_wide && to_column < n) *(float4*) to = make_float4(sum[j][l], sum[j][l + 1], sum[j][l + 2], sum[j][l + 3]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (!b_wide && to_column + i < n) to[i] = sum[j][l + i];
        }
    }
}
