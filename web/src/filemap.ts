/**
 * How the bytes of the model lie on a map: where each cell is, and which
 * tensor owns it. Shared by the map and the playback.
 */
import type { TensorInfo } from './generated/index';

/** Rows of cells, from left to right and from top to bottom along the file. */
export interface RowLayout {
  columns: number;
  cellBytes: number;
  totalBytes: number;
}

export function rowBytes(layout: RowLayout): number {
  return layout.columns * layout.cellBytes;
}

/** Position of the last tensor that begins at or before an offset; -1 when there is none. */
export function tensorBefore(tensors: readonly TensorInfo[], offset: number): number {
  let low = 0;
  let high = tensors.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((tensors[middle] as TensorInfo).begin <= offset) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export function tensorAt(tensors: readonly TensorInfo[], offset: number): TensorInfo | null {
  const tensor = tensors[tensorBefore(tensors, offset)];
  return tensor && offset < tensor.begin + tensor.size_bytes ? tensor : null;
}

/** Ranges of the map that belong to one layer, in the order of the file. */
export interface LayerRange {
  layer: number | null;
  begin: number;
  end: number;
}

/** Of the models that were asked about: drawn in every frame, but always the same. */
const known = new WeakMap<readonly TensorInfo[], LayerRange[]>();

export function layerRanges(tensors: readonly TensorInfo[]): LayerRange[] {
  const before = known.get(tensors);
  if (before) return before;
  const ranges: LayerRange[] = [];
  for (const tensor of tensors) {
    const end = tensor.begin + tensor.size_bytes;
    const last = ranges.at(-1);
    if (last && last.layer === tensor.layer) last.end = end;
    else ranges.push({ layer: tensor.layer, begin: tensor.begin, end });
  }
  known.set(tensors, ranges);
  return ranges;
}

/** A name beside the map: a tensor, or several small ones in a row that belong together. */
export interface Owner {
  name: string;
  component: string;
  begin: number;
  end: number;
}

export function owners(tensors: readonly TensorInfo[], isTall: (size: number) => boolean): Owner[] {
  const out: Owner[] = [];
  let group: { owner: Owner; layer: number | null; count: number } | null = null;
  for (const tensor of tensors) {
    const end = tensor.begin + tensor.size_bytes;
    // Within a layer the layer's prefix says nothing new.
    const name = tensor.layer === null ? tensor.name : tensor.name.replace(/^blk\.\d+\./, '');
    const isSmall = !isTall(tensor.size_bytes);
    if (isSmall && group && group.layer === tensor.layer && group.owner.component === tensor.component) {
      group.count += 1;
      group.owner.name = `${tensor.component} (${group.count} tensors)`;
      group.owner.end = end;
      continue;
    }
    const owner = { name, component: tensor.component, begin: tensor.begin, end };
    group = isSmall ? { owner, layer: tensor.layer, count: 1 } : null;
    out.push(owner);
  }
  return out;
}
