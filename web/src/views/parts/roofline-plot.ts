/** The roofline as a picture with a pointer, and its classes as a table below. */
import { crisp, FONT, CanvasPen } from '../../canvas';
import { withAlpha } from '../../colours';
import { fill, h, segmented } from '../../dom';
import * as format from '../../format';
import type { RooflineChart, RooflinePoint } from '../../generated/charts';
import type { App } from '../../view';
import { batchesOf, chosen, radiusOf, rangesOf, roofLines, ticksOf, type Ranges } from './roofline';

const HEIGHT = 380;
const LEFT = 64;
const RIGHT = 12;
const TOP = 18;
const BOTTOM = 40;
/** A pointer this far from a point still means it. */
const REACH = 5;
/** Names beside points; a pointer reads the others. */
const MAX_NAMES = 6;
const MAX_ROWS = 24;
/** What is shown of the tokens at once. */
export const BATCH = 'why.batch';

type Box = [left: number, top: number, right: number, bottom: number];

export class RooflinePlot {
  readonly element = h('div', { class: 'why-roofline' });
  private readonly canvas = h('canvas', { role: 'img' });
  private readonly control = h('div', { class: 'toolbar' });
  private readonly caption = h('p', { class: 'view-definition' });
  private readonly table = h('div', { class: 'why-classes' });
  private chart: RooflineChart | null = null;
  private points: RooflinePoint[] = [];
  private ranges: Ranges = { x: [0, 1], y: [0, 1] };
  private marked: RooflinePoint | null = null;
  private readonly watcher: ResizeObserver;

