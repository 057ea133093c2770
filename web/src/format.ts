/** Numbers as people read them. Bytes in KiB/MiB, times in the unit that fits, counts with separators. */

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
const TIME_UNITS: [number, string][] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];

/** `1.50 MiB`; three significant digits. */
export function bytes(value: number): string {
  if (!Number.isFinite(value)) return '–';
  let unit = 0;
  let scaled = value;
  while (Math.abs(scaled) >= 1024 && unit < BYTE_UNITS.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? String(Math.round(scaled * 100) / 100) : significant(scaled)} ${BYTE_UNITS[unit]}`;
}

/** Powers of two without digits that are zero. */
export function roundBytes(value: number): string {
  return bytes(value).replace(/(\.\d*?)0+ /, '$1 ').replace('. ', ' ');
}

/** `12.3 ms`; three significant digits. */
export function nanos(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0 s';
  const [scale, unit] = TIME_UNITS.find(([s]) => Math.abs(value) >= s) ?? [1, 'ns'];
  return `${significant(value / scale)} ${unit}`;
}

/** Every nanosecond: `1 234 567 ns`. */
export function exactNanos(value: number): string {
  return `${integer(value)} ns`;
}

/** `12 345` as the locale-independent `12,345`. */
export function integer(value: number): string {
  if (!Number.isFinite(value)) return '–';
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');
}

/** `12.3 k`, `4.56 M`; integers below 10 000 stay whole. */
export function count(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) < 1e4) return Number.isInteger(value) ? integer(value) : significant(value);
  for (const [scale, unit] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']] as const) {
    if (Math.abs(value) >= scale) return `${significant(value / scale)} ${unit}`;
  }
  return significant(value);
}

export function percent(share: number): string {
  if (!Number.isFinite(share)) return '–';
  const p = share * 100;
  return `${p !== 0 && Math.abs(p) < 10 ? p.toPrecision(2) : p.toFixed(p === 100 || p === 0 ? 0 : 1)} %`;
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
  return (text ?? '').replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/ /g, '·').replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, '�');
}

/** By the unit that a raster's header names. */
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
    default:
      return unit ? `${count(value)} ${unit}` : count(value);
  }
}

/** One CSV line of cells. */
export function csvLine(cells: readonly (string | number | null | undefined)[]): string {
  return cells
    .map((cell) => {
      let text = cell === null || cell === undefined ? '' : String(cell);
      // A spreadsheet would run a text of a hostile model that begins like a formula.
      if (typeof cell === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    })
    .join(',') + '\n';
}

function significant(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return '0';
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : Math.min(8, 2 - Math.floor(Math.log10(size)));
  return value.toFixed(digits);
}
