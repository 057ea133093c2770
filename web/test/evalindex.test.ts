import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Api } from '../src/api';
import { EvalIndex } from '../src/evalindex';
import type { EvalBrief } from '../src/generated/index';

const COUNT = 20_000;
const at = (number: number): EvalBrief => ({
  eval: number,
  begin: number * 100,
  end: number * 100 + 80,
  first_token: number,
  tokens: 1,
  phase: 'generate',
});

/** Thins as the server does. */
const api = {
  evals: async ({ from = 0, to = COUNT - 1, max = 4096 }) => {
    const last = Math.min(to, COUNT - 1);
    const every = Math.ceil((last - from + 1) / max);
    const list: EvalBrief[] = [];
    for (let number = from; number <= last; number += every) list.push(at(number));
    return list;
  },
  tokens: async (from: number, to: number) =>
    [...Array(to - from + 1).keys()].map((i) => ({ token: from + i, id: 1, text: `t${from + i}` })),
} as unknown as Api;

test('a narrow window knows every evaluation, a wide one some', async () => {
  const index = new EvalIndex(api);
  await index.load(1, 0, COUNT * 100);
  assert.ok(index.between(0, COUNT * 100).length <= 4096);
  await index.load(1, 500_000, 501_000);
  assert.deepEqual(
    index.between(500_000, 500_250).map((one) => one.eval),
    [5000, 5001, 5002],
  );
  assert.equal(index.at(500_190)?.eval, 5001);
  assert.equal(index.text(at(5001)), 't5001');
  assert.equal(index.text(at(19_000)), null);
});
