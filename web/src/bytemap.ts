/**
 * A map of a model's bytes on a plot: rows of cells along the file, or a square in Hilbert order.
 * What the map of a run and the map of a model have in common; the colours of the cells are theirs.
 */
import type { Pen } from './canvas';
import { packed, withAlpha, type Colours } from './colours';
import { rowBytes, tensorBefore, type RowLayout } from './filemap';
import * as format from './format';
import { hilbertCurve, hilbertIndex } from './hilbert';
import type { Plot, PlotPoint } from './plot';
import type { Tick } from './ticks';
import { cells as cellImage } from './timeraster';
import type { TensorInfo } from './generated/index';

/** Beside the rows, for the names of layers and tensors. */
export const GUTTER_PX = 232;
const CELL_PX = 9;
/** What the server is ready to send, and enough for a model alone. */
const MAX_CELLS = 2 ** 20;
/** Zooming ends when the finest cells are this many rows high. */
const FEWEST_ROWS = 16;

export function imageOf(pixels: Uint32Array, width: number, height: number): HTMLCanvasElement {
  return cellImage(width, height, (out) => out.set(pixels.subarray(0, out.length)));
}

/** Cells that fit side by side. */
export function columnsOf(plot: Plot): number {
  return Math.max(8, Math.floor(plot.innerWidth / CELL_PX));
}

/** Cells of the whole model such that those in sight have about the wanted size; a power of two times the rows that fit. */
export function rowCells(plot: Plot, columns: number, total: number): number {
  const inSight = columns * Math.max(4, Math.floor(plot.innerHeight / CELL_PX));
  const zoom = 2 ** Math.round(Math.log2(total / plot.y.span));
  return Math.max(1, Math.min(MAX_CELLS, inSight * zoom, total));
}

/** The deepest zoom, in bytes in sight. */
export function fewestBytes(columns: number, total: number): number {
  return FEWEST_ROWS * columns * Math.ceil(total / MAX_CELLS);
}

/** Cells along a side of the square: a power of two. */
export function hilbertSide(plot: Plot): number {
  const room = Math.min(plot.innerWidth, plot.innerHeight);
  return Math.min(Math.sqrt(MAX_CELLS), 2 ** Math.max(4, Math.floor(Math.log2(room / 1.3))));
}

/** Colours of cells along the file, as a square. */
export function squareImage(pixels: Uint32Array, side: number, colours: Colours): HTMLCanvasElement {
  const curve = hilbertCurve(side);
  const square = new Uint32Array(side * side).fill(packed(colours.panel));
  pixels.forEach((pixel, d) => (square[curve[d] as number] = pixel));
  return imageOf(square, side, side);
}

export function squareOf(plot: Plot): { x: number; y: number; size: number } {
  return { x: plot.margin.left, y: plot.margin.top, size: Math.min(plot.innerWidth, plot.innerHeight) };
}

/** Thin lines between cells, so that they read as cells. */
export function drawGaps(context: CanvasRenderingContext2D, plot: Plot, layout: RowLayout, colours: Colours): void {
  const row = rowBytes(layout);
  const cellPx = plot.innerWidth / layout.columns;
  const rowPx = (row / plot.y.span) * plot.innerHeight;
  if (rowPx < 5 || cellPx < 5) return;
  context.fillStyle = withAlpha(colours.ground, 0.6);
  const { left, top } = plot.margin;
  for (let c = 1; c < layout.columns; c++) context.fillRect(left + c * cellPx - 0.5, top, 1, plot.innerHeight);
  for (let r = Math.floor(plot.y.low / row); r * row < plot.y.high; r++) {
    context.fillRect(left, plot.py(r * row) - 0.5, plot.innerWidth, 1);
  }
}

