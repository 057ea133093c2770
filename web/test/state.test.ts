import assert from 'node:assert/strict';
import { test } from 'node:test';
import { filterParams, fromHash, isFiltered, NO_FILTER, range, toHash, type State } from '../src/state';

const STATE: State = {
  run: 2,
  view: 'map',
  filter: {
    phase: 'generate',
    tokens: [3, 20],
    layer: [0, null],
    component: ['expert', 'router'],
    op: ['MUL_MAT'],
    expert: [7],
    device: ['CUDA0', 'CPU'],
  },
  time: [1, 2000],
  offset: [0, 4096],
  eval: 5,
  step: 0,
  opt: { 'map.metric': 'bytes', 'flame.find': 'a&b=c' },
};

test('a link reproduces the view', () => {
  assert.deepEqual(fromHash(toHash(STATE), 'timeline'), STATE);
});

test('what a link does not say is at its default, and what it says wrong is left out', () => {
  const state = fromHash('#layer=x,1&tokens=abc&eval=-1&expert=1,two', 'timeline');
  assert.deepEqual(state.filter, { ...NO_FILTER, layer: [1], expert: [1] });
  assert.equal(state.view, 'timeline');
  assert.equal(state.eval, null);
});

test('only what filters is asked for', () => {
  assert.ok(!isFiltered(NO_FILTER));
  assert.deepEqual(filterParams({ ...NO_FILTER, layer: [null, 3] }), [['layer', 'none,3']]);
});

test('ranges are written in several ways', () => {
  for (const text of ['3-20', ' 20 – 3 ', '3..20']) assert.deepEqual(range(text), [3, 20]);
  assert.deepEqual(range('7'), [7, 7]);
  assert.equal(range('3-'), null);
});
