// C = A × Bᵀ in bf16 with sums in f32, before Hopper: tensor cores that a warp drives.
// A is m × k, B is n × k, C is m × n, all row-major. k is a multiple of 8 (rows then begin at
// multiples of 16 bytes); m and n are anything: what lies outside is read as zero.

// Eight numbers of a row at once; zeros where there are none.
__device__ __forceinline__ uint4 eight(const bf16* matrix, u32 row, u32 column, u32 rows, u32 columns) {
    if (row >= rows || column >= columns) return make_uint4(0, 0, 0, 0);
    return *(const uint4*) (matrix + (u64) row * columns + column);
}

// Step "wmma": tiles of 128 × 128 × 32 in shared memory, eight warps of 64 × 32 each, and the
// instructions that CUDA's `nvcuda::wmma` stands for. Nothing overlaps: load, wait, multiply.
#define WMMA_ROW 40  // 32 numbers of k and 8 for nothing: rows begin in different banks

extern "C" __global__ void __launch_bounds__(256) gemm_wmma(const bf16* a, const bf16* b, bf16* c, u32 m, u32 n, u32 k) {
    __shared__ __align__(128) bf16 a_tile[128 * WMMA_ROW];
    __shared__ __align__(128) bf16 b_tile[128 * WMMA_ROW];
    __shared__ __align__(128) float patches[8][16 * 16];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    u32 first_row = blockIdx.y * 128, first_column = blockIdx.x * 128;
    float sums[4][2][8] = {};

    for (u32 at = 0; at < k; at += 32) {
        // 128 rows of four times eight numbers, from A and from B.
        for (u32 i = threadIdx.x; i < 512; i += 256) {
            u32 row = i / 4, column = i % 4 * 8;
            *(uint4*) (a_tile + row * WMMA_ROW + column) = eight(a, first_row + row, at + column, m, k);
            *(uint4*) (b_tile + row * WMMA_ROW + column) = eight(b, first_column + row, at + column, n, k);
        }
        __syncthreads();
#pragma unroll
        for (u32 step = 0; step < 32; step += 16) {
            u32 left[4][4], right[2][4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 from = __cvta_generic_to_shared(a_tile + (warp_row + 16 * i) * WMMA_ROW + step);
                asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                    : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3])
                    : "r"(from), "r"(WMMA_ROW) : "memory");
            }
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                // Rows of B are columns of Bᵀ.
                u32 from = __cvta_generic_to_shared(b_tile + (warp_column + 16 * j) * WMMA_ROW + step);
                asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                    : "=r"(right[j][0]), "=r"(right[j][1]), "=r"(right[j][2]), "=r"(right[j][3])
                    : "r"(from), "r"(WMMA_ROW) : "memory");
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    float* d = sums[i][j];
                    asm volatile("wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 "
                        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, "
                        "{%0, %1, %2, %3, %4, %5, %6, %7};"
                        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                        : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]),
                          "r"(right[j][0]), "r"(right[j][1]), "r"(right[j][2]), "r"(right[j][3]));
                }
        }
        __syncthreads();
    }

    // WMMA does not say which thread holds which sum: they go through shared memory.
    float* patch = patches[warp];
    u32 to = __cvta_generic_to_shared(patch);
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            float* d = sums[i][j];
            asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, 16;"
                :: "r"(to), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]) : "memory");
            __syncwarp();
            for (u32 e = lane; e < 256; e += 32) {
                u32 row = first_row + warp_row + 16 * i + e / 16;
                u32 column = first_column + warp_column + 16 * j + e % 16;
                if (row < m && column < n) c[(u64) row * n + column] = to_bf16(patch[e]);
            }
            __syncwarp();
        }
}

// Step "mma": tiles of 128 × 256 × 64, four of them in flight (`cp.async` writes shared memory
// while the tensor cores work), eight warps of 64 × 64 each, operands by `ldmatrix`.
//
// A row of a tile is 128 bytes: eight pieces of 16. Piece p of row r lies at place p ^ (r % 8),
// so that the eight rows that `ldmatrix` reads at once are in different banks.
#define MMA_STAGES 4
#define MMA_STAGE_BYTES ((128 + 256) * 128)

