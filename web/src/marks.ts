/**
 * What the kernel did, over the offset plot: major page faults and reads from
 * the disk. Each is a raster of small cells in one colour; the strength says how
 * many faults or bytes. Runs without the kernel's logs ask for nothing.
 */
import type { Pen } from './canvas';
import { packed } from './colours';
import * as format from './format';
import type { Plot, PlotPoint, RasterLayer } from './plot';
import type { Filter } from './state';
import { cells } from './timeraster';
import type { Raster } from './api';
import type { MarksHeader } from './generated/index';
import type { App } from './view';

export type MarkKind = MarksHeader['of'];

export const MARK_KINDS: readonly { kind: MarkKind; text: string; title: string }[] = [
  { kind: 'faults', text: 'faults', title: 'major page faults (x); needs `record --faults`' },
  {
    kind: 'reads',
    text: 'disk reads',
    title: 'reads from the disk, from issue to completion (r); needs `record --io`',
  },
];
/** Side of a mark in pixels: a single fault must be seen, and the read around it. */
const MARK_PX: Record<MarkKind, number> = { faults: 2, reads: 4 };

/** So many cells of faults, and fewer, are drawn larger, one by one. */
const MAX_DOTS = 2000;
const DOT_PX = 4;

interface Shown {
  raster: Raster<MarksHeader>;
  layer: RasterLayer;
  /** Middles of cells of faults where those are few. */
  dots: [number, number][] | null;
}

interface Window {
  t0: number;
  t1: number;
  o0: number;
  o1: number;
  w: number;
  h: number;
}

export class Marks {
  private shown: Shown[] = [];

  constructor(private readonly app: App) {}

  get isRecorded(): boolean {
    return this.app.info.kernel.faults || this.app.info.kernel.io;
  }

  get hasAny(): boolean {
    return this.shown.some(({ raster }) => raster.header.events > 0);
  }

  /** Kinds that are recorded and not switched off. */
  get wanted(): MarkKind[] {
    const { info, state } = this.app;
    const has = { faults: info.kernel.faults, reads: info.kernel.io };
    return MARK_KINDS.map(({ kind }) => kind).filter((kind) => has[kind] && state.opt[`timeline.${kind}`] !== 'off');
  }

  flip(kind: MarkKind): void {
    if (this.isRecorded) this.app.setOpt(`timeline.${kind}`, this.wanted.includes(kind) ? 'off' : null);
  }

  colour(kind: MarkKind): string {
    return kind === 'faults' ? this.app.colours.fault : this.app.colours.disk;
  }

  /** `w` and `h` are pixels; a mark has several. */
  fetch({ w, h, ...window }: Window, filter: Filter): Promise<Raster<MarksHeader>[]> {
    const side = (pixels: number, of: MarkKind) => Math.max(1, Math.min(2048, Math.round(pixels / MARK_PX[of])));
    return Promise.all(
      this.wanted.map((of) => this.app.api.marks({ of, ...window, w: side(w, of), h: side(h, of) }, filter)),
    );
  }

  show(rasters: readonly Raster<MarksHeader>[]): void {
    // Faults are fewer, and drawn last.
    this.shown = rasters
      .map((raster) => ({ raster, layer: paint(raster, this.colour(raster.header.of)), dots: dotsOf(raster) }))
      .reverse();
  }

  draw(context: CanvasRenderingContext2D, plot: Plot): void {
    for (const { layer, dots } of this.shown) {
      if (!dots) plot.drawRaster(context, layer);
      context.fillStyle = this.app.colours.fault;
      for (const [x, y] of dots ?? [])
        context.fillRect(plot.px(x) - DOT_PX / 2, plot.py(y) - DOT_PX / 2, DOT_PX, DOT_PX);
    }
  }

  /** Above the plot: what the colours mean, and how much of it the window holds. */
  drawLegend(pen: Pen, plot: Plot): void {
    let x = plot.margin.left;
    for (const { raster } of [...this.shown].reverse()) {
      const { header } = raster;
      const amount = amountIn(raster, plot);
      const text =
        header.of === 'faults'
          ? `${format.count(Math.round(amount))} major faults`
          : `${format.bytes(Math.round(amount))} read from disk`;
      pen.rect(x, 8, 8, 8, this.colour(header.of));
      pen.text(text, x + 12, 12, { colour: this.app.colours.muted });
      x += pen.measure(text) + 28;
    }
  }

  /** What lies in the cells under the pointer. */
  lines(point: PlotPoint): [string, string][] {
    return [...this.shown].reverse().map(({ raster: { header, values } }) => {
      const x = Math.floor(((point.x - header.t0) / (header.t1 - header.t0)) * header.w);
      const y = Math.floor(((point.y - header.o0) / (header.o1 - header.o0)) * header.h);
      const isInside = x >= 0 && y >= 0 && x < header.w && y < header.h;
      const value = isInside ? (values[y * header.w + x] ?? 0) : 0;
      return header.of === 'faults'
        ? ['major faults here', format.count(Math.round(value))]
        : ['read from disk here', format.bytes(value)];
    });
  }
}

function dotsOf({ header, values }: Raster<MarksHeader>): [number, number][] | null {
  if (header.of !== 'faults' || header.events > MAX_DOTS) return null;
  const dots: [number, number][] = [];
  values.forEach((value, at) => {
    if (!(value > 0)) return;
    const [column, row] = [at % header.w, Math.floor(at / header.w)];
    dots.push([
      header.t0 + ((column + 0.5) / header.w) * (header.t1 - header.t0),
      header.o0 + ((row + 0.5) / header.h) * (header.o1 - header.o0),
    ]);
  });
  return dots;
}

/** What the cells in sight hold; more than those were fetched. */
function amountIn({ header, values }: Raster<MarksHeader>, { x, y }: Plot): number {
  const first = (low: number, from: number, to: number, count: number) =>
    Math.max(0, Math.round(((low - from) / (to - from)) * count));
  const end = (high: number, from: number, to: number, count: number) =>
    Math.min(count, Math.round(((high - from) / (to - from)) * count));
  const [x0, x1] = [first(x.low, header.t0, header.t1, header.w), end(x.high, header.t0, header.t1, header.w)];
  const [y0, y1] = [first(y.low, header.o0, header.o1, header.h), end(y.high, header.o0, header.o1, header.h)];
  let sum = 0;
  for (let row = y0; row < y1; row++)
    for (let at = row * header.w + x0; at < row * header.w + x1; at++) sum += values[at] as number;
  return sum;
}

function paint({ header, values }: Raster<MarksHeader>, colour: string): RasterLayer {
  const rgb = packed(colour) & 0xffffff;
  // A fault is as small as can be seen: it must not be faint besides.
  const least = header.of === 'faults' ? 235 : 130;
  const perMax = header.max > 0 ? 1 / header.max : 0;
  const image = cells(header.w, header.h, (pixels) => {
    for (let i = 0; i < values.length; i++) {
      const value = values[i] as number;
      if (!(value > 0)) continue;
      const alpha = Math.min(255, least + (255 - least) * Math.sqrt(value * perMax)) | 0;
      pixels[i] = ((alpha << 24) | rgb) >>> 0;
    }
  });
  return { image, x0: header.t0, x1: header.t1, y0: header.o0, y1: header.o1 };
}
