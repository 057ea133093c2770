"""Machine code of a kernel of the lab, for Hopper; no card is needed.

    pip install nvidia-cuda-nvrtc nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
    python sass.py crates/lab/kernels/gemm_f32.cu vector

Compiled as the lab does (crates/lab/src/cuda/compiler.rs). Prints instructions without their encoding.
"""

import ctypes
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def libraries() -> Path:
    """Where pip put NVIDIA's files."""
    found = sorted(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu1*"))
    if not found:
        sys.exit("sass.py: NVIDIA's compiler is missing: pip install nvidia-cuda-nvrtc nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    return found[-1]


def compiled(source: str) -> bytes:
    nvrtc = ctypes.CDLL(str(next((libraries() / "lib").glob("libnvrtc.so.*"))))
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    words = [b"--gpu-architecture=sm_90a", b"--std=c++17"]
    options = (ctypes.c_char_p * len(words))(*words)
    if nvrtc.nvrtcCompileProgram(program, len(words), options) != 0:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"sass.py: {log.value.decode()}")
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    return image.raw


def main():
    path, function = Path(sys.argv[1]), sys.argv[2]
    source = (path.parent / "common.cuh").read_text() + path.read_text()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "kernel.cubin"
        image.write_bytes(compiled(source))
        tool = libraries() / "bin"
        text = subprocess.run(
            [str(tool / "cuobjdump"), "-sass", "-fun", function, str(image)],
            env={"PATH": f"{tool}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
        ).stdout
    for line in text.splitlines():
        found = re.search(r"/\*([0-9a-f]{4,5})\*/\s+(.*?;)", line)
        if found:
            print(f"/*{found.group(1)}*/  {re.sub(r' +', ' ', found.group(2))}")


if __name__ == "__main__":
    main()
