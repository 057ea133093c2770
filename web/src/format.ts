/** Numbers as people read them. Bytes in KiB/MiB, times in the unit that fits, counts with separators. */

const BYTE_UNITS: [number, string][] = [
  [2 ** 40, 'TiB'],
  [2 ** 30, 'GiB'],
  [2 ** 20, 'MiB'],
  [2 ** 10, 'KiB'],
  [1, 'B'],
];
const TIME_UNITS: [number, string][] = [
  [1e9, 's'],
  [1e6, 'ms'],
  [1e3, 'µs'],
  [1, 'ns'],
];

/** `1.5 MiB`, as the report writes it. */
export function bytes(value: number): string {
  return amount(value, BYTE_UNITS);
}

/** `12.3 ms`, as the report writes it. */
export function nanos(value: number): string {
  return amount(value, TIME_UNITS);
}

function amount(value: number, units: readonly [number, string][]): string {
  if (!Number.isFinite(value)) return '–';
  const [scale, unit] = units.find(([step]) => Math.abs(value) >= step) ?? (units.at(-1) as [number, string]);
  return `${scale === 1 ? value.toFixed(0) : short(value / scale)} ${unit}`;
}

/** Three figures that matter, without an exponent: `0.125`, `1.25`, `12.5`, `1250`. */
function short(value: number): string {
  const size = Math.abs(value);
  const digits = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : size >= 0.0095 ? 3 : 5;
  const text = value.toFixed(digits);
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

/** Every nanosecond: `1 234 567 ns`. */
export function exactNanos(value: number): string {
  return `${integer(value)} ns`;
}

/** `12 345` as the locale-independent `12,345`. */
export function integer(value: number): string {
  if (!Number.isFinite(value)) return '–';
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, ',');
}

/** `12.3 k`, `4.56 M`; integers below 10 000 stay whole. */
export function count(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) < 1e4) return Number.isInteger(value) ? integer(value) : short(value);
  for (const [scale, unit] of [
    [1e12, 'T'],
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ] as const) {
    if (Math.abs(value) >= scale) return `${short(value / scale)} ${unit}`;
  }
  return short(value);
}

/** `63.6 %`, as the report writes it; of little the two figures that matter. */
export function percent(share: number): string {
  if (!Number.isFinite(share)) return '–';
  const p = share * 100;
  if (p === 0 || p === 100) return `${p} %`;
  return `${p.toFixed(Math.abs(p) < 10 ? Math.max(0, 1 - Math.floor(Math.log10(Math.abs(p)))) : 1)} %`;
}

/** `0x1A2B` for offsets in files. */
export function hex(value: number): string {
  return `0x${Math.round(value).toString(16).toUpperCase()}`;
}

export function layer(value: number | null): string {
  return value === null ? 'no layer' : `layer ${value}`;
}

/** A token's text on one line: white space and control characters made visible; empty when it is not known. */
export function tokenText(text: string | null): string {
  return (text ?? '')
    .replace(/\n/g, '↵')
    .replace(/\t/g, '⇥')
    .replace(/ /g, '·')
    .replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, '�');
}

/** By the unit that a chart's axis or a raster's header names. */
export function byUnit(unit: string, value: number): string {
  switch (unit) {
    case 'bytes':
      return bytes(value);
    case 'nanos':
    case 'nanoseconds':
    case 'ns':
      return nanos(value);
    case 'share':
      return percent(value);
    case 'count':
    case 'plain':
    case '':
      return count(value);
    default:
      return `${count(value)} ${unit}`;
  }
}
