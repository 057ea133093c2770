/** A matrix as coloured cells, with names, the hovered cell, and bars beside its rows. */
import { CanvasPen, crisp, fit } from '../../canvas';
import { textOn, withAlpha, type Colours } from '../../colours';
import { h } from '../../dom';
import { shade, type Scale } from './scale';

/** A column of bars that continues the rows to the right. */
export interface Side {
  title: string;
  values: readonly number[];
  /** The value that fills the width. */
  most: number;
  colour: string;
  format: (value: number) => string;
}

export interface MatrixData {
  rows: readonly string[];
  columns: readonly string[];
  rowTitle: string;
  columnTitle: string;
  /** Row by row; NaN is left blank. */
  values: ArrayLike<number>;
  scale: Scale;
  /** Text in cells that are large enough for it. */
  format: (value: number) => string;
  sides?: readonly Side[];
  selected?: { row: number | null; column: number | null };
  /** As high as wide, for matrices of one kind of thing. */
  isSquare?: boolean;
  /** Columns that belong together, from the left; named above them. */
  groups?: readonly { name: string; columns: number }[];
}

export interface MatrixSpot {
  row: number;
  /** null: beside the cells. */
  column: number | null;
  side: number | null;
}

const [LEFT, TOP, BOTTOM] = [72, 34, 8];
const SIDE_PIXELS = { least: 132, most: 330 };
const MAX_CELL = { width: 56, height: 26, square: 34 };
/** Cells this large have lines between them. */
const LINE_PIXELS = 7;
/** Rows share about this height, but none gets thinner than three pixels. */
const WANTED_HEIGHT = 560;

export class Matrix {
  readonly element: HTMLElement;
  private readonly canvas = h('canvas', { class: 'view-matrix-canvas', role: 'img' });
  private readonly watcher: ResizeObserver;
  private data: MatrixData | null = null;
  private image: HTMLCanvasElement | null = null;
  private colours: Colours | null = null;
  private hovered: MatrixSpot | null = null;
  private cell = { width: 1, height: 1 };
  private sideWidth = SIDE_PIXELS.least;
  private width = 0;

  constructor(
    private readonly on: {
      hover?: (spot: MatrixSpot | null, event: PointerEvent) => void;
      click?: (spot: MatrixSpot) => void;
    } = {},
  ) {
    this.element = h('div', { class: 'view-matrix' }, this.canvas);
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.canvas.addEventListener('pointerleave', (event) => this.leave(event));
    this.canvas.addEventListener('click', (event) => {
      const spot = this.spot(event);
      if (spot) this.on.click?.(spot);
    });
    this.watcher = new ResizeObserver(() => {
      if (this.element.clientWidth !== this.width) this.draw();
    });
    this.watcher.observe(this.element);
  }

  show(data: MatrixData, colours: Colours, label: string): void {
    this.data = data;
    this.colours = colours;
    this.canvas.setAttribute('aria-label', label);
    const [columns, rows] = [data.columns.length, data.rows.length];
    const image = document.createElement('canvas');
    image.width = Math.max(1, columns);
    image.height = Math.max(1, rows);
    const pixels = new ImageData(image.width, image.height);
    const packed = new Uint32Array(pixels.data.buffer);
    for (let at = 0; at < columns * rows; at++) packed[at] = shade(data.scale, data.values[at] ?? Number.NaN);
    (image.getContext('2d') as CanvasRenderingContext2D).putImageData(pixels, 0, 0);
    this.image = image;
    this.draw();
  }

  destroy(): void {
    this.watcher.disconnect();
  }

