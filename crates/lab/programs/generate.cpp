// generate MODEL TOKENS LAYERS THREADS: greedy text by llama.cpp, for `tensorscope lab calls`.
// LAYERS of the model go to the card; with CUDA_VISIBLE_DEVICES empty there is none. Models need
// no vocabulary: the first token is number 1. It ends after TOKENS tokens, whatever they are.
//
// In a build of llama.cpp with -DGGML_CUDA=ON -DBUILD_SHARED_LIBS=ON:
//   c++ -O2 -std=c++17 generate.cpp -Iinclude -Iggml/include -Lbuild/bin -lllama -lggml-base -o generate

#include <cstdio>
#include <cstdlib>

#include "llama.h"

int main(int count, char** words) {
    if (count != 5) {
        fprintf(stderr, "generate MODEL TOKENS LAYERS THREADS\n");
        return 2;
    }
    int tokens = atoi(words[2]), layers = atoi(words[3]), threads = atoi(words[4]);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = layers;
    llama_model* model = llama_model_load_from_file(words[1], of_model);
    if (!model) {
        fprintf(stderr, "%s cannot be loaded\n", words[1]);
        return 1;
    }
    llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = 512;
    of_context.n_threads = of_context.n_threads_batch = threads;
    llama_context* context = llama_init_from_model(model, of_context);
    if (!context) {
        fprintf(stderr, "%s: no context\n", words[1]);
        return 1;
    }
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token token = 1;
    unsigned long hash = 0;
    for (int i = 0; i < tokens; i++) {
        if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0) {
            fprintf(stderr, "token %d cannot be computed\n", i);
            return 1;
        }
        const float* logits = llama_get_logits_ith(context, -1);
        token = 0;
        for (int j = 1; j < vocabulary; j++)
            if (logits[j] > logits[token]) token = j;
        hash = hash * 31 + token;
    }
    printf("%d tokens, %lx\n", tokens, hash);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
