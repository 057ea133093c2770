/**
 * A plot with two axes that can be moved: wheel zooms, drag pans, shift-drag
 * selects, arrows, + and − do the same from the keyboard.
 *
 * A pan redraws what is already there at its new place, in the same frame, and
 * tells the view, which fetches a sharper raster and calls `redraw` when it
 * has come. Cursor and selection live on a second canvas, so that hovering does
 * not redraw the raster.
 */
import { axisTicks, type AxisKind, type Tick } from './ticks';
import { CanvasPen, crisp, FONT, SvgPen, type Pen, type SvgPart } from './canvas';
import { withAlpha, type Colours } from './colours';
import { h } from './dom';

export interface AxisOptions {
  label: string;
  kind: AxisKind;
  /** The most that can be shown. */
  limits: [number, number];
  /** Does not move; ticks are drawn all the same. */
  isFixed?: boolean;
  /** Shortest range to zoom into. */
  shortest?: number;
  /** Own ticks, for lanes and names. */
  ticks?: (low: number, high: number, pixels: number) => Tick[];
  /** Lines of the grid over the plot; off unless asked for. */
  hasGrid?: boolean;
  /** Pixels between the axis and its texts, for something that stands there. */
  clearance?: number;
  /** Neither line nor ticks nor label. */
  isHidden?: boolean;
}

export interface PlotPoint {
  /** In the axes' units. */
  x: number;
  y: number;
  /** In the window, for the tooltip. */
  clientX: number;
  clientY: number;
}

export interface PlotOptions {
  /** What it is, for assistive technology. */
  label: string;
  x: AxisOptions;
  /** Values grow downwards: lanes and file offsets are read from the top. */
  y: AxisOptions;
  margin?: Partial<Margin>;
  colours: () => Colours;
  /** Draws the content; the context is clipped to the plot, in CSS pixels. */
  draw(context: CanvasRenderingContext2D, plot: Plot): void;
  /** Draws around the content (legend, names); also into SVG. */
  decorate?(pen: Pen, plot: Plot): void;
  hover?(point: PlotPoint | null): void;
  click?(point: PlotPoint): void;
  /** Shift-drag; without it the plot zooms to what was selected. */
  select?(x: [number, number], y: [number, number]): void;
  /** The user moved or zoomed. */
  moved?(plot: Plot): void;
  /** The plot has another size than at first: a raster of another size may be wanted. */
  resized?(plot: Plot): void;
}

export interface Margin {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** An image that covers a rectangle of the plot. */
export interface RasterLayer {
  image: HTMLCanvasElement;
  x0: number;
  x1: number;
  y0: number;
  y1: number;
}

export class Axis {
  low: number;
  high: number;

  constructor(public options: AxisOptions) {
    [this.low, this.high] = options.limits;
  }

  get span(): number {
    return this.high - this.low;
  }

  /** Shows [low, high], moved and widened so that it lies within the limits. */
  show(low: number, high: number): void {
    const [min, max] = this.options.limits;
    const whole = max - min;
    const span = Math.min(whole, Math.max(high - low, Math.min(whole, this.options.shortest ?? 0)));
    const middle = (low + high) / 2;
    this.low = Math.min(Math.max(min, middle - span / 2), max - span);
    this.high = this.low + span;
  }

  showAll(): void {
    [this.low, this.high] = this.options.limits;
  }

  get isWhole(): boolean {
    return this.low === this.options.limits[0] && this.high === this.options.limits[1];
  }

  /** Around a value that stays where it is. */
  zoom(factor: number, around: number): void {
    this.show(around - (around - this.low) * factor, around + (this.high - around) * factor);
  }
}

export class Plot {
  readonly x: Axis;
  readonly y: Axis;
  readonly canvas: HTMLCanvasElement;
  readonly margin: Margin;
  width = 0;
  height = 0;
  private readonly overlay: HTMLCanvasElement;
  private readonly resizes: ResizeObserver;
  private frame = 0;
  private cursor: { x: number | null; y: number | null } = { x: null, y: null };
  private selection: { x0: number; y0: number; x1: number; y1: number } | null = null;

