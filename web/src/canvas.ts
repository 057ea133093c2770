/**
 * Drawing that does not depend on what is shown: crisp canvases, rasters as
 * images, and a `Pen` that draws axes and legends alike on a canvas and in SVG.
 */
import { css, type Table } from './colours';

export const FONT = '11px ui-sans-serif, system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif';
export const MONO = '11px ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, monospace';

/** Fits a canvas to its size in CSS pixels on this screen; drawing stays in CSS pixels. */
export function crisp(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio));
  const h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d') as CanvasRenderingContext2D;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

export type Scale = 'linear' | 'sqrt' | 'log';

/** Where a value of [0, max] lies on the colour map, 0 to 1. */
export function scaled(value: number, max: number, scale: Scale): number {
  if (!(max > 0) || !(value > 0)) return 0;
  const t = Math.min(1, value / max);
  if (scale === 'sqrt') return Math.sqrt(t);
  // Four decades: what is rarer looks like the rarest.
  if (scale === 'log') return Math.max(0, 1 + Math.log10(t) / 4);
  return t;
}

/** The value at a place of the colour map: the inverse of `scaled`. */
export function unscaled(t: number, max: number, scale: Scale): number {
  if (scale === 'sqrt') return t * t * max;
  if (scale === 'log') return 10 ** ((t - 1) * 4) * max;
  return t * max;
}

export interface PaintOptions {
  max: number;
  scale?: Scale;
  /** 0xAABBGGRR for NaN; transparent unless given. */
  nothing?: number;
  /** 0xAABBGGRR for zero; the map's first colour unless given. */
  zero?: number;
}

/** A raster as an image of one pixel per cell, row by row. */
export function paint(
  values: ArrayLike<number>,
  width: number,
  height: number,
  table: Table,
  options: PaintOptions,
): HTMLCanvasElement {
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, height);
  const image = new ImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const { max, scale = 'linear', nothing = 0 } = options;
  const zero = options.zero ?? (table[0] as number);
  const cells = Math.min(values.length, width * height);
  for (let i = 0; i < cells; i++) {
    const value = values[i] as number;
    if (Number.isNaN(value)) pixels[i] = nothing;
    else if (value <= 0) pixels[i] = zero;
    // What was read at all must differ from what was not: start at the 12th colour.
    else pixels[i] = table[Math.max(12, (scaled(value, max, scale) * 255) | 0)] as number;
  }
  (canvas.getContext('2d') as CanvasRenderingContext2D).putImageData(image, 0, 0);
  return canvas;
}

export interface TextStyle {
  colour: string;
  align?: 'left' | 'center' | 'right';
  baseline?: 'top' | 'middle' | 'bottom';
  font?: string;
  /** Turned by 90° against the clock around its place. */
  turned?: boolean;
}

/** What axes and legends need, on a canvas or in SVG. */
export interface Pen {
  line(x0: number, y0: number, x1: number, y1: number, colour: string, width?: number): void;
  rect(x: number, y: number, width: number, height: number, colour: string): void;
  text(text: string, x: number, y: number, style: TextStyle): void;
  measure(text: string): number;
}

/** Widths of texts in `FONT`: the same few are measured in every frame. */
const widths = new Map<string, number>();
const MAX_WIDTHS = 4096;

function widthOf(text: string, ruler: CanvasRenderingContext2D): number {
  let width = widths.get(text);
  if (width === undefined) {
    ruler.font = FONT;
    width = ruler.measureText(text).width;
    if (widths.size >= MAX_WIDTHS) widths.clear();
    widths.set(text, width);
  }
  return width;
}

export class CanvasPen implements Pen {
  constructor(private readonly context: CanvasRenderingContext2D) {}

  line(x0: number, y0: number, x1: number, y1: number, colour: string, width = 1): void {
    const c = this.context;
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.beginPath();
    // Odd widths are crisp only between pixels.
    const shift = width % 2 ? 0.5 : 0;
    const isVertical = x0 === x1;
    c.moveTo(Math.round(x0) + (isVertical ? shift : 0), Math.round(y0) + (isVertical ? 0 : shift));
    c.lineTo(Math.round(x1) + (isVertical ? shift : 0), Math.round(y1) + (isVertical ? 0 : shift));
    c.stroke();
  }
  rect(x: number, y: number, width: number, height: number, colour: string): void {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }
  text(text: string, x: number, y: number, style: TextStyle): void {
    const c = this.context;
    c.save();
    c.font = style.font ?? FONT;
    c.fillStyle = style.colour;
    c.textAlign = style.align ?? 'left';
    c.textBaseline = style.baseline ?? 'middle';
    c.translate(x, y);
    if (style.turned) c.rotate(-Math.PI / 2);
    c.fillText(text, 0, 0);
    c.restore();
  }
  measure(text: string): number {
    return widthOf(text, this.context);
  }
}

export class SvgPen implements Pen {
  readonly parts: string[] = [];
  private readonly ruler = document.createElement('canvas').getContext('2d') as CanvasRenderingContext2D;

