import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hilbertCurve, hilbertIndex, hilbertPlace } from '../src/hilbert';

test('every cell has one place, and neighbours on the line are neighbours in the square', () => {
  for (const side of [1, 2, 8, 64]) {
    const curve = hilbertCurve(side);
    assert.equal(new Set(curve).size, side * side);
    for (let d = 0; d < curve.length; d++) {
      const [x, y] = hilbertPlace(side, d);
      assert.equal(curve[d], y * side + x);
      assert.equal(hilbertIndex(side, x, y), d);
      if (d === 0) continue;
      const [beforeX, beforeY] = hilbertPlace(side, d - 1);
      assert.equal(Math.abs(x - beforeX) + Math.abs(y - beforeY), 1);
    }
  }
});
