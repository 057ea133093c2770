// How the files beside this one were made: llama.cpp's kernels on a GPU, timed as
// crates/engine/src/kernels.rs times those of the processor. Prints the rates as JSON.
//
// With a llama.cpp built with -DGGML_CUDA=ON -DBUILD_SHARED_LIBS=ON in $B, its sources in $S:
//   g++ -O2 -std=c++17 measure.cpp -I$S/ggml/include -L$B/bin -lggml -lggml-base -o measure
//   LD_LIBRARY_PATH=$B/bin ./measure > h200.json

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

struct timing { double best, likely, worst; };

static ggml_backend_t backend;
static timing node = { 0, 0, 0 };

// Larger together than the last cache.
static const size_t MIN_BYTES = 1ull << 30;

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static ggml_context * context(size_t tensors, size_t nodes) {
    return ggml_init({ ggml_tensor_overhead() * tensors + ggml_graph_overhead_custom(nodes, false), nullptr, true });
}

static void fill(ggml_context * ctx) {
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        if (t->view_src || t->op != GGML_OP_NONE || t->type == GGML_TYPE_I32) {
            continue;
        }
        // 1.06 in f16, 0.011 in bf16 and f32; masks are zero.
        ggml_backend_tensor_memset(t, t->name[0] == 'm' ? 0 : 0x3c, 0, ggml_nbytes(t));
    }
}

// Seconds for each unit of `work` of a graph of `nodes` nodes.
static bool measure(size_t nodes, double work, std::function<void(ggml_context *, ggml_cgraph *)> build, timing & out) {
    size_t size = 8 * nodes + 64;
    ggml_context * ctx = context(size, size);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, size, false);
    build(ctx, graph);
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        if (!ggml_backend_supports_op(backend, ggml_graph_node(graph, i))) {
            ggml_free(ctx);
            return false;
        }
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (!buffer) {
        ggml_free(ctx);
        return false;
    }
    fill(ctx);
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        if (t->type == GGML_TYPE_I32 && t->op == GGML_OP_NONE) {
            std::vector<int32_t> ids(ggml_nelements(t));
            int64_t count = t->op_params[0], used = t->ne[0], first = t->op_params[1];
            for (size_t i = 0; i < ids.size(); i++) {
                ids[i] = (int32_t) ((i % used + (i / used + first) * used) % count);
            }
            ggml_backend_tensor_set(t, ids.data(), 0, ggml_nbytes(t));
        }
    }
    std::vector<double> rounds;
    double begin = now();
    for (int i = 0; i < 6 || (now() - begin < 0.03 && i < 200); i++) {
        ggml_backend_synchronize(backend);
        double start = now();
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
            return false;
        }
        ggml_backend_synchronize(backend);
        double seconds = now() - start;
        // The first ones capture a CUDA graph.
        if (i >= 3) {
            rounds.push_back(std::max(seconds - nodes * node.likely, seconds / 4) / work);
        }
    }
    std::sort(rounds.begin(), rounds.end());
    out = { rounds.front(), rounds[rounds.size() / 2], rounds.back() };
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return true;
}

static void print(const timing & t) {
    printf("{\"best\":%.4e,\"likely\":%.4e,\"worst\":%.4e}", t.best, t.likely, t.worst);
}

static void curve(const std::vector<int> & tokens, bool each_token, std::function<bool(int, timing &)> time) {
    bool first = true;
    printf("[");
    for (int n : tokens) {
        timing t;
        if (!time(n, t)) {
            continue;
        }
        if (each_token) {
            t = { t.best * n, t.likely * n, t.worst * n };
        }
        printf("%s[%d,", first ? "" : ",", n);
        print(t);
        printf("]");
        first = false;
    }
    printf("]");
}

static const std::vector<int> PRODUCT_TOKENS = { 1, 2, 4, 8, 16, 32, 64, 128, 512 };

static void product(ggml_type type, int64_t columns, int64_t rows, bool first) {
    size_t bytes = ggml_row_size(type, columns) * rows;
    int count = (int) std::min<size_t>(std::max<size_t>(MIN_BYTES / bytes, 2), 64);
    ggml_context * all = context(count, 0);
    std::vector<ggml_tensor *> weights;
    for (int i = 0; i < count; i++) {
        weights.push_back(ggml_new_tensor_2d(all, type, columns, rows));
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(all, backend);
    fill(all);
    printf("%s\n{\"type\":\"%s\",\"columns\":%lld,\"rows\":%lld,\"seconds\":", first ? "" : ",", ggml_type_name(type), (long long) columns, (long long) rows);
    curve(PRODUCT_TOKENS, false, [&](int tokens, timing & t) {
        return measure(count, (double) columns * rows * count, [&](ggml_context * ctx, ggml_cgraph * graph) {
            ggml_tensor * input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, columns, tokens);
            for (auto * w : weights) {
                ggml_build_forward_expand(graph, ggml_mul_mat(ctx, w, input));
            }
        }, t);
    });
    printf("}");
    ggml_backend_buffer_free(buffer);
    ggml_free(all);
}

