/* Stream capture and graphs. While a stream is captured, what it is asked to do becomes a node;
 * a node's index is the order of its capture. A graph that can be launched is a clone with an
 * identifier of its own, which an update keeps. */

#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_LAUNCH_NANOS 4500u
#define NODE_GAP_NANOS 350u
#define MOST_EARLY_NANOS 600u

static uint32_t last_graph_id;
static uint64_t last_capture_id;

static void tell(enum graph_change what, struct graph * graph, struct node * node, struct node * original) {
    if (fake_observer.graph_changed != NULL) {
        fake_observer.graph_changed(what, graph, node, original);
    }
}

bool fake_is_graph(const struct graph * graph) { return graph != NULL && graph->magic == MAGIC_GRAPH; }
bool fake_is_node(const struct node * node) { return node != NULL && node->magic == MAGIC_NODE; }

static struct graph * new_graph(bool is_executable) {
    struct graph * graph = calloc(1, sizeof *graph);
    graph->magic = MAGIC_GRAPH;
    graph->id = ++last_graph_id;
    graph->is_executable = is_executable;
    return graph;
}

static struct node * append(struct graph * graph) {
    if (graph->node_count == graph->node_room) {
        graph->node_room = graph->node_room == 0 ? 256 : 2 * graph->node_room;
        graph->nodes = realloc(graph->nodes, graph->node_room * sizeof *graph->nodes);
    }
    struct node * node = calloc(1, sizeof *node);
    node->magic = MAGIC_NODE;
    node->graph = graph;
    node->index = (uint32_t) graph->node_count;
    graph->nodes[graph->node_count++] = node;
    return node;
}

void fake_add_node(struct stream * stream, const struct work * work) {
    struct node * node = append(stream->capture->graph);
    node->work = *work;
    node->dependency_count = stream->dependency_count;
    memcpy(node->dependencies, stream->dependencies, sizeof node->dependencies);
    stream->dependencies[0] = node->index;
    stream->dependency_count = 1;
    tell(NODE_CREATED, stream->capture->graph, node, NULL);
}

int fake_begin_capture(struct stream * stream) {
    if (stream == NULL) {
        return INVALID_HANDLE;
    }
    fake_lock();
    if (stream->capture != NULL) {
        fake_unlock();
        return CAPTURE_UNSUPPORTED;
    }
    struct capture * capture = calloc(1, sizeof *capture);
    capture->id = ++last_capture_id;
    capture->graph = new_graph(false);
    capture->origin = stream;
    stream->capture = capture;
    stream->dependency_count = 0;
    tell(GRAPH_CREATED, capture->graph, NULL, NULL);
    fake_unlock();
    return OK;
}

/* What was a capture stays, since events may still name it. */
int fake_end_capture(struct stream * stream, struct graph ** graph) {
    *graph = NULL;
    if (stream == NULL) {
        return INVALID_HANDLE;
    }
    fake_lock();
    struct capture * capture = stream->capture;
    if (capture == NULL || capture->origin != stream) {
        fake_unlock();
        return CAPTURE_UNMATCHED;
    }
    fake_release_joined(capture);
    stream->capture = NULL;
    int result = OK;
    if (capture->is_invalid) {
        result = CAPTURE_INVALIDATED;
        fake_free_graph(capture->graph);
    } else {
        *graph = capture->graph;
    }
    fake_log("capture graph=%u nodes=%zu result=%d", capture->graph->id, capture->graph->node_count, result);
    capture->is_ended = true;
    fake_unlock();
    return result;
}

static void clone_into(struct graph * executable, const struct graph * graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        bool is_new = i >= executable->node_count;
        struct node * node = is_new ? append(executable) : executable->nodes[i];
        node->work = graph->nodes[i]->work;
        node->dependency_count = graph->nodes[i]->dependency_count;
        memcpy(node->dependencies, graph->nodes[i]->dependencies, sizeof node->dependencies);
        if (is_new) {
            tell(NODE_CLONED, executable, node, graph->nodes[i]);
        } else {
            tell(NODE_UPDATED, executable, graph->nodes[i], node);
        }
    }
}

int fake_instantiate(struct graph * graph, struct graph ** executable) {
    if (!fake_is_graph(graph)) {
        return INVALID_HANDLE;
    }
    fake_lock();
    *executable = new_graph(true);
    clone_into(*executable, graph);
    tell(EXECUTABLE_CREATED, *executable, NULL, NULL);
    fake_log("instantiate graph=%u from=%u nodes=%zu", (*executable)->id, graph->id, graph->node_count);
    fake_unlock();
    return OK;
}