__device__ __forceinline__ u32 swizzled(u32 row, u32 piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// A thread copies one piece of every 32nd row, the first one from `from`. The hardware writes
// zeros where there is nothing to read: after `left` rows.
template <int Rows>
__device__ __forceinline__ void copy_tile(u32 to, const bf16* from, u64 columns, int left) {
    to += swizzled(threadIdx.x / 8, threadIdx.x % 8);
#pragma unroll
    for (int row = 0; row < Rows; row += 32)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
            :: "r"(to + row * 128), "l"(from + row * columns), "r"(row < left ? 16 : 0) : "memory");
}

__device__ __forceinline__ void load_four(u32 (&out)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(from) : "memory");
}

extern "C" __global__ void __launch_bounds__(256, 1) gemm_mma(const bf16* a, const bf16* b, bf16* c, u32 m, u32 n, u32 k) {
    extern __shared__ __align__(128) u8 shared[];
    u32 tiles = __cvta_generic_to_shared(shared);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 warp_row = warp / 4 * 64, warp_column = warp % 4 * 64;
    u32 first_row = blockIdx.y * 128, first_column = blockIdx.x * 256;
    u32 steps = (k + 63) / 64;
    float sums[4][8][4] = {};

    // Where this thread's pieces are, and how many rows follow.
    u32 row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
    const bf16* a_from = a + (u64) (first_row + row) * k + column;
    const bf16* b_from = b + (u64) (first_column + row) * k + column;
    int a_left = (int) m - (int) (first_row + row), b_left = (int) n - (int) (first_column + row);
    auto copy = [&](u32 step) {
        u32 stage = tiles + step % MMA_STAGES * MMA_STAGE_BYTES;
        bool is_inside = step * 64 + column < k;
        if (step < steps) {
            copy_tile<128>(stage, a_from + step * 64, k, is_inside ? a_left : 0);
            copy_tile<256>(stage + 128 * 128, b_from + step * 64, k, is_inside ? b_left : 0);
        }
        // An empty group counts too: the number of groups in flight stays the same.
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (u32 step = 0; step < MMA_STAGES - 1; step++) copy(step);

    for (u32 step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(MMA_STAGES - 2) : "memory");
        // Also: all have done the step before, whose place the next copy takes.
        __syncthreads();
        u32 left_tile = tiles + step % MMA_STAGES * MMA_STAGE_BYTES, right_tile = left_tile + 128 * 128;
        // Two sets of operands: one is read while the other is multiplied.
        u32 left[2][4][4], right[2][4][4];
        auto load = [&](u32 part) {
            // Four 8 × 8 matrices: rows 0–7 and 8–15 of one piece, then of the next.
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                load_four(left[part % 2][i], left_tile + swizzled(warp_row + 16 * i + lane % 16, part * 2 + lane / 16));
            // Both pieces of eight columns, then of the next eight.
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                load_four(right[part % 2][j], right_tile + swizzled(warp_column + 16 * j + lane % 8 + lane / 16 * 8, part * 2 + lane / 8 % 2));
        };
        load(0);
        copy(step + MMA_STAGES - 1);
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            if (part < 3) load(part + 1);
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 8; j++) {
                    float* d = sums[i][j];
                    u32 *l = left[part % 2][i], *r = right[part % 2][j / 2] + j % 2 * 2;
                    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                        : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[0]), "r"(r[1]));
                }
        }
    }

    // A thread holds two neighbours of row lane / 4, and two of the row eight below.
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 8; j++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 row = first_row + warp_row + 16 * i + 8 * half + lane / 4;
                u32 column = first_column + warp_column + 8 * j + lane % 4 * 2;
                if (row >= m || column >= n) continue;
                bf16* to = c + (u64) row * n + column;
                float low = sums[i][j][half * 2], high = sums[i][j][half * 2 + 1];
                if (n % 2 == 0) {
                    *(u32*) to = to_bf16_pair(low, high);
                } else {
                    to[0] = to_bf16(low);
                    if (column + 1 < n) to[1] = to_bf16(high);
                }
            }
}
