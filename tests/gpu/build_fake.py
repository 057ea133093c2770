"""Compiles the fake CUDA into a folder that LD_LIBRARY_PATH can name.

    python build_fake.py [FOLDER] [--without-cupti]

Without FOLDER: target/gpu/fake of this repository. What is newer than its sources stays.
Prints the folder. Needs a C compiler and nothing of CUDA.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE / "fake"
TARGET = HERE.parents[1] / "target"
# By the names that the real ones have: sources, libraries that they need, symbol version.
LIBRARIES = {
    "libcuda.so.1": (("device.c", "memory.c", "kernels.c", "work.c", "graph.c", "routing.c", "log.c", "driver.c"), (), None),
    "libcudart.so.13": (("runtime.c",), ("libcuda.so.1",), "libcudart.so.13"),
    "libcublas.so.13": (("cublas.c",), ("libcuda.so.1",), "libcublas.so.13"),
    "libcupti.so.13": (("cupti.c",), ("libcuda.so.1",), "libcupti.so.13"),
}


def is_current(library, sources):
    inputs = [*sources, SOURCES / "fake.h", pathlib.Path(__file__)]
    return library.exists() and all(library.stat().st_mtime >= path.stat().st_mtime for path in inputs)


def compile_library(folder, name, options):
    """Replaced in one step: a program that has the old one mapped keeps it."""
    sources, needed, version = LIBRARIES[name]
    sources = [SOURCES / source for source in sources]
    if is_current(folder / name, sources):
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        new = pathlib.Path(scratch) / name
        command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", *options]
        command += ["-o", new, f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-undefined", *sources]
        command += [folder / library for library in needed]
        if version:
            script = pathlib.Path(scratch) / "version"
            script.write_text(f"{version} {{ global: *; }};\n")
            command += [f"-Wl,--version-script={script}"]
        subprocess.run([*command, "-lpthread", "-ldl"], check=True)
        os.replace(new, folder / name)


def build(folder=TARGET / "gpu/fake", with_cupti=True, options=()):
    """Other options want another folder."""
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        if name != "libcupti.so.13" or with_cupti:
            compile_library(folder, name, options)
        else:
            (folder / name).unlink(missing_ok=True)
    return folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=TARGET / "gpu/fake")
    parser.add_argument("--without-cupti", action="store_true")
    args = parser.parse_args()
    print(build(args.folder, not args.without_cupti))
    return 0


if __name__ == "__main__":
    sys.exit(main())
