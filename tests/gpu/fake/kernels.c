/* Kernels by the address of their host function, and by name for those that have none. */

#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 65536u

struct entry {
    struct kernel kernel;
    struct entry * next;
};

static struct entry * by_host_function[BUCKETS];
static struct entry * by_name;

static uint32_t bucket(const void * host_function) { return (uint32_t) (((uintptr_t) host_function >> 4) % BUCKETS); }

struct kernel * fake_kernel_of(const void * host_function) {
    struct entry * entry = by_host_function[bucket(host_function)];
    while (entry != NULL && entry->kernel.host_function != host_function) {
        entry = entry->next;
    }
    return entry == NULL ? NULL : &entry->kernel;
}

/* Makes it where it is not known. Without a host function the name tells them apart. */
struct kernel * fake_kernel(const void * host_function, const char * name, bool is_function) {
    fake_lock();
    struct entry ** list = host_function == NULL ? &by_name : &by_host_function[bucket(host_function)];
    struct entry * entry = *list;
    while (entry != NULL
           && (host_function == NULL ? strcmp(entry->kernel.name, name) != 0 : entry->kernel.host_function != host_function)) {
        entry = entry->next;
    }
    if (entry == NULL) {
        entry = calloc(1, sizeof *entry);
        entry->kernel = (struct kernel) { MAGIC_KERNEL, is_function, strdup(name), host_function };
        entry->next = *list;
        *list = entry;
    }
    fake_unlock();
    return &entry->kernel;
}

bool fake_is_kernel(const void * handle) {
    return handle != NULL && ((const struct kernel *) handle)->magic == MAGIC_KERNEL;
}
