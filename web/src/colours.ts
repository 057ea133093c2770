/**
 * Colours with a fixed meaning, in dark and light.
 *
 * Counts and bytes: a sequential map of monotone lightness that starts at the
 * background. Time and token order: viridis. Components and ops: Okabe–Ito,
 * which people with any colour vision can tell apart.
 */

export type Theme = 'dark' | 'light';
/** 256 colours as 0xAABBGGRR, ready for a Uint32Array over ImageData. */
export type Table = Uint32Array;

export interface Colours {
  theme: Theme;
  background: string;
  panel: string;
  text: string;
  muted: string;
  grid: string;
  line: string;
  accent: string;
  /** Sequential, for counts and bytes. */
  counts: Table;
  /** Viridis, for time and token order. */
  time: Table;
  /** Page faults, and reads from the disk, over other colours. */
  fault: string;
  disk: string;
  /** Diverging around 128 (blue less, orange more), for differences. */
  difference: Table;
  component(name: string | null): string;
  op(name: string): string;
  /** The n-th colour of the categorical palette, cycling. */
  category(index: number): string;
}

const VIRIDIS = [
  '#440154', '#482475', '#414487', '#355f8d', '#2a788e', '#21918c', '#22a884', '#44bf70', '#7ad151', '#bddf26', '#fde725',
];
const COUNTS: Record<Theme, string[]> = {
  dark: ['#171b24', '#251d45', '#4a2068', '#7d2a6f', '#b23a66', '#de5b4c', '#f58d3d', '#fbc15c', '#fdf3b4'],
  light: ['#f7f5ef', '#fde8b9', '#fcc878', '#f79b4d', '#e4694a', '#bd415f', '#86306f', '#51225f', '#26103a'],
};
const DIFFERENCE: Record<Theme, string[]> = {
  dark: ['#9bd4ff', '#4a9fe0', '#1f5f97', '#1c3550', '#1b1f28', '#4d3416', '#96600f', '#dd9014', '#ffd27a'],
  light: ['#0b3c68', '#0f63a8', '#4f9cd4', '#b4d5ec', '#f5f4f0', '#f6d9a8', '#e3a03c', '#b26c06', '#6b3d00'],
};

// Okabe–Ito; on white the yellow and the light blue are darkened to stay readable.
const PALETTE: Record<Theme, Record<string, string>> = {
  dark: {
    orange: '#e69f00', sky: '#56b4e9', green: '#12b886', yellow: '#f0e442', blue: '#3f8fd8',
    vermillion: '#e0662a', purple: '#cc79a7', grey: '#8b95a3',
  },
  light: {
    orange: '#d98e00', sky: '#3a9fd8', green: '#009e73', yellow: '#b9a700', blue: '#0072b2',
    vermillion: '#d55e00', purple: '#b85f92', grey: '#7a8490',
  },
};
const CYCLE = ['sky', 'orange', 'green', 'purple', 'yellow', 'vermillion', 'blue', 'grey'];
const COMPONENTS: Record<string, string> = {
  embedding: 'purple', attention: 'sky', norm: 'grey', router: 'vermillion', expert: 'orange',
  shared_expert: 'yellow', ffn: 'green', ssm: 'green', output: 'blue', rope: 'grey', nextn: 'vermillion',
  multimodal: 'yellow', other: 'grey', kv_cache: 'yellow', input: 'grey', activation: 'grey',
};
const OPS: Record<string, string> = {
  MUL_MAT: 'sky', MUL_MAT_ID: 'orange', GET_ROWS: 'purple', SET_ROWS: 'yellow', CPY: 'yellow', FLASH_ATTN_EXT: 'green',
  SOFT_MAX: 'green', ROPE: 'blue', RMS_NORM: 'vermillion', NORM: 'vermillion',
};

export function coloursOf(theme: Theme): Colours {
  const palette = PALETTE[theme];
  const named = (name: string) => palette[name] ?? (palette.grey as string);
  const dark = theme === 'dark';
  return {
    theme,
    background: dark ? '#12151c' : '#fbfaf7',
    panel: dark ? '#171b24' : '#ffffff',
    text: dark ? '#dde3ec' : '#1d232d',
    muted: dark ? '#8f9aab' : '#626d7c',
    grid: dark ? '#262c38' : '#e6e3db',
    line: dark ? '#343c4b' : '#cfcabf',
    accent: dark ? '#6cb6ff' : '#0b66b8',
    counts: table(COUNTS[theme]),
    // Without the end that the background would swallow.
    time: dark ? part(table(VIRIDIS), 0.2, 1) : part(table(VIRIDIS), 0, 0.93),
    difference: table(DIFFERENCE[theme]),
    fault: dark ? '#ff5a3c' : '#d1260b',
    disk: dark ? '#56b4e9' : '#0072b2',
    component: (name) => named(COMPONENTS[name ?? ''] ?? 'grey'),
    // Fused nodes are called like `RMS_NORM+MUL`: the first op names the family.
    op: (name) => named(OPS[name.split('+')[0] as string] ?? 'grey'),
    category: (index) => named(CYCLE[index % CYCLE.length] as string),
  };
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

/** The colours between two places of a table, stretched to a whole one. */
function part(whole: Table, from: number, to: number): Table {
  return whole.map((_, i) => whole[Math.round((from + (to - from) * (i / 255)) * 255)] as number);
}
