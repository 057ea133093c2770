#!/usr/bin/env python3
"""Draws docs/images/routing.svg: which experts each token of a run was sent to.

    cargo xtask demo                      # records target/demo/run
    python3 docs/images/routing.py target/release/tensorscope target/demo/run docs/images/routing.svg

Plain Python; the numbers come from `tensorscope export`.
"""

import csv
import subprocess
import sys
from html import escape

# A sequential map that colour-blind readers can follow (viridis, five stops).
STOPS = [(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)]


def colour(weight):
    place = min(max(weight, 0.0), 0.999) * (len(STOPS) - 1)
    low = int(place)
    part = place - low
    mixed = [round(a + (b - a) * part) for a, b in zip(STOPS[low], STOPS[low + 1])]
    return "#%02x%02x%02x" % tuple(mixed)


def table(program, run, name):
    out = subprocess.run(
        [program, "export", run, "--table", name], check=True, capture_output=True, text=True
    )
    return list(csv.DictReader(out.stdout.splitlines(keepends=True)))


def main(program, run, target):
    tokens = table(program, run, "tokens")
    routing = table(program, run, "routing")
    layers = 1 + max(int(r["layer"]) for r in routing)
    experts = 1 + max(int(r["expert"]) for r in routing)
    cell_w, cell_h, gap, left, top = 15, 9, 14, 74, 46
    panel = experts * cell_h
    width = left + len(tokens) * cell_w + 110
    height = top + layers * (panel + gap) + 74
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="18" font-size="14" fill="#111">Experts chosen per token '
        f"({layers} layers, {experts} experts, top-2), as recorded from llama.cpp</text>",
        f'<text x="{left}" y="34" fill="#555">each row is an expert, each column a token; '
        "colour is the router's weight</text>",
    ]
    for layer in range(layers):
        y = top + layer * (panel + gap)
        svg.append(
            f'<rect x="{left}" y="{y}" width="{len(tokens) * cell_w}" height="{panel}" fill="#f0f0f4"/>'
        )
        svg.append(
            f'<text x="{left - 8}" y="{y + panel / 2 + 4}" text-anchor="end" fill="#111">layer {layer}</text>'
        )
    for row in routing:
        x = left + int(row["token"]) * cell_w
        y = top + int(row["layer"]) * (panel + gap) + int(row["expert"]) * cell_h
        svg.append(
            f'<rect x="{x}" y="{y}" width="{cell_w - 1}" height="{cell_h - 1}" '
            f'fill="{colour(float(row["weight"]))}"/>'
        )
    base = top + layers * (panel + gap) - 4
    for i, token in enumerate(tokens):
        text = token["text"].replace("\n", "⏎").replace(" ", "␣")
        x = left + i * cell_w + cell_w / 2
        weight = "bold" if token["phase"] == "prompt" else "normal"
        svg.append(
            f'<text transform="translate({x + 3},{base + 4}) rotate(90)" fill="#111" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )
    bar_x = left + len(tokens) * cell_w + 18
    for i in range(100):
        svg.append(
            f'<rect x="{bar_x}" y="{top + 120 - i * 1.2:.1f}" width="12" height="1.4" fill="{colour(i / 100)}"/>'
        )
    for value in (0, 0.5, 1):
        svg.append(f'<text x="{bar_x + 17}" y="{top + 124 - value * 120:.0f}" fill="#111">{value:g}</text>')
    svg.append(f'<text x="{bar_x}" y="{top + 142}" fill="#111">router weight</text>')
    svg.append("</svg>")
    with open(target, "w", encoding="utf-8") as out:
        out.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
