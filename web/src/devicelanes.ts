/**
 * Who computed when: a lane for the processor, one for each device, one for each way of copies.
 *
 * A wide window comes as a grid: the height of a column says which share of its time something
 * ran. A narrow one comes as the evaluations, nodes, kernels and copies themselves. What nobody
 * measured is hatched, and never drawn as if it were known.
 */
import { CanvasPen, type Pen } from './canvas';
import { packed, textOn, withAlpha } from './colours';
import * as format from './format';
import {
  hasDevices,
  isBeside,
  laneFacts,
  laneName,
  laneSentence,
  PARTS,
  spanLinesOf,
  under,
  type Hit,
} from './lanetext';
import { Plot, type PlotOptions, type PlotPoint, type RasterLayer } from './plot';
import type { Filter } from './state';
import { cells } from './timeraster';
import type { TooltipLine } from './tooltip';
import type { Raster } from './api';
import type { LaneEval, LanesHeader } from './generated/index';
import type { App } from './view';

const LANE_PX = 24;
const MARGIN_TOP = 22;
const MARGIN_BOTTOM = 6;
/** Lines of an image for each lane: shares are that fine. */
const LINES = 24;
/** From one line of a hatch to the next. */
const HATCH_PX = 6;

export class DeviceLanes {
  readonly plot: Plot;
  private shown: { raster: Raster<LanesHeader>; layer: RasterLayer | null } | null = null;
  private filter: Filter | null = null;

  /** `options` are those that it shares with the plots around it. */
  constructor(
    private readonly host: HTMLElement,
    private readonly app: App,
    options: Pick<PlotOptions, 'colours' | 'moves' | 'moved' | 'resized' | 'x' | 'margin'>,
    private readonly act: {
      hover(time: number | null): void;
      lines(time: number): TooltipLine[];
      zoom(begin: number, end: number): void;
      atRest(time: number): void;
    },
  ) {
    host.hidden = !this.isWanted;
    this.plot = new Plot(host, {
      ...options,
      label: 'processor, devices and copies over time',
      y: {
        label: '',
        kind: 'names',
        limits: [0, 1],
        isFixed: true,
        ticks: () => this.lanes.map((lane, i) => ({ at: i + 0.5, text: laneName(lane), isName: true })),
      },
      margin: { ...options.margin, top: MARGIN_TOP, bottom: MARGIN_BOTTOM },
      draw: (context) => this.draw(context),
      decorate: (pen, plot) => this.drawKey(pen, plot),
      hover: (point) => this.hover(point),
      click: (point) => this.click(point),
    });
  }

  destroy(): void {
    this.plot.destroy();
  }

  /** Of a run of the processor alone there is one lane, which says nothing. */
  get isWanted(): boolean {
    return hasDevices(this.app.info);
  }

  async fetch(window: { t0: number; t1: number; w: number }, filter: Filter, isLate: () => boolean): Promise<void> {
    this.host.hidden = !this.isWanted;
    if (!this.isWanted) return;
    const answer = await this.app.api.lanes(window, filter);
    if (isLate()) return;
    const { header } = answer;
    this.filter = filter;
    this.shown = { raster: answer, layer: header.spans ? null : this.paint(answer) };
    const height = `${MARGIN_TOP + MARGIN_BOTTOM + LANE_PX * Math.max(1, header.lanes.length)}px`;
    if (this.host.style.flexBasis !== height) this.host.style.flex = `0 0 ${height}`;
    this.plot.y.options.limits = [0, Math.max(1, header.lanes.length)];
    this.plot.y.showAll();
    this.plot.redraw();
  }

  /** The theme or what is coloured has changed. */
  repaint(): void {
    if (this.shown?.layer) this.shown.layer = this.paint(this.shown.raster);
    this.plot.redraw();
  }

  private get lanes() {
    return this.shown?.raster.header.lanes ?? [];
  }

