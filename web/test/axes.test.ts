import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Axis } from '../src/axis';
import { axisTicks, type AxisKind } from '../src/ticks';

const texts = (kind: AxisKind, low: number, high: number, pixels = 500) =>
  axisTicks({ kind }, low, high, pixels).map((tick) => tick.text);

test('ticks are round, in one unit, and lie within the window', () => {
  assert.deepEqual(texts('time', 0, 2.5e6), ['0.0 ms', '0.5 ms', '1.0 ms', '1.5 ms', '2.0 ms', '2.5 ms']);
  assert.deepEqual(texts('bytes', 0, 4 * 2 ** 20), ['0 MiB', '1 MiB', '2 MiB', '3 MiB', '4 MiB']);
  assert.deepEqual(texts('token', 0, 4), ['0', '1', '2', '3', '4']);
  for (const [low, high] of [
    [0, 1],
    [17, 18],
    [5e9, 5.1e9],
  ] as const) {
    for (const kind of ['time', 'bytes', 'count'] as const) {
      const ticks = axisTicks({ kind }, low, high, 500);
      assert.ok(ticks.every((tick) => tick.at >= low && tick.at <= high));
      assert.equal(new Set(ticks.map((tick) => tick.text)).size, ticks.length, `${kind} ${low} ${high}`);
    }
  }
});

test('names have no ticks of their own, and an empty window none', () => {
  assert.deepEqual(texts('names', 0, 10), []);
  assert.deepEqual(texts('time', 5, 5), []);
});

test('a window stays within its limits', () => {
  const axis = new Axis({ label: '', kind: 'time', limits: [0, 100], shortest: 10 });
  axis.show(-20, 30);
  assert.deepEqual([axis.low, axis.high], [0, 50]);
  axis.zoom(0.01, 25);
  assert.equal(axis.span, 10);
  assert.ok(axis.low <= 25 && axis.high >= 25);
  axis.showAll();
  assert.ok(axis.isWhole);
});