  constructor(readonly host: HTMLElement, private readonly options: PlotOptions) {
    this.x = new Axis(options.x);
    this.y = new Axis(options.y);
    this.margin = { left: 64, right: 16, top: 26, bottom: 34, ...options.margin };
    this.canvas = h('canvas', { class: 'plot' });
    this.overlay = h('canvas', { class: 'plot overlay', tabindex: 0, role: 'img', 'aria-label': options.label });
    host.classList.add('plot-host');
    host.append(this.canvas, this.overlay);
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(host);
    this.listen();
    this.resize();
  }

  destroy(): void {
    this.resizes.disconnect();
    cancelAnimationFrame(this.frame);
    this.canvas.remove();
    this.overlay.remove();
  }

  /** Size of the content in CSS pixels. */
  get innerWidth(): number {
    return Math.max(1, this.width - this.margin.left - this.margin.right);
  }
  get innerHeight(): number {
    return Math.max(1, this.height - this.margin.top - this.margin.bottom);
  }

  px(x: number): number {
    return this.margin.left + ((x - this.x.low) / this.x.span) * this.innerWidth;
  }
  py(y: number): number {
    return this.margin.top + ((y - this.y.low) / this.y.span) * this.innerHeight;
  }
  xAt(px: number): number {
    return this.x.low + ((px - this.margin.left) / this.innerWidth) * this.x.span;
  }
  yAt(py: number): number {
    return this.y.low + ((py - this.margin.top) / this.innerHeight) * this.y.span;
  }

