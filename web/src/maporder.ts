/**
 * In which order the map shows the bytes of the model: as they lie in the file, or layer by layer.
 *
 * Converters write tensors by their names as often as by their layers, so a file may go
 * 0, 1, 10, 11, …, 2. Sorted by layer, a position on the map is no longer an offset.
 */
import { layerRanges } from './filemap';
import type { TensorInfo } from './generated/index';

/** What one can choose from. */
export const ORDERS = [
  { value: 'rows', text: 'file', title: 'as the tensors lie in the file, row by row' },
  { value: 'layers', text: 'layers', title: 'layer by layer, row by row; as in the file where that is sorted' },
  { value: 'hilbert', text: 'Hilbert', title: 'what is near in the file is near on the map' },
];

/** A part of the file, and where it is shown. */
interface Piece {
  begin: number;
  end: number;
  at: number;
}

export interface Order {
  /** Tensors at their places on the map; `begin` is a position. */
  tensors: readonly TensorInfo[];
  /** The offset that is shown at a position. */
  offsetAt(position: number): number;
  /** Values of cells of the file, as cells of the map. */
  arranged(values: Float32Array, cellBytes: number): Float32Array;
}

export function fileOrder(tensors: readonly TensorInfo[]): Order {
  return { tensors, offsetAt: (position) => position, arranged: (values) => values };
}

/** What stands before the first layer in the file, the layers, and what belongs to none of them behind. */
export function layerOrder(tensors: readonly TensorInfo[], totalBytes: number): Order {
  const pieces = piecesOf(tensors, totalBytes);
  const shown = tensors
    .map((tensor) => ({ ...tensor, begin: moved(pieces, tensor.begin) }))
    .sort((a, b) => a.begin - b.begin);
  return {
    tensors: shown,
    offsetAt: (position) => {
      const piece = pieces[lastAt(pieces, position)];
      return piece ? piece.begin + (position - piece.at) : position;
    },
    arranged: (values, cellBytes) => {
      const out = new Float32Array(values.length).fill(Number.NaN);
      let p = 0;
      const cells = Math.min(values.length, Math.ceil(totalBytes / cellBytes));
      for (let cell = 0; cell < cells; cell++) {
        const position = Math.min(totalBytes - 1, (cell + 0.5) * cellBytes);
        while (p + 1 < pieces.length && (pieces[p + 1] as Piece).at <= position) p++;
        const piece = pieces[p] as Piece;
        out[cell] = values[Math.floor((piece.begin + (position - piece.at)) / cellBytes)] ?? Number.NaN;
      }
      return out;
    },
  };
}

/** Values of the orders that differ from each other for this file. */
export function knownOrders(tensors: readonly TensorInfo[]): string[] {
  const values = ORDERS.map(({ value }) => value);
  return isByLayer(tensors) ? values.filter((value) => value !== 'layers') : values;
}

/** Whether layers follow each other in the file. */
export function isByLayer(tensors: readonly TensorInfo[]): boolean {
  const layers = layersInFile(tensors);
  return layers.every((layer, at) => at === 0 || layer > (layers[at - 1] as number));
}

/** The order of the layers in the file, as a person would say it: `0, 1, 10, 11, …`. */
export function spokenOrder(tensors: readonly TensorInfo[]): string {
  const layers = layersInFile(tensors);
  const turn = layers.findIndex((layer, at) => at > 0 && layer !== (layers[at - 1] as number) + 1);
  return `${layers.slice(0, Math.max(4, Math.min(6, turn + 2))).join(', ')}, …`;
}

/** In which order the map is, and, where that is not the layers', what to do about it. */
export function orderText(tensors: readonly TensorInfo[], isSorted: boolean): string {
  if (isSorted) return 'in layer order, not as in the file';
  if (isByLayer(tensors)) return 'in file order, which is that of the layers';
  return `in file order, which has the layers as ${spokenOrder(tensors)} (order “layers” sorts them)`;
}

function layersInFile(tensors: readonly TensorInfo[]): number[] {
  return layerRanges(tensors)
    .map(({ layer }) => layer)
    .filter((layer): layer is number => layer !== null);
}

/** By their places on the map; padding goes with what stands before it. */
function piecesOf(tensors: readonly TensorInfo[], totalBytes: number): Piece[] {
  const ranges = layerRanges(tensors);
  const firstLayer = ranges.findIndex(({ layer }) => layer !== null);
  const rank = (layer: number | null, at: number) =>
    layer ?? (at < firstLayer || firstLayer < 0 ? -1 : Number.POSITIVE_INFINITY);
  const parts = ranges.map(({ layer, begin }, at) => ({
    begin,
    end: ranges[at + 1]?.begin ?? Math.max(totalBytes, begin),
    rank: rank(layer, at),
  }));
  const header = { begin: 0, end: ranges[0]?.begin ?? totalBytes, rank: Number.NEGATIVE_INFINITY };
  // Infinity − Infinity is no number.
  const sorted = [header, ...parts].sort((a, b) => (a.rank === b.rank ? a.begin - b.begin : a.rank < b.rank ? -1 : 1));
  let at = 0;
  return sorted.map(({ begin, end }) => {
    const piece = { begin, end, at };
    at += end - begin;
    return piece;
  });
}

function moved(pieces: readonly Piece[], offset: number): number {
  const piece = pieces.find(({ begin, end }) => offset >= begin && offset < end);
  return piece ? piece.at + (offset - piece.begin) : offset;
}

function lastAt(pieces: readonly Piece[], position: number): number {
  let low = 0;
  let high = pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((pieces[middle] as Piece).at <= position) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
