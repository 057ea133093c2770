/**
 * The largest values of a heatmap, which its scale ends at.
 *
 * What belongs to no layer (the output head, an embedding) can be larger than any layer by far:
 * on a common scale all layers would have the first colour. Then it has a scale of its own.
 */
import type { Raster } from '../../api';
import type { HeatmapHeader } from '../../generated/index';

export interface Peaks {
  layers: number;
  /** Of rows that belong to no layer. */
  none: number;
}

export function peaksOf({ header, values }: Raster<Pick<HeatmapHeader, 'rows' | 'columns'>>): Peaks {
  const peaks = { layers: 0, none: 0 };
  header.rows.forEach((row, at) => {
    const of = row.layer === null ? 'none' : 'layers';
    const end = (at + 1) * header.columns;
    for (let i = at * header.columns; i < end; i++) {
      const value = values[i] as number;
      if (value > peaks[of]) peaks[of] = value;
    }
  });
  return peaks;
}

export function higher(a: Peaks, b: Peaks): Peaks {
  return { layers: Math.max(a.layers, b.layers), none: Math.max(a.none, b.none) };
}

/** Whether rows of no layer would hide what the layers' rows show. */
export function areApart({ layers, none }: Peaks): boolean {
  return layers > 0 && none > layers;
}

/** Where the scale of a row ends. */
export function mostOf(peaks: Peaks, layer: number | null): number {
  if (areApart(peaks)) return layer === null ? peaks.none : peaks.layers;
  return Math.max(peaks.layers, peaks.none);
}
