/**
 * What the kernel did, on the map of the playback: pages that were not in memory
 * at the end of the evaluation are dark and hatched, and cells with major faults
 * of its tokens are marked. Runs without the kernel's logs ask for nothing.
 */
import { isAbort } from './api';
import { withAlpha } from './colours';
import { h } from './dom';
import * as format from './format';
import type { Raster } from './api';
import type { EvalInfo, MapHeader } from './generated/index';
import type { App } from './view';

export class KernelCells {
  /** The key of the marks, with numbers. */
  readonly element = h('div', { class: 'play-kernel' });
  private asked = '';
  private columns = 1;
  private rows = 1;
  private pages: Raster<MapHeader> | null = null;
  private faults: Raster<MapHeader> | null = null;
  /** Missing pages as an image, painted once per answer and theme. */
  private hatched: HTMLCanvasElement | null = null;
  private hatchedKey = '';

  constructor(
    private readonly app: App,
    private readonly changed: () => void,
  ) {
    const { kernel } = app.info;
    this.element.hidden = !kernel.residency && !kernel.faults;
  }

  /** Fetches what belongs to an evaluation on a map of this size, unless it is there or on its way. */
  ask(detail: EvalInfo, columns: number, rows: number): void {
    const { info, state, api } = this.app;
    if (!info.kernel.residency && !info.kernel.faults) return;
    const asked = JSON.stringify([state.run, info.version, detail.eval, columns, rows, state.filter]);
    if (asked === this.asked) return;
    this.asked = asked;
    const cells = columns * rows;
    const [first, last] = [detail.tokens[0], detail.tokens.at(-1)];
    const ofTokens = first && last ? { ...state.filter, tokens: [first.token, last.token] as [number, number] } : null;
    const none = Promise.resolve(null);
    void Promise.all([
      info.kernel.residency
        ? api.map({ cells, metric: 'residency', at: detail.end }, state.filter, 'play-pages')
        : none,
      info.kernel.faults && ofTokens ? api.map({ cells, metric: 'faults' }, ofTokens, 'play-faults') : none,
    ])
      .then(([pages, faults]) => {
        if (asked !== this.asked) return;
        [this.pages, this.faults, this.columns, this.rows] = [pages, faults, columns, rows];
        this.hatchedKey = '';
        this.showKey();
        this.changed();
      })
      .catch((error: unknown) => {
        if (!isAbort(error)) this.element.textContent = error instanceof Error ? error.message : String(error);
      });
  }

  drawMissing(context: CanvasRenderingContext2D, cellPx: number): void {
    const { pages, columns, rows } = this;
    if (!pages?.header.sampled) return;
    const key = this.app.colours.theme;
    if (key !== this.hatchedKey) {
      this.hatched = this.paintMissing(pages, cellPx);
      this.hatchedKey = key;
    }
    if (this.hatched) context.drawImage(this.hatched, 0, 0, columns * cellPx, rows * cellPx);
  }

  drawFaults(context: CanvasRenderingContext2D, cellPx: number): void {
    const { faults, columns } = this;
    if (!faults) return;
    context.fillStyle = this.app.colours.fault;
    const side = Math.max(3, cellPx / 2 - 1);
    const shift = (cellPx - 1 - side) / 2;
    faults.values.forEach((count, cell) => {
      if (count > 0)
        context.fillRect((cell % columns) * cellPx + shift, Math.floor(cell / columns) * cellPx + shift, side, side);
    });
  }

  private paintMissing({ values, header }: Raster<MapHeader>, cellPx: number): HTMLCanvasElement {
    const { colours } = this.app;
    const canvas = document.createElement('canvas');
    canvas.width = this.columns * cellPx;
    canvas.height = this.rows * cellPx;
    const context = canvas.getContext('2d') as CanvasRenderingContext2D;
    const inFile = Math.ceil(header.total_bytes / header.cell_bytes);
    context.lineWidth = 1;
    for (let cell = 0; cell < Math.min(inFile, values.length); cell++) {
      const missing = 1 - (values[cell] as number);
      // Unknown is not missing.
      if (!(missing > 0.02)) continue;
      const [x, y] = [(cell % this.columns) * cellPx, Math.floor(cell / this.columns) * cellPx];
      context.fillStyle = withAlpha(colours.ground, 0.35 + 0.6 * missing);
      context.fillRect(x, y, cellPx - 1, cellPx - 1);
      context.strokeStyle = withAlpha(colours.muted, 0.55 * missing);
      context.beginPath();
      context.moveTo(x, y + cellPx - 1);
      context.lineTo(x + cellPx - 1, y);
      context.stroke();
    }
    return canvas;
  }

  private showKey(): void {
    const { colours, info } = this.app;
    const items: (HTMLElement | string)[] = [];
    if (info.kernel.residency) {
      const sampled = this.pages?.header.sampled;
      items.push(
        sampled
          ? h(
              'span',
              {},
              'in memory ',
              h('b', {}, format.percent(sampled.resident_bytes / (this.pages?.header.total_bytes || 1))),
              ` at token ${format.integer(sampled.token)}; hatched: missing`,
            )
          : h('span', {}, 'pages in memory: not sampled yet'),
      );
    }
    if (this.faults) {
      const swatch = h('i', { class: 'swatch' });
      swatch.style.background = colours.fault;
      const count = Math.round(this.faults.values.reduce((sum, value) => sum + value, 0));
      items.push(
        h('span', {}, swatch, `${format.integer(count)} major fault${count === 1 ? '' : 's'} of this evaluation`),
      );
    }
    this.element.replaceChildren(...items);
  }
}