  constructor(private readonly app: App) {
    this.element.append(this.control, this.canvas, this.caption, this.table);
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => {
      this.app.tooltip.hide();
      this.mark(null);
    });
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
  }

  show(chart: RooflineChart, phase: string | null): void {
    this.chart = chart;
    const batches = batchesOf(chart, phase);
    const asked = this.app.state.opt[BATCH] ?? 'all';
    const batch = batches.some((one) => String(one) === asked) ? asked : 'all';
    this.points = chosen(chart, { phase, batch });
    this.marked = null;
    const control = segmented(
      'tokens at once',
      [
        { value: 'all', text: 'all' },
        ...batches.map((one) => ({ value: String(one), text: one > 2 ? `up to ${one}` : String(one) })),
      ],
      (value) => this.app.setOpt(BATCH, value === 'all' ? null : value),
    );
    control.set(batch);
    fill(this.control, batches.length > 1 && control.element);
    this.caption.textContent = `${chart.caption}.`;
    this.canvas.setAttribute(
      'aria-label',
      `Roofline of ${this.points.length} classes of nodes; the table below has them`,
    );
    fill(this.table, this.classes());
    this.draw();
  }

  /** What is shown, for an export. */
  get shown(): readonly RooflinePoint[] {
    return this.points;
  }

  destroy(): void {
    this.watcher.disconnect();
  }

  private px(x: number): number {
    const [from, to] = this.ranges.x;
    return LEFT + ((x - from) / (to - from)) * (this.width - LEFT - RIGHT);
  }

  private py(y: number): number {
    const [from, to] = this.ranges.y;
    return HEIGHT - BOTTOM - ((y - from) / (to - from)) * (HEIGHT - TOP - BOTTOM);
  }

  private get width(): number {
    return Math.max(280, this.element.clientWidth);
  }

  private at(point: RooflinePoint): [number, number] {
    return [this.px(Math.log10(point.intensity)), this.py(Math.log10(point.flops_per_second))];
  }

  private get longest(): number {
    return Math.max(1, ...this.points.map((point) => point.nanos));
  }

  private draw(): void {
    if (!this.chart || this.element.clientWidth === 0) return;
    this.ranges = rangesOf(this.chart, this.points);
    const context = crisp(this.canvas, this.width, HEIGHT);
    context.clearRect(0, 0, this.width, HEIGHT);
    const taken: Box[] = [];
    this.drawAxes(new CanvasPen(context));
    this.drawRoofs(context, taken);
    for (const point of this.points) this.drawPoint(context, point);
    for (const point of this.points) {
      const [x, y] = this.at(point);
      const radius = radiusOf(point, this.longest);
      taken.push([x - radius, y - radius, x + radius, y + radius]);
    }
    for (const point of this.points.slice(0, MAX_NAMES)) this.drawName(context, point, taken);
  }

  private drawAxes(pen: CanvasPen): void {
    const { grid, line, muted } = this.app.colours;
    const [right, bottom] = [this.width - RIGHT, HEIGHT - BOTTOM];
    for (const { at, text } of ticksOf(this.ranges.x, 0)) {
      pen.line(this.px(at), TOP, this.px(at), bottom, grid);
      pen.text(text, this.px(at), bottom + 6, { colour: muted, align: 'center', baseline: 'top' });
    }
    for (const { at, text } of ticksOf(this.ranges.y, 9)) {
      pen.line(LEFT, this.py(at), right, this.py(at), grid);
      pen.text(text, LEFT - 6, this.py(at), { colour: muted, align: 'right' });
    }
    pen.line(LEFT, TOP, LEFT, bottom, line);
    pen.line(LEFT, bottom, right, bottom, line);
    pen.text('operations for each byte', right, bottom + 22, { colour: muted, align: 'right', baseline: 'top' });
    pen.text('GFLOP/s', 4, 8, { colour: muted });
  }

  private drawRoofs(context: CanvasRenderingContext2D, taken: Box[]): void {
    const { slopes, flats } = roofLines(this.chart as RooflineChart, this.ranges);
    const { text, muted } = this.app.colours;
    context.font = FONT;
    context.lineWidth = 1.8;
    context.strokeStyle = text;
    context.fillStyle = muted;
    context.textBaseline = 'bottom';
    for (const { roof, from, to } of slopes) {
      const [x0, y0, x1, y1] = [this.px(from[0]), this.py(from[1]), this.px(to[0]), this.py(to[1])];
      stroke(context, x0, y0, x1, y1);
      context.save();
      context.translate(x0, y0);
      context.rotate(Math.atan2(y1 - y0, x1 - x0));
      context.textAlign = 'left';
      context.fillText(roof.name, 10, -4);
      context.restore();
      const steps = Math.max(1, Math.ceil(Math.hypot(x1 - x0, y1 - y0) / 6));
      for (let step = 0; step <= steps; step++) {
        const [x, y] = [x0 + ((x1 - x0) * step) / steps, y0 + ((y1 - y0) * step) / steps];
        taken.push([x - 12, y - 14, x + 4, y + 3]);
      }
    }
    for (const { from, to } of flats) {
      const y = this.py(from[1]);
      stroke(context, this.px(from[0]), y, this.px(to[0]), y);
      taken.push([this.px(from[0]), y - 1, this.px(to[0]), y + 1]);
    }
    context.textAlign = 'right';
    for (const { roof, from } of flats) {
      const y = this.py(from[1]);
      const width = context.measureText(roof.name).width;
      // Above its line or below it; left of what is there.
      for (let right = this.width - RIGHT; right - width > LEFT; right -= 12) {
        const tops = [y - 16, y + 3];
        const top = tops.find((one) => isFree([right - width, one, right, one + 12], taken));
        if (top === undefined) continue;
        context.fillText(roof.name, right, top + 12);
        taken.push([right - width - 8, top, right, top + 12]);
        break;
      }
    }
  }

  private drawPoint(context: CanvasRenderingContext2D, point: RooflinePoint): void {
    const [x, y] = this.at(point);
    const radius = radiusOf(point, this.longest);
    const colour = this.app.colours.component(point.component);
    // Of one area, whatever the shape.
    const half = radius * 0.886;
    context.beginPath();
    if (point.phase === 'generate') context.arc(x, y, radius, 0, 2 * Math.PI);
    else if (point.phase === 'prompt') context.rect(x - half, y - half, 2 * half, 2 * half);
    else {
      const reach = half * Math.SQRT2;
      context.moveTo(x, y - reach);
      context.lineTo(x + reach, y);
      context.lineTo(x, y + reach);
      context.lineTo(x - reach, y);
      context.closePath();
    }
    context.fillStyle = withAlpha(colour, 0.55);
    context.fill();
    context.strokeStyle = point === this.marked ? this.app.colours.text : colour;
    context.lineWidth = point === this.marked ? 2.5 : 1;
    context.stroke();
  }

  private drawName(context: CanvasRenderingContext2D, point: RooflinePoint, taken: Box[]): void {
    const [x, y] = this.at(point);
    const text = `${point.name}, ${format.percent(point.share_of_ceiling)}`;
    context.font = FONT;
    const width = context.measureText(text).width;
    const reach = radiusOf(point, this.longest) + 4;
    const places: [number, number][] = [
      [x + reach, y - 6],
      [x - reach - width, y - 6],
      [x - width / 2, y + reach],
      [x - width / 2, y - reach - 12],
    ];
    const isInside = ([left, top]: [number, number]) =>
      left > LEFT + 2 && left + width < this.width && top > TOP && top + 12 < HEIGHT - BOTTOM;
    const place = places.find((one) => isInside(one) && isFree([one[0], one[1], one[0] + width, one[1] + 12], taken));
    if (!place) return;
    context.fillStyle = this.app.colours.text;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillText(text, place[0], place[1] + 6);
    taken.push([place[0], place[1], place[0] + width, place[1] + 12]);
  }

  private hover(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    // Small ones lie on top.
    const near = [...this.points].reverse().find((point) => {
      const [px, py] = this.at(point);
      return Math.hypot(px - x, py - y) <= radiusOf(point, this.longest) + REACH;
    });
    this.mark(near ?? null);
    if (!near) return this.app.tooltip.hide();
    this.app.tooltip.show(
      event.clientX,
      event.clientY,
      near.name,
      [
        ['phase', `${near.phase}, ${near.batch_text} at once`],
        ['of the roof', `${format.percent(near.share_of_ceiling)}, ${near.bound}`],
        ['reads and writes', `${short(near.bytes_per_second / 1e9)} GB/s`],
        ['computes', `${short(near.flops_per_second / 1e9)} GFLOP/s`],
        ['operations a byte', short(near.intensity)],
        ['time', `${format.nanos(near.nanos)}, ${format.percent(near.share_of_phase)} of the phase`],
      ],
      this.app.colours.component(near.component),
    );
  }

  private mark(point: RooflinePoint | null): void {
    if (this.marked === point) return;
    this.marked = point;
    this.draw();
  }

  private classes(): HTMLElement {
    const row = (point: RooflinePoint) => {
      const square = h('i', { class: 'swatch' });
      square.style.background = this.app.colours.component(point.component);
      return h(
        'tr',
        { onpointerenter: () => this.mark(point), onpointerleave: () => this.mark(null) },
        h('th', { scope: 'row' }, square, point.name),
        h('td', {}, point.phase),
        h('td', {}, point.batch_text),
        h('td', {}, format.nanos(point.nanos)),
        h('td', {}, format.percent(point.share_of_phase)),
        h('td', {}, short(point.bytes_per_second / 1e9)),
        h('td', {}, short(point.flops_per_second / 1e9)),
        h('td', {}, point.bound),
        h('td', {}, format.percent(point.share_of_ceiling)),
      );
    };
    const heads = ['nodes', 'phase', 'at once', 'time', 'of phase', 'GB/s', 'GFLOP/s', 'bound', 'of the roof'];
    return h(
      'table',
      { class: 'why-parts' },
      h('thead', {}, h('tr', {}, ...heads.map((head) => h('th', { scope: 'col' }, head)))),
      h('tbody', {}, ...this.points.slice(0, MAX_ROWS).map(row)),
    );
  }
}

function stroke(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

function isFree(wanted: Box, taken: readonly Box[]): boolean {
  return !taken.some((one) => wanted[0] < one[2] && one[0] < wanted[2] && wanted[1] < one[3] && one[1] < wanted[3]);
}

/** Three digits. */
function short(value: number): string {
  return Number(value.toPrecision(3)).toString();
}