/** A border where a tensor or layer begins; `layers` is how many there are. */
export function drawBorders(
  context: CanvasRenderingContext2D,
  plot: Plot,
  layout: RowLayout,
  tensors: readonly TensorInfo[],
  layers: number,
  border: string,
): void {
  const { left } = plot.margin;
  const right = left + plot.innerWidth;
  const cellPx = plot.innerWidth / layout.columns;
  const row = rowBytes(layout);
  // Many layers in sight: thinner lines, lest the borders hide the map.
  const perLayer = (layout.totalBytes / Math.max(1, layers) / plot.y.span) * plot.innerHeight;
  const isCrowded = perLayer < 48;
  for (let i = Math.max(1, tensorBefore(tensors, plot.y.low - row)); i < tensors.length; i++) {
    const tensor = tensors[i] as TensorInfo;
    if (tensor.begin > plot.y.high) break;
    const isLayer = tensor.layer !== tensors[i - 1]?.layer;
    if (!isLayer && tensor.size_bytes <= layout.cellBytes * 2) continue;
    const r = Math.floor(tensor.begin / row);
    const x = Math.round(left + ((tensor.begin - r * row) / layout.cellBytes) * cellPx);
    const top = Math.round(plot.py(r * row));
    const bottom = Math.round(plot.py((r + 1) * row));
    context.fillStyle = withAlpha(border, isLayer ? 1 : isCrowded ? 0.3 : 0.55);
    const width = isLayer && !isCrowded ? 2 : 1;
    context.fillRect(x - width / 2, top, width, bottom - top);
    context.fillRect(x, top - width / 2, right - x, width);
    context.fillRect(left, bottom - width / 2, x - left, width);
  }
}

/** Left of each row the component that owns most of it; `owned` keeps what was worked out. */
export function drawRowOwners(
  pen: Pen,
  plot: Plot,
  layout: RowLayout,
  tensors: readonly TensorInfo[],
  owned: (string | null)[],
  colours: Colours,
): void {
  const row = rowBytes(layout);
  const bottom = plot.margin.top + plot.innerHeight;
  for (let r = Math.floor(plot.y.low / row); r * row < Math.min(plot.y.high, layout.totalBytes); r++) {
    const y0 = Math.max(plot.margin.top, plot.py(r * row));
    const y1 = Math.min(bottom, plot.py((r + 1) * row));
    const most = owned[r] === undefined ? (owned[r] = ownerOf(tensors, r * row, (r + 1) * row)) : owned[r];
    if (most && y1 > y0)
      pen.rect(plot.margin.left - 6, y0, 4, y1 - y0 - (y1 - y0 > 4 ? 1 : 0), colours.component(most));
  }
}

/** The component with the most bytes in a range; null where there is no tensor. */
export function ownerOf(tensors: readonly TensorInfo[], begin: number, end: number): string | null {
  const shares = new Map<string, number>();
  for (let i = Math.max(0, tensorBefore(tensors, begin)); i < tensors.length; i++) {
    const tensor = tensors[i] as TensorInfo;
    if (tensor.begin >= end) break;
    const part = Math.min(tensor.begin + tensor.size_bytes, end) - Math.max(tensor.begin, begin);
    if (part > 0) shares.set(tensor.component, (shares.get(tensor.component) ?? 0) + part);
  }
  return [...shares].sort((a, b) => b[1] - a[1])[0]?.[0] ?? null;
}

/** Below the rows: how far into its row a byte is. */
export function columnTicks(layout: RowLayout | null, pixels: number): Tick[] {
  if (!layout) return [];
  const row = rowBytes(layout);
  const most = Math.max(2, Math.floor(pixels / 110));
  const step = 2 ** Math.ceil(Math.log2(row / most));
  const ticks: Tick[] = [];
  for (let at = 0; at <= row * 0.97; at += step) ticks.push({ at: at / row, text: `+${format.bytes(at)}` });
  return ticks;
}

/** Position under the pointer, on rows or on a square of `side`; null beside the file. */
export function positionAt(plot: Plot, point: PlotPoint, layout: RowLayout, side: number | null): number | null {
  let position: number;
  if (side !== null) {
    const { size } = squareOf(plot);
    const gx = Math.floor(((((point.x - plot.x.low) / plot.x.span) * plot.innerWidth) / size) * side);
    const gy = Math.floor(((((point.y - plot.y.low) / plot.y.span) * plot.innerHeight) / size) * side);
    if (gx >= side || gy >= side) return null;
    position = hilbertIndex(side, gx, gy) * layout.cellBytes;
  } else {
    const row = rowBytes(layout);
    position = Math.floor(point.y / row) * row + Math.floor(point.x * row);
  }
  return position < 0 || position >= layout.totalBytes ? null : position;
}
