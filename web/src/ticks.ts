/** Where an axis has its ticks, and what they say. */

export type AxisKind = 'time' | 'bytes' | 'count' | 'token' | 'names';

export interface Tick {
  at: number;
  text: string;
  /** A name between two borders, not a place on a scale: gets no tick mark. */
  isName?: boolean;
}

/** Ticks of an axis: its own, or round numbers of its kind. */
export function axisTicks(
  axis: { kind: AxisKind; ticks?: (low: number, high: number, pixels: number) => Tick[] },
  low: number,
  high: number,
  pixels: number,
  /** Room that a tick with its text needs. */
  spacingPx = axis.kind === 'token' ? 60 : 90,
): Tick[] {
  if (axis.ticks) return axis.ticks(low, high, pixels);
  if (!(high > low) || axis.kind === 'names') return [];
  const most = Math.max(2, Math.floor(pixels / spacingPx));
  const step = axis.kind === 'bytes' ? binaryStep((high - low) / most) : decimalStep((high - low) / most);
  const whole = axis.kind === 'token' || axis.kind === 'count' ? Math.max(1, step) : step;
  const label = labels(axis.kind, low, high, whole);
  const ticks: Tick[] = [];
  for (let i = Math.ceil(low / whole); i * whole <= high; i++) ticks.push({ at: i * whole, text: label(i * whole) });
  return ticks;
}

/** A text for each tick, all in one unit and with as many digits as the step needs. */
function labels(kind: AxisKind, low: number, high: number, step: number): (value: number) => string {
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (kind === 'time') {
    const [scale, unit] = (
      [
        [1e9, 's'],
        [1e6, 'ms'],
        [1e3, 'µs'],
        [1, 'ns'],
      ] as const
    ).find(([s]) => size >= s) ?? [1, 'ns'];
    return (value) => `${(value / scale).toFixed(decimals(step / scale))} ${unit}`;
  }
  if (kind === 'bytes') {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    const powerOf = (bytes: number) =>
      Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
    // Deep in a large file `2974 MiB` reads better than `2.904297 GiB`, and fits.
    const whole = powerOf(size);
    const power = binaryDecimals(step / 1024 ** whole) <= 2 ? whole : Math.min(whole, powerOf(step));
    const scale = 1024 ** power;
    return (value) => `${trim((value / scale).toFixed(Math.min(6, binaryDecimals(step / scale))))} ${units[power]}`;
  }
  return (value) =>
    value >= 1e6 ? `${trim((value / 1e6).toFixed(decimals(step / 1e6)))} M` : String(Math.round(value * 1e6) / 1e6);
}

function decimalStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least * 0.999) ?? power * 10;
}

function binaryStep(least: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, least)));
}

function decimals(step: number): number {
  return Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
}

/** A step of 1/2ⁿ needs n digits after the point. */
function binaryDecimals(step: number): number {
  return Math.max(0, Math.ceil(-Math.log2(step)));
}

function trim(number: string): string {
  return number.includes('.') ? number.replace(/\.?0+$/, '') : number;
}
