"""A program of a dozen kernels that records itself with CUPTI, on the fake, without llama.cpp.

    LD_LIBRARY_PATH=FAKE python direct.py [MISTAKE…]

Three kernels, a copy and a fill directly; the same in a captured graph that is launched twice and
updated in between; unrecorded, a graph that two streams were captured into. Prints the records, the callbacks and what the driver said of the graph as
JSON. MISTAKE is one that a recorder can make:

    unsynchronised  flush by force before the device is done
    switch          switch the kinds of activity before they are flushed
    clock           register no timestamp callback
    wait            wait for a stream while it is captured
    query           ask the runtime for an event that is not ready, and leave the error to the program
    read            read device memory from the host
"""

import ctypes
import json
import sys
import time

MISTAKES = sys.argv[1:]
P, U32, U64, SIZE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
runtime, driver, cupti = (ctypes.CDLL(f"lib{name}") for name in ("cudart.so.13", "cuda.so.1", "cupti.so.13"))
NAMES = ["first_kernel", "second_kernel", "third_kernel"]
RECORD_BYTES = 216


class Dimensions(ctypes.Structure):
    _fields_ = [("x", U32), ("y", U32), ("z", U32)]


class Attribute(ctypes.Structure):
    _fields_ = [("id", U64), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class Configuration(ctypes.Structure):
    _fields_ = [("grid", Dimensions), ("block", Dimensions), ("shared_bytes", SIZE), ("stream", P),
                ("attributes", ctypes.POINTER(Attribute)), ("count", U32)]


def check(result, what):
    if result != 0:
        raise SystemExit(f"{what}: {result}")


def read(record, offset, kind):
    return ctypes.cast(record + offset, ctypes.POINTER(kind)).contents.value


records, callbacks, created, threads = [], [], [], []
buffers = []


@ctypes.CFUNCTYPE(None, ctypes.POINTER(P), ctypes.POINTER(SIZE), ctypes.POINTER(SIZE))
def on_request(buffer, size, most):
    buffers.append(ctypes.create_string_buffer(5 * RECORD_BYTES))
    buffer[0] = ctypes.addressof(buffers[-1])
    size[0] = 5 * RECORD_BYTES
    most[0] = 0


@ctypes.CFUNCTYPE(None, P, U32, P, SIZE, SIZE)
def on_complete(context, stream, buffer, size, valid):
    threads.append(ctypes.CDLL(None).gettid())
    at = P(None)
    while cupti.cuptiActivityGetNextRecord(P(buffer), SIZE(valid), ctypes.byref(at)) == 0:
        kind, here = read(at.value, 0, ctypes.c_int), at.value
        if kind == 10:
            records.append({
                "what": "kernel", "begin": read(here, 16, U64), "end": read(here, 24, U64), "device": read(here, 40, U32),
                "stream": read(here, 48, U32), "grid": [read(here, 52 + 4 * i, U32) for i in range(3)],
                "correlation": read(here, 92, U32), "name": read(here, 104, ctypes.c_char_p).decode(),
                "node": read(here, 144, U64), "graph": read(here, 156, U32)})
        elif kind in (1, 2):
            records.append({
                "what": "copy" if kind == 1 else "fill", "bytes": read(here, 8, U64), "begin": read(here, 16, U64),
                "end": read(here, 24, U64), "correlation": read(here, 44, U32), "node": read(here, 64, U64),
                "graph": read(here, 72, U32), "direction": read(here, 4, ctypes.c_uint8) if kind == 1 else 0})
        else:
            raise SystemExit(f"a record of kind {kind}")


@ctypes.CFUNCTYPE(None, P, ctypes.c_int, U32, P)
def on_callback(data, domain, number, of_call):
    if domain == 3:
        graph_data = read(of_call, 16, P)
        node, identifier = read(graph_data, 16, P), U64()
        if number == 13 and cupti.cuptiGetGraphNodeId(P(node), ctypes.byref(identifier)) == 0:
            created.append(identifier.value)
    elif read(of_call, 0, ctypes.c_int) == 0:
        callbacks.append([read(of_call, 64, U32), number, read(of_call, 8, ctypes.c_char_p).decode()])


@ctypes.CFUNCTYPE(U64)
def clock():
    return time.monotonic_ns()


def attach():
    subscriber = P()
    result = cupti.cuptiSubscribe(ctypes.byref(subscriber), on_callback, None)
    if result != 0:
        print(json.dumps({"subscribe": result}))
        raise SystemExit(0)
    for domain, number in ((1, 307), (1, 514), (1, 652), (3, 13)):
        check(cupti.cuptiEnableCallback(1, subscriber, domain, number), "cuptiEnableCallback")
    if "clock" not in MISTAKES:
        check(cupti.cuptiActivityRegisterTimestampCallback(clock), "cuptiActivityRegisterTimestampCallback")
    check(cupti.cuptiActivityRegisterCallbacks(on_request, on_complete), "cuptiActivityRegisterCallbacks")
    for kind in (10, 1, 2):
        check(cupti.cuptiActivityEnable(kind), "cuptiActivityEnable")


def work(stream, memory, host, grid):
    """Three kernels, the last one early, between a copy and a fill."""
    check(runtime.cudaMemcpyAsync(memory, host, SIZE(256), 1, stream), "cudaMemcpyAsync")
    counts = [node_count(stream)]
    for i in range(3):
        early = Attribute(id=6, value=1)
        config = Configuration(Dimensions(grid, 1, 1), Dimensions(32, 1, 1), 0, stream, ctypes.pointer(early), 1 if i == 2 else 0)
        check(runtime.cudaLaunchKernelExC(ctypes.byref(config), P(0x1000 + 16 * i), None), "cudaLaunchKernelExC")
        counts.append(node_count(stream))
    check(runtime.cudaMemsetAsync(memory, 7, SIZE(64), stream), "cudaMemsetAsync")
    return counts


def node_count(stream):
    status, identifier, graph, count = ctypes.c_int(), U64(), P(), SIZE()
    check(driver.cuStreamGetCaptureInfo_v2(stream, ctypes.byref(status), ctypes.byref(identifier), ctypes.byref(graph), None, None), "info")
    if status.value != 1:
        return -1
    check(driver.cuGraphGetNodes(graph, None, ctypes.byref(count)), "cuGraphGetNodes")
    return count.value


class KernelNode(ctypes.Structure):
    _fields_ = [("function", P), ("grid", Dimensions), ("block", Dimensions), ("shared_bytes", U32), ("arguments", P), ("extra", P),
                ("kernel", P), ("context", P)]


def describe(graph):
    count = SIZE()
    driver.cuGraphGetNodes(graph, None, ctypes.byref(count))
    nodes = (P * count.value)()
    check(driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count)), "cuGraphGetNodes")
    found = []
    for node in nodes:
        kind, parameters, name = ctypes.c_int(), KernelNode(), ctypes.c_char_p()
        check(driver.cuGraphNodeGetType(P(node), ctypes.byref(kind)), "cuGraphNodeGetType")
        if kind.value == 0:
            check(driver.cuGraphKernelNodeGetParams_v2(P(node), ctypes.byref(parameters)), "cuGraphKernelNodeGetParams_v2")
            check(driver.cuKernelGetName(ctypes.byref(name), P(parameters.kernel)), "cuKernelGetName")
        found.append([kind.value, name.value and name.value.decode(), parameters.grid.x])
    return found


