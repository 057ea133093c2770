/* The fake's memory. A device address lies in a range of the process that nobody may touch; its
 * bytes lie RANGE_BYTES further on, where only the fake looks. */

#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RANGE_BYTES (1ull << 41)
#define PAGE 4096ull
#define LARGE_PAGE (2ull << 20)

/* Sorted by address. Of a range that is only reserved the first `mapped_bytes` can be used. */
struct allocation {
    char * base;
    size_t bytes, mapped_bytes;
    int device;
};

static char * range;
static struct allocation * allocations;
static size_t count, room;
static struct { char * base; size_t bytes; } pinned[4096];
static size_t pinned_count;

static bool make_range(void) {
    if (range != NULL) {
        return true;
    }
    char * both = mmap(NULL, 2 * RANGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (both == MAP_FAILED || mprotect(both + RANGE_BYTES, RANGE_BYTES, PROT_READ | PROT_WRITE) != 0) {
        fprintf(stderr, "fake CUDA: cannot reserve %llu bytes of addresses; is there a limit (ulimit -v)?\n", 2 * RANGE_BYTES);
        return false;
    }
    madvise(both, 2 * RANGE_BYTES, MADV_DONTDUMP);
    range = both;
    return true;
}

static struct allocation * find(const void * address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (allocations[middle].base <= (char *) address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0 || (char *) address >= allocations[low - 1].base + allocations[low - 1].bytes) {
        return NULL;
    }
    return &allocations[low - 1];
}

int fake_allocate(void ** address, size_t bytes, bool is_reserved_only) {
    if (bytes == 0) {
        *address = NULL;
        return OK;
    }
    fake_lock();
    int device = fake_current_device();
    bool has_room = is_reserved_only || fake_used_bytes(device) + bytes <= fake_device_bytes();
    if (!has_room || !make_range()) {
        fake_unlock();
        return OUT_OF_MEMORY;
    }
    /* Pages of their own, so that freeing one gives its memory back. */
    size_t step = bytes > PAGE ? LARGE_PAGE : PAGE;
    bytes = (bytes + step - 1) / step * step;
    char * at = range;
    size_t place = 0;
    for (; place < count && (size_t) (allocations[place].base - at) < bytes; place++) {
        at = allocations[place].base + allocations[place].bytes;
    }
    if (at + bytes > range + RANGE_BYTES) {
        fake_unlock();
        return OUT_OF_MEMORY;
    }
    if (count == room) {
        room = room == 0 ? 64 : 2 * room;
        allocations = realloc(allocations, room * sizeof *allocations);
    }
    memmove(allocations + place + 1, allocations + place, (count - place) * sizeof *allocations);
    count++;
    allocations[place] = (struct allocation) { at, bytes, is_reserved_only ? 0 : bytes, device };
    *address = at;
    fake_log("allocate device=%d address=%p bytes=%zu reserved=%d", device, (void *) at, bytes, is_reserved_only);
    fake_unlock();
    return OK;
}

int fake_free(void * address) {
    if (address == NULL) {
        return OK;
    }
    fake_lock();
    struct allocation * found = find(address);
    if (found == NULL || found->base != address) {
        fake_unlock();
        return INVALID_VALUE;
    }
    fake_log("free device=%d address=%p bytes=%zu", found->device, address, found->bytes);
    madvise(found->base + RANGE_BYTES, found->bytes, MADV_DONTNEED);
    size_t place = (size_t) (found - allocations);
    memmove(found, found + 1, (count - place - 1) * sizeof *allocations);
    count--;
    fake_unlock();
    return OK;
}

/* llama.cpp's pools grow at their end and are unmapped as a whole; more is not kept. */
int fake_map(void * address, size_t bytes, bool is_mapped) {
    fake_lock();
    struct allocation * found = find(address);
    int result = INVALID_VALUE;
    if (found != NULL && (size_t) ((char *) address - found->base) + bytes <= found->bytes) {
        size_t end = (size_t) ((char *) address - found->base) + bytes;
        found->mapped_bytes = is_mapped ? (end > found->mapped_bytes ? end : found->mapped_bytes) : 0;
        result = OK;
    }
    fake_unlock();
    return result;
}

size_t fake_allocated_bytes(int device) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += allocations[i].device == device ? allocations[i].mapped_bytes : 0;
    }
    return bytes;
}

bool fake_is_device_address(const void * address) {
    return range != NULL && (char *) address >= range && (char *) address < range + RANGE_BYTES;
}

bool fake_range_of(const void * address, void ** base, size_t * bytes) {
    fake_lock();
    struct allocation * found = fake_is_device_address(address) ? find(address) : NULL;
    if (found != NULL) {
        *base = found->base;
        *bytes = found->bytes;
    }
    fake_unlock();
    return found != NULL;
}

void * fake_bytes_at(const void * address, size_t bytes) {
    if (!fake_is_device_address(address)) {
        return (void *) address;
    }
    struct allocation * found = find(address);
    if (found == NULL || (size_t) ((char *) address - found->base) + bytes > found->mapped_bytes) {
        return NULL;
    }
    return (char *) address + RANGE_BYTES;
}

int fake_allocate_host(void ** address, size_t bytes) {
    size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
    char * memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || pinned_count == sizeof pinned / sizeof *pinned) {
        return OUT_OF_MEMORY;
    }
    fake_lock();
    pinned[pinned_count].base = memory;
    pinned[pinned_count++].bytes = rounded;
    fake_unlock();
    *address = memory;
    return OK;
}

int fake_free_host(void * address) {
    int result = address == NULL ? OK : INVALID_VALUE;
    fake_lock();
    for (size_t i = 0; i < pinned_count; i++) {
        if (pinned[i].base == address) {
            munmap(pinned[i].base, pinned[i].bytes);
            pinned[i] = pinned[--pinned_count];
            result = OK;
            break;
        }
    }
    fake_unlock();
    return result;
}

bool fake_is_pinned(const void * address) {
    for (size_t i = 0; i < pinned_count; i++) {
        if ((char *) address >= pinned[i].base && (char *) address < pinned[i].base + pinned[i].bytes) {
            return true;
        }
    }
    return false;
}
