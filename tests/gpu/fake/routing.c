/* The two results that a program's behaviour hangs on, made up since no kernel computes.
 *
 * Experts: the kernels that choose them write a permutation that follows from FAKE_CUDA_ROUTING
 * (0 if it is not set) and from how many choices there were before; `off` leaves zeros. The log
 * has each choice as `experts …`.
 *
 * Logits: with FAKE_CUDA_VOCABULARY=N, a copy to the host by the runtime whose bytes are a
 * multiple of N floats gets a single 1 in each row, at a place that follows from how many rows
 * there were before, or at FAKE_CUDA_TOKEN. Without it, logits are what lay in that memory. */

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t choices, rows_of_logits;

static uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

/* From the arguments of
 *   topk_moe_cuda<experts, has_bias>(logits, weights, ids, bias, rows, used, …)
 *   k_argsort_f32_i32<order>(x, ids, columns, …), a row for each block in x. */
void fake_note_router(struct work * work, void ** arguments) {
    const char * name = work->kernel->name;
    const char * found;
    if (arguments == NULL) {
        return;
    }
    if ((found = strstr(name, "topk_moe_cudaILi")) != NULL) {
        work->expert_ids = *(void **) arguments[2];
        work->expert_rows = *(uint32_t *) arguments[4];
        work->expert_count = work->expert_row_length = (uint32_t) atoi(found + strlen("topk_moe_cudaILi"));
        work->experts_used = *(uint32_t *) arguments[5];
    } else if (strstr(name, "k_argsort_f32_i32") != NULL) {
        work->expert_ids = *(void **) arguments[1];
        work->expert_rows = work->grid.x;
        work->expert_count = work->expert_row_length = work->experts_used = *(uint32_t *) arguments[2];
    }
}

void fake_route(const struct done * done) {
    const struct work * work = done->work;
    const char * setting = getenv("FAKE_CUDA_ROUTING");
    if (work->expert_ids == NULL || work->expert_count == 0 || (setting != NULL && strcmp(setting, "off") == 0)) {
        return;
    }
    uint64_t seed = setting == NULL ? 0 : strtoull(setting, NULL, 10);
    size_t bytes = (size_t) work->expert_rows * work->expert_row_length * sizeof(uint32_t);
    uint32_t * ids = fake_bytes_at(work->expert_ids, bytes);
    if (ids == NULL) {
        fprintf(stderr, "fake CUDA: %s writes %zu bytes at %p, which are not the device's\n", work->kernel->name, bytes, work->expert_ids);
        abort();
    }
    for (uint32_t row = 0; row < work->expert_rows; row++) {
        uint64_t random = mix(seed * 0x10001 + choices++);
        uint32_t * chosen = ids + (size_t) row * work->expert_row_length;
        for (uint32_t i = 0; i < work->expert_count; i++) {
            chosen[i] = i;
        }
        for (uint32_t i = 0; i < work->experts_used && i + 1 < work->expert_count; i++) {
            random = mix(random);
            uint32_t other = i + (uint32_t) (random % (work->expert_count - i));
            uint32_t kept = chosen[i];
            chosen[i] = chosen[other];
            chosen[other] = kept;
        }
        char text[512];
        int length = 0;
        for (uint32_t i = 0; i < work->experts_used && length < (int) sizeof text - 12; i++) {
            length += snprintf(text + length, sizeof text - length, i == 0 ? "%u" : ",%u", chosen[i]);
        }
        fake_log("experts correlation=%u graph=%u node=%u address=%p row=%u of=%u chosen=%s", done->correlation, done->graph, done->node,
                 work->expert_ids, row, work->expert_count, text);
    }
}

void fake_make_logits(const struct work * work, void * to) {
    int vocabulary = fake_setting("FAKE_CUDA_VOCABULARY", 0);
    size_t row_bytes = (size_t) vocabulary * sizeof(float);
    if (vocabulary <= 0 || !work->counts_as_logits || work->height != 1 || work->width % row_bytes != 0) {
        return;
    }
    int token = fake_setting("FAKE_CUDA_TOKEN", -1);
    memset(to, 0, work->width);
    for (size_t row = 0; row < work->width / row_bytes; row++) {
        uint64_t place = token < 0 ? mix(rows_of_logits++) : (uint64_t) token;
        ((float *) to)[row * (size_t) vocabulary + place % (size_t) vocabulary] = 1;
    }
}