/* Kernels, grids and arguments may change; the shape may not. */
int fake_update(struct graph * executable, struct graph * graph) {
    if (!fake_is_graph(executable) || !fake_is_graph(graph)) {
        return INVALID_HANDLE;
    }
    fake_lock();
    int result = executable->node_count == graph->node_count ? OK : UPDATE_FAILED;
    for (size_t i = 0; result == OK && i < graph->node_count; i++) {
        const struct node * old = executable->nodes[i], * new = graph->nodes[i];
        if (old->work.type != new->work.type || old->dependency_count != new->dependency_count
            || memcmp(old->dependencies, new->dependencies, old->dependency_count * sizeof *old->dependencies) != 0) {
            result = UPDATE_FAILED;
        }
    }
    if (result == OK) {
        clone_into(executable, graph);
    }
    fake_log("update graph=%u from=%u nodes=%zu result=%d", executable->id, graph->id, graph->node_count, result);
    fake_unlock();
    return result;
}

int fake_launch_graph(struct graph * executable, struct stream * stream, uint32_t correlation) {
    if (!fake_is_graph(executable) || !executable->is_executable || stream == NULL) {
        return INVALID_HANDLE;
    }
    fake_lock();
    if (stream->capture != NULL) {
        stream->capture->is_invalid = true;
        fake_unlock();
        return CAPTURE_UNSUPPORTED;
    }
    uint64_t earliest = fake_now_nanos() + GRAPH_LAUNCH_NANOS;
    uint64_t begin = stream->end_nanos + NODE_GAP_NANOS > earliest ? stream->end_nanos + NODE_GAP_NANOS : earliest;
    uint64_t end = begin;
    uint64_t * ends = calloc(executable->node_count + 1, sizeof *ends);
    fake_log("launch graph=%u correlation=%u device=%d stream=%u nodes=%zu", executable->id, correlation, stream->device, stream->id,
             executable->node_count);
    for (size_t i = 0; i < executable->node_count; i++) {
        const struct node * node = executable->nodes[i];
        uint64_t nanos = fake_duration_nanos(&node->work);
        uint64_t ready = 0, last_nanos = 0;
        for (uint32_t d = 0; d < node->dependency_count; d++) {
            if (ends[node->dependencies[d]] > ready) {
                ready = ends[node->dependencies[d]];
                last_nanos = fake_duration_nanos(&executable->nodes[node->dependencies[d]]->work);
            }
        }
        struct done done = { .work = &node->work, .device = stream->device, .stream = stream->id, .correlation = correlation,
                             .graph = executable->id, .node = node->index };
        if (ready == 0) {
            done.begin_nanos = begin;
            done.end_nanos = begin + nanos;
        } else if (node->work.is_early) {
            done.begin_nanos = ready - (last_nanos / 3 < MOST_EARLY_NANOS ? last_nanos / 3 : MOST_EARLY_NANOS);
            done.end_nanos = ready + nanos;
        } else {
            done.begin_nanos = ready + (node->work.type == NODE_RECORD ? 0 : NODE_GAP_NANOS);
            done.end_nanos = done.begin_nanos + nanos;
        }
        ends[i] = done.end_nanos;
        end = done.end_nanos > end ? done.end_nanos : end;
        fake_perform(&done);
    }
    free(ends);
    stream->end_nanos = end;
    stream->last_nanos = 0;
    struct done launch = { .device = stream->device, .stream = stream->id, .correlation = correlation, .graph = executable->id,
                           .begin_nanos = begin, .end_nanos = end };
    if (fake_observer.launched != NULL) {
        fake_observer.launched(&launch);
    }
    fake_unlock();
    return OK;
}

int fake_free_graph(struct graph * graph) {
    if (!fake_is_graph(graph)) {
        return INVALID_HANDLE;
    }
    fake_lock();
    tell(graph->is_executable ? EXECUTABLE_DESTROYED : GRAPH_DESTROYED, graph, NULL, NULL);
    for (size_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i]->magic = 0;
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    graph->nodes = NULL;
    graph->node_count = 0;
    /* The handle itself stays, so that a second use is an error and not a crash. */
    graph->magic = 0;
    fake_unlock();
    return OK;
}