static void experts(ggml_type type, int64_t columns, int64_t rows, int count, int used, bool first) {
    size_t bytes = ggml_row_size(type, columns) * rows * count;
    int stacks = (int) std::min<size_t>(std::max<size_t>(MIN_BYTES / bytes, 1), 16);
    ggml_context * all = context(stacks, 0);
    std::vector<ggml_tensor *> weights;
    for (int i = 0; i < stacks; i++) {
        weights.push_back(ggml_new_tensor_3d(all, type, columns, rows, count));
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(all, backend);
    fill(all);
    printf("%s\n{\"type\":\"%s\",\"columns\":%lld,\"rows\":%lld,\"seconds\":", first ? "" : ",", ggml_type_name(type), (long long) columns, (long long) rows);
    curve({ 1, 4, 16, 64 }, false, [&](int each, timing & t) {
        int tokens = each <= 1 ? 1 : each * count / used;
        int touched = each <= 1 ? used : count;
        int nodes = stacks * (count / touched);
        return measure(nodes, (double) columns * rows * touched * nodes, [&](ggml_context * ctx, ggml_cgraph * graph) {
            ggml_tensor * input = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, columns, 1, tokens);
            for (int i = 0; i < nodes; i++) {
                ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, used, tokens);
                ids->op_params[0] = count;
                ids->op_params[1] = i / stacks;
                ggml_build_forward_expand(graph, ggml_mul_mat_id(ctx, weights[i % stacks], input, ids));
            }
        }, t);
    });
    printf("}");
    ggml_backend_buffer_free(buffer);
    ggml_free(all);
}

static void attention(ggml_type type, int heads, int kv_heads, int length, bool first) {
    const int cached = 2048;
    size_t bytes = 2 * ggml_row_size(type, length) * kv_heads * cached;
    int count = (int) std::min<size_t>(std::max<size_t>(MIN_BYTES / bytes, 2), 64);
    ggml_context * all = context(4 * count, 0);
    std::vector<ggml_tensor *> keys, values;
    for (int i = 0; i < count; i++) {
        keys.push_back(ggml_permute(all, ggml_new_tensor_3d(all, type, length, kv_heads, cached), 0, 2, 1, 3));
        values.push_back(ggml_permute(all, ggml_new_tensor_3d(all, type, length, kv_heads, cached), 0, 2, 1, 3));
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(all, backend);
    fill(all);
    printf("%s\n{\"type\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"key_length\":%d,\"value_length\":%d,\"seconds\":", first ? "" : ",", ggml_type_name(type), heads, kv_heads, length, length);
    curve({ 1, 2, 8, 32, 64, 512 }, true, [&](int tokens, timing & t) {
        double work = (double) heads * 2 * length * cached * tokens * count;
        return measure(count, work, [&](ggml_context * ctx, ggml_cgraph * graph) {
            ggml_tensor * queries = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, length, tokens, heads);
            ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, cached, tokens);
            ggml_set_name(mask, "mask");
            for (int i = 0; i < count; i++) {
                ggml_build_forward_expand(graph, ggml_flash_attn_ext(ctx, queries, keys[i], values[i], mask, 1 / std::sqrt((float) length), 0, 0));
            }
        }, t);
    });
    printf("}");
    ggml_backend_buffer_free(buffer);
    ggml_free(all);
}

static bool small(int tokens, int nodes, double work, timing & t) {
    return measure(nodes, work, [&](ggml_context * ctx, ggml_cgraph * graph) {
        ggml_tensor * other = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4096, tokens);
        ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4096, tokens);
        for (int i = 0; i < nodes; i++) {
            // Not two that are fused.
            x = i % 2 ? ggml_add(ctx, x, other) : ggml_sqr(ctx, x);
            ggml_build_forward_expand(graph, x);
        }
    }, t);
}

int main() {
    ggml_backend_load_all();
    backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_GPU, nullptr);
    if (!backend) {
        fprintf(stderr, "no GPU\n");
        return 1;
    }
    timing t;
    small(1, 400, 400, t);
    node = t;
    printf("{\"node\":");
    print(node);
    printf(",\"elements\":");
    curve({ 1, 32, 512 }, true, [&](int tokens, timing & t) { return small(tokens, 100, 4096.0 * tokens * 100, t); });
    const ggml_type types[] = { GGML_TYPE_BF16, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q6_K, GGML_TYPE_Q4_K, GGML_TYPE_Q4_0 };
    const int64_t shapes[][2] = { { 1024, 1024 }, { 1024, 4096 }, { 4096, 1024 }, { 2048, 2048 }, { 2048, 8192 }, { 8192, 2048 }, { 4096, 4096 },
        { 4096, 11008 }, { 11008, 4096 }, { 2048, 65536 }, { 4096, 65536 }, { 8192, 8192 }, { 8192, 28672 }, { 28672, 8192 } };
    printf(",\"products\":[");
    bool first = true;
    for (ggml_type type : types) {
        for (auto & s : shapes) {
            product(type, s[0], s[1], first);
            first = false;
        }
    }
    printf("],\"experts\":[");
    first = true;
    for (ggml_type type : types) {
        experts(type, 2048, 768, 128, 8, first);
        first = false;
        experts(type, 768, 2048, 128, 8, first);
        experts(type, 4096, 14336, 8, 2, first);
        experts(type, 14336, 4096, 8, 2, first);
    }
    printf("],\"attention\":[");
    first = true;
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        const int heads[][3] = { { 16, 8, 128 }, { 32, 8, 64 }, { 32, 8, 128 }, { 64, 8, 128 }, { 32, 32, 128 }, { 32, 32, 96 }, { 4, 1, 256 } };
        for (auto & h : heads) {
            attention(type, h[0], h[1], h[2], first);
            first = false;
        }
    }
    printf("]}\n");
    return 0;
}
