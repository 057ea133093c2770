import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TensorInfo } from '../src/generated/index';
import { componentPixels } from '../src/mapcolour';
import { gutterLabels } from '../src/maplabels';
import { fileOrder, isByLayer, layerOrder, spokenOrder } from '../src/maporder';

/** A dense model as converters write it: by name, so that layer 10 comes before layer 2. */
function dense(layers: number): TensorInfo[] {
  const out: TensorInfo[] = [];
  let begin = 100;
  const add = (name: string, layer: number | null, component: string, size: number) => {
    out.push({
      tensor: out.length,
      name,
      layer,
      component,
      role: '',
      type: 'F16',
      begin,
      size_bytes: size,
      experts: 0,
    });
    begin += size;
  };
  add('token_embd.weight', null, 'embedding', 1000);
  const byName = Array.from({ length: layers }, (_, at) => at).sort((a, b) => (`${a}.` < `${b}.` ? -1 : 1));
  for (const layer of byName) {
    add(`blk.${layer}.attn_norm.weight`, layer, 'norm', 2);
    for (const name of ['ffn_down', 'ffn_gate', 'ffn_up']) add(`blk.${layer}.${name}.weight`, layer, 'ffn', 25);
    for (const name of ['attn_k', 'attn_q']) add(`blk.${layer}.${name}.weight`, layer, 'attention', 10);
  }
  add('output_norm.weight', null, 'norm', 5);
  return out;
}

const tensors = dense(12);
const last = tensors.at(-1) as TensorInfo;
const total = last.begin + last.size_bytes;

test('the order of the file is said, and sorted by layer where it is another', () => {
  assert.equal(isByLayer(tensors), false);
  assert.equal(spokenOrder(tensors), '0, 1, 10, 11, …');
  assert.ok(isByLayer(dense(9)));
  const { tensors: shown } = layerOrder(tensors, total);
  assert.ok(isByLayer(shown));
  assert.deepEqual([shown[0]?.name, shown.at(-1)?.name], ['token_embd.weight', 'output_norm.weight']);
});

test('every byte has one place on the map, and is found there again', () => {
  const order = layerOrder(tensors, total);
  const offsets = new Set(Array.from({ length: total }, (_, position) => order.offsetAt(position)));
  assert.equal(offsets.size, total);
  for (const tensor of order.tensors) {
    const inFile = tensors.find(({ name }) => name === tensor.name);
    assert.equal(order.offsetAt(tensor.begin), inFile?.begin, tensor.name);
  }
  // One cell per byte: the values go where their bytes go.
  const values = Float32Array.from({ length: total }, (_, offset) => offset);
  order.arranged(values, 1).forEach((value, position) => assert.equal(value, order.offsetAt(position)));
  assert.equal(fileOrder(tensors).arranged(values, 1), values);
});

test('a dense model, of which all is read alike, is not of one colour', () => {
  const colours = {
    panel: '#171b24',
    component: (name: string | null) => ({ ffn: '#e69f00', attention: '#3b9dd8' })[name ?? ''] ?? '#d992ba',
  };
  const values = new Float32Array(total).fill(404);
  const options = { max: 404, scale: 'linear' as const };
  const pixels = componentPixels({ values, cellBytes: 1, first: 0, tensors }, options, colours);
  assert.equal(new Set(pixels.subarray(100)).size, 3);
  // A part of the cells has the colours that it has as a part of all.
  const part = componentPixels({ values: values.subarray(1300), cellBytes: 1, first: 1300, tensors }, options, colours);
  assert.deepEqual(part, pixels.subarray(1300));
  // What nobody read differs from what was read.
  values.fill(0, 1200);
  const unread = componentPixels({ values, cellBytes: 1, first: 0, tensors }, options, colours);
  assert.ok(unread.subarray(1200).every((pixel, at) => pixel !== pixels[1200 + at]));
});

test('beside the map attention is named, not only what is largest', () => {
  const sight = (px: number) => ({ py: (position: number) => 30 + (position / total) * px, top: 30, bottom: 30 + px });
  // 13 pixels per layer: all on one line.
  const labels = gutterLabels(tensors, sight((13 * total) / 97));
  const of = (layer: number) => labels.find((label) => label.layer === layer)?.parts.map(({ name }) => name);
  assert.deepEqual(of(0), ['ffn', 'attention']);
  assert.deepEqual(of(11), ['ffn', 'attention']);
  assert.deepEqual(labels[0]?.parts, [{ name: 'token_embd.weight', component: 'embedding' }]);
  // Tall ones: tensors by name, and attention still.
  const tall = gutterLabels(tensors, sight((120 * total) / 97));
  const names = tall.flatMap(({ parts }) => parts.map(({ name }) => name));
  assert.ok(names.includes('ffn_gate.weight') && names.some((name) => name.startsWith('attention')), names.join());
});

test('layers lower than a line are named now and then, without touching', () => {
  const px = (7 * total) / 97;
  const labels = gutterLabels(tensors, { py: (at) => (at / total) * px, top: 0, bottom: px });
  const layers = labels.filter(({ layer }) => typeof layer === 'number');
  assert.ok(layers.length >= 4 && layers.length < 12, `${layers.length} of 12`);
  labels.slice(1).forEach((label, at) => assert.ok(label.y - (labels[at]?.y ?? 0) >= 13));
});