  private get ran(): string {
    return this.app.colours.category(0);
  }

  private paint({ header, values }: Raster<LanesHeader>): RasterLayer {
    const { colours } = this.app;
    const rgb = (colour: string) => packed(colour) & 0xffffff;
    const [ran, gap, muted] = [rgb(this.ran), rgb(colours.fault), rgb(colours.muted)];
    const rows = header.lanes.length;
    const image = cells(header.w, rows * LINES, (pixels) => {
      for (let lane = 0; lane < rows; lane++) {
        for (let x = 0; x < header.w; x++) {
          let y = LINES - 1;
          for (let part = 0; part < PARTS; part++) {
            const share = values[(lane * PARTS + part) * header.w + x] ?? 0;
            // What is there at all must be seen, however short it was.
            const lines = share > 0 ? Math.max(1, Math.round(share * (LINES - 2))) : 0;
            for (let i = 0; i < lines && y > 1; i++, y--) {
              const isHatched = part > 1 && (x + y) % 4 > (part === 2 ? 1 : 0);
              const colour = part === 0 ? ran : part === 1 ? gap : muted;
              const alpha = isHatched ? 0x30 : part > 1 ? 0xb0 : 0xff;
              pixels[(lane * LINES + y) * header.w + x] = ((alpha << 24) | colour) >>> 0;
            }
          }
        }
      }
    });
    return { image, x0: header.t0, x1: header.t1, y0: 0, y1: rows };
  }

  private draw(context: CanvasRenderingContext2D): void {
    const { plot, shown } = this;
    const { colours, state } = this.app;
    if (!shown) return;
    const { header } = shown.raster;
    const lane = plot.innerHeight / Math.max(1, header.lanes.length);
    if (shown.layer) plot.drawRaster(context, shown.layer);
    context.fillStyle = colours.grid;
    for (let i = 1; i < header.lanes.length; i++)
      context.fillRect(plot.margin.left, Math.round(plot.py(i)), plot.innerWidth, 1);
    const { spans } = header;
    if (!spans) return;
    const pen = new CanvasPen(context);
    const [left, right] = [plot.margin.left, plot.margin.left + plot.innerWidth];
    const box = (begin: number, end: number, at: number, least: number) => {
      const x = Math.max(left - 2, plot.px(begin));
      return { x, y: plot.py(at) + 2, width: Math.max(least, Math.min(right + 2, plot.px(end)) - x), height: lane - 4 };
    };
    for (const one of spans.evals) {
      const { x, y, width, height } = box(one.begin, one.end, one.lane, 1);
      this.drawEval(context, pen, one, x, y, width, height);
      if (one.kernels_begin === null || one.kernels_end === null) continue;
      const between = box(one.kernels_begin, one.kernels_end, one.lane, 1);
      context.fillStyle = colours.fault;
      context.fillRect(between.x, between.y, between.width, between.height);
    }
    for (const one of spans.work) {
      const { x, y, width, height } = box(one.begin, one.end, one.lane, 0.6);
      const colour = one.op === null ? colours.muted : colours.op(one.op);
      context.fillStyle = colour;
      context.fillRect(x, y, width, height);
      if (one.eval === state.eval && one.step !== null && one.step === state.step) {
        context.strokeStyle = colours.text;
        context.lineWidth = 2;
        context.strokeRect(x - 1, y - 1, Math.max(3, width + 2), height + 2);
      }
      const text = [`${one.op ?? ''} ${one.name ?? ''}`, one.op ?? ''].find((t) => pen.measure(t) <= width - 8);
      if (text && width > 28) pen.text(text, Math.max(x, left) + 4, y + height / 2, { colour: textOn(colour) });
    }
    for (const one of spans.copies) {
      const { x, y, width, height } = box(one.begin, one.end, one.lane, 2);
      const colour = colours.component(one.component);
      context.fillStyle = colour;
      context.fillRect(x, y, width, height);
      const text = `${one.tensor} ${format.bytes(one.bytes)}`;
      if (pen.measure(text) <= width - 8) pen.text(text, x + 4, y + height / 2, { colour: textOn(colour) });
    }
  }

