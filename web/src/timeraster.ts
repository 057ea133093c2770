/** Rasters over time as images, and what lies under the pointer when there are single nodes and accesses. */
import type { Axis } from './axis';
import { paint } from './canvas';
import { packed, type Colours } from './colours';
import type { RasterLayer } from './plot';
import type { Raster } from './api';
import type { ExactAccess, NodeSpan, NodesHeader, OffsetsHeader } from './generated/index';

/** How much more than the window is fetched, on each side. */
const PAD = 0.2;
/** Less than this share of the window left beside it: time to fetch. */
const NEAR = 0.06;

/** A range that was fetched, and the length of the window that it was fetched for. */
export interface Asked {
  window: [number, number];
  span: number;
}

/** What to fetch for an axis: its window, widened on both sides, in whole numbers. */
export function wanted(axis: Axis): Asked {
  const [low, high] = axis.widened(axis.options.isFixed ? 0 : PAD);
  return { window: [Math.floor(low), Math.ceil(high)], span: axis.span };
}

/** Whether what was fetched shows the axis sharply, with some room to pan on. */
export function isCovered({ window: [low, high], span }: Asked, axis: Axis): boolean {
  const [min, max] = axis.options.limits;
  const near = axis.span * NEAR;
  return (
    Math.abs(axis.span / span - 1) < 0.01 &&
    (low <= min || low <= axis.low - near) &&
    (high >= max || high >= axis.high + near)
  );
}

/** Lanes by layer: the colour says which op, the strength how busy it is. */
export function paintLanes(
  header: Extract<NodesHeader, { kind: 'raster' }>,
  values: Float32Array,
  opNames: readonly string[],
  colours: Colours,
): RasterLayer {
  const ops = opNames.map((op) => packed(colours.op(op)) & 0xffffff);
  const rows = header.lanes.length;
  // Of many layers each is busy for a small share of the time: relative to the busiest.
  const busiest = values.reduce((most, value) => (value > most ? value : most), 1e-9);
  const image = cells(header.w, rows, (pixels) => {
    for (let i = 0; i < header.w * rows; i++) {
      const op = header.ops[i] ?? -1;
      // Busy at all must be seen, however short it was.
      if (op >= 0) pixels[i] = coloured(ops[op] ?? 0x888888, 0.25 + 0.75 * Math.sqrt((values[i] ?? 0) / busiest));
    }
  });
  return { image, x0: header.t0, x1: header.t1, y0: 0, y1: rows };
}

/** Offsets by bytes. */
export function paintBytes({ header, values }: Raster<OffsetsHeader>, colours: Colours): RasterLayer {
  const image = paint(values, header.w, header.h, colours.counts, { max: header.max, scale: 'sqrt', zero: 0 });
  return { image, ...place(header) };
}

/** Offsets by token: the colour says which one, the strength how many bytes. */
export function paintTokens(
  { header, values }: Raster<OffsetsHeader>,
  shareAt: (time: number) => number,
  colours: Colours,
): RasterLayer {
  const columns = Uint32Array.from({ length: header.w }, (_, x) => {
    const time = header.t0 + ((x + 0.5) / header.w) * (header.t1 - header.t0);
    return (colours.time[Math.round(shareAt(time) * 255)] as number) & 0xffffff;
  });
  // Some hundred thousand cells while the plot moves: no call per cell.
  const perMax = header.max > 0 ? 1 / header.max : 0;
  const image = cells(header.w, header.h, (pixels) => {
    for (let y = 0, i = 0; y < header.h; y++) {
      for (let x = 0; x < header.w; x++, i++) {
        const value = values[i] as number;
        if (!(value > 0)) continue;
        const alpha = Math.min(255, 115 + 140 * Math.sqrt(value * perMax)) | 0;
        pixels[i] = ((alpha << 24) | (columns[x] as number)) >>> 0;
      }
    }
  });
  return { image, ...place(header) };
}

/** The node of a lane at a moment, or the nearest within the slack. */
export function spanAt(spans: readonly NodeSpan[], layer: number | null, time: number, slack: number): NodeSpan | null {
  let best: NodeSpan | null = null;
  let distance = slack;
  for (const span of spans) {
    if (span.layer !== layer) continue;
    const away = Math.max(0, span.begin - time, time - span.end);
    if (away < distance || (away === 0 && distance > 0)) {
      best = span;
      distance = away;
    }
  }
  return best;
}

/** The access at a place, or the nearest within the slacks. */
export function accessAt(
  accesses: readonly ExactAccess[],
  at: { x: number; y: number },
  slackX: number,
  slackY: number,
): ExactAccess | null {
  let best: ExactAccess | null = null;
  let distance = Number.POSITIVE_INFINITY;
  for (const access of accesses) {
    const dx = Math.max(0, access.begin - at.x, at.x - access.end);
    const dy = Math.max(0, access.offset - at.y, at.y - access.offset - access.bytes);
    if (dx > slackX || dy > slackY) continue;
    const away = dx / slackX + dy / slackY;
    if (away < distance) {
      best = access;
      distance = away;
    }
  }
  return best;
}

function place(header: OffsetsHeader): { x0: number; x1: number; y0: number; y1: number } {
  return { x0: header.t0, x1: header.t1, y0: header.o0, y1: header.o1 };
}

function coloured(rgb: number, alpha: number): number {
  return ((Math.round(255 * Math.min(1, alpha)) << 24) | rgb) >>> 0;
}

/** An image of one pixel per cell, 0xAABBGGRR each; transparent where nothing is filled in. */
export function cells(width: number, height: number, fill: (pixels: Uint32Array) => void): HTMLCanvasElement {
  const image = document.createElement('canvas');
  image.width = Math.max(1, width);
  image.height = Math.max(1, height);
  const data = new ImageData(image.width, image.height);
  const pixels = new Uint32Array(data.data.buffer);
  fill(pixels);
  (image.getContext('2d') as CanvasRenderingContext2D).putImageData(data, 0, 0);
  return image;
}
