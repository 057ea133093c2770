/* libcublas.so.13: each product is a launch of one kernel or two through the driver, as it is in
 * the real one; names are of the real one's kind. Nothing is multiplied. */

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

struct handle {
    void * stream;
};

int cublasCreate_v2(struct handle ** handle) {
    *handle = calloc(1, sizeof **handle);
    return 0;
}
int cublasDestroy_v2(struct handle * handle) {
    free(handle);
    return 0;
}
int cublasSetStream_v2(struct handle * handle, void * stream) {
    handle->stream = stream;
    return 0;
}
int cublasSetMathMode(struct handle * handle, int mode) {
    (void) handle, (void) mode;
    return 0;
}
int cublasSetWorkspace_v2(struct handle * handle, void * workspace, size_t bytes) {
    (void) handle, (void) workspace, (void) bytes;
    return 0;
}
const char * cublasGetStatusString(int status) { return status == 0 ? "success" : "execution failed (fake cuBLAS)"; }

/* Numbers of cudaDataType. */
static const char * letters(int type) { return type == 0 ? "s" : type == 2 ? "h" : type == 14 ? "t" : "x"; }

static int multiply(struct handle * handle, int type, int m, int n, int k, int batch) {
    char name[96];
    snprintf(name, sizeof name, "nvjet_%ss%s_%dx128_64x4_1x2_h_bz_TNT", letters(type), letters(type), m >= 128 ? 128 : 64);
    struct call call = { .driver_id = 652, .driver_name = "cuLaunchKernelEx" };
    struct dimensions grid = { (uint32_t) (m + 127) / 128, (uint32_t) (n + 127) / 128, (uint32_t) batch }, block = { 384, 1, 1 };
    int result = fake_launch(&call, fake_kernel(NULL, name, true), grid, block, 200000, handle->stream, NULL, false);
    /* A long sum over few results is split, and its parts are added by a second kernel. */
    if (result == OK && k >= 1024 && grid.x * grid.y * grid.z < 132) {
        struct call second = { .driver_id = 307, .driver_name = "cuLaunchKernel" };
        struct kernel * reduce = fake_kernel(NULL, "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EifEEvv", true);
        struct dimensions threads = { 32, 16, 1 };
        result = fake_launch(&second, reduce, grid, threads, 0, handle->stream, NULL, false);
    }
    return result == OK ? 0 : 13;
}

int cublasSgemm_v2(struct handle * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * a, int lda, const void * b,
                   int ldb, const void * beta, void * c, int ldc) {
    (void) ta, (void) tb, (void) alpha, (void) a, (void) lda, (void) b, (void) ldb, (void) beta, (void) c, (void) ldc;
    return multiply(handle, 0, m, n, k, 1);
}
int cublasGemmEx(struct handle * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * a, int type, int lda,
                 const void * b, int b_type, int ldb, const void * beta, void * c, int c_type, int ldc, int compute, int algorithm) {
    (void) ta, (void) tb, (void) alpha, (void) a, (void) lda, (void) b, (void) b_type, (void) ldb, (void) beta, (void) c, (void) c_type;
    (void) ldc, (void) compute, (void) algorithm;
    return multiply(handle, type, m, n, k, 1);
}
int cublasGemmStridedBatchedEx(struct handle * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * a, int type,
                               int lda, long long a_stride, const void * b, int b_type, int ldb, long long b_stride, const void * beta,
                               void * c, int c_type, int ldc, long long c_stride, int batch, int compute, int algorithm) {
    (void) ta, (void) tb, (void) alpha, (void) a, (void) lda, (void) b, (void) b_type, (void) ldb, (void) beta, (void) c, (void) c_type;
    (void) ldc, (void) compute, (void) algorithm, (void) a_stride, (void) b_stride, (void) c_stride;
    return multiply(handle, type, m, n, k, batch);
}
int cublasGemmBatchedEx(struct handle * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * const a[], int type,
                        int lda, const void * const b[], int b_type, int ldb, const void * beta, void * const c[], int c_type, int ldc,
                        int batch, int compute, int algorithm) {
    (void) ta, (void) tb, (void) alpha, (void) a, (void) lda, (void) b, (void) b_type, (void) ldb, (void) beta, (void) c, (void) c_type;
    (void) ldc, (void) compute, (void) algorithm;
    return multiply(handle, type, m, n, k, batch);
}
int cublasSgemmBatched(struct handle * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * const a[], int lda,
                       const void * const b[], int ldb, const void * beta, void * const c[], int ldc, int batch) {
    (void) ta, (void) tb, (void) alpha, (void) a, (void) lda, (void) b, (void) ldb, (void) beta, (void) c, (void) ldc;
    return multiply(handle, 0, m, n, k, batch);
}
int cublasSgemmStridedBatched(struct handle * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * a, int lda,
                              long long a_stride, const void * b, int ldb, long long b_stride, const void * beta, void * c, int ldc,
                              long long c_stride, int batch) {
    (void) ta, (void) tb, (void) alpha, (void) a, (void) lda, (void) b, (void) ldb, (void) beta, (void) c, (void) ldc;
    (void) a_stride, (void) b_stride, (void) c_stride;
    return multiply(handle, 0, m, n, k, batch);
}
int cublasStrsmBatched(struct handle * handle, int side, int uplo, int trans, int diagonal, int m, int n, const void * alpha,
                       const void * const a[], int lda, void * const b[], int ldb, int batch) {
    (void) side, (void) uplo, (void) trans, (void) diagonal, (void) alpha, (void) a, (void) lda, (void) b, (void) ldb;
    return multiply(handle, 0, m, n, m, batch);
}
