/* A program that was not written for tensorscope: it generates with llama.cpp by
 * the same calls as the built-in engine (crates/engine), so that a recording of
 * either holds the same accesses.
 *
 *   generate [OPTION…] MODEL PROMPT…
 *     -n N     tokens to generate per prompt (8)
 *     -t N     threads (1)
 *     -x CODE  exit code (0)
 *     -e       go on when the model ends its text
 *     -l       begin again with the prompts, for ever
 *     -c       on SIGTERM: end after the batch that is computed, with the exit code
 *     -p       print the process's number first
 *     -m MODEL do the same with this model before; it stays loaded
 *     -b       read the weights into buffers instead of mapping the file
 *     -r N     load, generate and unload so many times (1)
 *     -a N     after four tokens: use N MiB more at once, on another thread, and keep them
 *     -d       after four tokens: make a second context, and compute a long prompt in it
 *     -w       look at what each layer makes: a pass is computed as several graphs. Between them
 *              bytes of the layer's weights are added up, and the sum is printed at the end
 *     -k FILE  take these kernels, of a ggml that has a library for each kind of processor
 *
 * Prints each token as `SEQUENCE TOKEN` when it is chosen, one line on standard
 * error before the first, and nothing of llama.cpp's own. */

#include "ggml-backend.h"
#include "llama.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PROMPTS 8
#define BATCH 2048
/* Tokens before memory is needed in addition. */
#define TOKENS_BEFORE 4
#define LONG_PROMPT 256

static volatile sig_atomic_t is_asked_to_end = 0;

static void ask_to_end(int signal) {
    (void) signal;
    is_asked_to_end = 1;
}

static void be_silent(enum ggml_log_level level, const char * text, void * data) {
    (void) level, (void) text, (void) data;
}

static void fail(const char * what) {
    fprintf(stderr, "generate: %s\n", what);
    exit(70);
}

struct options {
    int tokens, threads, exit_code;
    int more_mib;
    bool ignores_end, loops, catches, reads, has_second, watches;
};

struct sequence {
    llama_token * prompt;
    int prompt_length;
    struct llama_sampler * sampler;
    int position, generated;
    bool is_open;
};

static void add(struct llama_batch * batch, llama_token token, int position, int sequence, bool wants_logits) {
    int at = batch->n_tokens++;
    batch->token[at] = token;
    batch->pos[at] = position;
    batch->n_seq_id[at] = 1;
    batch->seq_id[at][0] = sequence;
    batch->logits[at] = wants_logits;
}

#ifdef EXTENDED_BATCH
/* By the functions that llama.cpp got in 2026; positions are set as llama-server does it. */
static int decode(struct llama_context * context, struct llama_batch batch) {
    struct llama_batch_ext * extended = llama_batch_ext_init(context);
    for (int i = 0; i < batch.n_tokens; i++) {
        int at = llama_batch_ext_add_token(extended, batch.seq_id[i][0], batch.token[i]);
        llama_batch_ext_set_pos(extended, at, &batch.pos[i]);
        llama_batch_ext_set_output_logits(extended, at, batch.logits[i]);
    }
    int status = llama_process(context, LLAMA_PROCESS_TYPE_DECODE, extended);
    llama_batch_ext_free(extended);
    return status;
}
#else
#define decode llama_decode
#endif

static uint64_t weights_sum = 0;

static bool is_layer(const struct ggml_tensor * tensor) {
    return strncmp(tensor->name, "l_out", 5) == 0;
}

/* Of all weights that lead to a tensor, some bytes from where they are now. */
static void add_weights(const struct ggml_tensor * tensor) {
    if (tensor->op == GGML_OP_NONE && strncmp(tensor->name, "blk.", 4) == 0) {
        const unsigned char * data = tensor->data;
        size_t bytes = tensor->nb[3] * (size_t) tensor->ne[3];
        for (size_t at = 0; at < bytes; at += bytes / 64 + 1) {
            weights_sum = weights_sum * 31 + data[at];
        }
    }
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        if (tensor->src[i] != NULL && !is_layer(tensor->src[i])) {
            add_weights(tensor->src[i]);
        }
    }
}

/* Asked about each node whether it is wanted, and shown those that are. */
static bool wants_layers(struct ggml_tensor * tensor, bool asks, void * data) {
    (void) data;
    if (!asks) {
        add_weights(tensor);
        return true;
    }
    return is_layer(tensor);
}

