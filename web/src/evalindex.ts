/**
 * Which evaluation and token belong to a moment: the server sends at most a few
 * thousand evaluations at once, evenly thinned, so wide windows are answered
 * from a thinned list and narrow ones from a full one.
 */
import type { Api } from './api';
import type { EvalBrief, TokenInfo } from './generated/index';

const MOST = 4096;
/** More token texts than this do not fit beside each other anyway. */
const MAX_TEXTS = 400;

export class EvalIndex {
  private coarse: EvalBrief[] = [];
  private fine: EvalBrief[] = [];
  private texts = new Map<number, TokenInfo>();
  private version = -1;

  constructor(private readonly api: Api) {}

  /** Loads what is needed to name the moments of a window. */
  async load(version: number, t0: number, t1: number): Promise<void> {
    if (version !== this.version) {
      this.coarse = await this.api.evals({ max: MOST });
      this.fine = [];
      this.texts.clear();
      this.version = version;
    }
    const isThinned = this.coarse.some((e, i) => i > 0 && e.eval !== (this.coarse[i - 1] as EvalBrief).eval + 1);
    if (isThinned) {
      const from = this.coarse[Math.max(0, position(this.coarse, t0))]?.eval ?? 0;
      const to = this.coarse[Math.min(this.coarse.length - 1, position(this.coarse, t1) + 1)]?.eval ?? from;
      const isKnown =
        this.fine.length > 0 && (this.fine[0] as EvalBrief).eval <= from && (this.fine.at(-1) as EvalBrief).eval >= to;
      if (to - from < MOST && !isKnown) {
        this.fine = await this.api.evals({ from: Math.max(0, from - 500), to: to + 500, max: MOST }, 'evals');
      }
    }
    const seen = batchesOf(this.between(t0, t1));
    const first = seen[0];
    const last = seen.at(-1);
    if (!first || !last || seen.length > MAX_TEXTS) return;
    const [a, b] = [first.first_token, last.first_token + last.tokens - 1];
    if (b - a > MAX_TEXTS * 8 || (this.texts.has(a) && this.texts.has(b))) return;
    const pad = MAX_TEXTS;
    for (const token of await this.api.tokens(Math.max(0, a - pad), b + pad, 'texts'))
      this.texts.set(token.token, token);
  }

  /** Evaluations that overlap a window. */
  between(t0: number, t1: number): EvalBrief[] {
    const list = this.listFor(t0, t1);
    const out: EvalBrief[] = [];
    for (let i = Math.max(0, position(list, t0)); i < list.length && (list[i] as EvalBrief).begin <= t1; i++) {
      if ((list[i] as EvalBrief).end >= t0) out.push(list[i] as EvalBrief);
    }
    return out;
  }

  /** The evaluation that runs at a moment, or the last one before it. */
  at(time: number): EvalBrief | null {
    const list = this.listFor(time, time);
    return list[Math.max(0, position(list, time))] ?? null;
  }

  /** Texts of an evaluation's tokens; null where they are not loaded. */
  text(name: EvalBrief): string | null {
    let text = '';
    for (let token = name.first_token; token < name.first_token + name.tokens; token++) {
      const found = this.texts.get(token);
      if (!found) return null;
      text += found.text ?? `#${found.id}`;
    }
    return text;
  }

  private listFor(t0: number, t1: number): EvalBrief[] {
    const { fine } = this;
    return fine.length > 0 && (fine[0] as EvalBrief).begin <= t0 && (fine.at(-1) as EvalBrief).end >= t1
      ? fine
      : this.coarse;
  }
}

/** An evaluation with the parts of its graph that follow it: they compute the same tokens. */
export interface Batch extends EvalBrief {
  lastEval: number;
}

export function batchesOf(evals: readonly EvalBrief[]): Batch[] {
  const batches: Batch[] = [];
  for (const one of evals) {
    const last = batches.at(-1);
    if (last && one.tokens > 0 && last.first_token === one.first_token && last.tokens === one.tokens) {
      last.end = Math.max(last.end, one.end);
      last.lastEval = one.eval;
    } else batches.push({ ...one, lastEval: one.eval });
  }
  return batches;
}

export function isIn(batch: Batch, evaluation: number | null): boolean {
  return evaluation !== null && batch.eval <= evaluation && evaluation <= batch.lastEval;
}

/** Position of the last evaluation that begins at or before a moment; -1 when none does. */
function position(list: readonly EvalBrief[], time: number): number {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((list[middle] as EvalBrief).begin <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
