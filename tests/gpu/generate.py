"""Generates with the llama.cpp of npm's CUDA build, by its C interface: what node cannot ask for.

    LD_LIBRARY_PATH=FAKE python generate.py MODEL [OPTION…]
      -n N               tokens to generate in each sequence (8)
      -p N               tokens of each prompt (6)
      -l N               layers on the device (all)
      -s N               sequences of a context, evaluated side by side in one batch (1)
      -c N               contexts of the model, used in turn (1)
      -u N               tokens that are computed at once (512)
      -f auto|off|on     flash attention
      --cpu-moe          experts stay on the CPU side, as llama-server's option of that name
      --override REGEX   tensors whose name matches stay on the CPU side
      --turns N          how often all of this, each time from the beginning (1); said is the last
      --anew             before each turn but the first, contexts are freed and made anew
      --fork             a child is forked after each token, which ends at once
      --memory FILE      after each turn, a line with the process's resident bytes
      --times FILE       a line with the nanoseconds of each call that computes, until its logits are there
      --libraries DIR    another build of llama.cpp of this version, with shared libraries (npm's)
      -t N               threads (2)

Prints each context's prompts and tokens as JSON. Batches depend on nothing but the options, so
that with FAKE_CUDA_VOCABULARY tokens are the same each time in several sequences too.
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = HERE / "node_modules/@node-llama-cpp/linux-x64-cuda/bins/linux-x64-cuda"
# As in llama.cpp's common/arg.cpp.
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
P, I32, U32, F32, BOOL = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_bool
FLASH = {"auto": -1, "off": 0, "on": 1}


class Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", P)]


class ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", P), ("overrides", ctypes.POINTER(Override)), ("n_gpu_layers", I32), ("split_mode", I32), ("load_mode", I32),
        ("lazy_mode", I32), ("main_gpu", I32), ("tensor_split", P), ("progress", P), ("progress_data", P), ("kv_overrides", P),
        ("flags", BOOL * 6),
    ]


class ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", U32), ("n_batch", U32), ("n_ubatch", U32), ("n_seq_max", U32), ("n_rs_seq", U32), ("n_outputs_max", U32),
        ("n_outputs_max_per_seq", U32), ("n_threads", I32), ("n_threads_batch", I32), ("kinds", I32 * 4), ("flash_attn", I32),
        ("rope", F32 * 8), ("cb_eval", P), ("cb_eval_data", P), ("type_k", I32), ("type_v", I32), ("abort", P), ("abort_data", P),
        ("embeddings", BOOL), ("offload_kqv", BOOL), ("no_perf", BOOL), ("op_offload", BOOL), ("swa_full", BOOL), ("kv_unified", BOOL),
        ("samplers", P), ("n_samplers", ctypes.c_size_t), ("other", P),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", I32), ("token", ctypes.POINTER(I32)), ("embd", P), ("pos", ctypes.POINTER(I32)), ("n_seq_id", ctypes.POINTER(I32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(I32))), ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def fail(what):
    raise SystemExit(f"generate: {what}")


def load_llama(folder):
    if not folder.is_dir():
        fail(f"{folder} is missing\n  try: npm install --no-save, in {HERE}")
    # npm's are called libllama.cuda.VERSION.so.
    base, ggml, llama = (
        ctypes.CDLL(str(next(path for pattern in (f"{name}.so", f"{name}.cuda.*.so") for path in folder.glob(pattern))))
        for name in ("libggml-base", "libggml", "libllama")
    )
    for library, name, result, arguments in (
        (llama, "llama_model_default_params", ModelParams, []),
        (llama, "llama_context_default_params", ContextParams, []),
        (llama, "llama_model_load_from_file", P, [ctypes.c_char_p, ModelParams]),
        (llama, "llama_init_from_model", P, [P, ContextParams]),
        (llama, "llama_batch_init", Batch, [I32, I32, I32]),
        (llama, "llama_batch_free", None, [Batch]),
        (llama, "llama_decode", I32, [P, Batch]),
        (llama, "llama_synchronize", None, [P]),
        (llama, "llama_sampler_init_greedy", P, []),
        (llama, "llama_sampler_sample", I32, [P, P, I32]),
        (llama, "llama_model_get_vocab", P, [P]),
        (llama, "llama_vocab_n_tokens", I32, [P]),
        (llama, "llama_get_memory", P, [P]),
        (llama, "llama_memory_clear", None, [P, BOOL]),
        (llama, "llama_free", None, [P]),
        (llama, "llama_model_free", None, [P]),
        (ggml, "ggml_backend_load_all_from_path", None, [ctypes.c_char_p]),
        (ggml, "ggml_backend_dev_by_type", P, [ctypes.c_int]),
        (base, "ggml_backend_dev_buffer_type", P, [P]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, P)(lambda level, text, data: None)
    llama.llama_log_set(silent, None)
    llama.silent = silent
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    # The structs are those of this package's llama.cpp; another one's would be read wrongly.
    params = llama.llama_context_default_params()
    found = (params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max, params.flash_attn, params.offload_kqv)
    if found != (512, 2048, 512, 1, -1, True):
        fail(f"llama.cpp's structs have changed (defaults are {found}): compare ContextParams with its llama.h")
    return base, ggml, llama


def load_model(args, base, ggml, llama):
    params = llama.llama_model_default_params()
    params.n_gpu_layers = args.layers
    patterns = ([EXPERTS] if args.cpu_moe else []) + args.override
    cpu = base.ggml_backend_dev_buffer_type(ggml.ggml_backend_dev_by_type(0))
    overrides = (Override * (len(patterns) + 1))(*((pattern.encode(), cpu) for pattern in patterns))
    if patterns:
        params.overrides = overrides
    return llama.llama_model_load_from_file(args.model.encode(), params) or fail(f"cannot load {args.model}")


class Context:
    """Its sequences go on side by side: all prompts in one batch, then one token of each."""

    def __init__(self, args, llama, model, number):
        params = llama.llama_context_default_params()
        params.n_ctx = (args.prompt + args.tokens + 255) // 256 * 256 * args.sequences
        params.n_ubatch = args.ubatch
        params.n_seq_max = args.sequences
        params.n_threads = params.n_threads_batch = args.threads
        params.flash_attn = FLASH[args.flash]
        self.llama, self.args = llama, args
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self.handle = llama.llama_init_from_model(model, params) or fail("cannot make a context")
        self.greedy = llama.llama_sampler_init_greedy()
        self.nanos = []
        self.batch = llama.llama_batch_init(max(2048, args.prompt * args.sequences), 0, 1)
        # Any tokens will do: they differ, so that a mix-up shows.
        self.prompts = [
            [(7 + 31 * i + 101 * s + 211 * number) % self.vocabulary for i in range(args.prompt)] for s in range(args.sequences)
        ]
        self.restart()

    def restart(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.handle), True)
        self.generated = [[] for _ in range(self.args.sequences)]

    def step(self):
        batch, last = self.batch, []
        batch.n_tokens = 0
        for s, prompt in enumerate(self.prompts):
            done = self.generated[s]
            tokens = prompt if not done else done[-1:]
            begin = 0 if not done else len(prompt) + len(done) - 1
            for i, token in enumerate(tokens):
                at = batch.n_tokens
                batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, begin + i, 1
                batch.seq_id[at][0], batch.logits[at] = s, i + 1 == len(tokens)
                batch.n_tokens += 1
            last.append(batch.n_tokens - 1)
        begin = time.monotonic_ns()
        if self.llama.llama_decode(self.handle, batch) != 0:
            fail("cannot compute a batch")
        self.llama.llama_synchronize(self.handle)
        if self.args.times:
            self.nanos.append(time.monotonic_ns() - begin)
        for s, at in enumerate(last):
            self.generated[s].append(self.llama.llama_sampler_sample(self.greedy, self.handle, at))

    def free(self):
        self.llama.llama_batch_free(self.batch)
        self.llama.llama_free(self.handle)


def fork():
    child = os.fork()
    if child == 0:
        sys.exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        fail("a child did not end well")


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def turn(args, contexts):
    for context in contexts:
        context.restart()
    for _ in range(args.tokens):
        for context in contexts:
            context.step()
        if args.fork:
            fork()
    if args.memory:
        with open(args.memory, "a") as file:
            print(resident_bytes(), file=file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("-n", dest="tokens", type=int, default=8)
    parser.add_argument("-p", dest="prompt", type=int, default=6)
    parser.add_argument("-l", dest="layers", type=int, default=-1)
    parser.add_argument("-s", dest="sequences", type=int, default=1)
    parser.add_argument("-c", dest="contexts", type=int, default=1)
    parser.add_argument("-u", dest="ubatch", type=int, default=512)
    parser.add_argument("-f", dest="flash", choices=FLASH, default="auto")
    parser.add_argument("--cpu-moe", action="store_true")
    parser.add_argument("--override", action="append", default=[])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--memory")
    parser.add_argument("--times")
    parser.add_argument("--libraries", type=pathlib.Path, default=LIBRARIES)
    parser.add_argument("-t", dest="threads", type=int, default=2)
    args = parser.parse_args()
    base, ggml, llama = load_llama(args.libraries.resolve())
    model = load_model(args, base, ggml, llama)
    contexts = []
    for at in range(args.turns):
        if args.anew or at == 0:
            for context in contexts:
                context.free()
            contexts = [Context(args, llama, model, number) for number in range(args.contexts)]
        turn(args, contexts)
    print(json.dumps([
        [{"prompt": prompt, "generated": generated} for prompt, generated in zip(context.prompts, context.generated, strict=True)]
        for context in contexts
    ]))
    if args.times:
        pathlib.Path(args.times).write_text("".join(f"{nanos}\n" for context in contexts for nanos in context.nanos))
    for context in contexts:
        context.free()
    llama.llama_model_free(model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
