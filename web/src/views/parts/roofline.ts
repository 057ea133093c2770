/** Where the roofs and the points of a roofline lie: both axes are powers of ten. */
import type { Cell } from '../../csv';
import type { Roof, RooflineChart, RooflinePoint } from '../../generated/charts';

/** Room around the outermost points and roofs, in powers of ten. */
const MARGIN = 0.25;
/** As much of a flat roof is seen at least. */
const FLAT = 1;
export const MIN_RADIUS = 3;
export const MAX_RADIUS = 14;

/** Tokens at once, as people choose them; `all` shows every class. */
export interface Choice {
  phase: string | null;
  batch: string;
}

/** Batches of a chart, smallest first: up to so many tokens at once. */
export function batchesOf(chart: RooflineChart, phase: string | null): number[] {
  const shown = chart.points.filter((point) => phase === null || point.phase === phase);
  return [...new Set(shown.map((point) => point.batch))].sort((a, b) => a - b);
}

export function chosen(chart: RooflineChart, { phase, batch }: Choice): RooflinePoint[] {
  return chart.points.filter(
    (point) => (phase === null || point.phase === phase) && (batch === 'all' || String(point.batch) === batch),
  );
}

/** From and to, as powers of ten. */
export interface Ranges {
  x: [number, number];
  y: [number, number];
}

/** Roofs are those of all points, so that a choice does not move them more than it has to. */
export function rangesOf(chart: RooflineChart, points: readonly RooflinePoint[]): Ranges {
  const flats = chart.compute.map((roof) => Math.log10(roof.per_second));
  const ridges = chart.memory.flatMap((roof) => flats.map((flat) => flat - Math.log10(roof.per_second) + FLAT));
  return {
    x: around([...points.map((point) => Math.log10(point.intensity)), ...ridges]),
    y: around([...points.map((point) => Math.log10(point.flops_per_second)), ...flats]),
  };
}

function around(values: readonly number[]): [number, number] {
  const known = values.filter(Number.isFinite);
  if (known.length === 0) return [0, 1];
  return [Math.min(...known) - MARGIN, Math.max(...known) + MARGIN];
}

/** A line of a roof, as powers of ten; null where none of it is in the picture. */
export interface RoofLine {
  roof: Roof;
  from: [number, number];
  to: [number, number];
}

/** A slope ends at the highest flat roof of as many threads; without one it leaves the picture. */
export function roofLines(chart: RooflineChart, { x, y }: Ranges): { slopes: RoofLine[]; flats: RoofLine[] } {
  const slopes: RoofLine[] = [];
  for (const roof of chart.memory) {
    const rate = Math.log10(roof.per_second);
    const same = chart.compute.filter((one) => one.threads === roof.threads);
    const highest = same.length > 0 ? Math.max(...same.map((one) => Math.log10(one.per_second))) : y[1];
    const from = Math.max(x[0], y[0] - rate);
    const to = Math.min(x[1], Math.min(highest, y[1]) - rate);
    if (to > from) slopes.push({ roof, from: [from, from + rate], to: [to, to + rate] });
  }
  const flats = chart.compute.map((roof): RoofLine => {
    const flat = Math.log10(roof.per_second);
    const memory = chart.memory.find((one) => one.threads === roof.threads);
    const ridge = memory ? flat - Math.log10(memory.per_second) : x[0];
    return { roof, from: [Math.max(x[0], ridge), flat], to: [x[1], flat] };
  });
  return { slopes, flats };
}

/** Whole powers of ten in a range, named from `10^zero` on. */
export function ticksOf([from, to]: [number, number], zero: number): { at: number; text: string }[] {
  const ticks = [];
  for (let at = Math.ceil(from); at <= Math.floor(to); at++) {
    const power = at - zero;
    const text = power >= -3 && power <= 4 ? (10 ** power).toFixed(Math.max(0, -power)) : `10^${power}`;
    ticks.push({ at, text });
  }
  return ticks;
}

/** Its area is its time. */
export function radiusOf(point: RooflinePoint, longest: number): number {
  return Math.max(MIN_RADIUS, MAX_RADIUS * Math.sqrt(point.nanos / Math.max(1, longest)));
}

/** Behind the columns of a diagnosis, whose first ones they fill. */
export const ROOFLINE_COLUMNS = [
  'batch',
  'bound',
  'flops_per_second',
  'bytes_per_second',
  'flops_per_byte',
  'share_of_ceiling',
  'nanos',
];

/** A row for each class; `columns` are before these. */
export function rooflineRows(points: readonly RooflinePoint[], columns: readonly string[]): Cell[][] {
  return points.map((point) => {
    const own: Record<string, Cell> = {
      row: 'roofline',
      phase: point.phase,
      name: point.name,
      title: point.name,
      share: point.share_of_phase,
    };
    return [
      ...columns.map((column) => own[column]),
      point.batch_text,
      point.bound,
      point.flops_per_second,
      point.bytes_per_second,
      point.intensity,
      point.share_of_ceiling,
      point.nanos,
    ];
  });
}