  private drawEval(
    context: CanvasRenderingContext2D,
    pen: Pen,
    one: LaneEval,
    x: number,
    y: number,
    width: number,
    height: number,
  ): void {
    const { colours } = this.app;
    context.fillStyle = withAlpha(colours.muted, 0.18);
    context.fillRect(x, y, width, height);
    const sentence = laneSentence(one);
    if (sentence === null) return;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = withAlpha(colours.muted, one.times === 'call' ? 0.35 : 0.7);
    context.lineWidth = 1;
    context.beginPath();
    for (let from = x - height; from < x + width; from += HATCH_PX) {
      context.moveTo(from, y + height);
      context.lineTo(from + height, y);
    }
    context.stroke();
    context.restore();
    const room = width - 10;
    if (pen.measure(sentence) > room) return;
    context.fillStyle = colours.panel;
    context.fillRect(x + 3, y + 3, pen.measure(sentence) + 6, height - 6);
    pen.text(sentence, x + 6, y + height / 2, { colour: colours.text });
  }

  /** What the colours mean, and what the window has of each. */
  private drawKey(pen: Pen, plot: Plot): void {
    const { colours } = this.app;
    if (!this.shown) return;
    const facts = laneFacts(this.lanes);
    let x = plot.margin.left;
    const item = (text: string, colour: string, isHatched = false) => {
      pen.rect(x, 6, 9, 9, isHatched ? withAlpha(colours.muted, 0.18) : colour);
      if (isHatched) for (let i = 0; i < 3; i++) pen.line(x + i * 3, 15, x + i * 3 + 3, 6, colour);
      pen.text(text, x + 13, 11, { colour: colours.muted });
      x += pen.measure(text) + 30;
    };
    if (!this.shown.raster.header.spans) item('ran', this.ran);
    if (facts.gaps) item(facts.gaps, colours.fault);
    if (facts.untimed) item(facts.untimed, colours.muted, true);
    if (facts.asked) item(facts.asked, withAlpha(colours.muted, 0.5), true);
    if (this.filter && isBeside(this.filter))
      pen.text('these lanes follow phase, tokens and device only', x, 11, { colour: colours.muted });
  }

  private hit(point: PlotPoint): Hit | null {
    const header = this.shown?.raster.header;
    if (!header) return null;
    const slack = (this.plot.x.span / this.plot.innerWidth) * 2;
    return under(header, Math.floor(point.y), point.x, slack);
  }

  private hover(point: PlotPoint | null): void {
    const { tooltip, colours } = this.app;
    this.act.hover(point?.x ?? null);
    const lane = point ? this.lanes[Math.floor(point.y)] : undefined;
    if (!point || !lane) return tooltip.hide();
    const hit = this.hit(point);
    const { title, lines } = spanLinesOf(this.shown as { raster: Raster<LanesHeader> }, lane, hit, point);
    const colour =
      hit?.kind === 'work' && hit.of.op !== null
        ? colours.op(hit.of.op)
        : hit?.kind === 'copy'
          ? colours.component(hit.of.component)
          : undefined;
    // An evaluation of a lane is another one than that which the host began last.
    tooltip.show(point.clientX, point.clientY, title, hit ? lines : [...lines, ...this.act.lines(point.x)], colour);
  }

  private click(point: PlotPoint): void {
    const hit = this.hit(point);
    if (hit?.kind === 'work' && hit.of.step !== null)
      return this.app.setState({ eval: hit.of.eval, step: hit.of.step });
    if (hit?.kind === 'eval') return this.act.zoom(hit.of.begin, hit.of.end);
    if (!this.shown?.raster.header.spans) this.act.atRest(point.x);
  }
}