  private draw(): void {
    const { data, colours, image } = this;
    if (!data || !colours || !image) return;
    this.width = this.element.clientWidth;
    if (this.width < 50) return;
    const sides = data.sides ?? [];
    const room = this.width - LEFT - sides.length * SIDE_PIXELS.least - 28;
    const width = Math.max(0.5, Math.min(MAX_CELL.width, room / Math.max(1, data.columns.length)));
    const even = Math.max(3, Math.min(MAX_CELL.height, WANTED_HEIGHT / Math.max(1, data.rows.length)));
    const square = Math.min(width, MAX_CELL.square);
    this.cell = data.isSquare
      ? { width: whole(square), height: whole(square) }
      : { width: whole(width), height: whole(even) };
    const rest = this.width - LEFT - this.cell.width * data.columns.length - 28;
    this.sideWidth = Math.min(SIDE_PIXELS.most, rest / Math.max(1, sides.length));
    const high = this.cell.height * data.rows.length;
    const context = crisp(this.canvas, this.width, TOP + high + BOTTOM);
    context.clearRect(0, 0, this.width, TOP + high + BOTTOM);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, LEFT, TOP, this.cell.width * data.columns.length, high);
    const pen = new CanvasPen(context);
    this.lines(context, colours, data);
    this.numbers(pen, colours, data);
    this.names(pen, colours, data);
    sides.forEach((side, at) => this.side(pen, colours, data, side, at));
    this.frame(context, data.selected?.row ?? null, data.selected?.column ?? null, colours.accent, 2);
    if (this.hovered) this.frame(context, this.hovered.row, this.hovered.column, colours.text, 1);
  }

  private lines(context: CanvasRenderingContext2D, colours: Colours, data: MatrixData): void {
    context.fillStyle = colours.panel;
    const { width, height } = this.cell;
    if (width >= LINE_PIXELS)
      for (let at = 1; at < data.columns.length; at++)
        context.fillRect(LEFT + at * width - 1, TOP, 1, height * data.rows.length);
    if (height >= LINE_PIXELS)
      for (let at = 1; at < data.rows.length; at++)
        context.fillRect(LEFT, TOP + at * height - 1, width * data.columns.length, 1);
  }

  private numbers(pen: CanvasPen, colours: Colours, data: MatrixData): void {
    const { width, height } = this.cell;
    if (width < 30 || height < 15) return;
    for (let row = 0; row < data.rows.length; row++) {
      for (let column = 0; column < data.columns.length; column++) {
        const value = data.values[row * data.columns.length + column] ?? Number.NaN;
        if (Number.isNaN(value)) continue;
        const back = shade(data.scale, value);
        const hex = `#${[back & 255, (back >> 8) & 255, (back >> 16) & 255].map((part) => part.toString(16).padStart(2, '0')).join('')}`;
        const text = fit(pen, data.format(value), width - 4);
        pen.text(text, LEFT + (column + 0.5) * width, TOP + (row + 0.5) * height, {
          colour: value === 0 ? colours.muted : textOn(hex),
          align: 'center',
        });
      }
    }
  }

  private names(pen: CanvasPen, colours: Colours, data: MatrixData): void {
    const style = { colour: colours.muted };
    const everyRow = Math.max(1, Math.ceil(12 / this.cell.height));
    data.rows.forEach((name, at) => {
      if (at % everyRow === 0)
        pen.text(fit(pen, name, LEFT - 8), LEFT - 6, TOP + (at + 0.5) * this.cell.height, { ...style, align: 'right' });
    });
    const places = (data.groups ?? []).flatMap((group) => [...Array(group.columns).keys()]);
    const widest = data.columns.reduce((most, name) => Math.max(most, pen.measure(name)), 0);
    const everyColumn = niceEvery((widest + 8) / this.cell.width);
    data.columns.forEach((name, at) => {
      if (places[at] === undefined ? at % everyColumn === 0 : (places[at] ?? 0) % everyColumn === 0)
        pen.text(name, LEFT + (at + 0.5) * this.cell.width, TOP - 8, { ...style, align: 'center' });
    });
    let begin = 0;
    for (const group of data.groups ?? []) {
      const [x, across] = [LEFT + begin * this.cell.width, group.columns * this.cell.width];
      if (begin > 0) pen.rect(x - 1, TOP - 30, 1, 30 + this.cell.height * data.rows.length, colours.line);
      pen.text(fit(pen, group.name, across - 8), x + 2, TOP - 24, { colour: colours.text });
      begin += group.columns;
    }
    if (!data.groups) pen.text(`${data.columnTitle} →`, LEFT, TOP - 24, style);
    pen.text(`${data.rowTitle} ↓`, LEFT - 6, TOP - 24, { ...style, align: 'right' });
  }

  private side(pen: CanvasPen, colours: Colours, data: MatrixData, side: Side, at: number): void {
    const x = LEFT + this.cell.width * data.columns.length + 20 + at * this.sideWidth;
    const room = this.sideWidth - 64;
    pen.text(fit(pen, side.title, this.sideWidth - 8), x, TOP - 8, { colour: colours.muted });
    const gap = this.cell.height >= 6 ? 1 : 0;
    const everyRow = Math.max(1, Math.ceil(12 / this.cell.height));
    side.values.forEach((value, row) => {
      const y = TOP + row * this.cell.height;
      pen.rect(x, y, room, this.cell.height - gap, withAlpha(colours.muted, 0.12));
      pen.rect(x, y, (room * Math.min(value, side.most)) / (side.most || 1), this.cell.height - gap, side.colour);
      if (row % everyRow === 0)
        pen.text(side.format(value), x + room + 6, y + this.cell.height / 2, { colour: colours.muted });
    });
  }

  private frame(
    context: CanvasRenderingContext2D,
    row: number | null,
    column: number | null,
    colour: string,
    width: number,
  ): void {
    if (!this.data || (row === null && column === null)) return;
    const x = LEFT + (column ?? 0) * this.cell.width;
    const y = TOP + (row ?? 0) * this.cell.height;
    const across = column === null ? this.cell.width * this.data.columns.length : this.cell.width;
    const down = row === null ? this.cell.height * this.data.rows.length : this.cell.height;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(x - 0.5, y - 0.5, across, down);
  }

  private spot(event: MouseEvent): MatrixSpot | null {
    const { data } = this;
    if (!data) return null;
    const row = Math.floor((event.offsetY - TOP) / this.cell.height);
    const column = Math.floor((event.offsetX - LEFT) / this.cell.width);
    if (row < 0 || row >= data.rows.length || column < 0) return null;
    if (column < data.columns.length) return { row, column, side: null };
    const side = Math.floor((event.offsetX - LEFT - this.cell.width * data.columns.length - 20) / this.sideWidth);
    return side >= 0 && side < (data.sides?.length ?? 0) ? { row, column: null, side } : null;
  }

  private point(event: PointerEvent): void {
    const spot = this.spot(event);
    const isSame =
      spot?.row === this.hovered?.row && spot?.column === this.hovered?.column && spot?.side === this.hovered?.side;
    this.hovered = spot;
    if (!isSame) this.draw();
    this.canvas.style.cursor = spot && this.on.click ? 'pointer' : 'default';
    this.on.hover?.(spot, event);
  }

  private leave(event: PointerEvent): void {
    this.hovered = null;
    this.draw();
    this.on.hover?.(null, event);
  }
}

/** Whole pixels are crisp; cells of a few pixels must share what there is. */
function whole(pixels: number): number {
  return pixels >= LINE_PIXELS ? Math.floor(pixels) : pixels;
}

function niceEvery(least: number): number {
  return [1, 2, 4, 8, 16, 32, 64, 128, 256].find((step) => step >= least) ?? 512;
}
