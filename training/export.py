"""Turns what train.py wrote into the GGUF files of models/.

    python3 training/export.py --from OUT --out models

Needs numpy and gguf (`pip install numpy gguf`). Matrices become q8_0; norms and the router
stay f32, because they are small and the router's close calls would flip. The files are read
back and compared with the weights before the program says that all is well.
"""

import argparse
import json
import os

import gguf
import numpy as np

from tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID, Tokenizer

MAX_FILE_BYTES = 8_000_000
TITLES = {"dense": "Shakespeare Dense", "moe": "Shakespeare MoE"}
# A q8_0 weight is an integer of at most 127 times its block's scale, a 127th of the block's
# largest value. Rounding to an integer costs half a scale; rounding the scale to f16 costs up to
# 2^-11 of it, 127 times over.
MAX_Q8_0_ERROR = (0.5 + 127 / 2048) / 127


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", required=True, help="directory that train.py wrote")
    parser.add_argument("--out", required=True, help="directory for the GGUF files")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    tokenizer = Tokenizer.load(os.path.join(args.source, "tokenizer.json"))
    with open(os.path.join(args.source, "train.log.json"), encoding="utf-8") as file:
        log = json.load(file)
    for name, record in log["models"].items():
        with np.load(os.path.join(args.source, f"{name}.npz")) as stored:
            tensors = {key: stored[key] for key in stored.files}
        config = json.loads(str(tensors.pop("config")))
        path = os.path.join(args.out, f"shakespeare-{name}.gguf")
        write(path, name, config, tensors, tokenizer, describe(config, record, log))
        verify(path, config, tensors, tokenizer)
        print(f"{path}: {os.path.getsize(path)} bytes, {len(tensors)} tensors, read back and compared")


def describe(config, record, log):
    shape = (f"{config['n_expert']} experts, {config['n_expert_used']} per token" if config["n_expert"] else "dense")
    arguments, corpus = log["arguments"], log["corpus"]
    return (
        f"A small llama-architecture model ({shape}, {record['parameters']} parameters) for demonstrations and tests. "
        f"Trained from scratch on Tiny Shakespeare ({corpus['chars']} characters, public domain) by training/train.py: "
        f"step {record['best_step']} of {arguments['steps']}, {arguments['batch']} windows of {config['n_ctx']} tokens "
        f"each, AdamW, seed {record['seed']}. Validation loss {record['validation_loss']:.3f} nats per token, "
        f"{record['validation_loss_per_char']:.3f} per character, on the last tenth of the text."
    )


def write(path, name, config, tensors, tokenizer, description):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(TITLES[name])
    writer.add_description(description)
    writer.add_license("MIT OR Apache-2.0")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    head_dim = config["n_embd"] // config["n_head"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["n_ctx"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config["n_ff"])
    writer.add_head_count(config["n_head"])
    writer.add_head_count_kv(config["n_head_kv"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_freq_base"])
    writer.add_layer_norm_rms_eps(config["rms_eps"])
    if config["n_expert"]:
        writer.add_expert_count(config["n_expert"])
        writer.add_expert_used_count(config["n_expert_used"])

    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokenizer.pieces)
    writer.add_token_scores(tokenizer.scores)
    writer.add_token_types(tokenizer.types)
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_unk_token_id(UNKNOWN_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)

    for tensor_name, values in tensors.items():
        if values.dtype == np.float16:
            quantized = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor_name, quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def verify(path, config, tensors, tokenizer):
    """Reads the file back; raises when anything is missing, misshapen or too far off."""
    if os.path.getsize(path) > MAX_FILE_BYTES:
        raise SystemExit(f"export.py: {path}: more than {MAX_FILE_BYTES} bytes: make the model smaller")
    reader = gguf.GGUFReader(path)
    pieces = reader.get_field("tokenizer.ggml.tokens").contents()
    assert pieces == tokenizer.pieces, f"{path}: the vocabulary differs"
    assert reader.get_field("llama.block_count").contents() == config["n_layer"], f"{path}: block_count differs"
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert found.keys() == tensors.keys(), f"{path}: tensors differ: {found.keys() ^ tensors.keys()}"
    for name, values in tensors.items():
        tensor = found[name]
        # GGUF lists the fastest dimension first.
        assert tuple(tensor.shape)[::-1] == values.shape, f"{path}: {name}: shape {tensor.shape}"
        restored = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
        blocks = values.astype(np.float32).reshape(-1, 32)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
        error = np.abs(restored.reshape(-1, 32) - blocks)
        allowed = 0.0 if tensor.tensor_type == gguf.GGMLQuantizationType.F32 else MAX_Q8_0_ERROR
        # A block so small that its f16 scale is subnormal keeps an absolute error instead.
        assert (error <= allowed * largest + 4e-6 * (allowed > 0)).all(), f"{path}: {name}: off by {error.max()}"


if __name__ == "__main__":
    main()
