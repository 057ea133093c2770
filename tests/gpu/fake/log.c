/* What was really launched, as text: one line for each thing, `WHAT key=value…`, a kernel's name
 * last. FAKE_CUDA_LOG names the file; `%p` in it becomes the process's number. Written as it
 * happens and flushed whenever somebody waits for the device. */

#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE * file;
static bool is_decided;

static void end(void) {
    fake_lock();
    if (file != NULL) {
        fclose(file);
        file = NULL;
    }
    fake_unlock();
}

/* A forked child writes nothing, not even what its parent has not written yet. */
static void forget(void) { file = NULL; }

static bool is_open(void) {
    if (!is_decided) {
        is_decided = true;
        const char * name = getenv("FAKE_CUDA_LOG");
        if (name != NULL && *name != 0) {
            char path[4096];
            const char * place = strstr(name, "%p");
            if (place != NULL) {
                snprintf(path, sizeof path, "%.*s%d%s", (int) (place - name), name, (int) getpid(), place + 2);
            } else {
                snprintf(path, sizeof path, "%s", name);
            }
            file = fopen(path, "we");
            if (file == NULL) {
                fprintf(stderr, "fake CUDA: cannot write %s, which FAKE_CUDA_LOG names: %m\n", path);
            } else {
                setvbuf(file, NULL, _IOFBF, 1 << 20);
                atexit(end);
                pthread_atfork(NULL, NULL, forget);
            }
        }
    }
    return file != NULL;
}

void fake_log(const char * format, ...) {
    fake_lock();
    if (is_open()) {
        va_list arguments;
        va_start(arguments, format);
        vfprintf(file, format, arguments);
        va_end(arguments);
        fputc('\n', file);
    }
    fake_unlock();
}

/* Of what is copied, so that two runs can be compared. */
static uint64_t hash_of(const struct work * work) {
    uint64_t hash = 14695981039346656037ull;
    for (size_t row = 0; row < work->height; row++) {
        const char * at = fake_bytes_at((const char *) work->from + row * work->from_pitch, work->width);
        for (size_t i = 0; at != NULL && i < work->width; i += sizeof(uint64_t)) {
            uint64_t word = 0;
            memcpy(&word, at + i, work->width - i < sizeof word ? work->width - i : sizeof word);
            hash = (hash ^ word) * 1099511628211ull;
            hash ^= hash >> 32;
        }
    }
    return hash;
}

void fake_log_done(const struct done * done) {
    const struct work * work = done->work;
    if (!is_open()) {
        return;
    }
    char at[224];
    int length = snprintf(at, sizeof at, "correlation=%u device=%d stream=%u", done->correlation, done->device, done->stream);
    if (done->graph != 0) {
        length += snprintf(at + length, sizeof at - length, " graph=%u node=%u", done->graph, done->node);
    }
    snprintf(at + length, sizeof at - length, " begin=%lu end=%lu asked=%lu", done->begin_nanos, done->end_nanos, fake_now_nanos());
    switch (work->type) {
        case NODE_KERNEL:
            fake_log("kernel %s grid=%u,%u,%u block=%u,%u,%u early=%d name=%s", at, work->grid.x, work->grid.y, work->grid.z,
                     work->block.x, work->block.y, work->block.z, work->is_early, work->kernel->name);
            break;
        case NODE_COPY:
            fake_log("copy %s direction=%s bytes=%zu to=%p from=%p hash=%016lx", at, fake_copy_direction(work), fake_copy_bytes(work),
                     work->to, work->from, hash_of(work));
            break;
        case NODE_FILL:
            fake_log("fill %s bytes=%zu to=%p value=%u", at, fake_copy_bytes(work), work->to, work->fill_value);
            break;
        case NODE_HOST:
        case NODE_RECORD: break;
    }
}

void fake_flush_log(void) {
    if (file != NULL) {
        fake_lock();
        if (file != NULL) {
            fflush(file);
        }
        fake_unlock();
    }
}
