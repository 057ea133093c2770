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
import type { MarksHeader, Raster } from './types';
import type { App } from './view';

export type MarkKind = MarksHeader['of'];

export const MARK_KINDS: readonly { kind: MarkKind; text: string; title: string }[] = [
  { kind: 'faults', text: 'faults', title: 'major page faults (x); needs `record --faults`' },
  { kind: 'reads', text: 'disk reads', title: 'reads from the disk, from issue to completion (r); needs `record --io`' },
];
/** Side of a mark: a single fault must be seen. */
const MARK_PX = 3;

interface Window {
  t0: number;
  t1: number;
  o0: number;
  o1: number;
  w: number;
  h: number;
}

export class Marks {
  private shown: { raster: Raster<MarksHeader>; layer: RasterLayer }[] = [];

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
    const side = (pixels: number) => Math.max(1, Math.min(4096, Math.round(pixels / MARK_PX)));
    return Promise.all(this.wanted.map((of) => this.app.api.marks({ of, ...window, w: side(w), h: side(h) }, filter)));
  }

  show(rasters: readonly Raster<MarksHeader>[]): void {
    // Faults are fewer, and drawn last.
    this.shown = rasters.map((raster) => ({ raster, layer: paint(raster, this.colour(raster.header.of)) })).reverse();
  }

  draw(context: CanvasRenderingContext2D, plot: Plot): void {
    for (const { layer } of this.shown) plot.drawRaster(context, layer);
  }

  /** Above the plot: what the colours mean, and how much of it the window and its edges hold. */
  drawLegend(pen: Pen, plot: Plot): void {
    let x = plot.margin.left;
    for (const { raster: { header } } of [...this.shown].reverse()) {
      const text = header.of === 'faults' ? `${format.count(header.events)} major faults` : `${format.bytes(header.amount)} read from disk`;
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
      return header.of === 'faults' ? ['major faults here', format.count(Math.round(value))] : ['read from disk here', format.bytes(value)];
    });
  }
}

function paint({ header, values }: Raster<MarksHeader>, colour: string): RasterLayer {
  const rgb = packed(colour) & 0xffffff;
  const perMax = header.max > 0 ? 1 / header.max : 0;
  const image = cells(header.w, header.h, (pixels) => {
    for (let i = 0; i < values.length; i++) {
      const value = values[i] as number;
      if (!(value > 0)) continue;
      const alpha = Math.min(255, 150 + 105 * Math.sqrt(value * perMax)) | 0;
      pixels[i] = ((alpha << 24) | rgb) >>> 0;
    }
  });
  return { image, x0: header.t0, x1: header.t1, y0: header.o0, y1: header.o1 };
}
