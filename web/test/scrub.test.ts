import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TokenInfo } from '../src/generated/index';
import { computes, scrubOf } from '../src/scrub';

const tokens = (...numbers: number[]) => numbers.map((token) => ({ token }) as TokenInfo);
const totals = { tokens: 406, evals: 400 };

test('playback counts tokens, as the filter does', () => {
  // The prompt's seven tokens were one evaluation: token 46 is computed by evaluation 40.
  const at = { eval: 40, tokens: tokens(46) };
  assert.deepEqual(scrubOf(at, totals), { unit: 'token', last: 405, at: 46, text: '46 / 405' });
});

test('a batch is named by its tokens, and stands at the first', () => {
  const prompt = { eval: 0, tokens: tokens(0, 1, 2, 3, 4, 5, 6) };
  assert.deepEqual(scrubOf(prompt, totals), { unit: 'token', last: 405, at: 0, text: '0–6 / 405' });
  assert.ok(computes(prompt, 6) && !computes(prompt, 7));
});

test('without tokens there are evaluations, and they are called so', () => {
  const none = { eval: 3, tokens: [] };
  assert.deepEqual(scrubOf(none, { tokens: 0, evals: 9 }), { unit: 'evaluation', last: 8, at: 3, text: '3 / 8' });
  assert.equal(scrubOf(none, totals).at, null);
});
