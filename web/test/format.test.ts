import assert from 'node:assert/strict';
import { test } from 'node:test';
import { csv } from '../src/csv';
import * as format from '../src/format';
import amounts from './amounts.json';

test('numbers read as they do in the report', () => {
  for (const [unit, value, text] of amounts as [string, number, string][])
    assert.equal(format.byUnit(unit, value), text, `${value} ${unit}`);
});

test('counts stay whole up to ten thousand', () => {
  assert.equal(format.count(9999), '9,999');
  assert.equal(format.count(12_345), '12.3 k');
  assert.equal(format.count(2.5), '2.5');
  assert.equal(format.integer(1234567), '1,234,567');
});

test('what is not a number is a dash', () => {
  for (const text of [format.bytes, format.nanos, format.percent, format.count, format.integer])
    assert.equal(text(Number.NaN), '–');
});

test('white space and control characters of a token are visible', () => {
  assert.equal(format.tokenText(' a\n\t\u202e'), '·a↵⇥�');
  assert.equal(format.tokenText(null), '');
});

test('no cell of a CSV ends its field or becomes a formula', () => {
  assert.equal(csv(['a', 'b'], [['x,"y"', -1], ['=1+1']]), 'a,b\r\n"x,""y""",-1\r\n\'=1+1,\r\n');
});