static void * use_memory(void * mib) {
    size_t bytes = (size_t) *(const int *) mib << 20;
    void * memory = malloc(bytes);
    return memory == NULL ? NULL : memset(memory, 1, bytes);
}

/* Its buffers are made and used for the first time while the other context is in the middle of its text. */
static struct llama_context * second_context(struct llama_context * first, llama_token token) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = LONG_PROMPT;
    params.n_ubatch = LONG_PROMPT;
    params.n_threads = llama_n_threads(first);
    params.n_threads_batch = llama_n_threads(first);
    struct llama_context * second = llama_init_from_model((struct llama_model *) llama_get_model(first), params);
    if (second == NULL) {
        fail("cannot make a second context");
    }
    struct llama_batch batch = llama_batch_init(LONG_PROMPT, 0, 1);
    for (int i = 0; i < LONG_PROMPT; i++) {
        add(&batch, token, i, 0, i + 1 == LONG_PROMPT);
    }
    if (decode(second, batch) != 0) {
        fail("cannot compute in the second context");
    }
    llama_batch_free(batch);
    return second;
}

/* All prompts in one batch, then one token of each sequence that is not at its end. */
static void generate(struct llama_context * context, const struct llama_vocab * vocab, struct sequence * sequences,
                     int count, const struct options * options) {
    struct llama_batch batch = llama_batch_init(BATCH, 0, 1);
    int last[MOST_PROMPTS];
    for (int s = 0; s < count; s++) {
        struct sequence * sequence = &sequences[s];
        for (int i = 0; i < sequence->prompt_length; i++) {
            add(&batch, sequence->prompt[i], i, s, i + 1 == sequence->prompt_length);
        }
        last[s] = batch.n_tokens - 1;
        sequence->position = sequence->prompt_length;
        sequence->generated = 0;
        sequence->is_open = options->tokens > 0;
    }
    pthread_t thread;
    bool is_using = false;
    struct llama_context * second = NULL;
    for (int step = 0; batch.n_tokens > 0 && !is_asked_to_end; step++) {
        if (step == TOKENS_BEFORE && options->more_mib > 0) {
            is_using = pthread_create(&thread, NULL, use_memory, (void *) &options->more_mib) == 0;
        }
        if (step == TOKENS_BEFORE && options->has_second) {
            second = second_context(context, sequences[0].prompt[0]);
        }
        if (decode(context, batch) != 0) {
            fail("cannot compute a batch");
        }
        llama_token chosen[MOST_PROMPTS];
        bool goes_on[MOST_PROMPTS] = { false };
        for (int s = 0; s < count; s++) {
            struct sequence * sequence = &sequences[s];
            if (!sequence->is_open) {
                continue;
            }
            chosen[s] = llama_sampler_sample(sequence->sampler, context, last[s]);
            bool ends = !options->ignores_end && llama_vocab_is_eog(vocab, chosen[s]);
            sequence->is_open = !ends && sequence->generated + 1 < options->tokens;
            if (ends) {
                continue;
            }
            sequence->generated++;
            printf("%d %d\n", s, chosen[s]);
            fflush(stdout);
            goes_on[s] = sequence->is_open;
        }
        batch.n_tokens = 0;
        for (int s = 0; s < count; s++) {
            if (goes_on[s]) {
                last[s] = batch.n_tokens;
                add(&batch, chosen[s], sequences[s].position++, s, true);
            }
        }
    }
    llama_batch_free(batch);
    if (is_using) {
        void * memory = NULL;
        pthread_join(thread, &memory);
        free(memory);
    }
    if (second != NULL) {
        llama_free(second);
    }
}

/* A model that is loaded, with a context and the prompts as its tokens. */
struct engine {
    struct llama_model * model;
    struct llama_context * context;
    struct sequence sequences[MOST_PROMPTS];
};

