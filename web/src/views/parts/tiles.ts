/**
 * Rasters of a heatmap as images at their places.
 *
 * A raster knows its tokens (columns) and its rows by identity; the picture has
 * all rows of the heatmap. More rows than the screen has lines are averaged into
 * lines, so that an image never grows beyond what a screen shows.
 */
import type { RasterLayer } from '../../plot';
import type { Raster } from '../../api';
import type { HeatmapHeader, HeatmapRow } from '../../generated/index';
import { shade, type Scale } from './scale';

/** Lines of an image at most. */
const MAX_LINES = 2048;

export interface Tile {
  raster: Raster<HeatmapHeader>;
  /** Token numbers that it covers: from, up to and not including. */
  from: number;
  to: number;
  /** For each row of the picture its row in the raster, or -1. */
  rowOf: Int32Array;
  /** Rows of the picture that it covers: from, up to and not including. */
  firstRow: number;
  endRow: number;
}

export function rowKey(row: HeatmapRow): string {
  return `${row.layer ?? ''}/${row.tensor ?? ''}/${row.expert ?? ''}`;
}

export function tileOf(raster: Raster<HeatmapHeader>, rows: ReadonlyMap<string, number>): Tile | null {
  const { edges } = raster.header;
  const [from, to] = [edges[0], edges[edges.length - 1]];
  if (from === undefined || to === undefined || raster.header.columns === 0) return null;
  const rowOf = new Int32Array(rows.size).fill(-1);
  let [firstRow, endRow] = [rows.size, 0];
  raster.header.rows.forEach((row, at) => {
    const place = rows.get(rowKey(row));
    if (place === undefined) return;
    rowOf[place] = at;
    firstRow = Math.min(firstRow, place);
    endRow = Math.max(endRow, place + 1);
  });
  return endRow > firstRow ? { raster, from, to, rowOf, firstRow, endRow } : null;
}

/** The tile in colours; each row of the picture by its own scale. */
export function imageOf(tile: Tile, scaleOf: (row: number) => Scale): RasterLayer {
  const rows = tile.endRow - tile.firstRow;
  const lines = Math.min(rows, MAX_LINES);
  const { columns } = tile.raster.header;
  const image = document.createElement('canvas');
  image.width = Math.max(1, columns);
  image.height = Math.max(1, lines);
  const data = new ImageData(image.width, image.height);
  const pixels = new Uint32Array(data.data.buffer);
  const { values } = tile.raster;
  const sums = new Float64Array(columns);
  for (let line = 0; line < lines; line++) {
    const first = tile.firstRow + Math.floor((line * rows) / lines);
    const end = tile.firstRow + Math.floor(((line + 1) * rows) / lines);
    let covered = 0;
    sums.fill(0);
    for (let row = first; row < end; row++) {
      const at = tile.rowOf[row] ?? -1;
      if (at < 0) continue;
      covered++;
      const begin = at * columns;
      for (let column = 0; column < columns; column++)
        sums[column] = (sums[column] as number) + (values[begin + column] as number);
    }
    if (covered === 0) continue;
    const scale = scaleOf(first);
    const begin = line * columns;
    for (let column = 0; column < columns; column++)
      pixels[begin + column] = shade(scale, (sums[column] as number) / covered);
  }
  (image.getContext('2d') as CanvasRenderingContext2D).putImageData(data, 0, 0);
  return { image, x0: tile.from, x1: tile.to, y0: tile.firstRow, y1: tile.endRow };
}

export interface CellValue {
  /** Tokens of the column: first and last. */
  first: number;
  last: number;
  value: number;
}

/** The exact value under a token and a row of the picture. */
export function valueAt(tile: Tile, token: number, row: number): CellValue | null {
  if (token < tile.from || token >= tile.to) return null;
  const at = tile.rowOf[row] ?? -1;
  if (at < 0) return null;
  const { edges, columns } = tile.raster.header;
  const column = columnAt(edges, columns, token);
  const value = tile.raster.values[at * columns + column];
  if (value === undefined) return null;
  return { first: edges[column] ?? token, last: (edges[column + 1] ?? token + 1) - 1, value };
}

function columnAt(edges: readonly number[], columns: number, token: number): number {
  let [low, high] = [0, columns - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((edges[middle] ?? Infinity) <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}
