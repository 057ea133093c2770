"""Makes a real model larger without changing what it says.

    python enlarge.py SMALL.gguf LARGE.gguf --layers 90 --ffn 43008

Speeds of models larger than memory need large models; how often guessed tokens are right needs a
real one. So neurons that are always 0 are added to each feed-forward network (rows of zeros in
gate and up, columns of zeros in down), and layers behind the last one that add 0 to what passes
through them (copies whose output matrices are zeros). Zero bytes are zero in every type of
llama.cpp's that this is for. Every token reads all of it.

For architectures with `ffn_gate`, `ffn_up`, `ffn_down` and `attn_output` (llama, gemma3 and others).
Needs PyPI's gguf (tests/python/requirements.txt).
"""

import argparse
import re

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

SKIPPED = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}


def widened(name: str, data: np.ndarray, columns: int, wide: int) -> np.ndarray:
    """A matrix as rows of bytes, for a network of `wide` neurons instead of `columns`."""
    if "ffn_gate.weight" in name or "ffn_up.weight" in name:
        more = np.zeros((wide - columns, data.shape[1]), dtype=data.dtype)
        return np.concatenate([data, more])
    if "ffn_down.weight" in name:
        more = data.shape[1] * (wide - columns) // columns
        return np.concatenate([data, np.zeros((data.shape[0], more), dtype=data.dtype)], axis=1)
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("small")
    parser.add_argument("large")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--ffn", type=int, required=True)
    args = parser.parse_args()
    reader = GGUFReader(args.small)
    architecture = reader.fields["general.architecture"].contents()
    number = lambda key: reader.fields[f"{architecture}.{key}"].contents()
    layers, columns = number("block_count"), number("feed_forward_length")
    if args.layers < layers or args.ffn < columns or args.ffn % 256:
        parser.error(f"at least {layers} layers, and a multiple of 256 of at least {columns} neurons")

    writer = GGUFWriter(args.large, architecture)
    changed = {
        f"{architecture}.block_count": args.layers,
        f"{architecture}.feed_forward_length": args.ffn,
    }
    for field in reader.fields.values():
        if field.name in SKIPPED:
            continue
        value = changed.get(field.name, field.contents())
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub_type)

    def add(name: str, tensor, data: np.ndarray) -> None:
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)

    for tensor in reader.tensors:
        add(tensor.name, tensor, widened(tensor.name, tensor.data, columns, args.ffn))
    last = f"blk.{layers - 1}."
    for layer in range(layers, args.layers):
        for tensor in reader.tensors:
            if not tensor.name.startswith(last):
                continue
            data = widened(tensor.name, tensor.data, columns, args.ffn)
            # What a layer adds to what passes through it; norms behind that (Gemma) scale it.
            if re.search(r"(attn_output|ffn_down)\.weight$", tensor.name):
                data = np.zeros_like(data)
            add(tensor.name.replace(last, f"blk.{layer}."), tensor, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    main()
