#!/usr/bin/env python3
"""Runs the PTX kernels of `bench ceilings` without a card, and compares what they compute.

usage: run_ptx.py KERNELS_DIR

An interpreter of the few instructions that they use: a warp of 32 threads in step, those that
are furthest behind first. It is slow and knows nothing of time; that addresses and the places
of numbers in matrix products are right, it shows. Prints a line per kernel; exit code 1 when
one is wrong.
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import numpy as np

MASK = {"32": 0xFFFFFFFF, "64": 0xFFFFFFFFFFFFFFFF}
WARP = 32


class Kernel:
    def __init__(self, text: str, name: str):
        text = re.sub(r"//.*", "", text)
        entry = re.search(rf"\.visible \.entry {name}\((.*?)\)\s*\{{(.*?)\n\}}", text, re.DOTALL)
        self.parameters = re.findall(r"\.param \.u\d+ (\w+)", entry.group(1))
        self.code, self.labels = [], {}
        for line in entry.group(2).splitlines():
            line = line.strip()
            if line.endswith(":"):
                self.labels[line[:-1]] = len(self.code)
            elif line and not line.startswith(".reg"):
                guard, rest = re.fullmatch(r"(?:@(%\w+) )?(.*);", line).groups()
                op, _, operands = rest.partition(" ")
                # Commas within braces and brackets do not separate.
                parts = [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", operands) if part.strip()]
                self.code.append((guard, op, parts))

    def run(self, memory: bytearray, blocks: int, threads: int, **arguments: int) -> None:
        assert list(arguments) == self.parameters, (arguments, self.parameters)
        for block in range(blocks):
            for warp in range(threads // WARP):
                Warp(self, memory, arguments, (blocks, threads, block, warp)).run()


class Warp:
    def __init__(self, kernel: Kernel, memory: bytearray, arguments: dict[str, int], place: tuple[int, int, int, int]):
        self.kernel, self.memory, self.arguments = kernel, memory, arguments
        blocks, threads, block, warp = place
        special = {"%ntid.x": threads, "%nctaid.x": blocks, "%ctaid.x": block}
        self.lanes = [dict(special, **{"%tid.x": warp * WARP + lane, "%laneid": lane}) for lane in range(WARP)]
        self.at = [0] * WARP

    def run(self) -> None:
        while (behind := min(self.at)) < len(self.kernel.code):
            guard, op, operands = self.kernel.code[behind]
            group = [lane for lane in range(WARP) if self.at[lane] == behind]
            for lane in group:
                self.at[lane] += 1
            active = [lane for lane in group if guard is None or self.lanes[lane][guard]]
            if op.startswith(("shfl", "mma")):
                assert len(active) == WARP, f"{op} without the whole warp"
                (self.shuffle if op.startswith("shfl") else self.multiply)(op, operands)
                continue
            for lane in active:
                self.step(lane, op, operands)

    def value(self, lane: int, text: str):
        if text.startswith("%"):
            return self.lanes[lane][text]
        if text.startswith("0f"):
            return np.frombuffer(bytes.fromhex(text[2:])[::-1], dtype=np.float32)[0]
        return int(text, 0)

    def address(self, lane: int, text: str) -> int:
        name, _, offset = text.strip("[]").partition("+")
        return self.lanes[lane][name] + int(offset or 0)

    def step(self, lane: int, op: str, operands: list[str]) -> None:
        registers = self.lanes[lane]
        words = op.split(".")
        if op == "ret":
            self.at[lane] = len(self.kernel.code)
        elif op == "bra":
            self.at[lane] = self.kernel.labels[operands[0]]
        elif words[:2] == ["ld", "param"]:
            registers[operands[0]] = self.arguments[operands[1].strip("[]")]
        elif words[0] == "ld":
            names = operands[0].strip("{}").replace(" ", "").split(",")
            where = self.address(lane, operands[1])
            assert where % (4 * len(names)) == 0, f"{op} at {where}"
            for i, name in enumerate(names):
                registers[name] = struct.unpack_from("<I", self.memory, where + 4 * i)[0]
        elif words[0] == "st":
            names = operands[1].strip("{}").replace(" ", "").split(",")
            where = self.address(lane, operands[0])
            assert where % (4 * len(names)) == 0, f"{op} at {where}"
            for i, name in enumerate(names):
                struct.pack_into("<f" if words[-1] == "f32" else "<I", self.memory, where + 4 * i, registers[name])
        elif words[0] == "red":
            where = self.address(lane, operands[0])
            sum_ = struct.unpack_from("<I", self.memory, where)[0] + registers[operands[1]]
            struct.pack_into("<I", self.memory, where, sum_ & MASK["32"])
        else:
            values = [self.value(lane, operand) for operand in operands[1:]]
            registers[operands[0]] = self.compute(words, values)

    @staticmethod
    def compute(words: list[str], values: list):
        name, kind = words[0], words[-1]
        if kind == "f32" and name in ("add", "mul", "fma"):
            with np.errstate(all="ignore"):
                if name == "fma":
                    # Exact in double precision for these numbers, and rounded once.
                    return np.float32(np.longdouble(values[0]) * np.longdouble(values[1]) + np.longdouble(values[2]))
                return np.float32(values[0] + values[1] if name == "add" else values[0] * values[1])
        if words[:3] == ["cvt", "rn", "f32"]:
            return np.float32(values[0])
        if name == "mov" and kind == "f32" or name in ("cvta",):
            return values[0]
        bits = "64" if kind.endswith("64") else "32"
        if name == "cvt":
            return values[0] & MASK[words[1][-2:]]
        if name == "setp":
            return {"ge": values[0] >= values[1], "ne": values[0] != values[1]}[words[1]]
        if words[:2] == ["mul", "wide"]:
            return values[0] * values[1]
        result = {
            "mov": lambda a: a,
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "and": lambda a, b: a & b,
            "shl": lambda a, b: a << b,
            "shr": lambda a, b: a >> b,
            "mad": lambda a, b, c: a * b + c,
        }[name](*values)
        return result & MASK[bits]

    def shuffle(self, op: str, operands: list[str]) -> None:
        """Down by so many lanes; beyond the last a lane keeps its own."""
        assert op == "shfl.sync.down.b32", op
        to, source, by = operands[0], operands[1], int(operands[2])
        before = [registers[source] for registers in self.lanes]
        for lane, registers in enumerate(self.lanes):
            registers[to] = before[lane + by if lane + by < WARP else lane]

    def multiply(self, op: str, operands: list[str]) -> None:
        """m16n8k16 as the PTX manual lays it out over the lanes of a warp."""
        names = [operand.strip("{}").replace(" ", "").split(",") for operand in operands]
        a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
        c = np.zeros((16, 8), np.float32)
        convert = of_bf16 if ".bf16." in op else of_f16
        for lane, registers in enumerate(self.lanes):
            group, inside = lane // 4, lane % 4
            for i in range(8):
                row = group + (8 if i in (2, 3, 6, 7) else 0)
                column = inside * 2 + i % 2 + (8 if i >= 4 else 0)
                a[row, column] = convert(registers[names[1][i // 2]] >> 16 * (i % 2) & 0xFFFF)
            for i in range(4):
                row = inside * 2 + i % 2 + (8 if i >= 2 else 0)
                b[row, group] = convert(registers[names[2][i // 2]] >> 16 * (i % 2) & 0xFFFF)
            for i in range(4):
                c[group + (8 if i >= 2 else 0), inside * 2 + i % 2] = registers[names[3][i]]
        d = a @ b + c
        for lane, registers in enumerate(self.lanes):
            group, inside = lane // 4, lane % 4
            for i in range(4):
                registers[names[0][i]] = d[group + (8 if i >= 2 else 0), inside * 2 + i % 2]


def of_bf16(bits: int) -> np.float32:
    return np.frombuffer(struct.pack("<I", bits << 16), np.float32)[0]


def of_f16(bits: int) -> np.float32:
    return np.float32(np.frombuffer(struct.pack("<H", bits), np.float16)[0])


def fill_and_read(folder: Path) -> bool:
    text = (folder / "memory.ptx").read_text()
    blocks, threads = 2, 64
    # Three rounds of four loads of four numbers for each thread; something else behind them.
    count = 3 * 16 * blocks * threads
    begin, sum_at = 256, 0
    memory = bytearray(begin + 4 * count + 64)
    Kernel(text, "fill").run(memory, blocks, threads, to=begin, count=count)
    i = np.arange(count, dtype=np.uint32)
    expected = i * np.uint32(0x9E3779B9) + np.uint32(12345)
    found = np.frombuffer(memory, np.uint32, count, begin)
    is_filled = np.array_equal(found, expected) and not any(memory[begin + 4 * count :])
    sum_ = Kernel(text, "read_sum")
    for _ in range(2):
        sum_.run(memory, blocks, threads, **{"from": begin, "count": count, "sum": sum_at})
    added = struct.unpack_from("<I", memory, sum_at)[0]
    return is_filled and added == 2 * int(expected.sum(dtype=np.uint64)) & MASK["32"]


def fused(folder: Path) -> bool:
    blocks, threads, rounds, begin = 2, 32, 2, 64
    memory = bytearray(begin + 4 * blocks * threads)
    kernel = Kernel((folder / "fma.ptx").read_text(), "fma_f32")
    kernel.run(memory, blocks, threads, out=begin, rounds=rounds)
    found = np.frombuffer(memory, np.float32, blocks * threads, begin)
    expected = []
    for thread in range(blocks * threads):
        chains = [np.float32((thread & 1023) / 1024) + np.float32(chain / 8) for chain in range(8)]
        for _ in range(16 * rounds):
            chains = [np.float32(np.longdouble(x) * (1 - 2**-11) + 2**-5) for x in chains]
        total = chains[0]
        for x in chains[1:]:
            total = np.float32(total + x)
        expected.append(total)
    return np.array_equal(found, np.array(expected, np.float32))


def products(folder: Path, kind: str) -> bool:
    random = np.random.default_rng(7)
    a = random.integers(-15, 16, (16, 16)).astype(np.float32) / 8
    b = random.integers(-15, 16, (8, 8, 16)).astype(np.float32) / 8
    as_bits = {
        "f16": lambda m: m.astype(np.float16).tobytes(),
        "bf16": lambda m: (m.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[kind]
    blocks, threads, rounds = 2, 64, 3
    out = 512 + 8 * 256
    memory = bytearray(out + blocks * threads // WARP * 4096)
    memory[:512], memory[512:out] = as_bits(a), as_bits(b)
    kernel = Kernel((folder / "mma.ptx").read_text(), f"mma_{kind}")
    kernel.run(memory, blocks, threads, a=0, b=512, out=out, rounds=rounds)
    found = np.frombuffer(memory, np.float32, -1, out).reshape(-1, 8, 16, 8)
    # Of each of the eight the columns lie one after the other.
    expected = rounds * np.einsum("rk,jnk->jrn", a, b)
    return found.shape[0] == 4 and all(np.array_equal(warp, expected) for warp in found)


def main() -> int:
    folder = Path(sys.argv[1])
    results = {
        "fill, read_sum": fill_and_read(folder),
        "fma_f32": fused(folder),
        "mma_f16": products(folder, "f16"),
        "mma_bf16": products(folder, "bf16"),
    }
    for name, is_right in results.items():
        print(f"{name}: {'right' if is_right else 'WRONG'}")
    return int(not all(results.values()))


if __name__ == "__main__":
    sys.exit(main())
