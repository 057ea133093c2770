/**
 * A plot with two axes that can be moved: wheel zooms, drag pans, shift-drag
 * selects, arrows, + and − do the same from the keyboard.
 *
 * A pan must hold the screen's frame rate whatever is shown. So while it lasts,
 * a frame draws a snapshot of the content at its new place, and the axes; the
 * view is told now and then, fetches a sharper raster and calls `redraw` when
 * it has come. When the plot rests, the content itself is drawn again. Cursor
 * and selection live on a second canvas, so that hovering does not redraw the
 * raster.
 */
import { drawAxes } from './axes';
import { Axis, type AxisOptions } from './axis';
import { CanvasPen, crisp, SvgPen, type Pen, type SvgPart } from './canvas';
import { withAlpha, type Colours } from './colours';
import { h } from './dom';

/** Between two reports of a movement to the view, which may fetch after each. */
const REPORT_MS = 80;
/** After this long without a movement the plot rests. */
const REST_MS = 140;
/** How far a snapshot reaches beyond the window, as a share of it, on each side. */
const SNAPSHOT_PAD = 0.3;

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
  /** The user moves or zooms: called at once, for a plot that moves along. */
  moves?(plot: Plot): void;
  /** The user moved or zoomed: called at once, then at most every 80 ms, and at the end. */
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

/** The content as it was drawn around a window, to be shown elsewhere while the plot moves. */
interface Snapshot {
  x: [number, number];
  y: [number, number];
  /** Of the windows that it was drawn for: how much a zoom stretches it. */
  spans: [number, number];
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
  private restTimer = 0;
  private reportTimer = 0;
  private reportedAt = Number.NEGATIVE_INFINITY;
  private snapshot: Snapshot | null = null;
  private readonly snapshotCanvas = document.createElement('canvas');
  private isOverlayClean = false;
  private cursor: { x: number | null; y: number | null } = { x: null, y: null };
  private selection: { x0: number; y0: number; x1: number; y1: number } | null = null;

