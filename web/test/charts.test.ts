import assert from 'node:assert/strict';
import { test } from 'node:test';
import { coloursOf, css, dashOf, packed, textOn } from '../src/colours';
import type { Flame } from '../src/generated/index';
import { find, layOut, pathOf, search } from '../src/views/parts/flame-layout';

const TREE: Flame = {
  name: 'run',
  value: 10,
  children: [
    {
      name: 'generate',
      value: 10,
      children: [
        { name: 'layer 0', value: 4, children: [{ name: 'attention', value: 4 }] },
        {
          name: 'layer 1',
          value: 6,
          children: [
            { name: 'attention', value: 1 },
            { name: 'expert', value: 5 },
          ],
        },
      ],
    },
  ],
};

test('frames lie below their parents, larger ones left, layers in their order', () => {
  const frames = layOut(TREE);
  assert.deepEqual(frames.name, ['run', 'generate', 'layer 0', 'attention', 'layer 1', 'expert', 'attention']);
  assert.equal(frames.depths, 4);
  for (let at = 1; at < frames.count; at++) {
    const parent = frames.parent[at] as number;
    const [begin, width] = [frames.begin[at] as number, frames.width[at] as number];
    assert.ok(begin >= (frames.begin[parent] as number) - 1e-9);
    assert.ok(begin + width <= (frames.begin[parent] as number) + (frames.width[parent] as number) + 1e-9);
  }
});

test('a path is found again, or the nearest above it', () => {
  const frames = layOut(TREE);
  const path = ['run', 'generate', 'layer 1', 'expert'];
  assert.deepEqual(pathOf(frames, find(frames, path)), path);
  assert.deepEqual(pathOf(frames, find(frames, [...path.slice(0, 3), 'gone'])), path.slice(0, 3));
});

test('what is found in what is found counts once', () => {
  const frames = layOut(TREE);
  const { count, value } = search(frames, 'LAYER 1');
  assert.deepEqual([count, value], [1, 6]);
  assert.deepEqual([search(frames, 'attention').count, search(frames, 'attention').value], [2, 5]);
  assert.equal(search(frames, 'e').value, 10);
});

test('colours have one meaning in both themes', () => {
  for (const theme of ['dark', 'light'] as const) {
    const colours = coloursOf(theme);
    assert.notEqual(colours.component('expert'), colours.component('attention'));
    assert.equal(colours.component('never heard of'), colours.component('other'));
    assert.equal(colours.op('RMS_NORM+MUL'), colours.component('norm'));
    assert.equal(colours.category(0), colours.category(8));
    assert.equal(colours.counts.length, 256);
    assert.match(css(colours.time, 0.5), /^rgb\(\d+,\d+,\d+\)$/);
  }
  assert.equal(dashOf('attention'), undefined);
  assert.deepEqual(dashOf('expert'), [7, 4]);
  assert.equal(packed('#010203'), 0xff030201);
  assert.equal(textOn('#ffffff'), '#10131a');
});