static void load(struct engine * engine, const char * path, char ** prompts, int count, const struct options * options) {
    struct llama_model_params model_params = llama_model_default_params();
    model_params.load_mode = options->reads ? LLAMA_LOAD_MODE_NONE : LLAMA_LOAD_MODE_MMAP;
    engine->model = llama_model_load_from_file(path, model_params);
    if (engine->model == NULL) {
        fail("cannot load the model");
    }
    const struct llama_vocab * vocab = llama_model_get_vocab(engine->model);

    int needed = 0;
    for (int s = 0; s < count; s++) {
        struct sequence * sequence = &engine->sequences[s];
        int length = (int) strlen(prompts[s]);
        sequence->prompt = calloc(length + 8, sizeof(llama_token));
        sequence->prompt_length = llama_tokenize(vocab, prompts[s], length, sequence->prompt, length + 8, true, true);
        if (sequence->prompt_length < 1) {
            fail("cannot tokenize a prompt");
        }
        sequence->sampler = llama_sampler_chain_init(llama_sampler_chain_default_params());
        llama_sampler_chain_add(sequence->sampler, llama_sampler_init_greedy());
        needed += sequence->prompt_length + options->tokens;
    }

    /* As crates/cli/src/engine_args.rs: what is needed, but not more than the model
     * was made for. */
    int trained = llama_model_n_ctx_train(engine->model) * count;
    int most = trained > 256 ? trained : 256;
    int size = (needed + 255) / 256 * 256;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = size < most ? size : most;
    params.n_batch = BATCH;
    params.n_ubatch = 512;
    params.n_seq_max = count;
    params.n_threads = options->threads;
    params.n_threads_batch = options->threads;
    params.type_k = GGML_TYPE_F16;
    params.type_v = GGML_TYPE_F16;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
    params.kv_unified = true;
    params.no_perf = true;
    if (options->watches) {
        params.cb_eval = wants_layers;
    }
    engine->context = llama_init_from_model(engine->model, params);
    if (engine->context == NULL) {
        fail("cannot make a context");
    }
}

static void unload(struct engine * engine, int count) {
    for (int s = 0; s < count; s++) {
        llama_sampler_free(engine->sequences[s].sampler);
        free(engine->sequences[s].prompt);
    }
    llama_free(engine->context);
    llama_model_free(engine->model);
}

int main(int argc, char ** argv) {
    struct options options = { .tokens = 8, .threads = 1 };
    const char * paths[2];
    const char * kernels = NULL;
    int engine_count = 0, rounds = 1;
    int option;
    while ((option = getopt(argc, argv, "n:t:x:elcpm:br:a:dwk:")) != -1) {
        switch (option) {
            case 'n': options.tokens = atoi(optarg); break;
            case 't': options.threads = atoi(optarg); break;
            case 'x': options.exit_code = atoi(optarg); break;
            case 'e': options.ignores_end = true; break;
            case 'l': options.loops = true; break;
            case 'c': options.catches = true; break;
            case 'p': printf("%d\n", (int) getpid()); fflush(stdout); break;
            case 'm': paths[0] = optarg; engine_count = 1; break;
            case 'b': options.reads = true; break;
            case 'r': rounds = atoi(optarg); break;
            case 'a': options.more_mib = atoi(optarg); break;
            case 'd': options.has_second = true; break;
            case 'w': options.watches = true; break;
            case 'k': kernels = optarg; break;
            default: return 64;
        }
    }
    int count = argc - optind - 1;
    if (count < 1 || count > MOST_PROMPTS) {
        fail("give a model and one to eight prompts");
    }
    paths[engine_count++] = argv[optind];
    if (options.catches) {
        signal(SIGTERM, ask_to_end);
    }
    llama_log_set(be_silent, NULL);
    if (kernels != NULL && ggml_backend_load(kernels) == NULL) {
        fail("cannot load the kernels");
    }
    llama_backend_init();

    for (int round = 0; round < rounds; round++) {
        struct engine engines[2] = { 0 };
        for (int i = 0; i < engine_count; i++) {
            load(&engines[i], paths[i], argv + optind + 1, count, &options);
        }
        fprintf(stderr, "generate: %d prompts, %d tokens each\n", count, options.tokens);
        do {
            for (int i = 0; i < engine_count; i++) {
                llama_memory_clear(llama_get_memory(engines[i].context), true);
                generate(engines[i].context, llama_model_get_vocab(engines[i].model), engines[i].sequences, count, &options);
            }
        } while (options.loops && !is_asked_to_end);

        for (int i = 0; i < engine_count; i++) {
            unload(&engines[i], count);
        }
    }
    if (options.watches) {
        printf("weights %llx\n", (unsigned long long) weights_sum);
    }
    return options.exit_code;
}
