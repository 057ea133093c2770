import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ModelFacts, ModelTensor } from '../src/generated/server';
import { infoOf, modelText } from '../src/model';
import { isSelected, layerTable, selectedCells, sumsBy } from '../src/structure';

let begin = 100;
const tensor = (
  name: string,
  layer: number | null,
  component: string,
  role: string,
  type: string,
  size: number,
): ModelTensor => {
  const file_offset = begin;
  begin += size;
  return {
    name,
    type,
    shape: [size],
    layer,
    component,
    role,
    file: 0,
    file_offset,
    begin: file_offset,
    size_bytes: size,
    experts: 0,
  };
};
const tensors = [
  tensor('token_embd.weight', null, 'embedding', 'token', 'q8_0', 400),
  tensor('blk.10.attn_q.weight', 10, 'attention', 'q', 'q4_K', 100),
  tensor('blk.2.attn_q.weight', 2, 'attention', 'q', 'q8_0', 200),
  tensor('blk.2.attn_q.bias', 2, 'attention', 'q', 'f32', 10),
  tensor('blk.2.ffn_up.weight', 2, 'ffn', 'up', 'q8_0', 300),
];

test('every byte is counted once: by layer and role, by type, by component', () => {
  const { columns, rows } = layerTable(tensors);
  assert.deepEqual(columns, [
    { component: 'embedding', role: 'token' },
    { component: 'attention', role: 'q' },
    { component: 'ffn', role: 'up' },
  ]);
  assert.deepEqual(
    rows.map(({ layer, bytes }) => [layer, bytes]),
    [
      [2, 510],
      [10, 100],
      [null, 400],
    ],
  );
  assert.deepEqual(rows[0]?.cells, [null, { bytes: 210, types: ['q8_0', 'f32'] }, { bytes: 300, types: ['q8_0'] }]);
  for (const key of ['type', 'component'] as const)
    assert.equal(
      sumsBy(tensors, key).reduce((sum, { bytes }) => sum + bytes, 0),
      1010,
    );
  assert.deepEqual(sumsBy(tensors, 'type')[0], { name: 'q8_0', bytes: 900, tensors: 3 });
});

test('what is picked is what all keys say', () => {
  const picked = (selection: Parameters<typeof isSelected>[1]) =>
    tensors.filter((one) => isSelected(one, selection)).map(({ name }) => name);
  assert.equal(picked({}).length, tensors.length);
  assert.deepEqual(picked({ layer: null }), ['token_embd.weight']);
  assert.deepEqual(picked({ layer: 2, type: 'f32' }), ['blk.2.attn_q.bias']);
  assert.deepEqual(picked({ component: 'ffn', layer: 10 }), []);
});

test('cells of the map belong to what lies in their middle', () => {
  // The header has 100 bytes, the tensors end at 1110.
  const cells = selectedCells(tensors, 12, 100, { layer: 10 });
  assert.deepEqual([...cells], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
  assert.deepEqual([...selectedCells(tensors, 3, 100, {})], [0, 1, 1]);
});

test('a model looks to the views like a run of which nothing was recorded', () => {
  const facts = { name: 'm', path: 'a/m.gguf', size_bytes: 1200, layers: 2, experts: 0 } as ModelFacts;
  const info = infoOf(facts, { files: [{ name: 'm.gguf', size_bytes: 1200, begin: 0 }], tensors });
  assert.deepEqual(info.layers, [2, 10, null]);
  assert.deepEqual(info.components, ['attention', 'embedding', 'ffn']);
  assert.equal(info.tensors.length, tensors.length);
  assert.equal(info.totals.accesses, 0);
  const text = modelText({
    ...facts,
    parameters: 10,
    active_parameters: 10,
    tensor_bytes: 1010,
    bits_per_parameter: 8,
    max_context: null,
  });
  assert.equal(text, '10 parameters · 1010 B of tensors · 8.00 bits a parameter');
});