  constructor(
    readonly host: HTMLElement,
    private readonly options: PlotOptions,
  ) {
    this.x = new Axis(options.x);
    this.y = new Axis(options.y);
    this.margin = { left: 64, right: 16, top: 26, bottom: 34, ...options.margin };
    this.canvas = h('canvas', { class: 'plot' });
    // Opaque canvases are not blended with what lies below them.
    this.canvas.getContext('2d', { alpha: false });
    this.snapshotCanvas.getContext('2d', { alpha: false });
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
    clearTimeout(this.restTimer);
    clearTimeout(this.reportTimer);
    this.reportTimer = 0;
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

  /** The window has moved since the view was told: the state is behind. */
  get isAhead(): boolean {
    return this.reportTimer !== 0;
  }

  /** The content is another one: draws it in the next frame; as often as you like. */
  redraw(): void {
    this.snapshot = null;
    this.reframe();
  }

  /** Moves together with another plot, in the next frame. */
  follow(): void {
    clearTimeout(this.restTimer);
    this.restTimer = window.setTimeout(() => {
      this.restTimer = 0;
      this.redraw();
    }, REST_MS);
    this.reframe();
  }

  /** Only the window is another one: draws in the next frame. */
  reframe(): void {
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
      (x0 - layer.x0) * perX,
      (y0 - layer.y0) * perY,
      (x1 - x0) * perX,
      (y1 - y0) * perY,
      this.px(x0),
      this.py(y0),
      this.px(x1) - this.px(x0),
      this.py(y1) - this.py(y0),
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
      case 'ArrowLeft':
        pan(x, -0.15);
        break;
      case 'ArrowRight':
        pan(x, 0.15);
        break;
      case 'ArrowUp':
        pan(y, -0.15);
        break;
      case 'ArrowDown':
        pan(y, 0.15);
        break;
      case '+':
      case '=':
        zoom(0.7);
        break;
      case '-':
      case '_':
        zoom(1 / 0.7);
        break;
      case 'Home':
        x.showAll();
        y.showAll();
        break;
      default:
        return false;
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
    drawAxes(pen, this, this.options.colours());
    this.options.decorate?.(pen, this);
    return { width: this.width, height: this.height, body: pen.parts.join('') };
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.host;
    if (clientWidth === this.width && clientHeight === this.height) return;
    const isFirst = this.width === 0;
    this.width = clientWidth;
    this.height = clientHeight;
    this.snapshot = null;
    this.isOverlayClean = false;
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
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
    context.clip();
    context.fillStyle = colours.panel;
    context.fillRect(this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
    if (this.restTimer) this.drawSnapshot(context);
    else this.options.draw(context, this);
    context.restore();
    const pen = new CanvasPen(context);
    drawAxes(pen, this, this.options.colours());
    this.options.decorate?.(pen, this);
    this.drawOverlay();
  }

  /** One image per frame, whatever the content is made of. */
  private drawSnapshot(context: CanvasRenderingContext2D): void {
    if (!this.snapshot || !this.isGood(this.snapshot)) this.snapshot = this.takeSnapshot();
    const { x, y } = this.snapshot;
    const ratio = devicePixelRatio || 1;
    const [left, top] = [this.px(x[0]), this.py(y[0])];
    let [width, height] = [this.px(x[1]) - left, this.py(y[1]) - top];
    const { width: ownWidth, height: ownHeight } = this.snapshotCanvas;
    // Not stretched: pixel on pixel, which is also the fastest.
    if (Math.abs(width * ratio - ownWidth) < 1) width = ownWidth / ratio;
    if (Math.abs(height * ratio - ownHeight) < 1) height = ownHeight / ratio;
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.snapshotCanvas,
      Math.round(left * ratio) / ratio,
      Math.round(top * ratio) / ratio,
      width,
      height,
    );
  }

  /** Whether a snapshot covers the window and is not stretched beyond recognition. */
  private isGood({ x, y, spans }: Snapshot): boolean {
    const covers = (axis: Axis, [low, high]: [number, number]) => {
      const slack = axis.span * 1e-3;
      return low <= axis.low + slack && high >= axis.high - slack;
    };
    const isLike = (now: number, then: number) => now < then * 2 && now > then / 3;
    return covers(this.x, x) && covers(this.y, y) && isLike(this.x.span, spans[0]) && isLike(this.y.span, spans[1]);
  }

  private takeSnapshot(): Snapshot {
    const { width, height } = this;
    const { low: left, high: right, span: across } = this.x;
    const { low: top, high: bottom, span: down } = this.y;
    const x = this.x.widened(SNAPSHOT_PAD);
    const y = this.y.widened(SNAPSHOT_PAD);
    const [w, h] = [(this.innerWidth * (x[1] - x[0])) / across, (this.innerHeight * (y[1] - y[0])) / down];
    const context = crisp(this.snapshotCanvas, w, h);
    context.translate(-this.margin.left, -this.margin.top);
    // The content draws itself through px and py: for a moment the plot is a larger one.
    this.width += w - this.innerWidth;
    this.height += h - this.innerHeight;
    [this.x.low, this.x.high] = x;
    [this.y.low, this.y.high] = y;
    try {
      context.fillStyle = this.options.colours().panel;
      context.fillRect(this.margin.left, this.margin.top, this.innerWidth, this.innerHeight);
      this.options.draw(context, this);
    } finally {
      this.width = width;
      this.height = height;
      [this.x.low, this.x.high] = [left, right];
      [this.y.low, this.y.high] = [top, bottom];
    }
    return { x, y, spans: [across, down] };
  }

  private drawOverlay(): void {
    if (this.width < 2 || this.height < 2) return;
    const isEmpty = this.cursor.x === null && this.cursor.y === null && !this.selection;
    if (isEmpty && this.isOverlayClean) return;
    this.isOverlayClean = isEmpty;
    // A layer that is not drawn need not be blended with the plot in every frame.
    this.overlay.classList.toggle('is-empty', isEmpty);
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
    this.follow();
    this.options.moves?.(this);
    if (this.reportTimer) return;
    const wait = this.reportedAt + REPORT_MS - performance.now();
    if (wait <= 0) this.report();
    else this.reportTimer = window.setTimeout(() => this.report(), wait);
  }

  private report(): void {
    clearTimeout(this.reportTimer);
    this.reportTimer = 0;
    this.reportedAt = performance.now();
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
    let drag: {
      x: number;
      y: number;
      clientX: number;
      clientY: number;
      low: [number, number];
      hasMoved: boolean;
      selects: boolean;
    } | null = null;

    target.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      // What follows starts from a state that knows the window.
      if (this.isAhead) this.report();
      target.setPointerCapture(event.pointerId);
      drag = {
        x: event.offsetX,
        y: event.offsetY,
        clientX: event.clientX,
        clientY: event.clientY,
        low: [this.x.low, this.y.low],
        hasMoved: false,
        selects: event.shiftKey,
      };
    });
    target.addEventListener('pointermove', (event) => {
      if (!drag) {
        const point = this.point(event);
        this.options.hover?.(point);
        return;
      }
      // Not the offset in the element, for which the browser would lay out the page.
      const dx = event.clientX - drag.clientX;
      const dy = event.clientY - drag.clientY;
      if (!drag.hasMoved && Math.hypot(dx, dy) < 4) return;
      if (!drag.hasMoved) this.options.hover?.(null);
      drag.hasMoved = true;
      if (drag.selects) {
        this.selection = this.box(drag.x, drag.y, drag.x + dx, drag.y + dy);
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
      if (this.isAhead) this.report();
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
