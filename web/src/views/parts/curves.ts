/** Curves of an estimate, as charts like those of the server: against the batch, and against the context. */
import type { Axis, LineChart } from '../../generated/charts';
import type { Batches, Estimate, Kv, Versus } from './answer';

/** To hover; bends have points of their own. */
const CONTEXT_POINTS = 9;
/** Doublings fill the axis: of 256 batches these look as all of them. */
const EVERY = 1.04;

const batches: Pick<Axis, 'label' | 'unit'> = { label: 'sequences side by side', unit: 'count' };

/** Lines 0 and 1 are the edges of what is possible, 2 is what is likely. */
export function throughput(of: Batches): LineChart {
  const shown = thinned(of.points);
  const line = (name: string, seconds: 'best' | 'likely' | 'worst') => ({
    name,
    category: 'attention',
    points: shown.map(({ batch, seconds: took }): [number, number] => [batch, batch / took[seconds]]),
  });
  const lines = [line('at best', 'best'), line('at worst', 'worst'), line('likely', 'likely')];
  return chart('throughput', 'Tokens a second', batches, { label: 'tokens/s', unit: 'count' }, lines);
}

export function latency(of: Batches): LineChart {
  const shown = thinned(of.points);
  const line = (name: string, seconds: 'best' | 'likely' | 'worst') => ({
    name,
    category: 'attention',
    points: shown.map(({ batch, seconds: took }): [number, number] => [batch, took[seconds] * 1e9]),
  });
  const lines = [line('at worst', 'worst'), line('at best', 'best'), line('likely', 'likely')];
  return chart('latency', 'Time between tokens', batches, { label: 'of a sequence', unit: 'nanos' }, lines);
}

/** What a batch knee, memory and the wanted latency say, in a sentence each. */
export function batchSentences(of: Batches, latencyText: string | undefined): string[] {
  const most = of.points.at(-1)?.batch ?? 0;
  const fits = of.max_batch_that_fits;
  return [
    of.knee_batch === null
      ? 'Throughput grows with every batch.'
      : `Beyond ${of.knee_batch} sequences throughput hardly grows.`,
    fits === 0 ? 'None fits in memory.' : fits !== null && fits < most ? `At most ${fits} fit in memory.` : '',
    latencyText === undefined
      ? ''
      : of.best
        ? `Best within ${latencyText}: ${of.best.batch}.`
        : `No batch that fits stays within ${latencyText}.`,
  ].filter((sentence) => sentence !== '');
}

/** Batches that are apart on an axis of doublings; the first and the last always. */
export function thinned<T extends { batch: number }>(points: readonly T[]): T[] {
  const kept: T[] = [];
  points.forEach((point, at) => {
    const last = kept.at(-1);
    if (!last || point.batch >= last.batch * EVERY || at === points.length - 1) kept.push(point);
  });
  return kept;
}

/** Tokens of one sequence that the narrower layers keep; null where they have not been seen to end. */
export function windowTokens(kv: Kv): number | null {
  const lost = kv.bytes_per_token - kv.bytes_per_token_beyond_windows;
  const missing = kv.bytes_per_token * kv.context_tokens - kv.cache_bytes;
  return kv.window_layers > 0 && lost > 0 && missing > 0 ? kv.context_tokens - missing / lost : null;
}

/** Bytes of one sequence with so many tokens; `window` from an answer that reaches beyond it. */
export function kvBytes(kv: Kv, tokens: number, window: number | null): number {
  const within = window === null ? tokens : Math.min(tokens, window);
  return kv.recurrent_bytes + kv.bytes_per_token * within + kv.bytes_per_token_beyond_windows * (tokens - within);
}

/** KV memory of all sequences against the context of all of them, and what is left for it. */
export function kvCurve(answer: Estimate, sequences: number, most: number, window: number | null): LineChart {
  const { kv, memory } = answer;
  const even = Array.from({ length: CONTEXT_POINTS }, (_, at) => Math.round((most * at) / (CONTEXT_POINTS - 1)));
  const bend = window === null ? [] : [Math.round(window * sequences)];
  const contexts = [...new Set([...even, ...bend])].filter((all) => all <= most).sort((a, b) => a - b);
  const points = contexts.map((all): [number, number] => [all, kvBytes(kv, all / sequences, window) * sequences]);
  const lines = [{ name: 'KV cache and state', category: 'attention', points }];
  const room = memory.budget_bytes - (memory.budgeted_bytes - memory.context_bytes);
  const highest = points.at(-1)?.[1] ?? 0;
  // Far above the curve it would press it flat.
  if (room > 0 && room < highest * 4)
    lines.push({
      name: 'room beside weights and buffers',
      category: 'expert',
      points: contexts.map((all): [number, number] => [all, room]),
    });
  return chart(
    'kv',
    'KV memory',
    { label: 'tokens of context, all sequences together', unit: 'count' },
    { label: 'KV cache', unit: 'bytes' },
    lines,
  );
}

/** The longest context, of all sequences, whose KV cache has room; null where even none has. */
export function mostContext(answer: Estimate, sequences: number, most: number, window: number | null): number | null {
  const { memory } = answer;
  const room = memory.budget_bytes - (memory.budgeted_bytes - memory.context_bytes);
  const takes = (all: number) => kvBytes(answer.kv, all / sequences, window) * sequences;
  if (takes(0) > room) return null;
  let [low, high] = [0, most];
  if (takes(most) <= room) return most;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (takes(middle) <= room) low = middle;
    else high = middle;
  }
  return low;
}

export function versusCurve(versus: Versus): LineChart {
  const line = (name: string, category: string, which: 'first_seconds' | 'second_seconds') => ({
    name,
    category,
    points: versus.rows.map((row): [number, number] => [row.batch, row[which] * 1e9]),
  });
  const lines = [
    line(typeName(versus, 'first'), 'attention', 'first_seconds'),
    line(typeName(versus, 'second'), 'expert', 'second_seconds'),
  ];
  return chart('versus', 'Time between tokens', batches, { label: 'of a sequence', unit: 'nanos' }, lines);
}

export function typeName(versus: Versus, which: 'first' | 'second'): string {
  const { weights } = versus[which].types;
  return typeof weights === 'string' ? 'as stored' : weights.all.name;
}

function chart(
  id: string,
  title: string,
  x: Pick<Axis, 'label' | 'unit'>,
  y: Pick<Axis, 'label' | 'unit'>,
  lines: LineChart['lines'],
): LineChart {
  const of = (which: 0 | 1) => lines.flatMap(({ points }) => points.map((point) => point[which]));
  return {
    id,
    title,
    caption: '',
    x: { ...x, min: Math.min(...of(0)), max: Math.max(...of(0)) },
    y: { ...y, min: 0, max: Math.max(...of(1), Number.MIN_VALUE) * 1.05 },
    lines,
  };
}
