// llama.cpp says what memory a context takes, or would take, as a std::map: as an array of C
// structs here. The declarations are those of llama.cpp's src/llama-ext.h, which is not installed.

#include <cstddef>
#include <map>

struct ggml_backend_buffer_type;
typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;
struct llama_context;

struct llama_memory_breakdown_data {
    size_t model   = 0;
    size_t context = 0;
    size_t compute = 0;
};

using llama_memory_breakdown = std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data>;

llama_memory_breakdown llama_get_memory_breakdown(const struct llama_context * ctx);

struct tensorscope_memory {
    ggml_backend_buffer_type_t buffer_type;
    size_t model;
    size_t context;
    size_t compute;
};

// How many there are; the first `capacity` of them are written to `out`.
extern "C" size_t tensorscope_memory_breakdown(
        const struct llama_context * ctx, struct tensorscope_memory * out, size_t capacity) {
    size_t count = 0;
    for (const auto & [buffer_type, data] : llama_get_memory_breakdown(ctx)) {
        if (count < capacity) {
            out[count] = { buffer_type, data.model, data.context, data.compute };
        }
        count++;
    }
    return count;
}
