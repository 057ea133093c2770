import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RooflineChart, RooflinePoint } from '../src/generated/charts';
import {
  batchesOf,
  chosen,
  radiusOf,
  rangesOf,
  roofLines,
  rooflineRows,
  ROOFLINE_COLUMNS,
  ticksOf,
} from '../src/views/parts/roofline';

const point = (more: Partial<RooflinePoint> = {}): RooflinePoint => ({
  name: 'MUL_MAT q4_0 ffn',
  phase: 'generate',
  component: 'ffn',
  batch: 1,
  batch_text: '1 token',
  threads: 2,
  intensity: 3.5,
  flops_per_second: 28e9,
  bytes_per_second: 8e9,
  bound: 'memory',
  share_of_ceiling: 0.34,
  share_of_phase: 0.6,
  nanos: 4e6,
  ...more,
});

const chart: RooflineChart = {
  caption: 'c',
  memory: [{ name: 'memory, 2 threads: 20 GB/s', threads: 2, per_second: 20e9 }],
  compute: [
    { name: 'f32', threads: 2, per_second: 200e9 },
    { name: 'q4_0', threads: 2, per_second: 100e9 },
  ],
  points: [point(), point({ phase: 'prompt', batch: 64, intensity: 200, flops_per_second: 90e9, nanos: 1e6 })],
};

test('a phase and a number of tokens choose classes', () => {
  assert.deepEqual(batchesOf(chart, null), [1, 64]);
  assert.deepEqual(batchesOf(chart, 'generate'), [1]);
  assert.equal(chosen(chart, { phase: null, batch: 'all' }).length, 2);
  assert.deepEqual(chosen(chart, { phase: null, batch: '64' }), [chart.points[1]]);
  assert.deepEqual(chosen(chart, { phase: 'prompt', batch: '1' }), []);
});

test('a slope meets the highest flat roof, and each flat roof begins at the slope', () => {
  const ranges = rangesOf(chart, chart.points);
  const { slopes, flats } = roofLines(chart, ranges);
  assert.equal(slopes.length, 1);
  const [slope] = slopes;
  assert.ok(slope && Math.abs(10 ** slope.to[0] - 10) < 1e-9 && Math.abs(10 ** slope.to[1] - 200e9) < 1);
  for (const flat of flats) {
    assert.ok(Math.abs(10 ** (flat.from[0] + Math.log10(20e9)) / flat.roof.per_second - 1) < 1e-9);
    assert.equal(flat.to[0], ranges.x[1]);
  }
  for (const one of chart.points) {
    const [x, y] = [Math.log10(one.intensity), Math.log10(one.flops_per_second)];
    assert.ok(x > ranges.x[0] && x < ranges.x[1] && y > ranges.y[0] && y < ranges.y[1]);
  }
});

test('without arithmetic the slope leaves the picture, and without points there still is one', () => {
  const only = { ...chart, compute: [], points: [] };
  const ranges = rangesOf(only, []);
  assert.deepEqual(ranges, { x: [0, 1], y: [0, 1] });
  assert.deepEqual(roofLines(only, ranges), { slopes: [], flats: [] });
  const some = rangesOf({ ...chart, compute: [] }, chart.points);
  const [slope] = roofLines({ ...chart, compute: [] }, some).slopes;
  assert.equal(slope?.to[1], some.y[1]);
});

test('ticks are whole powers of ten, areas are times, rows have all columns', () => {
  assert.deepEqual(
    ticksOf([8.7, 11.2], 9).map((tick) => tick.text),
    ['1', '10', '100'],
  );
  assert.equal(ticksOf([-0.5, 0.5], 0)[0]?.text, '1');
  assert.equal(radiusOf(point(), 16e6), 7);
  assert.equal(radiusOf(point({ nanos: 1 }), 16e6), 3);
  const [row] = rooflineRows([point()], ['row', 'phase', 'gain_percent']);
  assert.deepEqual(row?.slice(0, 3), ['roofline', 'generate', undefined]);
  assert.equal(row?.length, 3 + ROOFLINE_COLUMNS.length);
});
