/**
 * The map by component: the colour says what the bytes are for, its strength how often they
 * were read. Of a dense model every byte is read for every token, so counts alone say nothing.
 */
import { scaled, type Pen, type Scale } from './canvas';
import { packed, type Colours } from './colours';
import type { TensorInfo } from './generated/index';

/** Never read, and read least and most: shares of the component's colour over the panel's. */
const [UNREAD, LEAST, MOST] = [0.14, 0.4, 0.86];
const STEPS = 64;
export const PALER = 'paler: read less often';

export interface Cells {
  values: Float32Array;
  cellBytes: number;
  /** Number of the first of them. */
  first: number;
  tensors: readonly TensorInfo[];
}

/** A colour for each cell, 0xAABBGGRR: that of the tensor in its middle. */
export function componentPixels(
  { values, cellBytes, first, tensors }: Cells,
  { max, scale }: { max: number; scale: Scale },
  colours: Pick<Colours, 'panel' | 'component'>,
): Uint32Array {
  const pixels = new Uint32Array(values.length);
  const panel = packed(colours.panel);
  const ramps = new Map<string, Uint32Array>();
  let t = -1;
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as number;
    const middle = (first + i + 0.5) * cellBytes;
    while (t + 1 < tensors.length && (tensors[t + 1] as TensorInfo).begin <= middle) t++;
    const tensor = tensors[t];
    // The header, and behind the end.
    if (!tensor || Number.isNaN(value)) {
      pixels[i] = panel;
      continue;
    }
    let ramp = ramps.get(tensor.component);
    if (!ramp) ramps.set(tensor.component, (ramp = rampOf(packed(colours.component(tensor.component)), panel)));
    const at = value > 0 ? 1 + Math.round(scaled(value, max, scale) * STEPS) : 0;
    pixels[i] = ramp[Math.min(STEPS + 1, at)] as number;
  }
  return pixels;
}

function rampOf(colour: number, panel: number): Uint32Array {
  return Uint32Array.from({ length: STEPS + 2 }, (_, at) =>
    mixed(panel, colour, at === 0 ? UNREAD : LEAST + ((MOST - LEAST) * (at - 1)) / STEPS),
  );
}

function mixed(a: number, b: number, share: number): number {
  const channel = (shift: number) =>
    Math.round(((a >> shift) & 255) * (1 - share) + ((b >> shift) & 255) * share) << shift;
  return (0xff000000 | channel(16) | channel(8) | channel(0)) >>> 0;
}

/** Components with their shares of the bytes, the largest first. */
export function componentShares(tensors: readonly TensorInfo[]): [string, number][] {
  const sizes = new Map<string, number>();
  let all = 0;
  for (const { component, size_bytes: bytes } of tensors) {
    sizes.set(component, (sizes.get(component) ?? 0) + bytes);
    all += bytes;
  }
  return [...sizes].map(([name, bytes]): [string, number] => [name, bytes / (all || 1)]).sort((a, b) => b[1] - a[1]);
}

/** Which colour is which component, drawn leftwards from `right` as far as there is room. */
export function drawComponentLegend(
  pen: Pen,
  [left, right]: [number, number],
  y: number,
  tensors: readonly TensorInfo[],
  colours: Colours,
  paler: string = PALER,
): void {
  const style = { colour: colours.muted, baseline: 'middle' } as const;
  let x = right;
  const names = componentShares(tensors).map(([name]) => name);
  const widthOf = (name: string) => pen.measure(name) + 26;
  const width = names.reduce((sum, name) => sum + widthOf(name), 0);
  if (width + pen.measure(paler) + 12 <= right - left) {
    pen.text(paler, x, y, { ...style, align: 'right' });
    x -= pen.measure(paler) + 14;
  }
  // The smallest are left out where there is too little room.
  let room = x - left;
  const shown = names.filter((name) => (room -= widthOf(name)) >= 0);
  for (const name of shown.reverse()) {
    pen.text(name, x, y, { ...style, align: 'right' });
    x -= pen.measure(name) + 14;
    pen.rect(x, y - 5, 10, 10, colours.component(name));
    x -= 12;
  }
}
