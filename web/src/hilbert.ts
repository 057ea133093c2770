/**
 * The Hilbert curve: a line that fills a square so that what is near on the
 * line is near in the square. And what lies around the cells on such a map.
 */
import type { Pen } from './canvas';
import { withAlpha, type Colours } from './colours';
import { layerRanges } from './filemap';
import * as format from './format';
import type { Info, TensorInfo } from './generated/index';

/** The place of the d-th cell on a Hilbert curve over a square of `side` (a power of two). */
export function hilbertPlace(side: number, d: number): [number, number] {
  let x = 0;
  let y = 0;
  let rest = d;
  for (let s = 1; s < side; s *= 2) {
    const rx = 1 & (rest >> 1);
    const ry = 1 & (rest ^ rx);
    [x, y] = turned(s, x, y, rx, ry);
    x += s * rx;
    y += s * ry;
    rest >>= 2;
  }
  return [x, y];
}

/** The inverse: how far along the curve a place is. */
export function hilbertIndex(side: number, x: number, y: number): number {
  let d = 0;
  for (let s = side >> 1; s > 0; s >>= 1) {
    const rx = (x & s) > 0 ? 1 : 0;
    const ry = (y & s) > 0 ? 1 : 0;
    d += s * s * ((3 * rx) ^ ry);
    [x, y] = turned(side, x, y, rx, ry);
  }
  return d;
}

/** Quadrants of the curve are turned so that their ends meet. */
function turned(size: number, x: number, y: number, rx: number, ry: number): [number, number] {
  if (ry === 1) return [x, y];
  return rx === 1 ? [size - 1 - y, size - 1 - x] : [y, x];
}

/** Places of all cells of a square, computed once per side. */
const curves = new Map<number, Uint32Array>();
/** y·side + x of each cell along the curve. */
export function hilbertCurve(side: number): Uint32Array {
  let curve = curves.get(side);
  if (!curve) {
    curve = new Uint32Array(side * side);
    for (let d = 0; d < curve.length; d++) {
      const [x, y] = hilbertPlace(side, d);
      curve[d] = y * side + x;
    }
    curves.set(side, curve);
  }
  return curve;
}

/** Lines between the areas of tensors and layers, and the layers' names. */
export function drawOwners(
  context: CanvasRenderingContext2D,
  square: { x: number; y: number; size: number },
  side: number,
  cellBytes: number,
  info: Info,
  colours: Colours,
): void {
  const { x, y, size } = square;
  const cell = size / side;
  const curve = hilbertCurve(side);
  // Owners on the grid, then a line wherever neighbours differ.
  const owner = new Int32Array(side * side).fill(-1);
  const layer = new Int32Array(side * side).fill(-2);
  let t = 0;
  for (let d = 0; d < curve.length; d++) {
    const offset = (d + 0.5) * cellBytes;
    while (t + 1 < info.tensors.length && (info.tensors[t + 1] as TensorInfo).begin <= offset) t++;
    if (offset >= info.model.size_bytes) break;
    owner[curve[d] as number] = t;
    layer[curve[d] as number] = info.tensors[t]?.layer ?? -1;
  }
  for (let gy = 0; gy < side; gy++) {
    for (let gx = 0; gx < side; gx++) {
      const i = gy * side + gx;
      for (const [j, isRight] of [
        [i + 1, true],
        [i + side, false],
      ] as const) {
        if ((isRight && gx === side - 1) || j >= owner.length || owner[i] === owner[j]) continue;
        const isLayer = layer[i] !== layer[j];
        context.fillStyle = isLayer ? colours.accent : withAlpha(colours.accent, 0.45);
        const w = isLayer ? 2 : 1;
        if (isRight) context.fillRect(x + (gx + 1) * cell - w / 2, y + gy * cell, w, cell);
        else context.fillRect(x + gx * cell, y + (gy + 1) * cell - w / 2, cell, w);
      }
    }
  }
  context.font = '600 12px ui-sans-serif, system-ui, sans-serif';
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  for (const range of layerRanges(info.tensors)) {
    const cells = (range.end - range.begin) / cellBytes;
    if (range.layer === null || cells * cell * cell < 1500) continue;
    const [gx, gy] = middleOf(curve, side, Math.floor(range.begin / cellBytes), Math.floor(range.end / cellBytes));
    const [cx, cy] = [x + (gx + 0.5) * cell, y + (gy + 0.5) * cell];
    const text = `layer ${range.layer}`;
    const width = context.measureText(text).width + 10;
    context.fillStyle = withAlpha(colours.ground, 0.82);
    context.fillRect(cx - width / 2, cy - 9, width, 18);
    context.fillStyle = colours.text;
    context.fillText(text, cx, cy);
  }
}

/** The centre of a piece of the curve, or, where that lies outside of it, the middle of the piece itself. */
function middleOf(curve: Uint32Array, side: number, from: number, to: number): [number, number] {
  const last = Math.min(curve.length, to);
  let [x, y] = [0, 0];
  for (let d = from; d < last; d++) {
    x += (curve[d] as number) % side;
    y += Math.floor((curve[d] as number) / side);
  }
  const count = Math.max(1, last - from);
  const centre: [number, number] = [Math.round(x / count), Math.round(y / count)];
  const at = hilbertIndex(side, ...centre);
  if (at >= from && at < last) return centre;
  const place = curve[Math.min(curve.length - 1, (from + last) >> 1)] as number;
  return [place % side, Math.floor(place / side)];
}

/** Beside the square: what the components weigh and how much of them was read. */
export function drawComponentKey(
  pen: Pen,
  x: number,
  y: number,
  width: number,
  readBytes: ReadonlyMap<string, number>,
  info: Info,
  colours: Colours,
): void {
  const sizes = new Map<string, number>();
  for (const tensor of info.tensors)
    sizes.set(tensor.component, (sizes.get(tensor.component) ?? 0) + tensor.size_bytes);
  const rows = [...sizes].sort((a, b) => b[1] - a[1]);
  const most = rows[0]?.[1] ?? 1;
  const [nameX, sizeX, readX, barX] = [x + 16, x + 190, x + 270, x + 286];
  const barWidth = Math.max(0, Math.min(200, width - barX - 90));
  const head = { colour: colours.muted, align: 'right' } as const;
  pen.text('component', nameX, y, { colour: colours.muted });
  pen.text('size', sizeX, y, head);
  pen.text('read', readX, y, head);
  rows.forEach(([component, size], i) => {
    const line = y + 22 + i * 20;
    const read = readBytes.get(component) ?? 0;
    pen.rect(x, line - 5, 10, 10, colours.component(component));
    pen.text(component, nameX, line, { colour: colours.text });
    pen.text(format.bytes(size), sizeX, line, { colour: colours.text, align: 'right' });
    pen.text(format.bytes(read), readX, line, { colour: colours.text, align: 'right' });
    pen.rect(barX, line - 5, (barWidth * size) / most, 10, withAlpha(colours.component(component), 0.75));
    pen.text(
      `${format.count(Number((read / size).toPrecision(3))).replace(' ', '')}× its size`,
      barX + (barWidth * size) / most + 6,
      line,
      { colour: colours.muted },
    );
  });
  pen.text('thin lines: borders of tensors, thick ones: of layers', x, y + 34 + rows.length * 20, {
    colour: colours.muted,
  });
}