  /** Draws in the next frame; as often as you like. */
  redraw(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.drawAll();
    });
  }

  /** Draws an image at its place, clipped to what is visible so that deep zooms stay cheap. */
  drawRaster(context: CanvasRenderingContext2D, layer: RasterLayer): void {
    const x0 = Math.max(layer.x0, this.x.low);
    const x1 = Math.min(layer.x1, this.x.high);
    const y0 = Math.max(layer.y0, this.y.low);
    const y1 = Math.min(layer.y1, this.y.high);
    if (!(x1 > x0) || !(y1 > y0)) return;
    const perX = layer.image.width / (layer.x1 - layer.x0);
    const perY = layer.image.height / (layer.y1 - layer.y0);
    context.imageSmoothingEnabled = false;
    context.drawImage(
      layer.image,
      (x0 - layer.x0) * perX, (y0 - layer.y0) * perY, (x1 - x0) * perX, (y1 - y0) * perY,
      this.px(x0), this.py(y0), this.px(x1) - this.px(x0), this.py(y1) - this.py(y0),
    );
  }

  /** Lines through the point that is hovered or shared with another plot. */
  setCursor(x: number | null, y: number | null): void {
    this.cursor = { x, y };
    this.drawOverlay();
  }

  /** Arrows, +, − and Home; true when it was one of them. */
  onKey(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const { x, y } = this;
    const pan = (axis: Axis, share: number) => {
      if (axis.options.isFixed) return;
      axis.show(axis.low + axis.span * share, axis.high + axis.span * share);
    };
    const zoom = (factor: number) => {
      if (!x.options.isFixed) x.zoom(factor, this.cursor.x ?? (x.low + x.high) / 2);
      else if (!y.options.isFixed) y.zoom(factor, this.cursor.y ?? (y.low + y.high) / 2);
    };
    switch (event.key) {
      case 'ArrowLeft': pan(x, -0.15); break;
      case 'ArrowRight': pan(x, 0.15); break;
      case 'ArrowUp': pan(y, -0.15); break;
      case 'ArrowDown': pan(y, 0.15); break;
      case '+': case '=': zoom(0.7); break;
      case '-': case '_': zoom(1 / 0.7); break;
      case 'Home': x.showAll(); y.showAll(); break;
      default: return false;
    }
    this.moved();
    return true;
  }

  svg(): SvgPart {
    const pen = new SvgPen();
    const content = document.createElement('canvas');
    const context = crisp(content, this.innerWidth, this.innerHeight);
    context.translate(-this.margin.left, -this.margin.top);
    this.options.draw(context, this);
    pen.image(content, this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
    this.drawAxes(pen);
    this.options.decorate?.(pen, this);
    return { width: this.width, height: this.height, body: pen.parts.join('') };
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.host;
    if (clientWidth === this.width && clientHeight === this.height) return;
    const isFirst = this.width === 0;
    this.width = clientWidth;
    this.height = clientHeight;
    if (this.width < 2 || this.height < 2) return;
    // The view does not have its plot yet while that is being built.
    if (isFirst) return this.redraw();
    // At once: a resized canvas is blank until it is drawn.
    this.drawAll();
    this.options.resized?.(this);
  }

  private drawAll(): void {
    if (this.width < 2 || this.height < 2) return;
    const context = crisp(this.canvas, this.width, this.height);
    const colours = this.options.colours();
    context.fillStyle = colours.background;
    context.fillRect(0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
    context.clip();
    context.fillStyle = colours.panel;
    context.fillRect(this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
    this.options.draw(context, this);
    context.restore();
    const pen = new CanvasPen(context);
    this.drawAxes(pen);
    this.options.decorate?.(pen, this);
    this.drawOverlay();
  }

  private drawAxes(pen: Pen): void {
    const { muted, grid, line } = this.options.colours();
    const { left, top } = this.margin;
    const right = left + this.innerWidth;
    const bottom = top + this.innerHeight;
    for (const tick of this.x.options.isHidden ? [] : axisTicks(this.x.options, this.x.low, this.x.high, this.innerWidth)) {
      const x = this.px(tick.at);
      if (x < left - 0.5 || x > right + 0.5) continue;
      if (this.x.options.hasGrid) pen.line(x, top, x, bottom, grid);
      pen.line(x, bottom, x, bottom + 4, line);
      if (!tick.text) continue;
      // The last text moves to the left rather than out of the plot.
      const half = pen.measure(tick.text) / 2;
      const centre = Math.min(x, this.width - half - 2);
      pen.text(tick.text, centre, bottom + 7, { colour: muted, align: 'center', baseline: 'top', font: FONT });
    }
    for (const tick of this.y.options.isHidden ? [] : axisTicks(this.y.options, this.y.low, this.y.high, this.innerHeight, 36)) {
      const y = this.py(tick.at);
      if (y < top - 0.5 || y > bottom + 0.5) continue;
      if (this.y.options.hasGrid) pen.line(left, y, right, y, grid);
      if (!tick.isName) pen.line(left - 4, y, left, y, line);
      const gap = 7 + (this.y.options.clearance ?? 0);
      if (tick.text) pen.text(tick.text, left - gap, y, { colour: muted, align: 'right', baseline: 'middle', font: FONT });
    }
    if (!this.y.options.isHidden) pen.line(left, top, left, bottom, line);
    if (!this.x.options.isHidden) pen.line(left, bottom, right, bottom, line);
    if (this.x.options.label) {
      pen.text(this.x.options.label, right, bottom + 21, { colour: muted, align: 'right', baseline: 'top', font: FONT });
    }
    if (this.y.options.label) {
      pen.text(this.y.options.label, 8, top - 13, { colour: muted, align: 'left', baseline: 'middle', font: FONT });
    }
  }

  private drawOverlay(): void {
    if (this.width < 2 || this.height < 2) return;
    const context = crisp(this.overlay, this.width, this.height);
    context.clearRect(0, 0, this.width, this.height);
    const { accent, muted } = this.options.colours();
    context.save();
    context.beginPath();
    context.rect(this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
    context.clip();
    const pen = new CanvasPen(context);
    const { x, y } = this.cursor;
    if (x !== null) pen.line(this.px(x), this.margin.top, this.px(x), this.height, withAlpha(muted, 0.8));
    if (y !== null) pen.line(this.margin.left, this.py(y), this.width, this.py(y), withAlpha(muted, 0.5));
    if (this.selection) {
      const s = this.selection;
      context.fillStyle = withAlpha(accent, 0.18);
      context.strokeStyle = accent;
      context.lineWidth = 1;
      const box = [Math.min(s.x0, s.x1), Math.min(s.y0, s.y1), Math.abs(s.x1 - s.x0), Math.abs(s.y1 - s.y0)] as const;
      context.fillRect(...box);
      context.strokeRect(...box);
    }
    context.restore();
  }

  private moved(): void {
    this.redraw();
    this.options.moved?.(this);
  }

  private point(event: MouseEvent): PlotPoint | null {
    const x = event.offsetX;
    const y = event.offsetY;
    const { left, top } = this.margin;
    if (x < left || y < top || x > left + this.innerWidth || y > top + this.innerHeight) return null;
    return { x: this.xAt(x), y: this.yAt(y), clientX: event.clientX, clientY: event.clientY };
  }

  private listen(): void {
    const target = this.overlay;
    let drag: { x: number; y: number; low: [number, number]; hasMoved: boolean; selects: boolean } | null = null;

    target.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      target.setPointerCapture(event.pointerId);
      drag = {
        x: event.offsetX, y: event.offsetY, low: [this.x.low, this.y.low], hasMoved: false, selects: event.shiftKey,
      };
    });
    target.addEventListener('pointermove', (event) => {
      if (!drag) {
        const point = this.point(event);
        this.options.hover?.(point);
        return;
      }
      const dx = event.offsetX - drag.x;
      const dy = event.offsetY - drag.y;
      if (!drag.hasMoved && Math.hypot(dx, dy) < 4) return;
      drag.hasMoved = true;
      this.options.hover?.(null);
      if (drag.selects) {
        this.selection = this.box(drag.x, drag.y, event.offsetX, event.offsetY);
        this.drawOverlay();
        return;
      }
      target.classList.add('is-panned');
      const move = (axis: Axis, low: number, share: number) => {
        if (!axis.options.isFixed) axis.show(low - share * axis.span, low - share * axis.span + axis.span);
      };
      move(this.x, drag.low[0], dx / this.innerWidth);
      move(this.y, drag.low[1], dy / this.innerHeight);
      this.moved();
    });
    target.addEventListener('pointerup', (event) => {
      const ended = drag;
      drag = null;
      target.classList.remove('is-panned');
      if (!ended) return;
      if (!ended.hasMoved) {
        const point = this.point(event);
        if (point) this.options.click?.(point);
        return;
      }
      const box = this.selection;
      this.selection = null;
      this.drawOverlay();
      if (!box) return;
      const xs: [number, number] = [this.xAt(box.x0), this.xAt(box.x1)];
      const ys: [number, number] = [this.yAt(box.y0), this.yAt(box.y1)];
      if (this.options.select) return this.options.select(xs, ys);
      if (!this.x.options.isFixed) this.x.show(...xs);
      if (!this.y.options.isFixed) this.y.show(...ys);
      this.moved();
    });
    target.addEventListener('pointercancel', () => {
      drag = null;
      this.selection = null;
      target.classList.remove('is-panned');
      this.drawOverlay();
    });
    target.addEventListener('pointerleave', () => this.options.hover?.(null));
    target.addEventListener('dblclick', () => {
      this.x.showAll();
      this.y.showAll();
      this.moved();
    });
    target.addEventListener('wheel', (event) => this.onWheel(event), { passive: false });
  }

  private onWheel(event: WheelEvent): void {
    const { x, y } = this;
    if (x.options.isFixed && y.options.isFixed) return;
    event.preventDefault();
    const atX = this.xAt(event.offsetX);
    const atY = this.yAt(event.offsetY);
    // With shift, browsers report the wheel as horizontal.
    const amount = event.deltaY || (event.shiftKey ? event.deltaX : 0);
    if (!amount && event.deltaX && !x.options.isFixed) {
      const shift = (event.deltaX / this.innerWidth) * x.span;
      x.show(x.low + shift, x.high + shift);
      return this.moved();
    }
    const factor = Math.exp(Math.max(-200, Math.min(200, amount)) * 0.0018);
    const both = event.ctrlKey || event.altKey;
    if (!x.options.isFixed && (!event.shiftKey || both)) x.zoom(factor, atX);
    if (!y.options.isFixed && (event.shiftKey || both || x.options.isFixed)) y.zoom(factor, atY);
    this.moved();
  }

  /** The selected rectangle; an axis that does not move is selected whole. */
  private box(x0: number, y0: number, x1: number, y1: number): { x0: number; y0: number; x1: number; y1: number } {
    const { left, top } = this.margin;
    const right = left + this.innerWidth;
    const bottom = top + this.innerHeight;
    const inX = (v: number) => Math.min(right, Math.max(left, v));
    const inY = (v: number) => Math.min(bottom, Math.max(top, v));
    const wholeX = this.x.options.isFixed && !this.options.select;
    const wholeY = this.y.options.isFixed;
    return {
      x0: wholeX ? left : Math.min(inX(x0), inX(x1)),
      x1: wholeX ? right : Math.max(inX(x0), inX(x1)),
      y0: wholeY ? top : Math.min(inY(y0), inY(y1)),
      y1: wholeY ? bottom : Math.max(inY(y0), inY(y1)),
    };
  }
}
