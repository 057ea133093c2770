/**
 * Tokens along a time axis that is too short for their texts: a band of colours without gaps,
 * one token per pixel, and round token numbers as far apart as they are wide.
 */
import type { EvalBrief } from './generated/index';

/** Evaluations narrower than this have no room for a text. */
const TEXT_PX = 14;
/** Between two numbers. */
const NUMBER_PX = 64;

export interface Band {
  /** Pixels from `x0` up to `x1` show this token; they follow each other without gaps. */
  runs: { x0: number; x1: number; token: number }[];
  numbers: { x: number; token: number }[];
}

/** Whether the texts of the tokens would not fit. */
export function isBand(evals: number, pixels: number): boolean {
  return evals > 0 && pixels / evals < TEXT_PX;
}

/** Evaluations by their begin; `px` says where a moment is, `left` and `right` where the band begins and ends. */
export function bandOf(
  evals: readonly EvalBrief[],
  px: (time: number) => number,
  [left, right]: [number, number],
): Band {
  const band: Band = { runs: [], numbers: [] };
  let last = Number.NEGATIVE_INFINITY;
  evals.forEach((of, at) => {
    // A pixel belongs to the first that begins in it.
    const next = evals[at + 1];
    const x0 = Math.max(left, at === 0 ? Math.floor(px(of.begin)) : Math.round(px(of.begin)));
    const x1 = Math.min(right, Math.round(px(next ? next.begin : of.end)));
    if (x1 > x0) band.runs.push({ x0, x1, token: of.first_token });
  });
  const first = evals[0];
  const end = evals.at(-1);
  if (!first || !end) return band;
  const step = roundStep(first.first_token, end.first_token, right - left);
  for (const of of evals) {
    const round = Math.ceil(of.first_token / step) * step;
    // Thinned lists, and batches, may pass over the round one.
    const isThere = round < of.first_token + of.tokens;
    const x = px(of.begin);
    if (!isThere || x < left || x > right - NUMBER_PX / 2 || x - last < NUMBER_PX * 0.75) continue;
    band.numbers.push({ x, token: round });
    last = x;
  }
  return band;
}

/** 1, 2 or 5 times a power of ten, such that numbers do not touch. */
function roundStep(from: number, to: number, pixels: number): number {
  const least = (Math.max(1, to - from) * NUMBER_PX) / Math.max(1, pixels);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least) ?? 10 * power;
}
