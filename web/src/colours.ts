/**
 * Colours with a fixed meaning, in dark and light: those of crates/render/src/palette.rs, which
 * the report has too.
 */
import {
  CATEGORIES,
  COUNTS,
  DASHES,
  DIFFERENCE,
  OPS,
  SERIES,
  SURFACES,
  TIME,
  TIME_PARTS,
  WAYS,
} from './generated/palette';

export type Theme = 'dark' | 'light';
/** 256 colours as 0xAABBGGRR, ready for a Uint32Array over ImageData. */
export type Table = Uint32Array;

export interface Colours {
  theme: Theme;
  ground: string;
  panel: string;
  text: string;
  muted: string;
  grid: string;
  line: string;
  accent: string;
  /** Page faults, and where no kernel ran; reads from the disk; over other colours. */
  fault: string;
  disk: string;
  /** Sequential, for counts and bytes. */
  counts: Table;
  /** Viridis, for time and token order. */
  time: Table;
  /** Diverging around 128 (blue less, orange more), for differences. */
  difference: Table;
  component(name: string | null): string;
  op(name: string): string;
  /** Of a way of using memory, or of a rule of caches. */
  way(name: string): string;
  /** Of a part of a token's time. */
  timePart(name: string): string;
  /** The n-th colour of the categorical palette, cycling. */
  category(index: number): string;
}

export function coloursOf(theme: Theme): Colours {
  const named = (name: string | undefined) => CATEGORIES[theme][name ?? ''] ?? (CATEGORIES[theme]['other'] as string);
  return {
    theme,
    ...SURFACES[theme],
    counts: table(COUNTS[theme]),
    time: table(TIME[theme]),
    difference: table(DIFFERENCE[theme]),
    component: (name) => named(name ?? ''),
    // Fused nodes are called like `RMS_NORM+MUL`: the first op names the family.
    op: (name) => named(OPS[name.split('+')[0] as string]),
    way: (name) => named(WAYS[name]),
    timePart: (name) => named(TIME_PARTS[name]),
    category: (index) => named(SERIES[index % SERIES.length]),
  };
}

/** Of a line in a category's colour: lines differ without it too. */
export function dashOf(category: string): number[] | undefined {
  const dash = DASHES[category];
  return dash && dash.length > 0 ? dash : undefined;
}

/** A colour of a table, `t` from 0 to 1, as CSS. */
export function css(from: Table, t: number): string {
  const c = from[Math.max(0, Math.min(255, Math.round(t * 255)))] as number;
  return `rgb(${c & 255},${(c >> 8) & 255},${(c >> 16) & 255})`;
}

/** `#rrggbb` with an alpha from 0 to 1. */
export function withAlpha(colour: string, alpha: number): string {
  const [r, g, b] = channels(colour);
  return `rgba(${r},${g},${b},${alpha})`;
}

/** Black or white, whichever reads on this colour. */
export function textOn(colour: string): string {
  const [r, g, b] = channels(colour);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#10131a' : '#ffffff';
}

/** `#rrggbb` as 0xAABBGGRR, opaque. */
export function packed(colour: string): number {
  const [r, g, b] = channels(colour);
  return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
}

function channels(colour: string): [number, number, number] {
  const n = Number.parseInt(colour.slice(1, 7), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** 256 colours between the stops, interpolated linearly. */
function table(stops: string[]): Table {
  const colours = stops.map(channels);
  const out = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(at), colours.length - 2);
    const a = colours[low] as [number, number, number];
    const b = colours[low + 1] as [number, number, number];
    const mix = (k: 0 | 1 | 2) => Math.round(a[k] + (b[k] - a[k]) * (at - low));
    out[i] = (0xff000000 | (mix(2) << 16) | (mix(1) << 8) | mix(0)) >>> 0;
  }
  return out;
}
