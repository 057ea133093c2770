/**
 * Names beside the rows of the map: layers, and what lies in them.
 *
 * A layer that is tall enough names its tensors, one line each. One that is not names its
 * components on one line, so that none that matters is left out; of layers that are lower than
 * a line, every second, third, … is named.
 */
import { fit, type Pen } from './canvas';
import type { Colours } from './colours';
import { layerRanges, owners, type LayerRange } from './filemap';
import type { Plot } from './plot';
import type { TensorInfo } from './generated/index';

const LINE_PX = 13;
/** A component with less of a layer than this needs no name. */
const LEAST_SHARE = 0.04;

export interface Label {
  y: number;
  /** Only on the first line of a layer; null: no layer. */
  layer?: number | null;
  parts: { name: string; component: string }[];
}

export interface Sight {
  /** Where a position on the map is, in pixels. */
  py(position: number): number;
  top: number;
  bottom: number;
}

export function gutterLabels(tensors: readonly TensorInfo[], sight: Sight): Label[] {
  const clamp = (y: number) => Math.max(sight.top, Math.min(sight.bottom, y));
  const labels: Label[] = [];
  let free = sight.top;
  let next = 0;
  for (const range of layerRanges(tensors)) {
    const first = next;
    while (next < tensors.length && (tensors[next] as TensorInfo).begin < range.end) next++;
    const [y0, y1] = [clamp(sight.py(range.begin)), clamp(sight.py(range.end))];
    // Out of sight, or the line before has run over most of it.
    if (y1 - y0 < 3 || free > y0 + 8) continue;
    const inside = tensors.slice(first, next);
    const lines = linesOf(inside, sight, clamp, Math.max(free, y0));
    const named = new Set(lines.flatMap(({ parts }) => parts.map(({ component }) => component)));
    const wanted = partsOf(inside, range);
    const isWhole = lines.length > 0 && wanted.every(({ component }) => named.has(component));
    const shown = isWhole ? lines : [{ y: Math.max(free, y0) + 8, parts: wanted }];
    labels.push(...shown.map((line, at) => (at === 0 ? { ...line, layer: range.layer } : line)));
    free = (shown.at(-1) as Label).y + LINE_PX - 8;
  }
  return labels;
}

/** Right of the rows: a bar for each layer, and the names of what lies there. */
export function drawLabels(pen: Pen, plot: Plot, x: number, tensors: readonly TensorInfo[], colours: Colours): void {
  const [top, bottom] = [plot.margin.top, plot.margin.top + plot.innerHeight];
  const clamp = (y: number) => Math.max(top, Math.min(bottom, y));
  for (const { layer, begin, end } of layerRanges(tensors)) {
    const [y0, y1] = [clamp(plot.py(begin)), clamp(plot.py(end))];
    if (y1 - y0 >= 3) pen.rect(x, y0 + 1, 3, y1 - y0 - 2, layer === null ? colours.line : colours.accent);
  }
  for (const { y, layer, parts } of gutterLabels(tensors, { py: (at) => plot.py(at), top, bottom })) {
    if (layer !== undefined) pen.text(layer === null ? '–' : `L${layer}`, x + 8, y, { colour: colours.text });
    let at = x + 36;
    for (const { name, component } of parts) {
      const text = fit(pen, name, plot.width - at - 16);
      if (text === '') break;
      pen.rect(at, y - 4, 7, 7, colours.component(component));
      pen.text(text, at + 12, y, { colour: colours.muted });
      at += 24 + pen.measure(text);
    }
  }
}

/** A line for each tensor that is tall enough, and for small ones in a row that belong together. */
function linesOf(tensors: readonly TensorInfo[], { py }: Sight, clamp: (y: number) => number, from: number): Label[] {
  const lines: Label[] = [];
  let free = from;
  for (const owner of owners(tensors, (size) => py(size) - py(0) >= LINE_PX)) {
    const [y0, y1] = [clamp(py(owner.begin)), clamp(py(owner.end))];
    const y = Math.max(y0, free) + 8;
    if (y1 - y0 < 6 || y - 4 > y1) continue;
    lines.push({ y, parts: [{ name: owner.name, component: owner.component }] });
    free = y + LINE_PX - 8;
  }
  return lines;
}

/** Components of a layer that are large enough, the largest first; of a single tensor its name. */
function partsOf(tensors: readonly TensorInfo[], range: LayerRange): Label['parts'] {
  const sizes = new Map<string, TensorInfo[]>();
  for (const tensor of tensors) sizes.set(tensor.component, [...(sizes.get(tensor.component) ?? []), tensor]);
  const bytesOf = (of: TensorInfo[]) => of.reduce((sum, tensor) => sum + tensor.size_bytes, 0);
  return [...sizes]
    .map(([component, of]) => ({ component, bytes: bytesOf(of), name: of.length === 1 ? nameOf(of[0]) : component }))
    .filter(({ bytes }) => bytes >= LEAST_SHARE * (range.end - range.begin))
    .sort((a, b) => b.bytes - a.bytes)
    .map(({ component, name }) => ({ component, name }));
}

function nameOf(tensor: TensorInfo | undefined): string {
  return tensor?.layer === null ? tensor.name : (tensor?.component ?? '');
}
