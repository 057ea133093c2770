import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { EvalBrief } from '../src/generated/index';
import { bandOf, isBand } from '../src/tokenband';

/** Evaluations of 9 ms, one millisecond apart; the first computes a prompt of seven tokens. */
const evals = (count: number): EvalBrief[] =>
  Array.from({ length: count }, (_, at) => ({
    eval: at,
    begin: at * 10,
    end: at * 10 + 9,
    phase: at === 0 ? 'prompt' : 'generate',
    first_token: at === 0 ? 0 : at + 6,
    tokens: at === 0 ? 7 : 1,
  })) as EvalBrief[];

test('many tokens are a band without gaps, however many share a pixel', () => {
  for (const count of [200, 400, 4000]) {
    const [left, right] = [84, 990];
    const px = (time: number) => left + (time / (count * 10)) * (right - left);
    assert.ok(isBand(count, right - left));
    const { runs, numbers } = bandOf(evals(count), px, [left, right]);
    assert.equal(runs[0]?.x0, left);
    runs.slice(1).forEach((run, at) => assert.equal(run.x0, runs[at]?.x1, `no gap before ${run.x0}`));
    assert.ok((runs.at(-1)?.x1 ?? 0) >= right - 2);
    assert.ok(runs.length <= right - left, 'no more than one per pixel');
    assert.ok(numbers.length >= 4, `${count}: ${numbers.length} numbers`);
    numbers.slice(1).forEach((one, at) => assert.ok(one.x - (numbers[at]?.x ?? 0) >= 40));
  }
});

test('numbers are round', () => {
  const { numbers } = bandOf(evals(400), (time) => time / 4, [0, 1000]);
  assert.deepEqual(
    numbers.slice(0, 4).map(({ token }) => token),
    [0, 50, 100, 150],
  );
});

test('few tokens have room for their texts', () => {
  assert.ok(!isBand(20, 900));
  assert.ok(!isBand(0, 900));
});
