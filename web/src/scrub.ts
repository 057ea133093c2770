/**
 * Where playback stands, in the unit of the filter bar: tokens.
 *
 * What is played is an evaluation, which computes one token or a batch of them. A run of a
 * program that feeds no tokens has only evaluations.
 */
import * as format from './format';
import type { EvalInfo } from './generated/index';

export interface Scrub {
  unit: 'token' | 'evaluation';
  /** The slider goes from 0 to here. */
  last: number;
  /** Where the slider stands; null where the evaluation has no token. */
  at: number | null;
  text: string;
}

export function scrubOf(
  { eval: number, tokens }: Pick<EvalInfo, 'eval' | 'tokens'>,
  totals: { tokens: number; evals: number },
): Scrub {
  const of = (place: string, last: number) => `${place} / ${format.integer(last)}`;
  if (totals.tokens === 0) {
    const last = Math.max(0, totals.evals - 1);
    return { unit: 'evaluation', last, at: number, text: of(format.integer(number), last) };
  }
  const last = totals.tokens - 1;
  const [first, end] = [tokens[0], tokens.at(-1)];
  if (!first || !end) return { unit: 'token', last, at: null, text: of('none', last) };
  const batch = first === end ? '' : `–${format.integer(end.token)}`;
  return { unit: 'token', last, at: first.token, text: of(`${format.integer(first.token)}${batch}`, last) };
}

/** Whether a token is computed by an evaluation. */
export function computes({ tokens }: Pick<EvalInfo, 'tokens'>, token: number): boolean {
  const [first, end] = [tokens[0], tokens.at(-1)];
  return first !== undefined && end !== undefined && token >= first.token && token <= end.token;
}
