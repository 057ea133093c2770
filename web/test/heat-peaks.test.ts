import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { HeatmapRow } from '../src/generated/index';
import { areApart, higher, mostOf, peaksOf } from '../src/views/parts/heat-peaks';

const row = (layer: number | null): HeatmapRow => ({ label: '', layer, tensor: null, expert: null, group: '' });
const raster = (values: number[][], layers: (number | null)[]) => ({
  header: { rows: layers.map(row), columns: values[0]?.length ?? 0 },
  values: Float32Array.from(values.flat()),
});

test('an output head larger than any layer leaves the layers their scale', () => {
  const peaks = peaksOf(
    raster(
      [
        [2, 3],
        [4, 1],
        [90, 20],
      ],
      [0, 1, null],
    ),
  );
  assert.deepEqual(peaks, { layers: 4, none: 90 });
  assert.ok(areApart(peaks));
  assert.equal(mostOf(peaks, 0), 4);
  assert.equal(mostOf(peaks, null), 90);
});

test('what does not hide the layers is on their scale', () => {
  const peaks = peaksOf(raster([[5], [2]], [0, null]));
  assert.ok(!areApart(peaks));
  assert.equal(mostOf(peaks, null), 5);
  // Rows of no layer alone, as under a filter: nothing to be apart from.
  assert.equal(mostOf(peaksOf(raster([[7]], [null])), null), 7);
});

test('a scale grows as larger values are found', () => {
  assert.deepEqual(higher({ layers: 4, none: 9 }, { layers: 6, none: 0 }), { layers: 6, none: 9 });
});

test('cells about which nothing is known count for nothing', () => {
  assert.deepEqual(peaksOf(raster([[Number.NaN, 1]], [3])), { layers: 1, none: 0 });
});