def capture(stream, memory, host, grid):
    graph = P()
    check(runtime.cudaStreamBeginCapture(stream, 2), "cudaStreamBeginCapture")
    counts = work(stream, memory, host, grid)
    if "wait" in MISTAKES:
        runtime.cudaStreamSynchronize(stream)
    check(runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)), "cudaStreamEndCapture")
    return graph, counts


def launch(stream, i):
    config = Configuration(Dimensions(1, 1, 1), Dimensions(32, 1, 1), 0, stream, None, 0)
    check(runtime.cudaLaunchKernelExC(ctypes.byref(config), P(0x1000 + 16 * i), None), "cudaLaunchKernelExC")


def fork_and_join(stream):
    """The second kernel runs beside the third."""
    other, forked, joined, graph, executable = P(), P(), P(), P(), P()
    check(runtime.cudaStreamCreateWithFlags(ctypes.byref(other), 1), "cudaStreamCreateWithFlags")
    for event in (forked, joined):
        check(runtime.cudaEventCreateWithFlags(ctypes.byref(event), 2), "cudaEventCreateWithFlags")
    check(runtime.cudaStreamBeginCapture(stream, 2), "cudaStreamBeginCapture")
    launch(stream, 0)
    check(runtime.cudaEventRecord(forked, stream), "cudaEventRecord")
    check(runtime.cudaStreamWaitEvent(other, forked, 0), "cudaStreamWaitEvent")
    launch(other, 1)
    launch(stream, 2)
    check(runtime.cudaEventRecord(joined, other), "cudaEventRecord")
    check(runtime.cudaStreamWaitEvent(stream, joined, 0), "cudaStreamWaitEvent")
    launch(stream, 0)
    check(runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)), "cudaStreamEndCapture")
    check(runtime.cudaGraphInstantiate(ctypes.byref(executable), graph, U64(0)), "cudaGraphInstantiate")
    check(runtime.cudaGraphLaunch(executable, stream), "cudaGraphLaunch")