  line(x0: number, y0: number, x1: number, y1: number, colour: string, width = 1): void {
    this.parts.push(
      `<line x1="${n(x0)}" y1="${n(y0)}" x2="${n(x1)}" y2="${n(y1)}" stroke="${xml(colour)}" stroke-width="${width}"/>`,
    );
  }
  rect(x: number, y: number, width: number, height: number, colour: string): void {
    this.parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" fill="${xml(colour)}"/>`);
  }
  text(text: string, x: number, y: number, style: TextStyle): void {
    const anchor = { left: 'start', center: 'middle', right: 'end' }[style.align ?? 'left'];
    const baseline = { top: 'hanging', middle: 'central', bottom: 'alphabetic' }[style.baseline ?? 'middle'];
    const font = /^(?:(bold|\d00) )?(\d+)px (.*)$/.exec(style.font ?? FONT);
    const turn = style.turned ? ` transform="rotate(-90 ${n(x)} ${n(y)})"` : '';
    const weight = font?.[1] ? ` font-weight="${font[1]}"` : '';
    this.parts.push(
      `<text x="${n(x)}" y="${n(y)}" fill="${xml(style.colour)}" text-anchor="${anchor}" dominant-baseline="${baseline}"` +
        ` font-size="${font?.[2] ?? 11}" font-family="${xml(font?.[3] ?? 'sans-serif')}"${weight}${turn}>${xml(text)}</text>`,
    );
  }
  /** An image, as pixels. */
  image(canvas: HTMLCanvasElement, x: number, y: number, width: number, height: number): void {
    this.parts.push(
      `<image x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" preserveAspectRatio="none"` +
        ` image-rendering="pixelated" href="${canvas.toDataURL('image/png')}"/>`,
    );
  }
  measure(text: string): number {
    return widthOf(text, this.ruler);
  }
}

/** A piece of an exported drawing. */
export interface SvgPart {
  width: number;
  height: number;
  body: string;
}

/** Pieces stacked from top to bottom, as one document. */
export function svgDocument(parts: readonly SvgPart[], background: string): string {
  const width = Math.max(1, ...parts.map((part) => part.width));
  const height = parts.reduce((sum, part) => sum + part.height, 0);
  let y = 0;
  const groups = parts.map((part) => {
    const group = `<g transform="translate(0 ${n(y)})">${part.body}</g>`;
    y += part.height;
    return group;
  });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${n(width)}" height="${n(height)}" viewBox="0 0 ${n(width)} ${n(height)}">` +
    `<rect width="100%" height="100%" fill="${xml(background)}"/>${groups.join('')}</svg>\n`
  );
}

/** Canvases stacked from top to bottom, as one. */
export function stackCanvases(canvases: readonly HTMLCanvasElement[], background: string): HTMLCanvasElement {
  const out = document.createElement('canvas');
  out.width = Math.max(1, ...canvases.map((canvas) => canvas.width));
  out.height = Math.max(
    1,
    canvases.reduce((sum, canvas) => sum + canvas.height, 0),
  );
  const context = out.getContext('2d') as CanvasRenderingContext2D;
  context.fillStyle = background;
  context.fillRect(0, 0, out.width, out.height);
  let y = 0;
  for (const canvas of canvases) {
    context.drawImage(canvas, 0, y);
    y += canvas.height;
  }
  return out;
}

export interface LegendOptions {
  title: string;
  table: Table;
  colour: string;
  low: string;
  high: string;
  /** Text at the middle, for scales that are not linear. */
  middle?: string;
}

/** A colour bar with its ends in words, drawn leftwards from `right`; returns its left edge. */
export function drawLegend(pen: Pen, right: number, y: number, options: LegendOptions): number {
  const width = 120;
  const style = { colour: options.colour, baseline: 'middle' } as const;
  let x = right;
  pen.text(options.high, x, y, { ...style, align: 'right' });
  x -= pen.measure(options.high) + 6;
  const steps = 40;
  for (let i = 0; i < steps; i++) {
    pen.rect(x - width + (i * width) / steps, y - 5, width / steps + 0.5, 10, css(options.table, i / (steps - 1)));
  }
  if (options.middle) pen.text(options.middle, x - width / 2, y + 12, { ...style, align: 'center' });
  x -= width + 6;
  pen.text(options.low, x, y, { ...style, align: 'right' });
  x -= pen.measure(options.low) + 10;
  pen.text(options.title, x, y, { ...style, align: 'right' });
  return x - pen.measure(options.title);
}

/** Cuts a text so that it fits; empty when not even one letter does. */
export function fit(pen: Pen, text: string, width: number): string {
  if (pen.measure(text) <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measure(text.slice(0, middle) + '…') <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? text.slice(0, low) + '…' : '';
}

export function xml(text: string): string {
  return (
    text
      // Control characters are not allowed in XML at all.
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, '�')
      .replaceAll('&', '&amp;')
      .replaceAll('<', '&lt;')
      .replaceAll('>', '&gt;')
      .replaceAll('"', '&quot;')
  );
}

function n(value: number): string {
  return String(Math.round(value * 100) / 100);
}
