/** What a heatmap shows: its rows, its metric, and how both are written. */
import type { Scale as Growth } from '../../canvas';
import * as format from '../../format';
import type { State } from '../../state';
import type { HeatmapRow, Info, TokenInfo } from '../../generated/index';
import { isGrowth } from './scale';

export type Rows = 'layer' | 'tensor' | 'expert';

export interface HeatOptions {
  rows: Rows;
  metric: string;
  /** null: as the values ask for. */
  growth: Growth | null;
  /** Whose experts: a layer's number or `all`. */
  layer: string;
}

/** With more rows than this only the layers in sight are fetched sharply. */
export const MANY_ROWS = 2000;
export const ROWS = [
  { value: 'layer', text: 'layers', title: 'one row per layer of the model' },
  { value: 'tensor', text: 'tensors', title: 'one row per weight, grouped by layer' },
  { value: 'expert', text: 'experts', title: 'one row per layer and expert' },
] as const;
export const METRICS = [
  {
    value: 'bytes',
    text: 'bytes',
    title: 'distinct bytes of each access, added up; tokens of one batch share them evenly',
  },
  { value: 'accesses', text: 'accesses', title: 'reads and writes by the nodes; of experts: tokens routed to them' },
  { value: 'nanos', text: 'time', title: 'time of the nodes, each from the tick before it to its own' },
  { value: 'weight', text: 'router weight', title: 'mean weight that the router gave the expert' },
] as const;

export function optionsOf(state: State, info: Info): HeatOptions {
  const kind = state.opt['heatmaps.rows'];
  const chosen: Rows = kind === 'tensor' || kind === 'expert' ? kind : 'layer';
  const usual = chosen === 'expert' ? 'accesses' : 'bytes';
  let metric = state.opt['heatmaps.metric'] ?? usual;
  // Time is that of a node, which computes several experts; weights are those of a router.
  const unknown = chosen === 'expert' ? 'nanos' : 'weight';
  if (metric === unknown || !METRICS.some((one) => one.value === metric)) metric = usual;
  const growth = state.opt['heatmaps.scale'];
  // All layers of a large model are more rows than a screen has lines.
  const isLarge = info.experts * info.layers.length > MANY_ROWS;
  const layer =
    state.opt['heatmaps.layer'] ?? (isLarge ? String(info.layers.find((one) => one !== null) ?? 'all') : 'all');
  return { rows: chosen, metric, growth: isGrowth(growth) ? growth : null, layer: chosen === 'expert' ? layer : 'all' };
}

/** The metric in words, as the legend and the tooltip say it. */
export function metricName(options: HeatOptions): string {
  if (options.rows === 'expert' && options.metric === 'accesses') return 'routed here';
  return METRICS.find((one) => one.value === options.metric)?.text ?? options.metric;
}

/** Times may span decades, as when the first evaluation faults its pages in: then the logarithm shows more. */
export function usualGrowth(metric: string, values: Float32Array, most: number): Growth {
  if (metric !== 'nanos') return 'linear';
  const seen = values.filter((value) => value > 0).sort();
  const median = seen[seen.length >> 1] ?? most;
  return median < most / 30 ? 'log' : 'linear';
}

/** Short enough for the margin: `3 · attn_q`, `3 · expert 7`. */
export function shortName(row: HeatmapRow | undefined): string {
  if (!row) return '';
  if (row.expert !== null) return `${row.layer ?? ''} · expert ${row.expert}`;
  const short = row.label.replace(/^blk\.(\d+)\./, '$1 · ').replace(/\.weight$/, '');
  return short.length > 24 ? `${short.slice(0, 23)}…` : short;
}

export function longName(row: HeatmapRow): string {
  return row.expert === null ? row.label : `${format.layer(row.layer)}, expert ${row.expert}`;
}

/** A value as people read it; router weights are shares without a unit. */
export function shownValue(metric: string, value: number): string {
  if (metric === 'weight') return value.toFixed(3);
  return metric === 'accesses' ? format.count(value) : format.byUnit(metric, value);
}

/** Where the recorder did not know the vocabulary there is only the id. */
export function tokenName(of: TokenInfo): string {
  return of.text === null ? `#${of.id}` : format.tokenText(of.text);
}

export function exactValue(metric: string, value: number): string {
  if (metric === 'weight') return value.toFixed(6);
  const digits = Number.isInteger(value) ? format.integer(value) : value.toPrecision(7);
  return metric === 'accesses' ? digits : `${digits} ${metric === 'nanos' ? 'ns' : 'bytes'}`;
}