def main():
    for i, name in enumerate(NAMES):
        runtime.__cudaRegisterFunction(None, P(0x1000 + 16 * i), None, name.encode(), -1, None, None, None, None, None)
    stream, memory, executable, first, last = P(), P(), P(), P(), P()
    check(runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1), "cudaStreamCreateWithFlags")
    check(runtime.cudaMalloc(ctypes.byref(memory), SIZE(4096)), "cudaMalloc")
    host = ctypes.create_string_buffer(bytes(range(256)), 256)
    for event in (first, last):
        check(driver.cuEventCreate(ctypes.byref(event), 0), "cuEventCreate")
    attach()
    began = time.monotonic_ns()
    work(stream, memory, host, 5)
    graph, counts = capture(stream, memory, host, 5)
    check(runtime.cudaGraphInstantiate(ctypes.byref(executable), graph, U64(0)), "cudaGraphInstantiate")
    described = describe(graph)
    check(driver.cuEventRecord(first, stream), "cuEventRecord")
    check(runtime.cudaGraphLaunch(executable, stream), "cudaGraphLaunch")
    check(driver.cuEventRecord(last, stream), "cuEventRecord")
    is_busy = driver.cuEventQuery(last) == 600
    if "query" in MISTAKES:
        runtime.cudaEventQuery(last)
        check(runtime.cudaGetLastError(), "the program's own cudaGetLastError")
    if "unsynchronised" not in MISTAKES:
        check(runtime.cudaStreamSynchronize(stream), "cudaStreamSynchronize")
    if "switch" in MISTAKES:
        cupti.cuptiActivityEnable(51)
        cupti.cuptiActivityDisable(51)
    check(cupti.cuptiActivityFlushAll(1), "cuptiActivityFlushAll")
    check(runtime.cudaStreamSynchronize(stream), "cudaStreamSynchronize")
    millis = ctypes.c_float()
    check(driver.cuEventElapsedTime(ctypes.byref(millis), first, last), "cuEventElapsedTime")
    other, _ = capture(stream, memory, host, 9)
    check(runtime.cudaGraphExecUpdate(executable, other, ctypes.create_string_buffer(24)), "cudaGraphExecUpdate")
    check(runtime.cudaGraphLaunch(executable, stream), "cudaGraphLaunch")
    check(runtime.cudaStreamSynchronize(stream), "cudaStreamSynchronize")
    ended = time.monotonic_ns()
    check(cupti.cuptiActivityFlushAll(1), "cuptiActivityFlushAll")
    dropped = SIZE()
    cupti.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(dropped))
    back = ctypes.create_string_buffer(256)
    check(runtime.cudaMemcpyAsync(back, memory, SIZE(256), 2, stream), "cudaMemcpyAsync")
    if "read" in MISTAKES:
        print(ctypes.string_at(memory.value, 1))
    check(cupti.cuptiFinalize(), "cuptiFinalize")
    fork_and_join(stream)
    print(json.dumps({
        "subscribe": 0, "records": records, "callbacks": callbacks, "created": created, "counts": counts, "graph": described,
        "is_busy": is_busy, "millis": millis.value, "began": began, "ended": ended, "dropped": dropped.value,
        "is_from_another_thread": ctypes.CDLL(None).gettid() not in threads, "memory": list(back.raw)}))


main()
